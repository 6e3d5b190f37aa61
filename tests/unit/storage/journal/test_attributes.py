"""Messages with attributes in a queue of the journal: what becomes of each attribute, and what limits let out."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.engines import LOTS, JournalEngine, ManualClock, arrived

from qs_storage.engine import SECOND, Draft, Durability, Message, NoSuchMessageError, Options, Receipt, State
from qs_storage.journal.queues import queue as queue_module
from qs_storage.journal.queues.queue import LogQueue

HEADERS = (("traceparent", "00-1"), ("größe", "<&>\n"))


@pytest.fixture(name="clock")
def _clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(name="engine")
def _engine(tmp_path: Path, clock: ManualClock) -> Iterator[JournalEngine]:
    engine = JournalEngine(str(tmp_path), clock=clock, durability=Durability.NONE)
    engine.create("dead", Options())
    engine.create("q", Options(dead_letter="dead", max_receives=2))
    engine.create("other", Options())
    yield engine
    engine.close()


def queue(engine: JournalEngine, qid: str = "q") -> LogQueue:
    found = engine.queue(qid)
    assert isinstance(found, LogQueue)
    return found


def receive(engine: JournalEngine, qid: str = "q", count: int = 100) -> list[Message]:
    return engine.receive([qid], count, 30 * SECOND, LOTS)


FULL = Draft(b"body", priority=7, expires=50 * SECOND, group="Ann", headers=HEADERS, key="k", unique=True)


def test_a_message_has_what_it_was_pushed_with(engine: JournalEngine, clock: ManualClock) -> None:
    """Received, peeked at while it is out, and as its holder reads it; its payload is what it was."""
    [mid] = queue(engine).push([FULL])
    [message] = receive(engine)
    peeked = queue(engine).get(mid, peek=True, visibility=None)
    read = queue(engine).read(Receipt(mid, 1))
    for each in (message, read):
        assert (each.payload, each.headers) == (b"body", HEADERS)
    for each in (message, peeked, read):
        assert (each.priority, each.group, each.expires_at) == (7, "Ann", clock.now + 50 * SECOND)
    assert (queue(engine).payload_of(mid), queue(engine).headers_of(mid)) == (b"body", HEADERS)


def test_a_dead_letter_keeps_what_it_says(engine: JournalEngine) -> None:
    """A dead letter has no end and no key any more, also once it is back."""
    [mid] = queue(engine).push([FULL])
    receive(engine)
    queue(engine).reject(Receipt(mid), "why")
    [letter] = receive(engine, "dead")
    assert (letter.payload, letter.headers, letter.priority, letter.group) == (b"body", HEADERS, 7, "Ann")
    assert letter.expires_at is None
    [again] = queue(engine).push([FULL])  # the key is free
    assert again != mid
    queue(engine, "dead").release(Receipt(letter.mid), 0)
    queue(engine, "dead").redrive.move([(letter.mid, queue(engine))])
    assert queue(engine).list_mids(State.ALL, 9, -1) != [again]
    queue(engine).delete(Receipt(again))
    [back] = receive(engine)
    assert (back.headers, back.group, back.expires_at) == (HEADERS, "Ann", None)


def test_a_copy_keeps_its_end_and_no_key(engine: JournalEngine, clock: ManualClock) -> None:
    """Copies share headers and payload, and each queue has its own order."""
    [mid] = queue(engine).push([FULL])
    engine.copy("q", mid, ["other"])
    [copy] = receive(engine, "other")
    assert (copy.headers, copy.priority, copy.expires_at) == (HEADERS, 7, clock.now + 50 * SECOND)
    assert queue(engine, "other").push([FULL]) != [mid]


def test_a_unique_key_counts_while_its_message_is_there(engine: JournalEngine, clock: ManualClock) -> None:
    """Beyond five minutes, in flight too; not a moment longer, and not for less than a plain key counts."""
    [mid] = queue(engine).push([Draft(b"1", key="k", unique=True)])
    clock.now += 3600 * SECOND
    assert queue(engine).push([Draft(b"2", key="k", unique=True), Draft(b"3", key="k")]) == [mid, mid]
    receive(engine)
    assert queue(engine).push([Draft(b"4", key="k", unique=True)]) == [mid]
    queue(engine).delete(Receipt(mid))
    [second] = queue(engine).push([Draft(b"5", key="k")])
    assert second != mid
    assert queue(engine).push([Draft(b"6", key="k", unique=True)]) == [second]
    queue(engine).delete(Receipt(second))
    assert queue(engine).push([Draft(b"7", key="k")]) == [second]  # it still counts for five minutes
    [third] = queue(engine).push([Draft(b"8", key="k", unique=True)])
    assert third != second


def test_staged_messages_have_attributes(engine: JournalEngine) -> None:
    """Staged messages are published with their attributes, in the queue's order."""
    drafts = [Draft(b"1"), Draft(b"2", priority=5, headers=HEADERS), Draft(b"3", group="Ann"), Draft(b"4", group="Ann")]
    batches = queue(engine).batches
    batches.stage("p", (0, 0, 0), drafts)
    assert batches.publish("p", 0, [(0, 0)]) == 4
    found = receive(engine)
    assert [message.payload for message in found] == [b"2", b"1", b"3"]
    assert found[0].headers == HEADERS


