"""The last minutes of a queue: samples, rates, and the points that charts are drawn of."""

from qs_client import QueueInfo
from qs_web.drawing import draw
from qs_web.history import BUCKETS, WINDOW, History, Point, Rates, counters_of


def test_rates_are_those_of_ten_seconds() -> None:
    """The rate is that of the last 10 s or so, and not known from one sample."""
    history = History()
    history.observe(1000, "q", (0, 0, 0))
    assert history.rates("q") == Rates(None, None)
    for second in range(1, 101):
        history.observe(1000 + second, "q", (second * 7, second * 3, second * 4))
        rates = history.rates("q")
        assert rates.rate_in is not None
        assert abs(rates.rate_in - 7) < 1e-9
        assert abs(float(rates.rate_out or 0) - 3) < 1e-9
    assert history.rates("other") == Rates(None, None)


def test_rates_of_an_idle_queue_are_zero() -> None:
    """A queue in which nothing happens any more has rate 0 after a few seconds."""
    history = History()
    for second in range(20):
        history.observe(second, "q", (second, 0, second))
    for second in range(20, 60, 2):
        history.observe(second, "q", (19, 0, 19))
    assert history.rates("q") == Rates(0, 0)


def test_points_are_60_and_none_before_the_first_sample() -> None:
    """The window has 60 parts. What was before the first sample is not known; a change shows in its part."""
    history = History()
    for second in range(0, 301, 2):
        history.observe(10_000 + second, "q", (0 if second < 200 else 50, 0, 5))
    points = history.points("q", 10_300)
    assert len(points) == BUCKETS
    assert points[:29] == [Point(None, None, None)] * 29
    assert points[29] == Point(None, None, 5)
    busy = [number for number, point in enumerate(points) if point.rate_in]
    assert 49 in busy
    assert set(busy) <= {49, 50}
    assert abs(sum(point.rate_in or 0 for point in points) * WINDOW / BUCKETS - 50) < 1e-6


def test_points_of_a_gap_are_its_average() -> None:
    """While nobody looked, the counters are taken as having grown evenly."""
    history = History()
    history.observe(0, "q", (0, 0, 0))
    history.observe(400, "q", (400, 200, 200))
    points = history.points("q", 400)
    known = [point for point in points if point.rate_in is not None]
    assert len(known) == 40
    assert all(abs((point.rate_in or 0) - 1) < 1e-9 and abs((point.rate_out or 0) - 0.5) < 1e-9 for point in known)


def test_rates_after_a_restart_are_not_negative() -> None:
    """Counters that begin at 0 again make no negative rate."""
    history = History()
    for second in range(0, 60, 5):
        history.observe(second, "q", (1000 + second, 0, 0))
    history.observe(60, "q", (3, 0, 3))
    assert history.rates("q") == Rates(None, None)
    history.observe(70, "q", (13, 0, 13))
    assert history.rates("q") == Rates(1, 0)


def test_observe_keeps_the_window_only() -> None:
    """Samples are kept for the window, at least 4 s apart; queues that nobody has asked for are dropped."""
    history = History()
    for second in range(5000):
        history.observe(second, "busy", (second, second, 0))
    assert len(history._samples["busy"]) <= 4 * 160
    for second in range(5000):
        history.observe(second, "idle", (7, 7, 7))
    assert len(history._samples["idle"]) == 2 * 4
    history.observe_queues(9000, [QueueInfo("new", pushed=1)])
    assert set(history._samples) == {"new"}


def test_counters_of_counts_what_is_done() -> None:
    """Messages that were deleted, moved to a dead-letter queue or too old count as done."""
    info = QueueInfo("q", ready=1, in_flight=2, delayed=3, pushed=100, deleted=10, dead=20, retired=30)
    assert counters_of(info) == (100, 60, 6)
    assert counters_of(QueueInfo("null")) == (0, 0, 0)


def test_draw_leaves_gaps() -> None:
    """A line has a gap where nothing is known; the highest value is at the top."""
    points = [Point(None, None, None), *[Point(value, 0, value) for value in (0, 5, 10)], Point(None, None, None)]
    points += [Point(10, 10, 0)] * 2
    chart = draw(points, 60, 22)
    assert (chart.top_rate, chart.top_depth) == (10, 10)
    assert chart.line_in == "M2.0 21.0L3.0 11.0L4.0 1.0M6.0 1.0L7.0 1.0"
    assert chart.area_in == "M2.0 22L2.0 21.0L3.0 11.0L4.0 1.0L4.0 22ZM6.0 22L6.0 1.0L7.0 1.0L7.0 22Z"
    assert draw([], 60, 22).line_in == ""
    assert draw([Point(0, 0, 0)] * 60, 60, 22).line_in.startswith("M1.0 21.0L")
