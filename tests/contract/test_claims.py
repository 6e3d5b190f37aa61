"""Claims: what a consumer has read once stays as it is, and nobody else's, until it is done with it."""

from collections.abc import Callable

import pytest
from support.storage.calls import acknowledge, claim, part, payloads, receive_and_commit, release
from support.storage.engines import LOTS, Bench

from qs_storage.engine import (
    BadQueueNameError,
    ClaimOrderError,
    Engine,
    NoSuchClaimError,
    Receipt,
    StaleReceiptError,
    State,
)
from qs_storage.names import owned_name, split_name

Reopened = Callable[[Bench], Engine]


def test_claim(claiming: Bench) -> None:
    """A claim has the oldest visible messages, with all their attributes."""
    claiming.queue()
    mids = claiming.push(b"1", b"22", b"", b"4444")
    made = claim(claiming.engine, count=3)
    assert (made.consumer, made.seq, made.count, made.bytes) == ("c", 1, 3, 3)
    assert (made.first, made.last, made.since) == (mids[0], mids[2], claiming.clock.now)
    assert len(made.checksum) == 16
    assert payloads(part(claiming.engine)) == [b"1", b"22", b""]
    assert [message.mid for message in receive_and_commit(claiming.engine)] == mids[3:]


def test_claim_again_is_the_same(claiming: Bench, reopened: Reopened) -> None:
    """Repeating a claim gives the same messages, whatever was pushed since, with other bounds, and after a restart."""
    claiming.queue()
    claiming.push(b"1", b"2")
    made = claim(claiming.engine, count=1)
    claiming.push(b"3")
    claiming.clock.now += 5
    assert claim(claiming.engine, count=7, max_bytes=0, upto=0) == made
    assert claim(reopened(claiming)) == made
    assert list(claiming.engine.queue("q").claims.all()) == [made]
    assert payloads(receive_and_commit(claiming.engine)) == [b"2", b"3"]


def test_part_is_the_same_each_time(claiming: Bench, reopened: Reopened) -> None:
    """Ids, payloads, counts of receives, times."""
    claiming.queue()
    claiming.push(b"1", b"2", b"3")
    receive_and_commit(claiming.engine, 1, 10)
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
    """A claim respects max, max_bytes (except for its first message) and upto, each alone and all together."""
    claiming.queue()
    mids = claiming.push(*[b"12345"] * 8)
    assert claim(claiming.engine, 1, upto=mids[0] - 1).count == 0
    assert claim(claiming.engine, 1, upto=mids[1]).last == mids[1]
    assert claim(claiming.engine, 2, max_bytes=14).last == mids[3]
    assert claim(claiming.engine, 3, max_bytes=0).last == mids[4]
    assert claim(claiming.engine, 4, count=2, max_bytes=10, upto=mids[7]).last == mids[6]
    assert claim(claiming.engine, 5).count == 1
    assert claim(claiming.engine, 6).count == 0


def test_bounds_of_thousands(claiming: Bench) -> None:
    """The bounds end a claim at the right message, also far from the first one, and beside messages without payload."""
    claiming.queue()
    sizes = [9, 0, *[1, 0, 2] * 500, 9, *[0] * 999, 4]
    mids = claiming.push(*[b"x" * size for size in sizes])
    assert claim(claiming.engine, 1, max_bytes=8).last == mids[0]  # the first one is too large for that, and is taken
    made = claim(claiming.engine, 2, max_bytes=1498)
    assert (made.first, made.last, made.bytes) == (mids[1], mids[1500], 1498)
    made = claim(claiming.engine, 3, max_bytes=11, upto=mids[2300])
    assert (made.last, made.bytes) == (mids[2300], 11)
    made = claim(claiming.engine, 4, max_bytes=3)
    assert (made.last, made.bytes) == (mids[-2], 0)
    assert claim(claiming.engine, 5).first == mids[-1]


def test_most(claiming: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine has a bound of its own, whatever is asked for."""
    claiming.queue()
    claiming.push(*[b"1"] * 5)
    claims = claiming.engine.queue("q").claims
    assert claims.most in (10_000, 100_000)
    monkeypatch.setattr(type(claims), "most", 3)
    assert claim(claiming.engine, count=LOTS).count == 3


def test_nothing_is_no_claim(claiming: Bench, reopened: Reopened) -> None:
    """A claim of nothing is not kept: the same number may bring messages later."""
    claiming.queue()
    made = claim(claiming.engine)
    assert (made.count, made.bytes, made.first, made.last) == (0, 0, None, None)
    engine = reopened(claiming)
    assert list(engine.queue("q").claims.all()) == []
    with pytest.raises(NoSuchClaimError):
        part(engine)
    claiming.push(b"1")
    assert claim(engine).count == 1


def test_order_of_numbers(claiming: Bench, reopened: Reopened) -> None:
    """A claim takes the next number, or one that is claimed: a gap is refused, and so is an acknowledged number."""
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


def test_release_claim_makes_its_messages_visible(claiming: Bench, reopened: Reopened) -> None:
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
    found = receive_and_commit(engine)
    assert [(m.payload, m.receives) for m in found] == [(b"0", 2), (b"1", 2), (b"4", 1)]
    for _ in range(2):  # what was received is written down soon after
        engine.effects()
        claiming.clock.now += 100_000
        engine.begin_upkeep()
    engine = reopened(claiming)
    assert [each.seq for each in engine.queue("q").claims.all()] == [2]
    acknowledge(engine, 2)
    assert claim(engine, 3).count == 0


def test_release_of_messages_that_are_received_too_often(claiming: Bench, reopened: Reopened) -> None:
    """Messages of a released claim that were received too often go to the dead-letter queue, also if the server ends
    before."""
    claiming.queue(dead_letter="dead", max_receives=2)
    claiming.push(b"0", b"1")
    engine = claiming.engine
    [message] = receive_and_commit(engine, 1)
    engine.queue("q").release(Receipt(message.mid), 0)
    claim(engine)
    release(engine, 1)
    engine = reopened(claiming)
    assert [(m.payload, m.receives) for m in receive_and_commit(engine)] == [(b"1", 2)]
    [dead] = engine.receive(["dead"], 10, None, LOTS)
    assert dead.origin is not None
    assert (dead.payload, dead.origin.receives) == (b"0", 2)


def test_release_of_the_greatest(claiming: Bench) -> None:
    """The number of the greatest claim is free after its release, and may have other messages then."""
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


def test_consumers_of_principals(claiming: Bench, reopened: Reopened) -> None:
    """Two principals' consumers of one name have claims of their own, and none that the other could read or end. An
    error shows the name without the principal."""
    owners = [None, "a", "ab", "p" * 200, "\N{GRINNING FACE}" * 200]
    claiming.queue()
    claiming.push(*(b"1" for _ in owners))
    engine = claiming.engine
    made = {owner: claim(engine, 1, owned_name(owner, "c"), count=1) for owner in owners}
    acknowledge(engine, 1, owned_name("ab", "c"))
    engine = reopened(claiming)
    listed = {split_name(each.consumer): each for each in engine.queue("q").claims.all()}
    assert listed == {(owner, "c"): made[owner] for owner in owners if owner != "ab"}
    for operation in (part, release):
        with pytest.raises(NoSuchClaimError, match=r"^consumer 'c' has no claim 1"):
            operation(engine, 1, owned_name("ab", "c"))
    assert release(engine, 1, owned_name("a", "c")) == 1
    assert len(part(engine, 1, "c")) == 1
    with pytest.raises(BadQueueNameError, match=r"^the consumer ''"):
        claim(engine, 1, owned_name("a", ""))


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
