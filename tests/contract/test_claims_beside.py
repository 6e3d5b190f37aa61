"""Claims beside what else happens to a queue: receives, purges, copies, deletion, figures, history."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from support.storage.calls import acknowledge, claim, next_due, part, payloads, receive_and_commit, release
from support.storage.contract import needs
from support.storage.engines import LOTS, Bench, JournalEngine, ManualClock

from qs_storage.engine import (
    ClaimOrderError,
    Draft,
    Durability,
    Engine,
    Feature,
    Options,
    Receipt,
    StaleReceiptError,
    State,
    StorageError,
)

Reopened = Callable[[Bench], Engine]


def content(engine: Engine, seq: int = 1) -> list[bytes]:
    """Returns the contents of a claim, new or old."""
    claim(engine, seq)
    return payloads(part(engine, seq))


def test_nobody_else(claiming: Bench, reopened: Reopened) -> None:
    """Neither receive nor get nor another claim gives claimed messages, however long the claim lasts."""
    claiming.queue(visibility=10)
    [mid] = claiming.push(b"1")
    engine = claiming.engine
    claim(engine)
    for _ in range(2):
        claiming.clock.now += 10**15
        engine.expire(100)
        assert receive_and_commit(engine) == []
        assert claim(engine, 1, "other").count == 0
        message = engine.queue("q").get(mid, peek=False, visibility=10)
        assert (message.status, message.payload, message.visible_at) == ("in-flight", None, None)
        assert message.receives == 1
        assert next_due(engine) is None
        assert engine.queue("q").list_mids(State.READY, 10, -1) == []
        assert engine.queue("q").list_mids(State.IN_FLIGHT, 10, -1) == [mid]
        assert engine.queue("q").list_mids(State.NEW, 10, -1) == []
        engine = reopened(claiming)


def test_old_receipts(claiming: Bench, reopened: Reopened) -> None:
    """A former holder can neither delete, release, extend nor read a claimed message, with or without a receipt."""
    claiming.queue()
    [mid] = claiming.push(b"1")
    engine = claiming.engine
    receive_and_commit(engine, 1, 10)
    claiming.clock.now += 10
    claim(engine)
    for _ in range(2):
        for seen in (None, 0, 1, 2):
            operations: list[tuple[Callable[..., object], tuple[int, ...]]] = [
                (engine.queue("q").delete, ()),
                (engine.queue("q").release, (0,)),
                (engine.queue("q").release, (10,)),
                (engine.queue("q").extend, (10,)),
                (engine.queue("q").read, ()),
            ]
            for operation, rest in operations:
                with pytest.raises(StaleReceiptError):
                    operation(Receipt(mid, seen), *rest)
        assert payloads(part(engine)) == [b"1"]
        engine = reopened(claiming)


def test_what_is_in_no_claim(claiming: Bench) -> None:
    """Messages that others hold, and delayed ones, until they are visible."""
    claiming.queue()
    claiming.push(b"held", b"ready")
    claiming.push(b"delayed", delay=1000)
    receive_and_commit(claiming.engine, 1, 500)
    claiming.engine.receive(["q"], 0, 1, LOTS)
    assert content(claiming.engine) == [b"ready"]
    claiming.clock.now += 500
    assert content(claiming.engine, 2) == [b"held"]
    claiming.clock.now += 1000
    assert content(claiming.engine, 3) == [b"delayed"]


def test_expired_and_claimed(claiming: Bench, reopened: Reopened) -> None:
    """A window that is over does not begin again after a restart, nor with a clock that was set back."""
    claiming.queue()
    [mid] = claiming.push(b"1")
    receive_and_commit(claiming.engine, 1, 10)
    claiming.clock.now += 10
    claim(claiming.engine)
    claiming.clock.now -= 5
    engine = reopened(claiming)
    assert payloads(part(engine)) == [b"1"]
    assert receive_and_commit(engine) == []
    claiming.clock.now -= 10**9
    acknowledge(engine, 1)
    assert reopened(claiming).queue("q").list_mids(State.ALL, 10, -1) == []
    assert mid < claiming.push(b"2")[0] or claiming.clock.now < mid


def test_claim_leaves_out_uncommitted_receives(claiming: Bench) -> None:
    """A claim leaves out messages that were received or deleted earlier in the same uncommitted batch."""
    claiming.queue()
    engine = claiming.engine
    mids = engine.queue("q").push([Draft(b"1"), Draft(b"2"), Draft(b"3")])
    engine.effects()
    engine.receive(["q"], 1, 1000, LOTS)
    engine.queue("q").delete(Receipt(mids[1]))
    assert engine.queue("q").claims.claim("c", 1, 10, None, None).count == 1
    engine.commit()
    assert payloads(part(engine)) == [b"3"]


def push_of_groups(claiming: Bench, *groups: str) -> list[int]:
    """Pushes a message of each of these groups, empty for none."""
    mids = claiming.engine.queue("q").push([Draft(b"x", group=group) for group in groups])
    claiming.engine.commit()
    return mids


def claimed(claiming: Bench, seq: int, *, count: int = 100) -> list[int]:
    """Returns the ids of a claim, which may be new."""
    made = claim(claiming.engine, seq, count=count)
    return [message.mid for message in part(claiming.engine, seq)] if made.count else []


def test_a_group_is_claimed_as_a_whole(claiming: Bench) -> None:
    """A claim has the messages of a group in their order, and no later claim has some before it has ended."""
    claiming.queue()
    mids = push_of_groups(claiming, "a", "b", "a", "", "b", "a")
    assert claimed(claiming, 1, count=3) == mids[:3]
    assert claimed(claiming, 2) == [mids[3]]
    acknowledge(claiming.engine, 1)
    assert claimed(claiming, 3) == mids[4:]
    later = push_of_groups(claiming, "a")
    release(claiming.engine, 3)
    assert claimed(claiming, 3) == mids[4:] + later


def test_a_group_of_which_others_have_messages(claiming: Bench) -> None:
    """A claim has no message that would overtake another one of its group: one in flight, or one that was given
    back."""
    claiming.queue()
    first, second, other = push_of_groups(claiming, "a", "a", "b")
    [message] = receive_and_commit(claiming.engine, 1, 10**6)
    assert (message.mid, claimed(claiming, 1)) == (first, [other])
    claiming.engine.queue("q").release(Receipt(first), 500)
    claiming.engine.commit()
    assert claimed(claiming, 2) == []
    claiming.clock.now += 500
    assert claimed(claiming, 2) == [first, second]


def test_a_claim_of_a_fair_queue(claiming: Bench) -> None:
    """Messages without a group do not wait for each other, also where they take turns with groups."""
    claiming.queue(fair=True)
    mids = push_of_groups(claiming, "", "a", "", "", "a", "")
    assert claimed(claiming, 1, count=3) == mids[:3]
    assert claimed(claiming, 2) == [mids[3], mids[5]]


def test_purge_takes_claimed_messages(claiming: Bench, reopened: Reopened) -> None:
    """An operator's purge takes what is in claims too: what is left of them is given, and can be acknowledged."""
    claiming.queue()
    mids = claiming.push(b"1", b"2", b"3")
    made = claim(claiming.engine)
    assert claiming.engine.queue("q").purge(mids[1], 10) == 2
    claiming.engine.commit()
    engine = claiming.engine
    for _ in range(2):
        assert payloads(part(engine)) == [b"3"]
        assert part(engine, of=(0, 3)) == part(engine, of=(1, 3)) == []
        assert payloads(part(engine, of=(2, 3))) == [b"3"]
        assert claim(engine) == made
        engine = reopened(claiming)
    acknowledge(engine, 1)
    assert engine.queue("q").stats().in_flight == 0


