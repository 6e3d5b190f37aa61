"""The pages of the queue server and of the bus themselves: their figures, and who is connected.

Both answer `server-stats` with the same kind of figures. A figure that an older or newer server does not have is shown
as a dash.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from starlette.responses import Response

from qs_client import AsyncQueueClient, Figure, ServerUnavailable, Unauthorized

from . import amounts
from .visit import LIVE, ProblemError, Visit

_Bounds = dict[float, float]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A summary of a histogram of durations in seconds, None where nothing was counted."""

    count: float
    mean: float | None
    median: float | None
    p99: float | None


class FigureTable:
    """The figures of one `server-stats` answer, by name. `all` has them in the order of the answer."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self.all = list(figures)
        self._by_name: dict[str, list[Figure]] = {}
        for figure in self.all:
            self._by_name.setdefault(figure.name, []).append(figure)

    def named(self, name: str) -> Sequence[Figure]:
        """Returns the figures of a name, none for an unknown one."""
        return self._by_name.get(name, ())

    def value(self, name: str) -> float | None:
        """Returns the sum of a figure over all its labels, None for an unknown name."""
        found = self._by_name.get(name)
        return None if found is None else sum(figure.value for figure in found)

    def label(self, name: str, label: str) -> str | None:
        """Returns a label of a figure, None for a figure without this label."""
        found = self._by_name.get(name)
        return found[0].labels.get(label) if found else None

    def sums_by(self, name: str, label: str) -> dict[str, float]:
        """Returns the sums of a figure for each value of a label, sorted by it."""
        sums: dict[str, float] = {}
        for figure in self._by_name.get(name, ()):
            key = figure.labels.get(label, "")
            sums[key] = sums.get(key, 0) + figure.value
        return dict(sorted(sums.items()))

    def distributions(self, name: str, label: str) -> dict[str, Distribution]:
        """Returns the summary of a histogram for each value of a label, those that happened most often first."""
        bounds: dict[str, _Bounds] = {}
        for figure in self._by_name.get(f"{name}_bucket", ()):
            of_key = bounds.setdefault(figure.labels.get(label, ""), {})
            limit = float(figure.labels.get("le", "inf"))
            of_key[limit] = of_key.get(limit, 0) + figure.value
        sums, counts = self.sums_by(f"{name}_sum", label), self.sums_by(f"{name}_count", label)
        found = {key: _distribution(bounds.get(key, {}), counts[key], sums.get(key, 0.0)) for key in counts}
        return dict(sorted(found.items(), key=lambda item: -item[1].count))

    def distribution(self, name: str) -> Distribution | None:
        """Returns the summary of a histogram without labels, None for an unknown name."""
        return self.distributions(name, "").get("")


def _distribution(bounds: _Bounds, count: float, total: float) -> Distribution:
    if not count:
        return Distribution(0, None, None, None)
    return Distribution(count, total / count, _quantile(bounds, count, 0.5), _quantile(bounds, count, 0.99))


def _quantile(bounds: _Bounds, count: float, share: float) -> float | None:
    """Returns the value that a share of the durations does not exceed, None without durations."""
    # Durations are taken as evenly spread between two bounds, as `histogram_quantile` of Prometheus does. Above the
    # last bound nothing is known, so the answer is that bound.
    wanted = count * share
    below, under = 0.0, 0.0
    for bound, reached in sorted(bounds.items()):
        if reached >= wanted:
            if bound == float("inf"):
                return below or None
            return below + (bound - below) * (wanted - under) / (reached - under) if reached > under else bound
        below, under = bound, reached
    return below or None


_GIB = 1 << 30
_LET_THROUGH, _KEPT_BACK = "condition_let_through_total", "condition_kept_back_total"
_STARTED, _SUBSCRIPTIONS = "connection_start_time_seconds", "connection_subscriptions"


class Fact(NamedTuple):
    """A line about a server. kind: `bad` if an operator has to act on it, else ""."""

    name: str
    text: str
    kind: str = ""


class OperationCounts(NamedTuple):
    """The requests of one operation since the start. took: their durations, None if these are not known."""

    operation: str
    answered: float
    refused: float
    took: Distribution | None


class ConditionCounts(NamedTuple):
    """The deliveries that a condition of subscriptions to a queue let through and kept back, since somebody has had it:
    one for each subscriber and each durable name that has it."""

    queue: str
    where: str
    let_through: float
    kept_back: float


class ConnectedClient(NamedTuple):
    """A client that is connected. peer: its address; principal: empty for none; since: seconds since the Epoch."""

    peer: str
    principal: str
    since: float
    subscriptions: float

    @property
    def span(self) -> str:
        """The time for which the client has been connected, as text."""
        return amounts.span(max(time.time() - self.since, 0))


async def show_server(visit: Visit) -> Response:
    """Answers with the page of the queue server. Raises Forbidden for a visitor who may not monitor it."""
    table, connections = _read(await visit.client.server_stats(connections=True))
    return visit.page(
        "server",
        live=LIVE,
        title="Server",
        tiles=_tiles(table),
        groups=[("Process", _process(table)), ("Journal", _journal(table)), ("Traffic", _traffic(table))],
        operations=_operations(table),
        codes=_codes(table),
        connections=connections,
        figures=table.all,
    )


async def show_bus(visit: Visit) -> Response:
    """Answers with the page of the bus."""
    bus: AsyncQueueClient | None = visit.upstream.bus
    if bus is None:
        raise ProblemError(404, "this page shows no bus: start queue-web.py with --bus HOST:PORT")
    try:
        table, connections = _read(await bus.server_stats(connections=True))
    except ServerUnavailable as error:
        raise ServerUnavailable(f"the bus: {error}") from error
    except Unauthorized as error:
        if visit.session is None:
            raise
        # The queue server knows this token. As Unauthorized it would end the session (see `answer`).
        text = f"the bus does not accept your token, which the queue server does: {error.text}"
        raise ProblemError(403, text) from error
    return visit.page(
        "bus",
        live=LIVE,
        title="Bus",
        tiles=_bus_tiles(table),
        groups=[("Process", _process(table)), ("Deliveries", _deliveries(table)), ("Traffic", _traffic(table))],
        conditions=_conditions(table),
        operations=_operations(table),
        codes=_codes(table),
        connections=connections,
        figures=table.all,
    )


def _read(figures: Iterable[Figure]) -> tuple[FigureTable, list[ConnectedClient]]:
    """Returns the figures of the server itself, and its clients in the order in which it names them."""
    own: list[Figure] = []
    started: dict[tuple[str, str], float] = {}
    subscriptions: dict[tuple[str, str], float] = {}
    found = {_STARTED: started, _SUBSCRIPTIONS: subscriptions}
    for figure in figures:
        if figure.name in found:
            found[figure.name][figure.labels.get("peer", ""), figure.labels.get("principal", "")] = figure.value
        else:
            own.append(figure)
    return FigureTable(own), [ConnectedClient(*key, since, subscriptions.get(key, 0)) for key, since in started.items()]


def _age(table: FigureTable) -> str:
    started = table.value("start_time_seconds")
    return amounts.span(None if started is None else max(time.time() - started, 0))


def _tiles(table: FigureTable) -> list[Fact]:
    free = table.value("disk_free_bytes")
    sync = table.distribution("journal_sync_seconds")
    tiles = [
        Fact("Up for", _age(table)),
        Fact("Connections", amounts.count(table.value("connections"))),
        Fact("Subscriptions", amounts.count(table.value("subscriptions"))),
        Fact("Waiting receives", amounts.count(table.value("waiting_receives"))),
        Fact("Disk free", amounts.size(free), "bad" if free is not None and free < _GIB else ""),
        Fact("Sync, p99", amounts.seconds(None if sync is None else sync.p99)),
    ]
    if table.value("journal_failed"):
        tiles.append(Fact("Journal", "failed", "bad"))
    return tiles


def _bus_tiles(table: FigureTable) -> list[Fact]:
    connected = {None: amounts.NONE, 0.0: "lost"}.get(table.value("server_connected"), "connected")
    return [
        Fact("Up for", _age(table)),
        Fact("Queue server", connected, "bad" if connected == "lost" else ""),
        Fact("Subscribers", amounts.count(table.value("subscribers"))),
        Fact("Subscriptions", amounts.count(table.value("subscriptions"))),
        Fact("Unacknowledged", amounts.count(table.value("unacknowledged"))),
        Fact("Held", amounts.count(table.value("held"))),
    ]


def _process(table: FigureTable) -> list[Fact]:
    expiry = table.value("tls_certificate_expiry_time_seconds")
    facts = [
        Fact("Version", table.label("build_info", "version") or amounts.NONE),
        Fact("Python", table.label("build_info", "python") or amounts.NONE),
        Fact("PGO build", table.label("build_info", "pgo") or amounts.NONE),
        Fact("Started", amounts.moment(_micros(table.value("start_time_seconds")))),
        Fact("Memory", amounts.size(table.value("memory_resident_bytes"))),
        Fact("Open files", amounts.count(table.value("open_files"))),
    ]
    if expiry is not None:
        soon = expiry - time.time() < 14 * 86_400
        facts.append(Fact("Certificate until", amounts.moment(_micros(expiry)), "bad" if soon else ""))
    return facts


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1e6)


def _journal(table: FigureTable) -> list[Fact]:
    if table.value("journal_bytes") is None:
        return []
    sync = table.distribution("journal_sync_seconds") or Distribution(0, None, None, None)
    return [
        Fact("Size", amounts.size(table.value("journal_bytes"))),
        Fact("Live", amounts.size(table.value("journal_live_bytes"))),
        Fact("Segments", amounts.count(table.value("journal_segments"))),
        Fact("Compacted", amounts.size(table.value("journal_compacted_bytes_total"))),
        Fact("Syncs", amounts.count(sync.count)),
        Fact("Sync, p50", amounts.seconds(sync.median)),
        Fact("Sync, p99", amounts.seconds(sync.p99)),
        Fact("Cache", amounts.size(table.value("cache_bytes"))),
    ]


def _traffic(table: FigureTable) -> list[Fact]:
    failures = table.sums_by("auth_failures_total", "reason")
    return [
        Fact("Connections since start", amounts.count(table.value("connections_opened_total"))),
        Fact("Received", amounts.size(table.value("bytes_received_total"))),
        Fact("Sent", amounts.size(table.value("bytes_sent_total"))),
        *(Fact(f"Refused: {reason}", amounts.count(count)) for reason, count in failures.items() if count),
    ]


def _deliveries(table: FigureTable) -> list[Fact]:
    ended = table.sums_by("disconnected_total", "reason")
    return [
        Fact("Deliveries", amounts.count(table.value("deliveries_total"))),
        Fact("Let through by conditions", amounts.count(table.value("deliveries_let_through_total"))),
        Fact("Kept back by conditions", amounts.count(table.value("deliveries_kept_back_total"))),
        *(Fact(f"Disconnected: {reason}", amounts.count(count)) for reason, count in ended.items()),
    ]


def _conditions(table: FigureTable) -> list[ConditionCounts]:
    let_through, kept_back = (
        {(each.labels["queue"], each.labels["where"]): each.value for each in table.named(name)}
        for name in (_LET_THROUGH, _KEPT_BACK)
    )
    keys = sorted(let_through.keys() | kept_back.keys())
    return [ConditionCounts(*key, let_through.get(key, 0), kept_back.get(key, 0)) for key in keys]


def _operations(table: FigureTable) -> Sequence[OperationCounts]:
    took = table.distributions("request_duration_seconds", "operation")
    answered: dict[str, float] = {}
    refused: dict[str, float] = {}
    for figure in table.all:
        if figure.name == "requests_total":
            counts = answered if figure.labels.get("code") == "200" else refused
            operation = figure.labels.get("operation", "")
            counts[operation] = counts.get(operation, 0) + figure.value
    # The operations that are used most come first. Refused ones count too: they may be all that there is.
    names = sorted(answered.keys() | refused.keys(), key=lambda name: -answered.get(name, 0) - refused.get(name, 0))
    return [OperationCounts(name, answered.get(name, 0), refused.get(name, 0), took.get(name)) for name in names]


def _codes(table: FigureTable) -> dict[str, float]:
    return {code: count for code, count in table.sums_by("requests_total", "code").items() if code != "200"}
