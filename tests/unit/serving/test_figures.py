"""Histograms, and the counts of requests."""

import pytest

from qs_schemas import Error, Fault, Ping, PushMessage, errors
from qs_serving.figures import BOUNDS, Histogram, RequestCounts, process_figures


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0, 0), (0.0001, 0), (0.000101, 1), (0.3, 11), (10, 15), (10.5, 16), (1e6, 16)]
)
def test_observe_counts_in_the_bucket_of_the_duration(seconds: float, bucket: int) -> None:
    """A duration counts in the first bucket whose bound is not less; the last bucket has no bound."""
    histogram = Histogram()
    histogram.observe(seconds)
    assert histogram.counts.index(1) == bucket
    assert (histogram.total, histogram.sum) == (1, seconds)


def test_figures_have_cumulative_buckets() -> None:
    """Each bucket counts what the ones before it count, and the last everything, as Prometheus wants."""
    histogram = Histogram()
    for seconds in (0.0002, 0.0002, 0.3, 99):
        histogram.observe(seconds)
    *buckets, total, count = histogram.figures("x_seconds", operation="ping")
    assert [figure.labels["le"] for figure in buckets] == [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    assert [figure.value for figure in buckets] == [0, *[2] * 10, *[3] * 5, 4]
    assert all(figure.labels["operation"] == "ping" for figure in buckets)
    assert (total.name, total.value, total.labels) == ("x_seconds_sum", pytest.approx(99.3004), {"operation": "ping"})
    assert (count.name, count.value) == ("x_seconds_count", 4)


def test_bounds_of_buckets_are_in_order() -> None:
    """The bounds increase, and are written without an exponent."""
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert "e" not in "".join(f"{bound:g}" for bound in BOUNDS)


def test_answered_counts_requests_of_one_call() -> None:
    """Each request counts by its operation and the code of its answer; bytes that are not a request have no
    duration."""
    counts = RequestCounts()
    fault = Fault(errors.BAD_REQUEST, "no")
    asked = [Ping(), PushMessage("q", b"x"), PushMessage("q", b"x"), fault, Error()]
    answers = [Ping(), PushMessage("q", mid=1), Error(404, "not-found", "no"), fault.message(), Error(400)]
    counts.answered(asked, answers, 0.02)
    counts.refused("none", 429)
    figures = counts.figures()
    requests = {(*figure.labels.values(),): figure.value for figure in figures if figure.name == "requests_total"}
    assert requests == {
        ("none", "400"): 2, ("none", "429"): 1, ("ping", "200"): 1,
        ("push-message", "200"): 1, ("push-message", "404"): 1,
    }  # fmt: skip
    durations = {figure.labels["operation"]: figure.value for figure in figures if figure.name.endswith("_count")}
    assert durations == {"ping": 1, "push-message": 2}
    assert (counts.errors(404), counts.errors(404, but="push-message"), counts.errors(400)) == (1, 0, 2)


def test_figures_of_an_operation_that_only_fails() -> None:
    """An operation that only fails has no figure for 200."""
    counts = RequestCounts()
    counts.answered([PushMessage("q", b"x")], [Error(404)], 0.02)
    assert [figure.labels for figure in counts.figures() if figure.name == "requests_total"] == [
        {"operation": "push-message", "code": "404"}
    ]


def test_process_figures_of_this_process() -> None:
    """The figures of the process change with what /proc says of it."""
    values = {figure.name: figure.value for figure in process_figures(5.5)}
    assert values["start_time_seconds"] == 5.5
    assert values["memory_resident_bytes"] > 1_000_000
    with open("/dev/null"):
        assert {each.name: each.value for each in process_figures(0)}["open_files"] == values["open_files"] + 1