def test_delete_queue_forgets_claims(claiming: Bench) -> None:
    """With its claims: a queue of the same name knows nothing of them."""
    claiming.queue()
    claiming.push(b"1", b"2")
    claim(claiming.engine, 1, count=1)
    acknowledge(claiming.engine, 1)
    claim(claiming.engine, 2)
    claiming.engine.remove("q", force=True)
    claiming.engine.commit()
    claiming.queue()
    engine = claiming.engine
    assert list(engine.queue("q").claims.all()) == []
    with pytest.raises(ClaimOrderError):
        claim(engine, 3)
    assert claim(engine, 1).count == 0
    claiming.push(b"3")
    assert content(engine) == [b"3"]
    acknowledge(engine, 1)
    engine.remove("q", force=False)
    engine.commit()
    claiming.queue()
    assert claim(claiming.reopen(), 1).count == 0


def test_figures(claiming: Bench) -> None:
    """Claimed messages are in flight, count as delivered, and as deleted when they are acknowledged."""
    claiming.queue()
    claiming.push(b"1", b"22", b"333")
    engine = claiming.engine
    claim(engine, count=2)
    stats = engine.queue("q").stats()
    assert (stats.new, stats.ready, stats.in_flight, stats.delayed, stats.bytes) == (1, 1, 2, 0, 6)
    assert (stats.pushed, stats.delivered, stats.deleted) == (3, 2, 0)
    acknowledge(engine, 1)
    stats = engine.queue("q").stats()
    assert (stats.new, stats.ready, stats.in_flight, stats.bytes, stats.deleted) == (1, 1, 0, 3, 2)


