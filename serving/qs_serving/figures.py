"""Collects the figures that the server and the bus share: about requests, and about the process.

Requests are counted where they are answered, so counting has to cost next to nothing: 0.5 us for one request, and 0.1
us for each of many that are answered together. Everything else is worked out when somebody asks.
"""

import os
import platform
import ssl
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from qs_schemas import Error, Fault, Figure, Message
from qs_schemas.command_line import installed_version
from qs_schemas.interpreter import pgo_build
from qs_schemas.parsing import LIBXML  # imported here also to load the XML library before the first client


def build() -> dict[str, str]:
    """Returns the labels of the figure `build_info`. `pgo` says whether the interpreter is a PGO build. `compiled`
    names the C libraries that read what clients send: a hole in one of these concerns every server that uses it."""
    compiled = f"libxml2 {LIBXML}, {' '.join(ssl.OPENSSL_VERSION.split()[:2])}"
    python = {"python": platform.python_version(), "pgo": pgo_build()}
    return {"version": installed_version(), **python, "compiled": compiled}


BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""The upper bounds of every histogram's buckets, in seconds. One more bucket counts longer durations."""
OK = 200
"""The `code` of a request that was answered without an error."""
NO_OPERATION = "none"
"""The label `operation` of an error that answers no operation: a document that cannot be read, a refused client."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Histogram:
    """Counts durations by their length. Buckets become cumulative only in `figures`, so that each duration adds to one
    number."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        """The number of durations in each bucket, without those in the buckets before it."""
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    @property
    def total(self) -> int:
        """The number of durations that were counted."""
        return sum(self.counts)

    def figures(self, name: str, **labels: str) -> list[Figure]:
        """Returns the figures of a histogram in the form of Prometheus. name: the figure's name without `_bucket`,
        `_sum` or `_count`."""
        bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        counts = [*accumulate(self.counts)]
        found = [
            Figure(f"{name}_bucket", count, {**labels, "le": bound})
            for bound, count in zip(bounds, counts, strict=True)
        ]
        return [*found, Figure(f"{name}_sum", self.sum, dict(labels)), Figure(f"{name}_count", counts[-1], labels)]


class RequestCounts:
    """Counts requests and their durations, by operation.

    The loop counts, and another thread may ask for the figures meanwhile. So dictionaries are copied in one step before
    they are iterated over, and a figure may be some requests old.
    """

    def __init__(self) -> None:
        self._durations: dict[type, Histogram] = {}
        self._errors: dict[tuple[str, int], int] = {}

    def answered(self, requests: Sequence[Message | Fault], answers: Sequence[Message], seconds: float) -> None:
        """Counts requests that were answered together, each with this duration in seconds."""
        self.count(requests, seconds)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Error):
                self.refused(operation_of(request), answer.code)

    def count(self, requests: Sequence[Message | Fault], seconds: float) -> None:
        """Counts requests that were answered together, each with this duration in seconds, but not their errors."""
        # In lines, and not with `Histogram.observe`: this runs for each request.
        bucket = bisect_left(BOUNDS, seconds)
        durations = self._durations
        kinds = {type(requests[0]): 1} if len(requests) == 1 else Counter(map(type, requests))  # mostly there is one
        for kind, count in kinds.items():
            histogram = durations.get(kind)
            if histogram is None:
                histogram = durations[kind] = Histogram()
            histogram.counts[bucket] += count
            histogram.sum += count * seconds

    def refused(self, operation: str, code: int) -> None:
        """Counts a request that was refused with an error."""
        self._errors[operation, code] = self._errors.get((operation, code), 0) + 1

    def errors(self, code: int, *, but: str = "") -> int:
        """Returns the number of requests that were answered with an error of this code. but: an operation that is left
        out."""
        return sum(count for (op, each), count in list(self._errors.items()) if each == code and op != but)

    def figures(self) -> list[Figure]:
        """Returns the counts of requests and their durations by operation, sorted by the operations' names."""
        errors = dict(self._errors)
        known = {op: histogram for kind, histogram in list(self._durations.items()) if (op := _op_of(kind))}
        failed = dict.fromkeys(known, 0)
        for (operation, _), count in errors.items():
            failed[operation] = failed.get(operation, 0) + count
        counts = {(op, OK): histogram.total - failed[op] for op, histogram in known.items()}
        counts = {key: count for key, count in counts.items() if count}
        found = [
            Figure("requests_total", count, {"operation": operation, "code": str(code)})
            for (operation, code), count in sorted({**counts, **errors}.items())
        ]
        for operation, histogram in sorted(known.items()):
            found += histogram.figures("request_duration_seconds", operation=operation)
        return found


def operation_of(request: Message | Fault) -> str:
    """Returns the label `operation` of a request, `NO_OPERATION` for a document that could not be read."""
    return _op_of(type(request)) or NO_OPERATION


def _op_of(kind: Any) -> str:
    """Returns the operation of a class of messages, "" if the class has none."""
    return getattr(kind, "op", "")


def process_figures(started: float) -> list[Figure]:
    """Returns the figures of this process. started: the time of its start, in seconds since the Epoch."""
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * _PAGE
    return [
        Figure("build_info", 1, build()),
        Figure("start_time_seconds", started),
        Figure("memory_resident_bytes", resident),
        Figure("open_files", len(os.listdir("/proc/self/fd")) - 1),  # one of them lists the others
    ]
