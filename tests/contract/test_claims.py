"""Claims: what a consumer has read once stays as it is, and nobody else's, until it is done with it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.claim_calls import LOTS, acknowledge, claim, part, payloads, receive, release
from support.engines import Bench, ManualClock

from qs_server.storage.engine import (
    BadQueueNameError,
    ClaimOrderError,
    Draft,
    Durability,
    Engine,
    Feature,
    NoSuchClaimError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
    StorageError,
)
from qs_server.storage.journal.engine import JournalEngine

Reopened = Callable[[Bench], Engine]


def content(engine: Engine, seq: int = 1) -> list[bytes]:
    """Of a claim that is made now, or was."""
    claim(engine, seq)
    return payloads(part(engine, seq))


def test_who_has_claims(bench: Bench) -> None:
    """The engines that say so have claims and batches, the others have neither."""
    bench.queue()
    engine: Engine = bench.engine.engine  # type: ignore[attr-defined]
    queue = engine.queue("q")
    has = Feature.CLAIM not in engine.cannot
    assert (queue.claims is not None, queue.batches is not None) == (has, has)
    assert queue.claims is None or queue.claims.all() == []


def test_claim(claiming: Bench) -> None:
    """The oldest visible messages, with all that is said of them."""
    claiming.queue()
    mids = claiming.push(b"1", b"22", b"", b"4444")
    made = claim(claiming.engine, count=3)
    assert (made.consumer, made.seq, made.count, made.bytes) == ("c", 1, 3, 3)
    assert (made.first, made.last, made.since) == (mids[0], mids[2], claiming.clock.now)
    assert len(made.checksum) == 16
    assert payloads(part(claiming.engine)) == [b"1", b"22", b""]
    assert [message.mid for message in receive(claiming.engine)] == mids[3:]


def test_claim_again_is_the_same(claiming: Bench, reopened: Reopened) -> None:
    """Whatever was pushed since, whatever bounds are given then, and after a restart."""
    claiming.queue()
    claiming.push(b"1", b"2")
    made = claim(claiming.engine, count=1)
    claiming.push(b"3")
    claiming.clock.now += 5
    assert claim(claiming.engine, count=7, max_bytes=0, upto=0) == made
    assert claim(reopened(claiming)) == made
    assert claiming.engine.queue("q").claims.all() == [made]
    assert payloads(receive(claiming.engine)) == [b"2", b"3"]


def test_part_is_the_same_each_time(claiming: Bench, reopened: Reopened) -> None:
    """Ids, payloads, counts of receives, times."""
    claiming.queue()
    claiming.push(b"1", b"2", b"3")
    receive(claiming.engine, 1, 10)
    claiming.clock.now += 10
    claim(claiming.engine)
    found = part(claiming.engine)
    assert [(m.status, m.receives, m.visible_at) for m in found] == [
        ("delivered", 2, None),
        ("delivered", 1, None),
        ("delivered", 1, None),
    ]
    assert part(claiming.engine) == found
    assert part(reopened(claiming)) == found
    assert part(reopened(claiming)) == found


def test_parts(claiming: Bench) -> None:
    """Slices of nearly the same length; each is exactly two of twice as many. More parts than messages are allowed."""
    claiming.queue()
    mids = claiming.push(*(b"%d" % number for number in range(11)))
    claim(claiming.engine)
    for parts in (1, 2, 3, 7, 11, 16):
        slices = [[m.mid for m in part(claiming.engine, of=(i, parts))] for i in range(parts)]
        halves = [[m.mid for m in part(claiming.engine, of=(i, 2 * parts))] for i in range(2 * parts)]
        assert [mid for each in slices for mid in each] == mids
        assert slices == [halves[2 * i] + halves[2 * i + 1] for i in range(parts)]
        assert {len(each) for each in slices} <= {11 // parts, 11 // parts + 1}


def test_too_much_for_one_answer(claiming: Bench) -> None:
    """More messages, or more bytes, than are allowed: none, whatever the slice; a single message is never too much."""
    claiming.queue()
    claiming.push(b"12345", b"67890", b"x" * 100)
    claim(claiming.engine)
    claims = claiming.engine.queue("q").claims
    assert claims.part("c", 1, (0, 1), 2, LOTS) is None
    assert claims.part("c", 1, (0, 1), 3, 109) is None
    assert len(claims.part("c", 1, (0, 1), 3, 110) or ()) == 3
    assert len(claims.part("c", 1, (2, 3), 1, 1) or ()) == 1


def test_bounds(claiming: Bench) -> None:
    """max, max_bytes (but for the first message) and upto, each and together."""
    claiming.queue()
    mids = claiming.push(*[b"12345"] * 8)
    assert claim(claiming.engine, 1, upto=mids[0] - 1).count == 0
    assert claim(claiming.engine, 1, upto=mids[1]).last == mids[1]
    assert claim(claiming.engine, 2, max_bytes=14).last == mids[3]
    assert claim(claiming.engine, 3, max_bytes=0).last == mids[4]
    assert claim(claiming.engine, 4, count=2, max_bytes=10, upto=mids[7]).last == mids[6]
    assert claim(claiming.engine, 5).count == 1
    assert claim(claiming.engine, 6).count == 0


def test_most(claiming: Bench) -> None:
    """An engine has a bound of its own, whatever is asked for."""
    claiming.queue()
    claiming.push(*[b"1"] * 5)
    claims = claiming.engine.queue("q").claims
    assert claims.most in (10_000, 100_000)
    claims.most = 3
    assert claim(claiming.engine, count=LOTS).count == 3


def test_nothing_is_no_claim(claiming: Bench, reopened: Reopened) -> None:
    """A claim of nothing is not kept: the same number may bring messages later."""
    claiming.queue()
    made = claim(claiming.engine)
    assert (made.count, made.bytes, made.first, made.last) == (0, 0, None, None)
    engine = reopened(claiming)
    assert engine.queue("q").claims.all() == []
    with pytest.raises(NoSuchClaimError):
        part(engine)
    claiming.push(b"1")
    assert claim(engine).count == 1


def test_order_of_numbers(claiming: Bench, reopened: Reopened) -> None:
    """The next number, or one that is claimed: a gap is refused, and so is what is acknowledged."""
    claiming.queue()
    claiming.push(b"1", b"2", b"3")
    engine = claiming.engine
    for gap in (2, 3, 10**18):
        with pytest.raises(ClaimOrderError, match="the next one is 1"):
            claim(engine, gap)
    claim(engine, 1, count=1)
    claim(engine, 2, count=1)
    acknowledge(engine, 1)
    for _ in range(2):
        with pytest.raises(StaleReceiptError, match="the next one is 3"):
            claim(engine, 1)
        with pytest.raises(StaleReceiptError):
            claim(engine, 0)
        with pytest.raises(ClaimOrderError):
            claim(engine, 4)
        assert claim(engine, 2).count == 1
        engine = reopened(claiming)
    acknowledge(engine, 2)
    assert claim(engine, 3).count == 1


def test_acknowledge(claiming: Bench, reopened: Reopened) -> None:
    """Cumulative and repeatable; what was not claimed yet is refused. The messages are gone, no others are."""
    claiming.queue()
    mids = claiming.push(*(b"%d" % number for number in range(9)))
    engine = claiming.engine
    for seq in (1, 2, 3):
        claim(engine, seq, count=2)
    claim(engine, 1, "other", count=1)
    with pytest.raises(ClaimOrderError, match="there is no claim 4"):
        acknowledge(engine, 4)
    acknowledge(engine, 0)
    acknowledge(engine, 2)
    assert engine.queue("q").list_mids(State.ALL, 100, -1) == mids[4:]
    acknowledge(engine, 2)
    acknowledge(engine, 1)
    engine = reopened(claiming)
    acknowledge(engine, 2)
    assert engine.queue("q").list_mids(State.ALL, 100, -1) == mids[4:]
    assert [(each.consumer, each.seq) for each in engine.queue("q").claims.all()] == [("c", 3), ("other", 1)]
    for seq in (1, 2):
        with pytest.raises(NoSuchClaimError):
            part(engine, seq)
        with pytest.raises(NoSuchClaimError):
            release(engine, seq)
    acknowledge(engine, 3)
    assert engine.queue("q").list_mids(State.ALL, 100, -1) == mids[6:]


def test_release(claiming: Bench, reopened: Reopened) -> None:
    """Exactly its messages are visible, once more received; later claims stay."""
    claiming.queue()
    claiming.push(*(b"%d" % number for number in range(5)))
    engine = claiming.engine
    claim(engine, 1, count=2)
    claim(engine, 2, count=2)
    assert release(engine, 1) == 2
    with pytest.raises(NoSuchClaimError):
        release(engine, 1)
    with pytest.raises(NoSuchClaimError):
        part(engine, 1)
    with pytest.raises(NoSuchClaimError, match="was released"):
        claim(engine, 1)
    found = receive(engine)
    assert [(m.payload, m.receives) for m in found] == [(b"0", 2), (b"1", 2), (b"4", 1)]
    for _ in range(2):  # what was received is written down soon after
        engine.effects()
        claiming.clock.now += 100_000
        engine.begin_upkeep()
    engine = reopened(claiming)
    assert [each.seq for each in engine.queue("q").claims.all()] == [2]
    acknowledge(engine, 2)
    assert claim(engine, 3).count == 0


def test_release_of_the_greatest(claiming: Bench) -> None:
    """Its number is free again, and may have other messages then."""
    claiming.queue()
    claiming.push(b"1", b"2")
    engine = claiming.engine
    first = claim(engine, count=1)
    release(engine, 1)
    with pytest.raises(ClaimOrderError):
        acknowledge(engine, 1)
    with pytest.raises(ClaimOrderError):
        claim(engine, 2)
    second = claim(engine, 1)
    assert (second.count, second.checksum == first.checksum) == (2, False)
    assert payloads(part(engine)) == [b"1", b"2"]


def test_nobody_else(claiming: Bench, reopened: Reopened) -> None:
    """Neither receive nor get nor another claim gives what is in a claim, however long it takes."""
    claiming.queue(visibility=10)
    [mid] = claiming.push(b"1")
    engine = claiming.engine
    claim(engine)
    for _ in range(2):
        claiming.clock.now += 10**15
        engine.expire(100)
        assert receive(engine) == []
        assert claim(engine, 1, "other").count == 0
        message = engine.queue("q").get(mid, peek=False, visibility=10)
        assert (message.status, message.payload, message.visible_at) == ("in-flight", None, None)
        assert message.receives == 1
        assert engine.effects().next_expiry is None
        assert engine.queue("q").list_mids(State.READY, 10, -1) == []
        assert engine.queue("q").list_mids(State.IN_FLIGHT, 10, -1) == [mid]
        assert engine.queue("q").list_mids(State.NEW, 10, -1) == []
        engine = reopened(claiming)


def test_old_receipts(claiming: Bench, reopened: Reopened) -> None:
    """Whoever had it before can neither delete, nor release, nor extend, nor read it, with a receipt or without."""
    claiming.queue()
    [mid] = claiming.push(b"1")
    engine = claiming.engine
    receive(engine, 1, 10)
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
    receive(claiming.engine, 1, 500)
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
    receive(claiming.engine, 1, 10)
    claiming.clock.now += 10
    claim(claiming.engine)
    claiming.clock.now -= 5
    engine = reopened(claiming)
    assert payloads(part(engine)) == [b"1"]
    assert receive(engine) == []
    claiming.clock.now -= 10**9
    acknowledge(engine, 1)
    assert reopened(claiming).queue("q").list_mids(State.ALL, 10, -1) == []
    assert mid < claiming.push(b"2")[0] or claiming.clock.now < mid


def test_consumers(claiming: Bench, reopened: Reopened) -> None:
    """Each has numbers of its own, and any name that a queue could have; no other."""
    names = ["..", ".lock", "/", "a/../b", "acked", "ä", "x" * 200, "%2F"]
    claiming.queue()
    claiming.push(*(b"1" for _ in names))
    engine = claiming.engine
    for name in names:
        assert claim(engine, 1, name, count=1).count == 1
    engine = reopened(claiming)
    assert [each.consumer for each in engine.queue("q").claims.all()] == sorted(names)
    for name in names:
        assert claim(engine, 1, name).count == 1
        acknowledge(engine, 1, name)
    assert engine.queue("q").stats().in_flight == 0
    for name in ("", "x" * 201, "ä" * 200, "\n", "\ud800"):
        for operation in (claim, part, release, acknowledge):
            with pytest.raises(BadQueueNameError, match="the consumer"):
                operation(engine, 1, name)


def test_push_in_the_same_batch(claiming: Bench) -> None:
    """What was pushed, received and deleted before it and is not committed yet."""
    claiming.queue()
    engine = claiming.engine
    mids = engine.queue("q").push([Draft(b"1"), Draft(b"2"), Draft(b"3")])
    engine.effects()
    engine.receive(["q"], 1, 1000, LOTS)
    engine.queue("q").delete(Receipt(mids[1]))
    assert engine.queue("q").claims.claim("c", 1, 10, None, None).count == 1
    engine.commit()
    assert payloads(part(engine)) == [b"3"]


def test_purge(claiming: Bench, reopened: Reopened) -> None:
    """An operator's purge takes what is in claims too: what is left of them is given, and can be acknowledged."""
    claiming.queue()
    mids = claiming.push(b"1", b"2", b"3")
    made = claim(claiming.engine)
    assert claiming.engine.queue("q").purge(mids[1], 10) == 2
    claiming.engine.commit()
    engine = claiming.engine
    for _ in range(2):
        assert payloads(part(engine)) == [b"3"]
        assert [part(engine, of=(i, 3)) == [] for i in range(3)] == [True, True, False]
        assert claim(engine) == made
        engine = reopened(claiming)
    acknowledge(engine, 1)
    assert engine.queue("q").stats().in_flight == 0


