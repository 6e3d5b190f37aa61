"""The deliveries that conditions of a bus's subscriptions have let through and kept back, for a report.

The history does not know it: it is a record of the queue server, and a message that a condition keeps back is handled
there like any other. So the bus itself is asked. It counts since its start, without times, and tells of a condition for
as long as somebody has it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from qs_client import Figure, Forbidden, ServerError, ServerUnavailable

from ..errors import NoServerError, PipelineError, UsageError
from ..security import QueueServer
from .folder import Row, TableWriter, write_csv
from .series import EPOCH

SCHEMA = pa.schema(
    [("queue", pa.string()), ("condition", pa.string()), ("let_through", pa.int64()), ("kept_back", pa.int64())]
)
_SUMS = ("deliveries_let_through_total", "deliveries_kept_back_total")
_COUNTED = {"condition_let_through_total": "let_through", "condition_kept_back_total": "kept_back"}
"""The figures of a condition, and the columns that have them."""
_OF_A_BUS = "deliveries_total"
"""A figure that every bus has, and no queue server."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The answer of a bus. bus: its address; since: when it was started; let_through, kept_back: deliveries since then;
    rows: a row of `SCHEMA` for each queue and condition that a subscriber or a durable name has now, sorted by both."""

    bus: str
    since: datetime
    let_through: int
    kept_back: int
    rows: list[Row]


def ask_bus(bus: QueueServer) -> Conditions:
    """Asks a bus for the counts of its conditions. Raises NoServerError if it does not answer, UsageError if it is a
    queue server, PipelineError if it refuses, as without the right to monitor."""
    try:
        with bus.client() as client:
            figures = client.server_stats()
    except ServerUnavailable as error:
        raise NoServerError(f"the bus: {error}") from error
    except ServerError as error:
        hint = ": the token needs the right to monitor" if isinstance(error, Forbidden) else ""
        raise PipelineError(f"the bus at {bus.endpoint} refused its figures: {error}{hint}") from error
    if all(figure.name != _OF_A_BUS for figure in figures):
        raise UsageError(f"{bus.endpoint} is a queue server: --bus names the bus, which has a port of its own")
    found = {figure.name: figure.value for figure in figures if not figure.labels}
    since = EPOCH + timedelta(seconds=float(found.get("start_time_seconds", 0)))
    let_through, kept_back = (int(found.get(name, 0)) for name in _SUMS)
    return Conditions(bus.endpoint, since, let_through, kept_back, _counted(figures))


def _counted(figures: list[Figure]) -> list[Row]:
    found: dict[tuple[str, str], Row] = {}
    for figure in figures:
        if figure.name in _COUNTED:
            queue, where = figure.labels["queue"], figure.labels["where"]
            row = {"queue": queue, "condition": where, "let_through": 0, "kept_back": 0}
            found.setdefault((queue, where), row)[_COUNTED[figure.name]] = int(figure.value)
    return [found[key] for key in sorted(found)]


def write_conditions(conditions: Conditions, work: Path) -> Path:
    """Writes the table `conditions` to the folder of a report, as Parquet and as CSV. Returns its path."""
    path = work / "conditions.parquet"
    with TableWriter(path, SCHEMA) as writer:
        writer.write(conditions.rows)
    write_csv(path)
    return path
