"""Messages that are received too often, by every engine that has dead letters."""

import logging
from dataclasses import replace

import pytest
from support.storage.calls import WINDOW, configure, fail, listed, next_due
from support.storage.contract import has_others, needs
from support.storage.engines import LOTS, Bench, arrived

from qs_storage.engine import (
    SECOND,
    DeadLetterCycleError,
    Feature,
    Message,
    NoSuchMessageError,
    Options,
    Origin,
    Receipt,
    State,
    UnsupportedError,
)


@pytest.fixture
def dying(bench: Bench) -> Bench:
    """A queue `q` whose messages are dead after two receives."""
    needs(bench, Feature.DEAD, Feature.REDRIVE)
    bench.queue(dead_letter="dead", max_receives=2)
    return bench


def receive(bench: Bench, qid: str = "q") -> list[Message]:
    return bench.engine.receive([qid], 10, WINDOW, LOTS)


def test_a_window_that_ends(dying: Bench) -> None:
    """The message is in the other queue, new there, and says what it was, also after a start; the counts say so."""
    bench = dying
    [mid] = bench.push(b"poison")
    fail(bench, times=1)
    assert [m.receives for m in receive(bench)] == [2]
    bench.engine.commit()
    bench.clock.now += WINDOW
    at = bench.clock.now
    arrived(bench.engine)
    bench.engine.expire(1000)
    assert arrived(bench.engine) == {"dead": 1}
    bench.engine.commit()
    assert (bench.engine.queue("q").stats().dead, bench.engine.queue("dead").stats().pushed) == (1, 1)
    for _ in range(2):
        assert listed(bench, qid="q") == []
        [dead] = listed(bench, qid="dead")
        found = bench.engine.queue("dead").get(dead, peek=True, visibility=None)
        assert (dead >= at, found.receives, found.status, found.payload) == (True, 0, "ready", b"poison")
        assert (found.pushed_at, found.origin) == (mid, Origin("q", mid, 2, at, "receives", mid))
        bench.reopen()
    [message] = receive(bench, "dead")
    assert (message.origin, message.pushed_at, message.receives) == (found.origin, mid, 1)
    bench.engine.queue("dead").delete(Receipt(message.mid, 1))
    bench.engine.commit()
    bench.reopen()
    assert listed(bench, qid="dead") == []


@pytest.mark.parametrize("delay", [0, 7])
def test_release_moves_dead_letter(dying: Bench, delay: int) -> None:
    """A release moves the message too, whatever its delay; one that takes its receive back does not."""
    bench = dying
    [mid] = bench.push(b"x")
    fail(bench, times=1)
    queue = bench.engine.queue("q")
    assert [m.receives for m in receive(bench)] == [2]
    queue.release(Receipt(mid, 2), 0, count=False)
    bench.engine.commit()
    bench.reopen()
    queue = bench.engine.queue("q")
    assert [m.receives for m in receive(bench)] == [2]
    assert queue.release(Receipt(mid, 2), delay) is None
    bench.engine.commit()
    assert (listed(bench, qid="q"), len(listed(bench, qid="dead"))) == ([], 1)
    with pytest.raises(NoSuchMessageError):
        queue.delete(Receipt(mid, 2))


def test_a_first_receive_that_is_taken_back(dying: Bench) -> None:
    """The message is new again."""
    bench = dying
    [mid] = bench.push(b"x")
    receive(bench)
    bench.engine.queue("q").release(Receipt(mid, 1), 0, count=False)
    bench.engine.commit()
    for _ in range(2):
        assert bench.engine.queue("q").list_mids(State.NEW, 10, -1) == [mid]
        assert bench.engine.queue("q").get(mid, peek=True, visibility=None).receives == 0
        bench.reopen()
    [late] = bench.push(b"y", delay=SECOND)
    bench.engine.queue("q").release(Receipt(late), 9 * SECOND, count=False)  # was not in flight: nothing to take back
    assert bench.engine.queue("q").get(late, peek=True, visibility=None).receives == 0
    assert bench.engine.queue("q").get(mid, peek=True, visibility=None).receives == 0


