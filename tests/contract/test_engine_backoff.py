"""Messages that are received in vain come back later and later, by every engine that has a back-off."""

import pytest
from support.storage.calls import WINDOW, configure, listed, next_due, receive
from support.storage.contract import needs
from support.storage.engines import Bench, arrived

from qs_storage.engine import SECOND, Feature, Message, Options, Receipt
from qs_storage.policy import backoff_of

BACKOFF = 60 * SECOND
LONGEST = 200 * SECOND


@pytest.fixture
def slow(bench: Bench) -> Bench:
    """A queue `q` with a back-off of 60 to 200 seconds."""
    needs(bench, Feature.BACKOFF)
    bench.queue(backoff=BACKOFF, backoff_max=LONGEST, visibility=WINDOW)
    return bench


def peeked(bench: Bench, mid: int) -> Message:
    return bench.engine.queue("q").get(mid, peek=True, visibility=None)


def wait_until(bench: Bench, when: int) -> None:
    """Lets time pass, and what is due then happen."""
    bench.clock.now = when
    bench.engine.effects()
    bench.engine.expire(1000)
    bench.engine.commit()


def expected(bench: Bench, mid: int, receives: int) -> int:
    """Returns the back-off after so many receives, which the options, the id and the receives alone determine."""
    found = backoff_of(bench.engine.queue("q").options, mid, receives)
    wanted = min(BACKOFF * 2 ** (receives - 1), LONGEST)
    assert 0.9 * wanted <= found <= 1.1 * wanted
    return found


def test_releases(slow: Bench) -> None:
    """A message that is released is delayed twice as long each time, up to the longest; then consumers are woken."""
    bench = slow
    [mid] = bench.push(b"x")
    for receives in (1, 2, 3, 4):
        [message] = receive(bench)
        due = bench.clock.now + expected(bench, mid, receives)
        assert bench.engine.queue("q").release(Receipt(mid, message.receives), None) == due
        bench.engine.commit()
        found = peeked(bench, mid)
        assert (found.status, found.visible_at, found.receives) == ("delayed", due, receives)
        assert (receive(bench), bench.engine.queue("q").stats().delayed) == ([], 1)
        arrived(bench.engine)
        assert next_due(bench.engine) == due
        wait_until(bench, due - 1)
        assert arrived(bench.engine) == {}
        wait_until(bench, due)
    assert [m.receives for m in receive(bench)] == [5]


def test_what_is_no_attempt_in_vain(slow: Bench) -> None:
    """A release with a delay of its own, even of 0, and one that takes its receive back, is not held up; neither is one
    of a message that is in its back-off."""
    bench = slow
    if Feature.REDRIVE not in bench.engine.cannot:
        [mid] = bench.push(b"uncounted")
        receive(bench)
        assert bench.engine.queue("q").release(Receipt(mid, 1), None, count=False) is None
        bench.engine.queue("q").delete(Receipt(mid))
    [mid] = bench.push(b"x")
    receive(bench)
    assert bench.engine.queue("q").release(Receipt(mid, 1), 0) is None
    receive(bench)
    assert bench.engine.queue("q").release(Receipt(mid, 2), SECOND) == bench.clock.now + SECOND
    assert bench.engine.queue("q").release(Receipt(mid), None) is None
    receive(bench)
    assert bench.engine.queue("q").release(Receipt(mid, 3), None) == bench.clock.now + expected(bench, mid, 3)
    assert bench.engine.queue("q").release(Receipt(mid), None) is None
    assert [m.receives for m in receive(bench)] == [4]


@pytest.mark.parametrize("held", [False, True], ids=["received", "held"])
def test_windows_that_end(slow: Bench, held: bool) -> None:
    """The back-off begins with the end of the window, counted as expired, whenever the server notices it."""
    bench = slow
    [mid] = bench.push(b"x")
    start = bench.clock.now
    bench.engine.receive(["q"], 1, None, 1000, held=held)
    bench.engine.commit()
    arrived(bench.engine)
    end = start + WINDOW
    due = end + expected(bench, mid, 1)
    wait_until(bench, end + SECOND)
    stats = bench.engine.queue("q").stats()
    assert (stats.delayed, stats.in_flight, stats.ready, stats.expired) == (1, 0, 0, 1)
    assert (peeked(bench, mid).visible_at, arrived(bench.engine)) == (due, {})
    wait_until(bench, due)
    assert arrived(bench.engine) == {"q": 1}
    assert bench.engine.queue("q").stats().expired == 1
    assert [m.receives for m in receive(bench)] == [2]


