"""Metrics in the formats of Prometheus, made of the figures of the server, the bus and the queues.

The tables have one line of HELP for each metric, as Prometheus shows it. docs/monitoring.md says more, and a test
compares it with the tables.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from qs_client import Figure, QueueInfo

FIGURES = {
    "build_info": "The version of qs and of Python, whether that is a PGO build, and the C libraries. Always 1.",
    "start_time_seconds": "When the program was started, in seconds since the Epoch.",
    "connections": "Connections that are open.",
    "connections_opened_total": "Connections that were accepted.",
    "requests_total": "Requests that were answered. code: 200, or that of the error.",
    "request_duration_seconds": "Time from a request to its answer, without what a receive was told to wait.",
    "bytes_received_total": "Bytes received from clients.",
    "bytes_sent_total": "Bytes sent to clients.",
    "auth_failures_total": "Requests refused with 401, 403 or 429, by reason.",
    "messages_pushed_total": "Messages stored.",
    "messages_received_total": "Messages handed out, each time counted.",
    "messages_redelivered_total": "Messages handed out that had been handed out before.",
    "messages_deleted_total": "Messages deleted by consumers.",
    "messages_released_total": "Messages given back by consumers.",
    "messages_expired_total": "Messages whose visibility window ended before they were deleted.",
    "messages_dead_lettered_total": "Messages moved to a dead-letter queue, by reason.",
    "messages_refused_total": "Requests, and files of queues' directories, that a schema refused.",
    "messages_retired_total": "Messages removed because they were older than their queue keeps them.",
    "messages_ready": "Messages that are visible now.",
    "queues": "Queues of this server.",
    "queues_paused": "Queues that are paused.",
    "queues_limited": "Queues with messages that max-in-flight, rate or group-in-flight keeps back.",
    "journal_bytes": "Bytes of the journal's segments.",
    "journal_live_bytes": "Bytes of the journal that are still needed.",
    "journal_segments": "Segments of the journal.",
    "journal_sync_seconds": "Time of a write to the journal that has to survive a power loss.",
    "journal_failed": "1 after the disk failed: everything is refused until the server is started again.",
    "journal_compacted_bytes_total": "Bytes copied to make room.",
    "cache_bytes": "Bytes of messages that are kept in memory.",
    "disk_free_bytes": "Bytes free on the disk of the queues.",
    "postgres_oldest_snapshot_seconds": "Age of the oldest transaction that keeps deleted rows in PostgreSQL.",
    "memory_resident_bytes": "Bytes of memory that the process has.",
    "open_files": "Files and sockets that the process has open.",
    "tls_certificate_expiry_time_seconds": "When the certificate ends, in seconds since the Epoch.",
    "subscriptions": "Subscriptions that are open.",
    "waiting_receives": "Receives that wait for a message.",
}
"""Help for the figures of the server, and those that the bus shares with it, by name. A figure that is not here has no
help."""

BUS = {
    "up": "1 if the bus answered this scrape.",
    "server_connected": "1 if the bus is connected to its queue server.",
    "subscribers": "Clients of the bus with a subscription.",
    "deliveries_total": "Messages sent to subscribers: one for each that a message goes to.",
    "deliveries_let_through_total": "Deliveries that conditions of subscriptions let through.",
    "deliveries_kept_back_total": "Deliveries that conditions of subscriptions kept back.",
    "condition_let_through_total": "Deliveries that a condition let through, by queue and condition.",
    "condition_kept_back_total": "Deliveries that a condition kept back, by queue and condition.",
    "unacknowledged": "Messages that were sent to subscribers and are not handled.",
    "held": "Messages that wait for subscribers which are too slow for them.",
    "disconnected_total": "Subscribers that were disconnected because they were too slow, by reason.",
}
"""Help for the figures that only the bus has. Its metrics begin with qs_bus_."""

TOTALS = {
    "up": "1 if the server answered this scrape.",
}
"""Help for the metrics that the page itself adds."""

QUEUES = {
    "queue_messages": "Messages of the queue, by state.",
    "queue_bytes": "Bytes of the queue's messages.",
    "queue_oldest_ready_timestamp_seconds": "When the oldest message was pushed, in seconds since the Epoch.",
    "queue_paused": "1 while the queue is paused.",
    "queue_limited": "1 while messages wait that max-in-flight, rate or group-in-flight of the queue keeps back.",
    "queue_subscriptions": "Subscriptions to the queue.",
    "queue_waiting_receives": "Receives that wait for a message of the queue.",
    "queue_messages_pushed_total": "Messages pushed to the queue since the server started.",
    "queue_messages_received_total": "Messages handed out, each time counted.",
    "queue_messages_deleted_total": "Messages deleted by consumers.",
    "queue_messages_expired_total": "Messages whose visibility window ended before they were deleted.",
    "queue_messages_dead_lettered_total": "Messages moved to the dead-letter queue.",
    "queue_messages_retired_total": "Messages removed because they were older than the queue keeps them.",
    "queue_messages_refused_total": "Requests, and files of the queue's directory, that the queue's schema refused.",
}
"""Help for the figures of each queue."""


_PREFIX = "qs_"
_TOTAL, _BUCKET, _SUM = "_total", "_bucket", "_sum"
_PARTS = re.compile("_(bucket|sum|count)$")
_STATES = ("ready", "in_flight", "delayed")
_Number = Callable[[QueueInfo], float | None]


class _Families:
    """Metrics in the form that the encoders of prometheus-client take."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