def test_what_a_subscriber_held_at_the_end(dying: Bench) -> None:
    """A message that a subscriber held at the end moves at the next start, or when its window ends."""
    bench = dying
    bench.push(b"x", b"y")
    fail(bench, times=1)
    bench.engine.receive(["q"], 1, WINDOW, LOTS, held=True)
    bench.engine.commit()
    bench.reopen()
    if Feature.HELD in bench.engine.cannot:
        bench.clock.now += WINDOW
    bench.engine.expire(1000)
    bench.engine.commit()
    assert (len(listed(bench, qid="q")), len(listed(bench, qid="dead"))) == (1, 1)


def test_a_chain_of_three(dying: Bench) -> None:
    """The last one says where the message was last, and when it was pushed first."""
    bench = dying
    bench.queue("dead", dead_letter="last", max_receives=1)
    pushed_at = bench.clock.now
    bench.push(b"x")
    fail(bench)
    [dead] = listed(bench, qid="dead")
    fail(bench, "dead", times=1)
    [message] = receive(bench, "last")
    at = bench.clock.now
    assert (message.origin, message.payload) == (Origin("dead", dead, 1, at, "receives", pushed_at), b"x")
    assert (listed(bench, qid="q"), listed(bench, qid="dead")) == ([], [])


def test_a_policy_that_changes(dying: Bench) -> None:
    """Holds for a message when it is next released; what is visible stays until then."""
    bench = dying
    configure(bench, "q", dead_letter="", max_receives=None)
    bench.push(b"x")
    fail(bench, times=3)
    configure(bench, "q", dead_letter="other", max_receives=1)
    bench.engine.expire(1000)
    [message] = receive(bench)
    assert message.receives == 4
    bench.engine.queue("q").release(Receipt(message.mid, 4), 0)
    assert (listed(bench, qid="q"), len(listed(bench, qid="other"))) == ([], 1)


def test_uncounted_release_under_new_policy(dying: Bench) -> None:
    """A release that does not count does not count either if the message still dies, under a new policy."""
    bench = dying
    configure(bench, "q", max_receives=9)
    [mid] = bench.push(b"x")
    fail(bench, times=2)
    receive(bench)
    configure(bench, "q", max_receives=2)
    bench.engine.queue("q").release(Receipt(mid, 3), 0, count=False)
    [dead] = listed(bench, qid="dead")
    origin = bench.engine.queue("dead").get(dead, peek=True, visibility=None).origin
    assert origin is not None
    assert origin.receives == 2