def test_a_claim_overtakes_no_group(engine: JournalEngine) -> None:
    """A claim has the messages of a group in order, and none while another consumer has one of them."""
    queue(engine).push([Draft(b"%d" % at, group="ab"[at % 2]) for at in range(6)])
    [first] = receive(engine, count=1)
    claims = queue(engine).claims
    claim = claims.claim("c", 1, 100, None, None)
    assert claim.count == 3
    queue(engine).delete(Receipt(first.mid))
    assert [message.payload for message in receive(engine)] == [b"2"]
    part = claims.part("c", 1, (0, 1), 100, LOTS)
    assert part is not None
    assert [message.payload for message in part] == [b"1", b"3", b"5"]


def test_what_keeps_messages_back_is_told(engine: JournalEngine, clock: ManualClock) -> None:
    """The figures name the limit, also for a message that is asked for by its id; the engine says when one may come."""
    engine.create("slow", Options(rate=1))
    engine.create("few", Options(max_in_flight=1))
    for qid, limit in (("slow", "rate"), ("few", "max-in-flight"), ("other", "group-in-flight")):
        group = "g" if qid == "other" else ""
        first, second = queue(engine, qid).push([Draft(b"1", group=group), Draft(b"2", group=group)])
        assert queue(engine, qid).stats().limited == ""
        assert [message.mid for message in receive(engine, qid)] == [first]
        assert queue(engine, qid).stats().limited == limit
        assert receive(engine, qid) == []
        assert queue(engine, qid).get(second, peek=False, visibility=None).payload is None
        assert queue(engine, qid).get(second, peek=True, visibility=None).payload == b"2"
    assert engine.figures()["queues_limited"] == 3
    engine.commit()
    clock.now += SECOND
    assert engine.effects().next_expiry == clock.now  # the next second's one
    engine.expire(10)
    assert arrived(engine) == {"slow": 1}
    queue(engine, "few").delete(Receipt(first_out(engine, "few")))
    queue(engine, "other").delete(Receipt(first_out(engine, "other")))
    assert arrived(engine) == {"few": 1, "other": 1}


def first_out(engine: JournalEngine, qid: str) -> int:
    return queue(engine, qid).list_mids(State.IN_FLIGHT, 1, -1)[0]


def test_an_end_while_a_message_is_out(engine: JournalEngine, clock: ManualClock) -> None:
    """The message stays its consumer's until it is given back, and is retired then."""
    kept, gone = queue(engine).push([Draft(b"1", expires=10), Draft(b"2", expires=10)])
    receive(engine)
    clock.now += 10
    assert queue(engine).list_mids(State.ALL, 9, -1) == [kept, gone]
    queue(engine).extend(Receipt(kept), 100)
    queue(engine).release(Receipt(gone), 0)
    assert queue(engine).list_mids(State.ALL, 9, -1) == [kept]
    clock.now += 100
    assert queue(engine).list_mids(State.ALL, 9, -1) == []
    assert queue(engine).stats().retired == 2