def test_figures_after_a_start(claiming: Bench, reopened: Reopened) -> None:
    """The figures are the same after a start."""
    claiming.queue()
    claiming.push(b"1", b"22", b"333")
    claim(claiming.engine, count=2)
    stats = reopened(claiming).queue("q").stats()
    assert (stats.new, stats.ready, stats.in_flight, stats.delayed, stats.bytes) == (1, 1, 2, 0, 6)


class Record:
    """Records the lifecycle events."""

    peer = "127.0.0.1:5"

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int | None, int | None]] = []

    def note(
        self,
        event: str,
        qid: str,
        mid: int,
        size: int | None,
        receives: int | None,
        *,
        peer: str | None = None,
        trace: str | None = None,
    ) -> None:
        self.events.append((event, mid, size, receives))

    def note_all(
        self, event: str, qid: str, mids: Sequence[int], sizes: Sequence[int], receives: Iterable[int]
    ) -> None:
        for mid, size, times in zip(mids, sizes, receives, strict=True):
            self.note(event, qid, mid, size, times)


def test_history(tmp_path: Path) -> None:
    """A claim is a receive, acknowledging deletes, releasing releases: each once, with the count of receives."""
    record, clock = Record(), ManualClock()
    engine = JournalEngine(str(tmp_path), clock=clock, durability=Durability.NONE, lifecycle=record)  # type: ignore[arg-type]
    engine.create("q", Options())
    [mid] = engine.queue("q").push([Draft(b"12345")])
    [other] = engine.queue("q").push([Draft(b"1")])
    claim(engine, 1, count=1)
    claim(engine, 1)
    release(engine, 1)
    claim(engine, 1, count=1)
    acknowledge(engine, 1)
    acknowledge(engine, 1)
    claim(engine, 2)
    engine.queue("q").purge(other, 10)
    engine.queue("q").batches.stage("p", (0, 0, 0), list(map(Draft, [b"12"])))
    engine.queue("q").batches.publish("p", 0, [(0, 0)])
    [staged] = engine.queue("q").list_mids(State.ALL, 10, -1)
    engine.close()
    assert record.events == [
        ("pushed", mid, 5, 0),
        ("pushed", other, 1, 0),
        ("received", mid, 5, 1),
        ("released", mid, 5, 1),
        ("received", mid, 5, 2),
        ("deleted", mid, 5, 2),
        ("received", other, 1, 1),
        ("deleted", other, 1, 1),
        ("pushed", staged, 2, 0),
    ]


def test_milliseconds(tmp_path: Path, claiming: Bench) -> None:
    """`upto` counts milliseconds where ids do."""
    needs(claiming, Feature.MILLISECONDS)
    claiming.queue(timestamps="ms")
    [first] = claiming.push(b"1")
    claiming.clock.now += 5000
    claiming.push(b"2")
    engine = claiming.engine
    assert first == claiming.clock.now // 1000 - 5
    made = claim(engine, upto=first)
    assert (made.first, made.last) == (first, first)
    assert part(engine)[0].pushed_at == first * 1000
    engine = claiming.reopen()
    assert claim(engine) == made
    assert payloads(receive_and_commit(engine)) == [b"2"]


def test_copied_after_a_purge(claiming: Bench, reopened: Reopened) -> None:
    """A message that was purged while it was in a claim, and copied to the queue again, is not part of that claim."""
    claiming.queue()
    claiming.queue("source")
    [mid] = claiming.push(b"1", qid="source")
    claiming.engine.copy("source", mid, ["q"])
    claiming.engine.commit()
    claim(claiming.engine, 1)
    claiming.engine.copy("source", mid, ["q"])  # it is there
    assert claiming.engine.queue("q").purge(mid, 10) == 1
    claiming.engine.commit()
    claiming.engine.copy("source", mid, ["q"])
    claiming.engine.commit()
    engine = reopened(claiming)
    assert part(engine) == []
    claim(engine, 1, "d")
    engine = reopened(claiming)
    acknowledge(engine, 1)
    assert payloads(part(reopened(claiming), 1, "d")) == [b"1"]


def test_capacity_counts_claimed_messages(claiming: Bench) -> None:
    """Messages in claims count for the capacity of a queue."""
    claiming.engine.create("q", Options(capacity=2))
    claiming.push(b"1", b"2")
    claim(claiming.engine)
    with pytest.raises(StorageError, match="capacity"):
        claiming.engine.queue("q").push([Draft(b"3")])
    acknowledge(claiming.engine, 1)
    claiming.push(b"3")
