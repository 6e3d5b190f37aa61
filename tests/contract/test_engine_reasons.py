"""Why messages were given back, and messages that are rejected, by every engine that keeps reasons."""

import pytest
from support.storage.calls import WINDOW, configure, fail, listed
from support.storage.contract import needs, unguarded
from support.storage.engines import LOTS, Bench, arrived

from qs_storage.engine import (
    Feature,
    Message,
    NoDeadLetterQueueError,
    NoSuchMessageError,
    Origin,
    QueueFullError,
    Receipt,
    StaleReceiptError,
    State,
)

LONG = "é" * 512
"""The longest reason: 1 KiB of UTF-8."""


@pytest.fixture
def giving(bench: Bench) -> Bench:
    """A queue `q` whose messages are dead after three receives."""
    needs(bench, Feature.REASON, Feature.DEAD)
    bench.queue(dead_letter="dead", max_receives=3)
    return bench


def peeked(bench: Bench, mid: int, qid: str = "q") -> Message:
    return bench.engine.queue(qid).get(mid, peek=True, visibility=None)


def give_back(bench: Bench, reason: str | None, *, delay: int | None = None, count: bool = True) -> Message:
    """Receives the oldest message of `q`, and releases it with this reason."""
    [message] = bench.engine.receive(["q"], 1, WINDOW, LOTS)
    queue = bench.engine.queue("q")
    queue.release(Receipt(message.mid, message.receives), delay, count=count, reason=reason)
    bench.engine.commit()
    return message


def test_a_reason_stays_with_its_message(giving: Bench) -> None:
    """The last reason is shown by peeks, reads and receives, also after a start; a release without one keeps it."""
    bench = giving
    mid, other = bench.push(b"x", b"y")
    assert give_back(bench, "first").reason is None
    assert give_back(bench, LONG, count=False).reason == "first"
    assert give_back(bench, None, delay=0).reason == LONG
    for _ in range(2):
        queue = bench.engine.queue("q")
        assert (peeked(bench, mid).reason, peeked(bench, mid).receives, peeked(bench, other).reason) == (LONG, 2, None)
        assert queue.read(Receipt(mid)).reason == LONG
        bench.reopen()
    found = bench.engine.receive(["q"], 10, WINDOW, LOTS)
    assert [(m.mid, m.reason) for m in found] == [(mid, LONG), (other, None)]
    assert [peeked(bench, m.mid).reason for m in found] == [LONG, None]


def test_a_reason_of_a_delayed_message(giving: Bench) -> None:
    """A release with a delay keeps its reason beside the delay."""
    bench = giving
    [mid] = bench.push(b"x")
    give_back(bench, "not yet", delay=WINDOW)
    for _ in range(2):
        found = peeked(bench, mid)
        assert (found.reason, found.status) == ("not yet", "delayed")
        bench.reopen()


@pytest.mark.parametrize("last", ["the last one", None])
def test_the_last_reason_goes_with_a_dead_letter(giving: Bench, last: str | None) -> None:
    """A message that was received too often takes along the reason of the release that killed it, else the last one."""
    bench = giving
    [mid] = bench.push(b"x")
    give_back(bench, "once")
    give_back(bench, "twice")
    give_back(bench, last)
    assert listed(bench) == []
    for _ in range(2):
        [dead] = listed(bench, qid="dead")
        found = peeked(bench, dead, "dead")
        assert (found.reason, found.origin and found.origin[:3]) == (last or "twice", ("q", mid, 3))
        bench.reopen()


def test_a_window_that_ends_keeps_the_reason(giving: Bench) -> None:
    """The reason of an earlier release is that of the message, and of the dead letter, when a window just ends."""
    bench = giving
    [mid] = bench.push(b"x")
    give_back(bench, "earlier")
    fail(bench, times=1)
    assert peeked(bench, mid).reason == "earlier"
    fail(bench, times=1)
    [dead] = listed(bench, qid="dead")
    assert peeked(bench, dead, "dead").reason == "earlier"


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed"])
def test_a_rejected_message_is_a_dead_letter(giving: Bench, state: str) -> None:
    """A rejected message moves at once, in any state and with any count, with its reason; the figures count it, also
    after a start."""
    bench = giving
    delay = WINDOW if state == "delayed" else 0
    [mid] = bench.push(b"poison", delay=delay)
    receives = 0
    if state == "in-flight":
        [message] = bench.engine.receive(["q"], 1, WINDOW, LOTS)
        receives = message.receives
    assert peeked(bench, mid).status == state
    arrived(bench.engine)
    at = bench.clock.now
    bench.engine.queue("q").reject(Receipt(mid, receives), "unreadable")
    assert arrived(bench.engine) == {"dead": 1}
    bench.engine.commit()
    stats = bench.engine.queue("q").stats()
    assert (stats.dead, stats.rejected, stats.deleted, stats.released) == (1, 1, 0, 0)
    for _ in range(2):
        assert listed(bench) == []
        [dead] = listed(bench, qid="dead")
        found = peeked(bench, dead, "dead")
        assert (found.payload, found.receives, found.status) == (b"poison", 0, "ready")
        assert (found.reason, found.origin) == ("unreadable", Origin("q", mid, receives, at, "rejected", mid))
        bench.reopen()