def test_very_many_ends_at_once_hold_up_no_request(
    engine: JournalEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive removes some of them, and may find nothing: the timer removes the rest, and says that there is more."""
    monkeypatch.setattr(queue_module, "_AT_ONCE", 10)
    queue(engine).push([Draft(b"old", expires=5) for _ in range(200)])
    clock.now += 5
    [young] = queue(engine).push([Draft(b"young")])
    assert receive(engine) == []
    assert len(queue(engine)) > 100
    engine.commit()
    while engine.expire(10):
        pass
    assert arrived(engine) == {"q": 1}
    assert [message.mid for message in receive(engine)] == [young]


def test_what_is_given_back_often_takes_no_memory(engine: JournalEngine) -> None:
    """One entry says when a message is over, however often it is out until then."""
    queue(engine, "other").push([Draft(b"", expires=10**6 * SECOND) for _ in range(10)])
    for _ in range(100):
        for message in receive(engine, "other"):
            queue(engine, "other").release(Receipt(message.mid), 0)
    assert len(queue(engine, "other").lifetimes) == 10


def test_no_message_that_is_over_is_handed_out_by_its_id(
    engine: JournalEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if so many are over that it is not removed yet."""
    monkeypatch.setattr(queue_module, "_AT_ONCE", 10)
    mids = queue(engine).push([Draft(b"old", expires=5) for _ in range(100)])
    clock.now += 5
    with pytest.raises(NoSuchMessageError, match="too old"):
        queue(engine).get(mids[-1], peek=False, visibility=None)


def test_a_message_that_is_over_does_not_back_off(engine: JournalEngine, clock: ManualClock) -> None:
    """Its window has ended: it is removed, and not kept until it could be visible again."""
    engine.create("slow", Options(backoff=1000 * SECOND))
    queue(engine, "slow").push([Draft(b"", expires=10 * SECOND)])
    receive(engine, "slow")
    clock.now += 20 * SECOND
    engine.expire(10)
    clock.now += 10 * SECOND
    while engine.expire(10):
        pass
    assert len(queue(engine, "slow")) == 0


def test_the_timer_does_no_more_than_it_is_asked_for(engine: JournalEngine, clock: ManualClock) -> None:
    """Windows that end and messages that are over count together."""
    engine.create("aged", Options(retention=100 * SECOND))
    queue(engine, "aged").push([Draft(b"", expires=5 * SECOND) for _ in range(30)] + [Draft(b"") for _ in range(30)])
    receive(engine, "aged", 15)
    clock.now += 200 * SECOND
    while len(queue(engine, "aged")):
        before = len(queue(engine, "aged"))
        assert 0 < engine.expire(10) <= 10
        assert before - len(queue(engine, "aged")) <= 10


def test_one_request_of_many_removes_what_is_over(
    engine: JournalEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has hundreds of requests: if each removed so many, all of them would wait."""
    monkeypatch.setattr(queue_module, "_AT_ONCE", 10)
    queue(engine).push([Draft(b"old", expires=5) for _ in range(200)])
    clock.now += 5
    for _ in range(10):
        queue(engine).list_mids(State.READY, 1, -1)
    assert len(queue(engine)) == 190


def test_a_retention_with_priorities(engine: JournalEngine, clock: ManualClock) -> None:
    """A message that is too old is not handed out, whatever its priority."""
    engine.create("old", Options(retention=10))
    queue(engine, "old").push([Draft(b"old", priority=9)])
    clock.now += 10
    queue(engine, "old").push([Draft(b"young")])
    assert [message.payload for message in receive(engine, "old")] == [b"young"]


def test_bytes_count_headers(engine: JournalEngine) -> None:
    """An answer is bounded by what it holds, and so are the figures."""
    queue(engine).push([Draft(b"x" * 10, headers=(("a", "b" * 100),))] * 2)
    assert queue(engine).stats().bytes > 220
    assert len(engine.receive(["q"], 2, None, 150)) == 1
