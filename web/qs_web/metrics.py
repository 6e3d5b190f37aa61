"""Metrics in the formats of Prometheus, made of the figures of the server and of its queues."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from qs_client import Figure, QueueInfo

from .metric_help import BUS, FIGURES, QUEUES, TOTALS

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


def encode(metrics: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Returns a body and its content type: OpenMetrics if `accept`, the header, asks for it, else the text format
    0.0.4."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the version is no number
        encoder, content_type = choose_encoder("")
    return encoder(_Families(metrics)), content_type


def of_figures(figures: Iterable[Figure], prefix: str = "") -> Iterator[Metric]:
    """Makes metrics of a `server-stats` answer, in the order in which their names come first. prefix: of the names,
    after qs_."""
    figures = list(figures)
    histograms = {each.name.removesuffix(_BUCKET) for each in figures if each.name.endswith(_BUCKET)}
    families: dict[str, list[Figure]] = {}
    for figure in figures:
        base = _PARTS.sub("", figure.name)
        families.setdefault(base if base in histograms else figure.name, []).append(figure)
    for name, members in families.items():
        shown, text = _PREFIX + prefix + name, FIGURES.get(name) or BUS.get(name, "")
        yield (_histogram if name in histograms else _plain)(shown, text, members)


def _plain(name: str, text: str, figures: list[Figure]) -> Metric:
    labels = sorted(figures[0].labels)
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
    """Says whether the server answered."""
    return GaugeMetricFamily(f"{_PREFIX}up", TOTALS["up"], int(answers))


def bus_up(answers: bool) -> Metric:
    """Says whether the bus answered."""
    return GaugeMetricFamily(f"{_PREFIX}bus_up", BUS["up"], int(answers))


def of_queues(queues: Iterable[QueueInfo]) -> Iterator[Metric]:
    """Makes metrics of each queue. What its storage does not know is left out."""
    queues, now = list(queues), time.time()
    messages = GaugeMetricFamily(f"{_PREFIX}queue_messages", QUEUES["queue_messages"], labels=["queue", "state"])
    for queue in queues:
        for state in _STATES:
            if (number := getattr(queue, state)) is not None:
                messages.add_metric([queue.qid, state], number)
    yield messages
    gauges: dict[str, _Number] = {
        "queue_bytes": lambda queue: queue.bytes,
        "queue_oldest_ready_timestamp_seconds": lambda queue: None if queue.oldest is None else now - queue.oldest,
        "queue_paused": lambda queue: None if queue.paused is None else int(queue.paused),
        "queue_subscriptions": lambda queue: queue.subscribers,
        "queue_waiting_receives": lambda queue: queue.waiting,
    }
    for name, number_of in gauges.items():
        yield _of_each(GaugeMetricFamily(_PREFIX + name, QUEUES[name], labels=["queue"]), queues, number_of)
    counters = {
        "pushed": "pushed", "received": "delivered", "deleted": "deleted", "expired": "expired",
        "dead_lettered": "dead", "retired": "retired",
    }  # fmt: skip
    for shown, field in counters.items():
        name = f"queue_messages_{shown}"
        family = CounterMetricFamily(_PREFIX + name, QUEUES[name + _TOTAL], labels=["queue"])
        yield _of_each(family, queues, attrgetter(field))


def _of_each(
    family: GaugeMetricFamily | CounterMetricFamily, queues: list[QueueInfo], number_of: _Number
) -> GaugeMetricFamily | CounterMetricFamily:
    for queue in queues:
        if (number := number_of(queue)) is not None:
            family.add_metric([queue.qid], number)
    return family
