"""Messages that are older than the retention of their queue, by every engine that removes them."""

import pytest
from support.storage.calls import configure, listed, next_due
from support.storage.contract import needs
from support.storage.engines import LOTS, Bench, arrived

from qs_storage.engine import SECOND, Draft, Feature, Message, NoSuchMessageError, Options, Receipt, State

AGE = 60 * SECOND


@pytest.fixture
def aging(bench: Bench) -> Bench:
    """A queue `q` whose messages are kept for a minute."""
    needs(bench, Feature.RETENTION, Feature.EXACT)
    bench.queue(retention=AGE)
    return bench


def receive(bench: Bench, visibility: int = 1000 * SECOND) -> list[Message]:
    return bench.engine.receive(["q"], 100, visibility, LOTS)


def pass_time(bench: Bench, duration: int) -> None:
    """Lets time pass, and the timer do what is due then."""
    bench.clock.now += duration
    bench.engine.commit()
    while (due := next_due(bench.engine)) is not None and due <= bench.clock.now:
        bench.engine.expire(100)
        bench.engine.commit()


def retired(bench: Bench, qid: str = "q") -> int:
    return bench.engine.queue(qid).stats().retired


def test_visible_and_delayed_ones(aging: Bench) -> None:
    """Visible and delayed messages are removed at their time, not before, and stay removed after a start."""
    start = aging.clock.now
    [first] = bench_push(aging, b"1")
    aging.clock.now += 10
    [second] = bench_push(aging, b"2", delay=2 * AGE)
    [third] = bench_push(aging, b"3")
    assert next_due(aging.engine) == start + AGE
    aging.clock.now = start + AGE - 1
    aging.engine.expire(100)
    assert listed(aging) == [first, second, third]
    pass_time(aging, 1)
    assert (listed(aging), retired(aging), next_due(aging.engine)) == ([second, third], 1, start + 10 + AGE)
    pass_time(aging, 20)
    assert (listed(aging), retired(aging), next_due(aging.engine)) == ([], 3, None)
    stats = aging.engine.queue("q").stats()
    assert (stats.bytes, stats.delayed, stats.ready, stats.new, stats.deleted) == (0, 0, 0, 0, 0)
    aging.reopen()
    assert listed(aging) == []


def bench_push(bench: Bench, *payloads: bytes, delay: int = 0, qid: str = "q") -> list[int]:
    return bench.engine.queue(qid).push([Draft(payload, delay) for payload in payloads])


def test_one_in_flight(aging: Bench) -> None:
    """A message in flight stays until its window ends; then it is removed instead of becoming visible. Its age wakes
    nobody before."""
    bench_push(aging, b"x")
    window = receive(aging, 3 * AGE)[0].visible_at
    assert next_due(aging.engine) == window
    pass_time(aging, 2 * AGE)
    assert len(listed(aging)) == 1
    arrived(aging.engine)
    pass_time(aging, AGE)
    assert (listed(aging), retired(aging), arrived(aging.engine)) == ([], 1, {})


@pytest.mark.parametrize("delay", [0, AGE])
def test_release_removes_message_too_old(aging: Bench, delay: int) -> None:
    """Removes one that is too old by then, whatever the delay."""
    [mid] = bench_push(aging, b"x")
    [message] = receive(aging)
    pass_time(aging, 2 * AGE)
    assert aging.engine.queue("q").release(Receipt(mid, message.receives), delay) is None
    aging.engine.commit()
    assert (listed(aging), retired(aging)) == ([], 1)
    with pytest.raises(NoSuchMessageError):
        aging.engine.queue("q").delete(Receipt(mid))


def test_extension_and_deletion(aging: Bench) -> None:
    """One in flight is its holder's, however old it is."""
    first, second = bench_push(aging, b"1", b"2")
    receive(aging)
    pass_time(aging, 2 * AGE)
    queue = aging.engine.queue("q")
    queue.extend(Receipt(first), AGE)
    assert queue.read(Receipt(second)).payload == b"2"
    queue.delete(Receipt(second))
    assert listed(aging) == [first]
    pass_time(aging, AGE)
    assert (listed(aging), retired(aging)) == ([], 1)


def test_before_the_timer(aging: Bench) -> None:
    """A message that is too old is given to nobody, even before it is removed."""
    [mid] = bench_push(aging, b"x")
    aging.clock.now += AGE
    [young] = bench_push(aging, b"y")
    queue = aging.engine.queue("q")
    for peek in (True, False):
        with pytest.raises(NoSuchMessageError, match="too old"):
            queue.get(mid, peek=peek, visibility=None)
    assert [m.mid for m in aging.engine.receive(["q"], 1, None, LOTS)] == [young]
    aging.engine.commit()
    assert aging.engine.receive(["q"], 9, None, LOTS) == []
    pass_time(aging, 0)
    assert listed(aging) == [young]