def test_a_rejection_without_a_reason(giving: Bench) -> None:
    """A rejection without a reason keeps the message's earlier reason."""
    bench = giving
    [mid] = bench.push(b"x")
    give_back(bench, "earlier")
    bench.engine.queue("q").reject(Receipt(mid), None)
    [dead] = listed(bench, qid="dead")
    assert peeked(bench, dead, "dead").reason == "earlier"


def test_what_cannot_be_rejected(giving: Bench) -> None:
    """A message that is gone, or somebody else's by now, or for which no dead-letter queue has room: nothing changes,
    and the text says why."""
    bench = giving
    mid, gone = bench.push(b"x", b"y")
    queue = bench.engine.queue("q")
    queue.delete(Receipt(gone))
    with pytest.raises(NoSuchMessageError):
        queue.reject(Receipt(gone), "why")
    give_back(bench, "first")
    [message] = bench.engine.receive(["q"], 1, WINDOW, LOTS)
    with pytest.raises(StaleReceiptError):
        queue.reject(Receipt(mid, 1), "why")
    bench.queue("dead", capacity=1)
    bench.push(b"full", qid="dead")
    with pytest.raises(QueueFullError, match=rf"message {mid} of queue 'q' cannot be rejected.*'dead'"):
        queue.reject(Receipt(mid, 2), "why")
    configure(bench, "q", dead_letter="", max_receives=None)
    with pytest.raises(NoDeadLetterQueueError, match=r"queue 'q'.*no dead-letter queue"):
        bench.engine.queue("q").reject(Receipt(mid, 2), "why")
    bench.engine.commit()
    found = peeked(bench, mid)
    assert (found.status, found.reason, found.receives) == ("in-flight", "first", message.receives)
    assert len(listed(bench, qid="dead")) == 1
    assert bench.engine.queue("q").stats().dead == 0


def test_a_dead_letter_that_is_rejected(giving: Bench) -> None:
    """A rejected dead letter goes on to the dead-letter queue of its own queue, and keeps the time of its first
    push."""
    bench = giving
    bench.queue("dead", dead_letter="last", max_receives=9)
    [mid] = bench.push(b"x")
    pushed_at = peeked(bench, mid).pushed_at
    bench.engine.queue("q").reject(Receipt(mid), "one")
    [dead] = listed(bench, qid="dead")
    bench.engine.queue("dead").reject(Receipt(dead), "two")
    bench.engine.commit()
    [last] = listed(bench, qid="last")
    found = peeked(bench, last, "last")
    assert (found.reason, found.origin) == ("two", Origin("dead", dead, 0, bench.clock.now, "rejected", pushed_at))


def test_a_reason_on_the_way_back(giving: Bench) -> None:
    """A dead letter that is moved back keeps its reason until the next one, and has no receives."""
    bench = giving
    needs(bench, Feature.REDRIVE)
    [mid] = bench.push(b"x")
    bench.engine.queue("q").reject(Receipt(mid), "why")
    redrive = bench.engine.queue("dead").redrive
    assert redrive is not None
    [(dead, _)] = redrive.letters((), 10)
    [(_, back)] = redrive.move([(dead, unguarded(bench).queue("q"))])
    bench.engine.commit()
    for _ in range(2):
        found = peeked(bench, back)
        assert (found.reason, found.receives, found.origin) == ("why", 0, None)
        bench.reopen()


def test_a_copy_has_no_reason(giving: Bench) -> None:
    """A copy is a message of its own, which nobody has given back yet."""
    bench = giving
    bench.queue("copies")
    [mid] = bench.push(b"x")
    give_back(bench, "why")
    bench.engine.copy("q", mid, ["copies"])
    bench.engine.commit()
    for _ in range(2):
        assert (peeked(bench, mid).reason, peeked(bench, mid, "copies").reason) == ("why", None)
        bench.reopen()


def test_a_new_message_under_an_old_id(giving: Bench) -> None:
    """The reason is gone with its message: a copy that comes under the same id has none."""
    bench = giving
    bench.queue("source")
    [mid] = bench.push(b"x", qid="source")
    bench.engine.copy("source", mid, ["q"])
    give_back(bench, "why")
    bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.copy("source", mid, ["q"])
    bench.engine.commit()
    for _ in range(2):
        assert peeked(bench, mid).reason is None
        bench.reopen()


def test_many_reasons(giving: Bench) -> None:
    """Each of many messages has its own, over a start."""
    bench = giving
    mids = bench.push(*(b"%d" % number for number in range(300)))
    found = bench.engine.receive(["q"], 300, WINDOW, LOTS)
    queue = bench.engine.queue("q")
    for message in found:
        if message.mid % 3:
            queue.release(Receipt(message.mid, 1), 0, reason=f"because of {message.mid}")
    bench.engine.commit()
    bench.reopen()
    reasons = [peeked(bench, mid).reason for mid in mids]
    assert reasons == [f"because of {mid}" if mid % 3 else None for mid in mids]
    assert len(bench.engine.queue("q").list_mids(State.READY, 1000, -1)) == sum(mid % 3 > 0 for mid in mids)
