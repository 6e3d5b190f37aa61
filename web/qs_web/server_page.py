"""The pages of the queue server and of the bus themselves: their figures, and who is connected."""

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from starlette.responses import Response

from qs_client import AsyncQueueClient, Figure, ServerUnavailable, Unauthorized

from . import amounts
from .figure_table import Distribution, FigureTable
from .problem import ProblemError
from .visit import LIVE, Visit

_GIB = 1 << 30
_STARTED, _SUBSCRIPTIONS = "connection_start_time_seconds", "connection_subscriptions"


class Fact(NamedTuple):
    """A line about a server. kind: `bad` if somebody has to look after it, else ""."""

    name: str
    text: str
    kind: str = ""


class Errors(NamedTuple):
    """The requests of one operation. answered, refused: how many; took: how long, None if that is not known."""

    operation: str
    answered: float
    refused: float
    took: Distribution | None


class Connected(NamedTuple):
    """A client that is connected. peer: its address; principal: empty for none; since: seconds since 1970."""

    peer: str
    principal: str
    since: float
    subscriptions: float

    @property
    def span(self) -> str:
        """How long the client has been connected."""
        return amounts.span(max(time.time() - self.since, 0))


async def show_server(visit: Visit) -> Response:
    """Answers with the page of the queue server. ServerError: Forbidden for a visitor who may not monitor it."""
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
        text = f"the bus does not accept your token, which the queue server does: {error.text}"
        raise ProblemError(403, text) from error
    return visit.page(
        "bus",
        live=LIVE,
        title="Bus",
        tiles=_bus_tiles(table),
        groups=[("Process", _process(table)), ("Deliveries", _deliveries(table)), ("Traffic", _traffic(table))],
        operations=_operations(table),
        codes=_codes(table),
        connections=connections,
        figures=table.all,
    )


def _read(figures: Iterable[Figure]) -> tuple[FigureTable, list[Connected]]:
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
    return FigureTable(own), [Connected(*key, since, subscriptions.get(key, 0)) for key, since in started.items()]


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
        Fact("Sync, p99", amounts.seconds(None if sync is None else sync.most)),
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
        Fact("Sync, p50", amounts.seconds(sync.half)),
        Fact("Sync, p99", amounts.seconds(sync.most)),
        Fact("Cache", amounts.size(table.value("cache_bytes"))),
    ]


def _traffic(table: FigureTable) -> list[Fact]:
    failures = table.by("auth_failures_total", "reason")
    return [
        Fact("Connections since start", amounts.count(table.value("connections_opened_total"))),
        Fact("Received", amounts.size(table.value("bytes_received_total"))),
        Fact("Sent", amounts.size(table.value("bytes_sent_total"))),
        *(Fact(f"Refused: {reason}", amounts.count(count)) for reason, count in failures.items() if count),
    ]


def _deliveries(table: FigureTable) -> list[Fact]:
    ended = table.by("disconnected_total", "reason")
    return [
        Fact("Deliveries", amounts.count(table.value("deliveries_total"))),
        *(Fact(f"Disconnected: {reason}", amounts.count(count)) for reason, count in ended.items()),
    ]


def _operations(table: FigureTable) -> Sequence[Errors]:
    took = table.distributions("request_duration_seconds", "operation")
    answered: dict[str, float] = {}
    refused: dict[str, float] = {}
    for figure in table.all:
        if figure.name == "requests_total":
            counts = answered if figure.labels.get("code") == "200" else refused
            operation = figure.labels.get("operation", "")
            counts[operation] = counts.get(operation, 0) + figure.value
    names = sorted(answered.keys() | refused.keys(), key=lambda name: -answered.get(name, 0) - refused.get(name, 0))
    return [Errors(name, answered.get(name, 0), refused.get(name, 0), took.get(name)) for name in names]


def _codes(table: FigureTable) -> dict[str, float]:
    return {code: count for code, count in table.by("requests_total", "code").items() if code != "200"}