@pytest.mark.parametrize("noticed", [0, 1, 2], ids=["in the window", "in the back-off", "never"])
def test_starts(slow: Bench, noticed: int) -> None:
    """A start changes no back-off: not while the window is open, not while the message is held up, and not if both end
    while no server runs."""
    bench = slow
    [mid] = bench.push(b"x")
    end = bench.clock.now + WINDOW
    receive(bench)
    bench.engine.commit()
    due = end + expected(bench, mid, 1)
    if noticed == 1:
        wait_until(bench, end)
    if noticed < 2:
        bench.reopen()
        wait_until(bench, end + SECOND)
        assert peeked(bench, mid).visible_at == due
        bench.reopen()
    bench.clock.now = due
    bench.reopen()
    bench.engine.expire(1000)
    assert [m.receives for m in receive(bench)] == [2]


def test_a_start_at_the_end_of_a_window_that_nobody_saw(slow: Bench) -> None:
    """The window ended while no server ran: the message is held up until the moment that the running server would
    have said."""
    bench = slow
    [mid] = bench.push(b"x")
    due = bench.clock.now + WINDOW + expected(bench, mid, 1)
    receive(bench)
    bench.engine.commit()
    bench.engine.close()
    bench.clock.now = due - 1
    bench.engine = bench.make(bench.clock)
    bench.engine.expire(1000)
    assert (receive(bench), peeked(bench, mid).visible_at) == ([], due)


def test_many_that_fail_together(slow: Bench) -> None:
    """Messages that failed at the same moment come back at different ones."""
    bench = slow
    bench.push(*(b"%d" % number for number in range(20)))
    receive(bench)
    bench.engine.commit()
    wait_until(bench, bench.clock.now + WINDOW)
    times = {peeked(bench, mid).visible_at for mid in listed(bench)}
    assert len(times) == 20
    assert max(map(int, filter(None, times))) - min(map(int, filter(None, times))) > BACKOFF // 10


def test_dead_letters_do_not_wait(bench: Bench) -> None:
    """A message that was received too often is dead when its window ends, or when it is released, not later."""
    needs(bench, Feature.BACKOFF, Feature.DEAD)
    bench.queue(backoff=BACKOFF, dead_letter="dead", max_receives=1, visibility=WINDOW)
    first, second = bench.push(b"x", b"y")
    receive(bench, count=1)
    wait_until(bench, bench.clock.now + WINDOW)
    assert len(listed(bench, qid="dead")) == 1
    receive(bench)
    bench.engine.queue("q").release(Receipt(second, 1), None)
    assert (listed(bench), len(listed(bench, qid="dead"))) == ([], 2)
    assert first < second


def test_messages_that_get_too_old(slow: Bench) -> None:
    """A message that is held up is removed when it is too old, as a delayed one is."""
    needs(slow, Feature.RETENTION)
    bench = slow
    configure(bench, retention=4 * WINDOW)
    [mid] = bench.push(b"x")
    receive(bench)
    bench.engine.commit()
    wait_until(bench, bench.clock.now + WINDOW)
    found = peeked(bench, mid)
    end = found.pushed_at + 4 * WINDOW
    assert (found.status, next_due(bench.engine)) == ("delayed", end)
    wait_until(bench, end)
    assert (listed(bench), bench.engine.queue("q").stats().retired) == ([], 1)


def test_options_that_change(slow: Bench) -> None:
    """Changed back-off options survive a start and apply to later releases. A message that waits keeps its time, also
    over a start."""
    bench = slow
    a, b = bench.push(b"a", b"b")
    receive(bench)
    bench.engine.commit()
    end = bench.clock.now + WINDOW
    due = bench.clock.now + expected(bench, a, 1)
    bench.engine.queue("q").release(Receipt(a, 1), None)
    bench.engine.commit()
    configure(bench, backoff=SECOND, backoff_max=None)
    for _ in range(2):
        options = bench.engine.queue("q").options
        assert (options.backoff, options.backoff_max) == (SECOND, None)
        assert peeked(bench, a).visible_at == due
        bench.reopen()
    wait_until(bench, end)
    later = end + backoff_of(Options(backoff=SECOND), b, 1)
    assert (peeked(bench, b).visible_at, later - end < 2 * SECOND) == (later, True)
    configure(bench, backoff=None)
    assert peeked(bench, b).visible_at == later
    wait_until(bench, later)
    [message] = receive(bench)
    assert bench.engine.queue("q").release(Receipt(b, message.receives), None) is None


def test_ids_in_milliseconds(bench: Bench) -> None:
    """The times are right, whatever the unit of the ids."""
    needs(bench, Feature.BACKOFF, Feature.MILLISECONDS)
    bench.queue(backoff=BACKOFF, visibility=WINDOW, timestamps="ms")
    bench.clock.now = bench.clock.now // 1000 * 1000
    [mid] = bench.push(b"x")
    bench.clock.now = bench.clock.now // 1000 * 1000
    receive(bench)
    wait_until(bench, bench.clock.now + WINDOW)
    found = peeked(bench, mid).visible_at
    assert found is not None
    assert 0.9 * BACKOFF - 1000 <= found - bench.clock.now <= 1.1 * BACKOFF