def test_delete_queue(claiming: Bench) -> None:
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
    assert engine.queue("q").claims.all() == []
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
    """The same."""
    claiming.queue()
    claiming.push(b"1", b"22", b"333")
    claim(claiming.engine, count=2)
    stats = reopened(claiming).queue("q").stats()
    assert (stats.new, stats.ready, stats.in_flight, stats.delayed, stats.bytes) == (1, 1, 2, 0, 6)


class Record:
    """What is told of messages' lives."""

    peer = "127.0.0.1:5"

    def __init__(self) -> None:
        self.events: list[tuple[str, int, int | None, int | None]] = []

    def note(
        self, event: str, qid: str, mid: int, size: int | None, receives: int | None, *, peer: str | None = None
    ) -> None:
        self.events.append((event, mid, size, receives))


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
    engine.queue("q").batches.stage("p", (0, 0, 0), [b"12"])
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
    """Where ids count milliseconds, `upto` does too."""
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
    assert payloads(receive(engine)) == [b"2"]


def test_copied_after_a_purge(claiming: Bench, reopened: Reopened) -> None:
    """A message that was purged while it was in a claim, and copied to the queue again, is no part of that claim."""
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


def test_options(claiming: Bench) -> None:
    """Messages in claims count for the capacity of a queue."""
    claiming.engine.create("q", Options(capacity=2))
    claiming.push(b"1", b"2")
    claim(claiming.engine)
    with pytest.raises(StorageError, match="capacity"):
        claiming.engine.queue("q").push([Draft(b"3")])
    acknowledge(claiming.engine, 1)
    claiming.push(b"3")