# -- exposition -------------------------------------------------------------------------------------------------------


def encode(metrics: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Encodes metrics: OpenMetrics if the header `accept` asks for it, else the text format 0.0.4. Returns the body and
    its content type."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the version is not a number
        encoder, content_type = choose_encoder("")
    return encoder(_Families(metrics)), content_type


def server_metrics(figures: Iterable[Figure], prefix: str = "") -> Iterator[Metric]:
    """Makes metrics of a `server-stats` answer, in the order in which their names first come. prefix: follows `qs_` in
    the names."""
    figures = list(figures)
    histograms = {each.name.removesuffix(_BUCKET) for each in figures if each.name.endswith(_BUCKET)}
    families: dict[str, list[Figure]] = {}
    for figure in figures:
        base = _PARTS.sub("", figure.name)
        # A name that merely ends like a part of a histogram, such as a count, stays a metric of its own.
        families.setdefault(base if base in histograms else figure.name, []).append(figure)
    for name, members in families.items():
        shown, text = _PREFIX + prefix + name, FIGURES.get(name) or BUS.get(name, "")
        yield (_histogram if name in histograms else _plain)(shown, text, members)


def _plain(name: str, text: str, figures: list[Figure]) -> Metric:
    labels = sorted({label for figure in figures for label in figure.labels})  # a sum without labels has empty ones
    if name.endswith(_TOTAL):
        counter = CounterMetricFamily(name.removesuffix(_TOTAL), text, labels=labels)
        for figure in figures:
            counter.add_metric([figure.labels.get(label, "") for label in labels], figure.value)
        return counter
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for figure in figures:
        gauge.add_metric([figure.labels.get(label, "") for label in labels], figure.value)
    return gauge


def _histogram(name: str, text: str, figures: list[Figure]) -> Metric:
    labels = sorted({label for figure in figures for label in figure.labels} - {"le"})
    family = HistogramMetricFamily(name, text, labels=labels)

    def key(figure: Figure) -> list[str]:
        return [figure.labels.get(label, "") for label in labels]

    for values, group in groupby(sorted(figures, key=key), key):
        members = list(group)
        bounds = [(each.labels["le"], each.value) for each in members if each.name.endswith(_BUCKET)]
        total = next((each.value for each in members if each.name.endswith(_SUM)), 0)
        family.add_metric(values, sorted(bounds, key=lambda bound: float(bound[0])), total)
    return family


def up(answers: bool) -> Metric:
    """Makes the metric that says whether the server answered."""
    return GaugeMetricFamily(f"{_PREFIX}up", TOTALS["up"], int(answers))


def bus_up(answers: bool) -> Metric:
    """Makes the metric that says whether the bus answered."""
    return GaugeMetricFamily(f"{_PREFIX}bus_up", BUS["up"], int(answers))


def queue_metrics(queues: Iterable[QueueInfo]) -> Iterator[Metric]:
    """Makes metrics of each queue. A figure that the queue's storage does not know is left out, as 0 would be wrong."""
    queues, now = list(queues), time.time()
    messages = GaugeMetricFamily(f"{_PREFIX}queue_messages", QUEUES["queue_messages"], labels=["queue", "state"])
    for queue in queues:
        for state in _STATES:
            if (number := getattr(queue, state)) is not None:
                messages.add_metric([queue.qid, state], number)
    yield messages
    gauges: dict[str, _Number] = {
        "queue_bytes": lambda queue: queue.bytes,
        # A time and not an age: Prometheus works out the age when it looks, also between two scrapes.
        "queue_oldest_ready_timestamp_seconds": lambda queue: None if queue.oldest is None else now - queue.oldest,
        "queue_paused": lambda queue: None if queue.paused is None else int(queue.paused),
        "queue_limited": lambda queue: int(queue.limited is not None),
        "queue_subscriptions": lambda queue: queue.subscribers,
        "queue_waiting_receives": lambda queue: queue.waiting,
    }
    for name, number_of in gauges.items():
        yield _add_each(GaugeMetricFamily(_PREFIX + name, QUEUES[name], labels=["queue"]), queues, number_of)
    counters = {
        "pushed": "pushed", "received": "delivered", "deleted": "deleted", "expired": "expired",
        "dead_lettered": "dead", "retired": "retired", "refused": "refused",
    }  # fmt: skip
    for shown, field in counters.items():
        name = f"queue_messages_{shown}"
        family = CounterMetricFamily(_PREFIX + name, QUEUES[name + _TOTAL], labels=["queue"])
        yield _add_each(family, queues, attrgetter(field))


def _add_each(
    family: GaugeMetricFamily | CounterMetricFamily, queues: list[QueueInfo], number_of: _Number
) -> GaugeMetricFamily | CounterMetricFamily:
    for queue in queues:
        if (number := number_of(queue)) is not None:
            family.add_metric([queue.qid], number)
    return family
