"""Tests what a report says of a bus's conditions: the answer of the bus, its table and its section of the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.clients.scripted_server import answering, scripted

from qs_client import Error, Figure, ServerStats
from qs_pipeline.errors import NoServerError, PipelineError, UsageError
from qs_pipeline.report.conditions import Conditions, ask_bus, write_conditions
from qs_pipeline.report.contents import conditions_of
from qs_pipeline.report.folder import rows
from qs_pipeline.security import QueueServer
from qs_schemas import Message

STARTED = datetime(2025, 11, 21, 10, tzinfo=UTC)
THROUGH, BACK = "condition_let_through_total", "condition_kept_back_total"
OF_A_BUS = [Figure("start_time_seconds", STARTED.timestamp(), {}), Figure("deliveries_total", 9, {})]


@contextmanager
def bus(answer: Message) -> Iterator[QueueServer]:
    with scripted(answering(answer)) as server:
        yield QueueServer(server.host, server.port)


def labels(queue: str, where: str) -> dict[str, str]:
    return {"queue": queue, "where": where}


def row(queue: str, where: str, let_through: int, kept_back: int) -> dict[str, object]:
    return {"queue": queue, "condition": where, "let_through": let_through, "kept_back": kept_back}


def test_answer_of_a_bus(tmp_path: Path) -> None:
    """A row for each queue and condition, sorted; a figure that is not there is 0. The table has the same rows, and so
    has the page, those first that saw most messages."""
    figures = [
        *OF_A_BUS,
        Figure("deliveries_let_through_total", 1017, {}),
        Figure("deliveries_kept_back_total", 16, {}),
        Figure(THROUGH, 3, labels("orders", "/a")),
        Figure(THROUGH, 5, labels("invoices", "/b > 1")),
        Figure(BACK, 4, labels("orders", "/a")),
        Figure(BACK, 2, labels("invoices", "<b>")),
    ]
    with bus(ServerStats(figures)) as asked:
        found = ask_bus(asked)
    expected = [row("invoices", "/b > 1", 5, 0), row("invoices", "<b>", 0, 2), row("orders", "/a", 3, 4)]
    assert found == Conditions(asked.endpoint, STARTED, 1017, 16, expected)
    assert list(rows(write_conditions(found, tmp_path))) == expected
    first = (tmp_path / "conditions.csv").read_text(encoding="utf-8").splitlines()[:2]
    assert first == ["queue,condition,let_through,kept_back", "invoices,/b > 1,5,0"]
    [section] = conditions_of(found)
    assert "has counted 1,017 and 16 since its start, 2025-11-21 10:00:00 UTC" in section.says
    assert section.table is not None
    assert section.table.cells[0] == ["orders", "/a", "3", "4", "43 %"]
    assert section.table.cells[2] == ["invoices", "<b>", "0", "2", "0 %"]


def test_bus_without_conditions(tmp_path: Path) -> None:
    """The section says that there is none; a report that asks no bus has no such section."""
    with bus(ServerStats(OF_A_BUS)) as asked:
        [section] = conditions_of(ask_bus(asked))
    assert (section.table, section.empty) == (None, "No subscription has a condition now.")
    assert conditions_of(None) == []


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (ServerStats([Figure("messages_pushed_total", 1, {})]), UsageError, "is a queue server: --bus names the bus"),
        (Error(403, "forbidden", "not yours"), PipelineError, "refused its figures: 403 .*right to monitor"),
        (Error(503, "shutting-down", "stopping"), NoServerError, "the bus: 503"),
    ],
)
def test_bus_that_tells_nothing(answer: Message, kind: type[PipelineError], said: str) -> None:
    """A queue server in its place, a refusal and a bus that stops are errors of one line."""
    with bus(answer) as asked, pytest.raises(kind, match=said) as raised:
        ask_bus(asked)
    assert type(raised.value) is kind


def test_no_bus() -> None:
    """Without a bus there is no report, and the exit code is that of a missing server."""
    with pytest.raises(NoServerError, match=r"^the bus: .*127\.0\.0\.1:9\b"):
        ask_bus(QueueServer("127.0.0.1", 9))