def test_a_change_of_the_option(aging: Bench) -> None:
    """Takes effect at once, also in a queue that is paused; and none at all when it is taken back before its time."""
    bench_push(aging, b"x")
    pass_time(aging, AGE - 1)
    configure(aging, retention=None)
    pass_time(aging, 9 * AGE)
    assert (len(listed(aging)), next_due(aging.engine)) == (1, None)
    configure(aging, paused=True, retention=AGE)
    aging.reopen()
    assert aging.engine.queue("q").options.retention == AGE
    pass_time(aging, 0)
    assert (listed(aging), retired(aging)) == ([], 1)


def test_a_start(aging: Bench) -> None:
    """The first `expire` removes messages that grew too old while no engine was open."""
    bench_push(aging, b"1", b"2", b"3")
    aging.engine.commit()
    aging.clock.now += 2 * AGE
    aging.reopen()
    assert next_due(aging.engine) is not None
    pass_time(aging, 0)
    assert (listed(aging), retired(aging)) == ([], 3)


def test_many(aging: Bench) -> None:
    """Each call removes at most as many as it is asked for, the oldest first."""
    needs(aging, Feature.TELLS)
    mids = [mid for _ in range(7) for mid in bench_push(aging, *[b"x"] * 100)]
    aging.clock.now = mids[-1] + AGE
    aging.engine.commit()
    assert aging.engine.expire(600) == 600
    assert listed(aging) == mids[600:]
    pass_time(aging, 0)
    assert (listed(aging), retired(aging)) == ([], 700)
    assert aging.engine.expire(600) == 0


def test_a_copy(aging: Bench) -> None:
    """A copy has the age of the original, and the payload stays for the other queue."""
    needs(aging, Feature.COPY)
    aging.engine.create("kept", Options())
    [mid] = bench_push(aging, b"x", qid="kept")
    aging.engine.copy("kept", mid, ["q"])
    pass_time(aging, AGE)
    assert listed(aging) == []
    assert aging.engine.queue("kept").get(mid, peek=True, visibility=None).payload == b"x"


def test_a_push_with_a_key(aging: Bench) -> None:
    """Within the five minutes the key still means the message that was removed, as with one that was deleted."""
    needs(aging, Feature.KEY)
    queue = aging.engine.queue("q")
    [mid] = queue.push([Draft(b"x", key="k")])
    pass_time(aging, AGE)
    assert (listed(aging), queue.push([Draft(b"x", key="k")])) == ([], [mid])
    pass_time(aging, 300 * SECOND)
    [again] = queue.push([Draft(b"x", key="k")])
    assert listed(aging) == [again]


def test_a_claim(aging: Bench) -> None:
    """Claimed messages stay, whatever their age; released ones are removed."""
    needs(aging, Feature.CLAIM)
    bench_push(aging, b"1", b"2")
    claims = aging.engine.queue("q").claims
    assert claims is not None
    assert claims.claim("c", 1, 1, None, None).count == 1
    pass_time(aging, AGE + 9)
    assert (len(listed(aging)), retired(aging), claims.claim("c", 2, 9, None, None).count) == (1, 1, 0)
    claims.release("c", 1)
    pass_time(aging, 0)
    assert (listed(aging), retired(aging)) == ([], 2)


def test_a_batch_that_fails(aging: Bench) -> None:
    """A failed batch restores removed messages in their former state; the next successful batch removes them."""
    needs(aging, Feature.CLAIM)  # only the journal takes back what it did
    queue = aging.engine.queue("q")
    bench_push(aging, b"1")
    [received] = receive(aging, 1)
    bench_push(aging, b"2", delay=9 * AGE)
    pass_time(aging, 1)
    aging.clock.now += AGE
    before = (listed(aging), queue.list_mids(State.DELAYED, 9, -1), queue.stats())
    aging.engine.expire(100)
    assert listed(aging) == []
    aging.engine.roll_back()
    assert (listed(aging), queue.list_mids(State.DELAYED, 9, -1), queue.stats()) == before
    assert received.mid in queue.list_mids(State.READY, 9, -1)
    pass_time(aging, 0)
    assert (listed(aging), retired(aging)) == ([], 2)


def test_a_dead_letter_queue(aging: Bench) -> None:
    """A message that is too old as well goes to the dead-letter queue. There its age counts from its death."""
    needs(aging, Feature.DEAD)
    aging.engine.create("dead", Options(retention=AGE))
    configure(aging, dead_letter="dead", max_receives=1)
    [mid] = bench_push(aging, b"x")
    receive(aging, 5 * AGE)
    pass_time(aging, 5 * AGE)
    [dead] = listed(aging, qid="dead")
    assert (listed(aging), retired(aging), dead > mid) == ([], 0, True)
    pass_time(aging, AGE - 1)
    assert listed(aging, qid="dead") == [dead]
    pass_time(aging, AGE)
    assert (listed(aging, qid="dead"), retired(aging, "dead")) == ([], 1)
    aging.reopen()
    assert (listed(aging), listed(aging, qid="dead")) == ([], [])