def test_a_full_dead_letter_queue(dying: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The message stays, visible, and the log says so once; once there is room, it goes at its next release."""
    bench = dying
    bench.queue("dead", capacity=1)
    bench.push(b"1", b"2", b"3")
    fail(bench)
    assert (len(listed(bench, qid="q")), len(listed(bench, qid="dead"))) == (2, 1)
    fail(bench, times=1)
    assert [m.receives for m in receive(bench)] == [4, 4]
    [said] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "'dead'" in said.getMessage()
    configure(bench, "dead", capacity=None)
    bench.clock.now += WINDOW
    bench.engine.expire(1000)
    assert (len(listed(bench, qid="q")), len(listed(bench, qid="dead"))) == (0, 3)


def test_a_paused_dead_letter_queue(dying: Bench) -> None:
    """A paused dead-letter queue takes dead letters in, and gives none out."""
    bench = dying
    bench.queue("dead", paused=True)
    bench.push(b"x")
    fail(bench)
    assert (listed(bench, qid="q"), len(listed(bench, qid="dead")), receive(bench, "dead")) == ([], 1, [])


def test_a_dead_letter_queue_that_was_removed(dying: Bench) -> None:
    """A dead-letter queue that was removed is made again."""
    bench = dying
    bench.push(b"1", b"2")
    fail(bench)
    bench.engine.remove("dead", force=True)
    bench.engine.commit()
    bench.push(b"3")
    fail(bench)
    bench.reopen()
    assert [m.payload for m in receive(bench, "dead")] == [b"3"]


def test_a_dead_letter_queue_of_another_storage(dying: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A dead-letter queue of another storage is refused. One that is made so later gets no messages."""
    bench = dying
    has_others(bench)
    bench.queue("elsewhere", storage="null")
    with pytest.raises(UnsupportedError, match="'null'"):
        configure(bench, "q", dead_letter="elsewhere")
    bench.queue("dead", storage="dirq-simple")
    bench.push(b"x")
    fail(bench)
    assert [m.receives for m in receive(bench)] == [3]
    assert "'dirq-simple'" in caplog.text
    assert listed(bench, qid="dead") == []


def test_other_options_beside_a_dead_letter_queue_of_another_storage(dying: Bench) -> None:
    """Other options of such a queue can be changed, and it can be paused."""
    bench = dying
    has_others(bench)
    bench.queue("dead", storage="dirq-simple")
    configure(bench, "q", paused=True, max_receives=5)
    with pytest.raises(UnsupportedError, match="'dirq-simple'"):
        bench.queue("other", dead_letter="dead", max_receives=1)
    bench.reopen()
    options = bench.engine.queue("q").options
    assert (options.paused, options.dead_letter, options.max_receives) == (True, "dead", 5)


def test_cycles(dying: Bench) -> None:
    """Cycles of one, two and three dead-letter queues are refused, and change nothing."""
    bench = dying
    for make in (
        lambda: configure(bench, "q", dead_letter="q"),
        lambda: bench.queue("dead", dead_letter="q", max_receives=1),
        lambda: bench.queue("self", dead_letter="self", max_receives=1),
    ):
        with pytest.raises(DeadLetterCycleError, match="come to"):
            make()
    bench.queue("dead", dead_letter="last", max_receives=1)
    bench.queue("last")
    with pytest.raises(DeadLetterCycleError, match=r"dead letters of 'q' come to 'last'$"):
        configure(bench, "last", dead_letter="q", max_receives=1)
    assert sorted(bench.engine.queues()) == ["dead", "last", "q"]
    assert bench.engine.queue("last").options == replace(Options(), storage=bench.engine.name)


def test_a_copy_of_a_dead_letter(dying: Bench) -> None:
    """A copy of a dead letter is a message like any other. The dead letter stays one, though the two share their
    bytes."""
    bench = dying
    bench.queue("copies")
    bench.push(b"x")
    fail(bench)
    [dead] = listed(bench, qid="dead")
    bench.engine.copy("dead", dead, ["copies"])
    bench.engine.commit()
    for _ in range(3):
        [one, other] = [bench.engine.queue(qid).get(dead, peek=True, visibility=None) for qid in ("dead", "copies")]
        assert (one.origin is None, other.origin is None, one.payload, other.payload) == (False, True, b"x", b"x")
        bench.reopen()


def test_many_at_the_same_time(dying: Bench) -> None:
    """All of them go, in their order, in slices."""
    bench = dying
    mids = bench.push(*(b"%d" % number for number in range(250)))
    for _ in range(2):
        bench.engine.receive(["q"], 1000, WINDOW, LOTS)
        bench.engine.commit()
        bench.clock.now += WINDOW
    while (due := next_due(bench.engine)) is not None and due <= bench.clock.now:
        bench.engine.expire(500)
        bench.engine.commit()
    bench.reopen()
    found = bench.engine.receive(["dead"], 1000, WINDOW, LOTS)
    assert [m.origin.mid for m in found if m.origin] == mids
    assert [m.payload for m in found] == [b"%d" % number for number in range(250)]
