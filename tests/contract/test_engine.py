"""What every engine does, whatever it keeps its messages in, but for what it says that it cannot: then it is skipped.

`any_bench` is for what holds also where nothing is kept, `bench` for what is about messages.
"""

from collections.abc import Callable
from dataclasses import asdict

import pytest
from support.contract_bench import needs
from support.engines import Bench, arrived

from qs_server.storage.engine import (
    DEFAULT_VISIBILITY,
    SECOND,
    BadQueueNameError,
    Draft,
    Feature,
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    QueueExistsError,
    QueueFullError,
    QueueNotEmptyError,
    Receipt,
    StaleReceiptError,
    State,
    Stats,
)

LOTS = 1 << 40
"""Bytes: no bound."""


def receive(bench: Bench, *qids: str, count: int = 1000, visibility: int | None = None) -> list[Message]:
    return bench.engine.receive(qids or ["q"], count, visibility, LOTS)


def mids(messages: list[Message]) -> list[int]:
    return [message.mid for message in messages]


def listed(bench: Bench, state: State = State.ALL, qid: str = "q") -> list[int]:
    return bench.engine.queue(qid).list_mids(state, 1000, -1)


def count(bench: Bench, qid: str = "q") -> int:
    """How many messages the queue holds, in whatever state."""
    stats = bench.engine.queue(qid).stats()
    return stats.ready + stats.in_flight + stats.delayed


def assert_due(bench: Bench, when: int) -> None:
    """The next message becomes visible then, says the engine, if it tells such things."""
    if Feature.TELLS not in bench.engine.cannot:
        assert bench.engine.effects().next_expiry == when


def assert_arrived(bench: Bench, arrivals: dict[str, int] | None = None) -> None:
    """These messages have become visible since the last call, says the engine, if it tells such things; None: never
    mind which."""
    if Feature.TELLS not in bench.engine.cannot:
        found = arrived(bench.engine)
        assert arrivals is None or found == arrivals


def states(bench: Bench) -> dict[str, list[int]]:
    return {state.value: listed(bench, state) for state in State}


# -- queues


def test_create(any_bench: Bench) -> None:
    """A created queue is among the queues, with its options, and stays."""
    any_bench.queue("q", visibility=7 * SECOND, capacity=3)
    for engine in (any_bench.engine, any_bench.reopen()):
        assert list(engine.queues()) == ["q"]
        options = engine.queue("q").options
        assert (options.visibility, options.capacity) == (7 * SECOND, 3)
        assert options.storage == engine.name


def test_create_default_options(any_bench: Bench) -> None:
    """Without options a queue has the default window and no capacity."""
    any_bench.queue()
    options = any_bench.engine.queue("q").options
    assert (options.visibility, options.capacity) == (DEFAULT_VISIBILITY, None)


def test_create_again(bench: Bench) -> None:
    """A name is given once; the queue that has it keeps its messages."""
    bench.queue()
    [mid] = bench.push(b"x")
    with pytest.raises(QueueExistsError):
        bench.queue()
    assert mids(receive(bench)) == [mid]


@pytest.mark.parametrize("qid", ["", "a" * 201, "a\nb", "a\0b", "é" * 100])
def test_create_bad_name(any_bench: Bench, qid: str) -> None:
    """A name that cannot be kept is refused."""
    with pytest.raises(BadQueueNameError):
        any_bench.queue(qid)
    assert not list(any_bench.engine.queues())


@pytest.mark.parametrize("qid", ["a/b", "..", ".", ".hidden", "ü 日 🐟", "a%20b", "q.new", "1", "~", "A", "a"])
def test_create_any_name(bench: Bench, qid: str) -> None:
    """Any text is a name, also what means something to a file system; it stays the same when reopened."""
    bench.queue(qid)
    [mid] = bench.push(b"x", qid=qid)
    assert list(bench.reopen().queues()) == [qid]
    assert mids(receive(bench, qid)) == [mid]


def test_remove(any_bench: Bench) -> None:
    """A removed queue is gone, and its name is free for a new one that is empty."""
    any_bench.queue()
    any_bench.engine.remove("q", force=False)
    assert not list(any_bench.engine.queues())
    with pytest.raises(NoSuchQueueError):
        count(any_bench)
    any_bench.queue()
    assert not receive(any_bench)


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed", "staged"])
def test_remove_not_empty(bench: Bench, state: str) -> None:
    """A queue with a message in any state is removed by force only."""
    bench.queue()
    bench.engine.queue("q").push([Draft(b"x", SECOND if state == "delayed" else 0)])
    if state != "staged":
        bench.engine.commit()
    if state == "in-flight":
        receive(bench)
    with pytest.raises(QueueNotEmptyError):
        bench.engine.remove("q", force=False)
    assert count(bench) == 1
    bench.engine.remove("q", force=True)
    assert not list(bench.reopen().queues())


def test_no_such_queue(any_bench: Bench) -> None:
    """Every method that names a queue says when there is none."""
    engine = any_bench.engine
    for call in (
        lambda: engine.queue("no").options,
        lambda: engine.remove("no", force=True),
        lambda: engine.queue("no").push([Draft(b"")]),
        lambda: engine.receive(["no"], 1, None, 1),
        lambda: engine.queue("no").get(1, peek=True, visibility=None),
        lambda: engine.queue("no").list_mids(State.ALL, 1, -1),
        lambda: engine.queue("no").delete(Receipt(1)),
        lambda: engine.queue("no").release(Receipt(1), 0),
        lambda: engine.queue("no").extend(Receipt(1), None),
        lambda: engine.queue("no").purge(1, 1),
        lambda: engine.queue("no").stats(),
        lambda: engine.queue("no").prepare_stats(),
        lambda: engine.queue("no").last_mid,
        lambda: engine.receive(["no"], 1, None, 1, held=True),
        lambda: engine.queue("no").read(Receipt(1)),
        lambda: engine.copy("no", 1, ["no"]),
    ):
        with pytest.raises(NoSuchQueueError):
            call()


def test_receive_one_of_two_queues_missing(bench: Bench) -> None:
    """When one of several queues is missing nothing is received from the others."""
    bench.queue()
    [mid] = bench.push(b"x")
    with pytest.raises(NoSuchQueueError):
        receive(bench, "q", "no")
    assert mids(receive(bench)) == [mid]


# -- push


@pytest.mark.parametrize("payload", [b"", b"\0\xff<&]]>", b"x" * 200_000])
def test_push_any_bytes(bench: Bench, payload: bytes) -> None:
    """A payload is any bytes, none or many, and comes back as it was."""
    bench.queue()
    bench.push(payload)
    bench.reopen()
    [message] = receive(bench)
    assert message.payload == payload


def test_push_is_announced(bench: Bench) -> None:
    """A pushed message is among the effects, once."""
    bench.queue()
    arrived(bench.engine)
    bench.engine.queue("q").push([Draft(b"x")])
    effects = bench.engine.effects()
    assert (effects.arrived, effects.failed) == ({"q": 1}, {})
    assert not bench.engine.effects().arrived


@pytest.mark.parametrize("look", ["receive", "get", "list", "delete", "stats", "release", "purge"])
def test_looking_flushes(bench: Bench, look: str) -> None:
    """Whatever looks at messages sees those that were pushed before."""
    if look in ("delete", "release"):
        needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.engine.queue("q").push([Draft(b"x")])
    engine = bench.engine
    if look == "receive":
        assert mids(receive(bench)) == [mid]
    elif look == "get":
        assert engine.queue("q").get(mid, peek=True, visibility=None).payload == b"x"
    elif look == "list":
        assert listed(bench) == [mid]
    elif look == "delete":
        engine.queue("q").delete(Receipt(mid))
    elif look == "stats":
        assert engine.queue("q").stats().ready == 1
    elif look == "release":
        assert engine.queue("q").release(Receipt(mid), 5) == bench.clock.now + 5
    else:
        assert engine.queue("q").purge(mid, 10) == 1


def test_push_list(bench: Bench) -> None:
    """A list gets increasing ids and is received in its order."""
    bench.queue()
    pushed = bench.engine.queue("q").push([Draft(b"%d" % n) for n in range(20)])
    assert pushed == sorted(set(pushed))
    assert [(m.mid, m.payload) for m in receive(bench)] == [(mid, b"%d" % n) for n, mid in enumerate(pushed)]


def test_push_empty_list(any_bench: Bench) -> None:
    """A list of nothing changes nothing."""
    any_bench.queue()
    assert any_bench.engine.queue("q").push([]) == []
    any_bench.engine.commit()
    assert not receive(any_bench)


def test_push_delay(bench: Bench) -> None:
    """A delayed message is invisible until exactly its time, never retrieved, and not received before."""
    bench.queue()
    start = bench.clock.now
    [mid] = bench.engine.queue("q").push([Draft(b"x", 500)])
    bench.engine.commit()
    assert_due(bench, start + 500)
    bench.clock.now = start + 499
    assert not receive(bench)
    assert states(bench) == {"new": [mid], "ready": [], "in-flight": [], "delayed": [mid], "all": [mid]}
    bench.clock.now = start + 500
    [message] = receive(bench)
    assert (message.mid, message.receives) == (mid, 1)


def test_push_list_with_delays(bench: Bench) -> None:
    """Each message of a list has its own delay."""
    bench.queue()
    a, b, c = bench.engine.queue("q").push([Draft(b"a", 100), Draft(b"b"), Draft(b"c", 50)])
    assert mids(receive(bench)) == [b]
    bench.clock.now += 100
    assert mids(receive(bench)) == [a, c]


def test_push_key(bench: Bench) -> None:
    """A push with a key that was there before stores nothing and gets the id of the first, also after a reopening."""
    bench.queue()
    [first] = bench.engine.queue("q").push([Draft(b"1", key="a")])
    bench.engine.commit()
    assert bench.engine.queue("q").push([Draft(b"2", key="a")]) == [first]
    bench.reopen()
    assert bench.engine.queue("q").push([Draft(b"3", key="a")]) == [first]
    [other] = bench.engine.queue("q").push([Draft(b"4", key="b")])
    assert [(m.mid, m.payload) for m in receive(bench)] == [(first, b"1"), (other, b"4")]


def test_push_capacity(bench: Bench) -> None:
    """A queue holds no more than its capacity, in whatever state, staged or not; a list goes in whole or not at all."""
    bench.queue(capacity=3)
    bench.push(b"1")
    receive(bench)
    bench.engine.queue("q").push([Draft(b"2", SECOND)])
    with pytest.raises(QueueFullError):
        bench.engine.queue("q").push([Draft(b"3"), Draft(b"4")])
    [last] = bench.engine.queue("q").push([Draft(b"3")])
    with pytest.raises(QueueFullError):
        bench.engine.queue("q").push([Draft(b"4")])
    bench.engine.queue("q").delete(Receipt(last))
    bench.push(b"4")
    assert len(listed(bench)) == 3


def test_mids_increase_whatever_the_clock_does(bench: Bench) -> None:
    """Ids increase strictly although the clock stands still or goes back, also over a reopening."""
    bench.queue()
    found = [*bench.push(b"x"), *bench.engine.queue("q").push([Draft(b"x")] * 3)]
    bench.clock.now -= 1000 * SECOND
    found += bench.push(b"x", b"x")
    bench.reopen()
    found += bench.push(b"x")
    assert found == sorted(set(found))
    assert bench.engine.queue("q").last_mid == found[-1]
    assert mids(receive(bench)) == found


def test_last_mid(bench: Bench) -> None:
    """The greatest id is known also when its message is gone; -1 before there is one."""
    bench.queue()
    assert bench.engine.queue("q").last_mid == -1
    [mid] = bench.push(b"x")
    receive(bench)
    bench.engine.queue("q").delete(Receipt(mid))
    assert bench.engine.queue("q").last_mid == mid


# -- receive


def test_receive(bench: Bench) -> None:
    """A message handed out says all about itself, and is in flight for the window that was asked for."""
    bench.queue()
    start = bench.clock.now
    [mid] = bench.push(b"x")
    [message] = receive(bench, visibility=10 * SECOND)
    until = bench.clock.now + 10 * SECOND
    assert message == Message("q", mid, "delivered", 1, start, until, b"x")
    assert not receive(bench)
    assert_due(bench, until)
    assert states(bench) == {"new": [], "ready": [], "in-flight": [mid], "delayed": [], "all": [mid]}


def test_receive_default_window(bench: Bench) -> None:
    """Without a window a message is in flight for the queue's own."""
    bench.queue(visibility=7 * SECOND)
    bench.push(b"x")
    [message] = receive(bench)
    assert message.visible_at == bench.clock.now + 7 * SECOND


def test_receive_oldest_first(bench: Bench) -> None:
    """At most count messages, the oldest."""
    needs(bench, Feature.ORDER)
    bench.queue()
    a, b, c = bench.push(b"a", b"b", b"c")
    assert mids(receive(bench, count=2)) == [a, b]
    assert mids(receive(bench, count=2)) == [c]
    assert not receive(bench, count=0)


def test_receive_from_several_queues(bench: Bench) -> None:
    """Messages of several queues come merged by id, each from its queue, a queue named twice once."""
    for qid in "abc":
        bench.queue(qid)
    pushed = [(qid, bench.push(qid.encode(), qid=qid)[0]) for qid in "abcacbba"]
    found = receive(bench, "a", "b", "c", "a")
    assert [(m.qid, m.mid) for m in found] == pushed
    assert all(m.payload == m.qid.encode() for m in found)


def test_receive_window_of_each_queue(bench: Bench) -> None:
    """Without a window each message has that of its own queue."""
    bench.queue("a", visibility=SECOND)
    bench.queue("b", visibility=2 * SECOND)
    bench.push(b"", qid="a")
    bench.push(b"", qid="b")
    now = bench.clock.now
    assert [m.visible_at for m in receive(bench, "a", "b")] == [now + SECOND, now + 2 * SECOND]


def test_receive_max_bytes(bench: Bench) -> None:
    """No more than fit, in order; the first one whatever its size; none is skipped for a smaller one behind it."""
    needs(bench, Feature.ORDER)
    bench.queue()
    a, b, c, d, e = bench.push(b"x" * 100, b"x" * 10, b"", b"x" * 11, b"")

    def take(room: int) -> list[int]:
        return mids(bench.engine.receive(["q"], 10, None, room))

    assert take(50) == [a]
    assert take(20) == [b, c]
    assert take(0) == [d]
    assert take(0) == [e]


def test_expired_comes_back_before_newer(bench: Bench) -> None:
    """A message whose window has ended is received again, before newer ones, and counts."""
    bench.queue()
    a, b = bench.push(b"a", b"b")
    receive(bench, count=1, visibility=100)
    bench.clock.now += 99
    assert bench.engine.queue("q").get(a, peek=True, visibility=None).status == "in-flight"
    bench.clock.now += 1
    found = receive(bench)
    assert [(m.mid, m.receives) for m in found] == [(a, 2), (b, 1)]
    assert bench.engine.queue("q").stats().expired == 1


def test_zero_window(bench: Bench) -> None:
    """A window of nothing has ended at once."""
    bench.queue()
    [mid] = bench.push(b"x")
    assert mids(receive(bench, count=1, visibility=0)) == [mid]
    assert mids(receive(bench, count=1, visibility=5)) == [mid]


# -- get and list


def test_get_peek(bench: Bench) -> None:
    """Peeking gives the payload of a visible message and changes nothing."""
    bench.queue()
    start = bench.clock.now
    [mid] = bench.push(b"x")
    for _ in range(2):
        message = bench.engine.queue("q").get(mid, peek=True, visibility=None)
        assert message == Message("q", mid, "ready", 0, start, None, b"x")
    assert states(bench)["new"] == [mid]


def test_get_receives(bench: Bench) -> None:
    """Getting a visible message receives it."""
    bench.queue()
    start = bench.clock.now
    a, b = bench.push(b"a", b"b")
    message = bench.engine.queue("q").get(b, peek=False, visibility=SECOND)
    assert message == Message("q", b, "delivered", 1, start + 1, bench.clock.now + SECOND, b"b")
    assert mids(receive(bench)) == [a]


@pytest.mark.parametrize("peek", [True, False])
def test_get_hidden(bench: Bench, peek: bool) -> None:
    """A message that is in flight or delayed is described without its payload, and stays so."""
    bench.queue()
    [flying] = bench.push(b"a")
    receive(bench, visibility=100)
    [delayed] = bench.push(b"b", delay=100)
    now = bench.clock.now
    found = [bench.engine.queue("q").get(mid, peek=peek, visibility=5) for mid in (flying, delayed)]
    assert [(m.status, m.receives, m.payload) for m in found] == [("in-flight", 1, None), ("delayed", 0, None)]
    assert found[0].visible_at == now - 1 + 100
    assert found[1].visible_at == now - 1 + 100
    assert states(bench)["in-flight"] == [flying]


def test_get_missing(bench: Bench) -> None:
    """A message that is not there is said to be missing."""
    bench.queue()
    [mid] = bench.push(b"x")
    receive(bench)
    bench.engine.queue("q").delete(Receipt(mid))
    for missing in (mid, mid + 1, 0):
        for peek in (True, False):
            with pytest.raises(NoSuchMessageError):
                bench.engine.queue("q").get(missing, peek=peek, visibility=None)


def test_list_states(bench: Bench) -> None:
    """Each state lists its messages; new are those never retrieved, delayed ones included, released ones not."""
    bench.queue()
    a, b, c = bench.push(b"a", b"b", b"c")
    [d] = bench.push(b"d", delay=SECOND)
    receive(bench, count=2, visibility=SECOND)
    bench.engine.queue("q").release(Receipt(a), 0)
    expected = {"new": [c, d], "ready": [a, c], "in-flight": [b], "delayed": [d], "all": [a, b, c, d]}
    assert states(bench) == expected
    bench.reopen()
    assert states(bench) == expected


@pytest.mark.parametrize("state", list(State))
def test_list_pages(bench: Bench, state: State) -> None:
    """Pages of any size, each after the last id of the one before, give everything once and in order."""
    bench.queue()
    found = [mid for n in range(9) for mid in bench.push(b"x", delay=SECOND * (n % 3 == 0))]
    receive(bench, count=3)
    bench.reopen()
    whole = listed(bench, state)
    for size in (1, 2, 4):
        pages: list[int] = []
        while page := bench.engine.queue("q").list_mids(state, size, pages[-1] if pages else -1):
            assert len(page) <= size
            pages += page
        assert pages == whole
    assert set(whole) <= set(found)
    assert whole


# -- delete, release, extend


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed", "back"])
@pytest.mark.parametrize("with_receipt", [True, False])
def test_delete(bench: Bench, state: str, with_receipt: bool) -> None:
    """A message is deleted in whatever state, with the count of receives that its holder saw or without; once."""
    if state in ("ready", "delayed"):
        needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.push(b"x", delay=SECOND if state == "delayed" else 0)
    if state in ("in-flight", "back"):
        receive(bench, visibility=100)
    if state == "back":
        bench.clock.now += 100
    seen = (1 if state in ("in-flight", "back") else 0) if with_receipt else None
    bench.engine.queue("q").delete(Receipt(mid, seen))
    with pytest.raises(NoSuchMessageError):
        bench.engine.queue("q").delete(Receipt(mid, seen))
    assert count(bench) == 0
    bench.reopen()
    assert count(bench) == 0


def test_stale_receipt(bench: Bench) -> None:
    """Whoever received a message before somebody else received it again can do nothing to it any more."""
    bench.queue()
    [mid] = bench.push(b"x")
    receive(bench, visibility=10)
    bench.clock.now += 10
    receive(bench, visibility=SECOND)
    old, current = Receipt(mid, 1), Receipt(mid, 2)
    calls: tuple[Callable[[], object], ...] = (
        lambda: bench.engine.queue("q").delete(old),
        lambda: bench.engine.queue("q").release(old, 0),
        lambda: bench.engine.queue("q").release(old, 5),
        lambda: bench.engine.queue("q").extend(old, SECOND),
    )
    for call in calls:
        with pytest.raises(StaleReceiptError):
            call()
    assert states(bench)["in-flight"] == [mid]
    bench.engine.queue("q").extend(current, SECOND)
    bench.engine.queue("q").delete(current)


@pytest.mark.parametrize("receives", [1, None])
def test_release(bench: Bench, receives: int | None) -> None:
    """A released message is visible at once, at its old place, still counted, and announced."""
    needs(bench, Feature.ORDER)
    bench.queue()
    a, b = bench.push(b"a", b"b")
    receive(bench, count=1)
    assert_arrived(bench)
    assert bench.engine.queue("q").release(Receipt(a, receives), 0) is None
    assert_arrived(bench, {"q": 2})
    bench.reopen()
    assert [(m.mid, m.receives) for m in receive(bench)] == [(a, 2), (b, 1)]
    assert bench.engine.queue("q").stats().expired == 0


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed"])
def test_release_with_delay(bench: Bench, state: str) -> None:
    """With a delay a message is delayed until then, from whatever state."""
    bench.queue()
    [mid] = bench.push(b"x", delay=5 if state == "delayed" else 0)
    if state == "in-flight":
        receive(bench)
    until = bench.clock.now + 100
    assert bench.engine.queue("q").release(Receipt(mid), 100) == until
    bench.reopen()
    assert states(bench)["delayed"] == [mid]
    assert states(bench)["new"] == ([] if state == "in-flight" else [mid])
    assert_due(bench, until)
    bench.clock.now = until
    assert mids(receive(bench)) == [mid]


def test_release_of_delayed(bench: Bench) -> None:
    """Released without a delay, a delayed message is visible at once."""
    needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.push(b"x", delay=SECOND)
    assert bench.engine.queue("q").release(Receipt(mid), 0) is None
    assert states(bench) == {"new": [mid], "ready": [mid], "in-flight": [], "delayed": [], "all": [mid]}


def test_release_of_ready(bench: Bench) -> None:
    """Releasing a visible message changes nothing."""
    needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.push(b"x")
    assert bench.engine.queue("q").release(Receipt(mid), 0) is None
    assert states(bench)["new"] == [mid]


def test_extend(bench: Bench) -> None:
    """A window is moved to end that long from now, or the queue's own window from now; not counted as a receive."""
    bench.queue(visibility=3 * SECOND)
    [mid] = bench.push(b"x")
    receive(bench, visibility=100)
    bench.clock.now += 50
    assert bench.engine.queue("q").extend(Receipt(mid, 1), SECOND) == bench.clock.now + SECOND
    assert bench.engine.queue("q").extend(Receipt(mid), None) == bench.clock.now + 3 * SECOND
    assert_due(bench, bench.clock.now + 3 * SECOND)
    bench.reopen()
    message = bench.engine.queue("q").get(mid, peek=True, visibility=None)
    assert (message.status, message.receives, message.visible_at) == ("in-flight", 1, bench.clock.now + 3 * SECOND)


def test_extend_to_shorter(bench: Bench) -> None:
    """A window may be made shorter, and ends then."""
    bench.queue()
    [mid] = bench.push(b"x")
    receive(bench, visibility=100 * SECOND)
    until = bench.engine.queue("q").extend(Receipt(mid), 10)
    assert_due(bench, until)
    bench.clock.now = until
    assert mids(receive(bench)) == [mid]


@pytest.mark.parametrize("state", ["ready", "delayed", "expired"])
def test_extend_not_in_flight(bench: Bench, state: str) -> None:
    """Only a message in flight has a window to extend."""
    if state != "expired":
        needs(bench, Feature.ANY)
    bench.queue()
    [mid] = bench.push(b"x", delay=SECOND if state == "delayed" else 0)
    if state == "expired":
        receive(bench, visibility=10)
        bench.clock.now += 10
    with pytest.raises(StaleReceiptError):
        bench.engine.queue("q").extend(Receipt(mid), SECOND)


def test_missing_message(any_bench: Bench) -> None:
    """Nothing can be done to a message that is not there."""
    any_bench.queue()
    engine = any_bench.engine
    for receipt in (Receipt(5), Receipt(5, 1)):
        with pytest.raises(NoSuchMessageError):
            engine.queue("q").delete(receipt)
        with pytest.raises(NoSuchMessageError):
            engine.queue("q").release(receipt, 0)
        with pytest.raises(NoSuchMessageError):
            engine.queue("q").extend(receipt, None)


def test_purge(bench: Bench) -> None:
    """The oldest messages up to an id go, in whatever state, in slices; a short slice was the last."""
    needs(bench, Feature.PART)
    bench.queue()
    found = bench.push(*[b"x"] * 5)
    receive(bench, count=2)
    [late] = bench.push(b"y", delay=SECOND)
    upto = bench.engine.queue("q").last_mid
    [newer] = bench.push(b"z")
    assert bench.engine.queue("q").purge(upto, 4) == 4
    assert listed(bench) == [found[4], late, newer]
    assert bench.engine.queue("q").purge(upto, 4) == 2
    assert bench.engine.queue("q").purge(upto, 4) == 0
    bench.reopen()
    assert listed(bench) == [newer]


# -- held for a subscriber


def hold(bench: Bench, *qids: str, count: int = 1000, visibility: int | None = None) -> list[Message]:
    return bench.engine.receive(qids or ["q"], count, visibility, LOTS, held=True)


def test_receive_held(bench: Bench) -> None:
    """What is received for a subscriber is a receive like any other while the process lives."""
    bench.queue()
    start = bench.clock.now
    a, b = bench.push(b"a", b"b")
    [message] = hold(bench, count=1, visibility=100)
    assert message == Message("q", a, "delivered", 1, start, bench.clock.now + 100, b"a")
    assert states(bench)["in-flight"] == [a]
    bench.engine.queue("q").delete(Receipt(a, 1))
    [message] = hold(bench, visibility=100)
    assert bench.engine.queue("q").release(Receipt(b, 1), 0) is None
    [message] = hold(bench, visibility=100)
    bench.clock.now += 50
    assert bench.engine.queue("q").extend(Receipt(b, 2), 100) == bench.clock.now + 100
    bench.clock.now += 100
    assert [(m.mid, m.receives) for m in receive(bench)] == [(b, 3)]


def test_held_counts_survive(bench: Bench) -> None:
    """How often a message was delivered survives the process, as that of any receive does."""
    bench.queue()
    [mid] = bench.push(b"x")
    hold(bench, visibility=10)
    bench.clock.now += 10
    bench.reopen()
    assert bench.engine.queue("q").get(mid, peek=True, visibility=None).receives == 1
    assert states(bench)["new"] == []


@pytest.mark.parametrize("state", ["ready", "in-flight", "delayed"])
def test_read(bench: Bench, state: str) -> None:
    """Whoever holds the receipt reads the payload in whatever state the message is, and changes nothing."""
    bench.queue()
    start = bench.clock.now
    [mid] = bench.push(b"x", delay=500 if state == "delayed" else 0)
    if state == "in-flight":
        hold(bench, visibility=499)
    before = states(bench)
    receives = int(state == "in-flight")
    visible_at = None if state == "ready" else bench.clock.now + 499
    expected = Message("q", mid, "delivered", receives, start, visible_at, b"x")
    assert bench.engine.queue("q").read(Receipt(mid, receives)) == expected
    assert bench.engine.queue("q").read(Receipt(mid)) == expected
    assert states(bench) == before


def test_read_what_is_not_held(bench: Bench) -> None:
    """With an outdated receipt nothing is read, and what is gone is said to be missing."""
    bench.queue()
    [mid] = bench.push(b"x")
    hold(bench, visibility=10)
    bench.clock.now += 10
    receive(bench)
    with pytest.raises(StaleReceiptError):
        bench.engine.queue("q").read(Receipt(mid, 1))
    bench.engine.queue("q").delete(Receipt(mid))
    with pytest.raises(NoSuchMessageError):
        bench.engine.queue("q").read(Receipt(mid, 2))


# -- copy


def copied(bench: Bench, *into: str) -> int:
    """A message of `q`, copied."""
    [mid] = bench.push(b"x")
    bench.engine.copy("q", mid, into)
    bench.engine.commit()
    return mid


def test_copy(bench: Bench) -> None:
    """A copy is ready and new, under the same id, announced, and stays; the source is as it was."""
    for qid in ("q", "r", "s"):
        bench.queue(qid)
    mid = copied(bench, "r", "s", "r")
    assert_arrived(bench, {"q": 1, "r": 1, "s": 1})
    for _ in range(2):
        for qid in ("q", "r", "s"):
            assert listed(bench, State.NEW, qid) == listed(bench, State.READY, qid) == [mid]
            assert bench.engine.queue(qid).get(mid, peek=True, visibility=None).payload == b"x"
        bench.reopen()
    assert bench.engine.queue("r").last_mid == mid
    [newer] = bench.push(b"y", qid="r")
    assert newer > mid


def test_copy_again(bench: Bench) -> None:
    """A queue that holds the id, in whatever state, is left alone, and so is the source itself."""
    for qid in ("q", "r", "s"):
        bench.queue(qid)
    mid = copied(bench, "r")
    receive(bench, "r", visibility=SECOND)
    bench.engine.copy("q", mid, ["r", "s", "q"])
    assert listed(bench, State.IN_FLIGHT, "r") == listed(bench, State.READY, "s") == listed(bench) == [mid]
    bench.reopen()
    bench.engine.copy("q", mid, ["r", "s"])
    assert listed(bench, State.ALL, "r") == listed(bench, State.ALL, "s") == [mid]
    assert bench.engine.queue("r").stats().in_flight == 1


def test_copy_keeps_things_apart(bench: Bench) -> None:
    """What happens to a message in one queue does not in the others: counts, windows, deletion; also after a start."""
    for qid in ("q", "r", "s"):
        bench.queue(qid)
    mid = copied(bench, "r", "s")
    for _ in range(3):
        receive(bench, "r", visibility=10)
        bench.clock.now += 10
    bench.engine.queue("s").release(Receipt(mid), 500)
    for _ in range(2):
        looked = {qid: bench.engine.queue(qid).get(mid, peek=True, visibility=None) for qid in "qrs"}
        assert {qid: (m.status, m.receives) for qid, m in looked.items()} == {
            "q": ("ready", 0), "r": ("ready", 3), "s": ("delayed", 0)
        }  # fmt: skip
        bench.reopen()
    bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.queue("s").delete(Receipt(mid))
    bench.reopen()
    assert (listed(bench), listed(bench, qid="s")) == ([], [])
    [left] = receive(bench, "r")
    assert (left.mid, left.payload, left.receives) == (mid, b"x", 4)


@pytest.mark.parametrize("state", ["in-flight", "held", "delayed"])
def test_copy_what_is_hidden(bench: Bench, state: str) -> None:
    """A message that is in flight or delayed is copied too: it is ready there, and hidden here still."""
    bench.queue("q")
    bench.queue("r")
    [mid] = bench.push(b"x", delay=100 if state == "delayed" else 0)
    bench.engine.receive(["q"], 1, 100, LOTS, held=state == "held")
    bench.engine.copy("q", mid, ["r"])
    assert (listed(bench, State.READY), listed(bench, State.READY, "r")) == ([], [mid])
    bench.reopen()
    assert listed(bench, State.READY, "r") == [mid]


def test_copy_into_a_queue_with_messages(bench: Bench) -> None:
    """A queue that has messages of its own gets the copy at the place of its id, and its own stay as they are."""
    bench.queue("q")
    bench.queue("r")
    [first] = bench.push(b"1", qid="r")
    [message] = receive(bench, "r", visibility=10)
    [mid] = bench.push(b"2")
    [last] = bench.push(b"3", qid="r")
    bench.engine.copy("q", mid, ["r"])
    bench.clock.now += 10
    assert [(m.mid, m.receives) for m in receive(bench, "r")] == [(first, 2), (mid, 1), (last, 1)]
    assert (message.mid, listed(bench, State.NEW)) == (first, [mid])


def test_copy_all_or_none(bench: Bench) -> None:
    """When one of the queues is full or missing nothing is copied to the others."""
    for qid in ("q", "r", "s"):
        bench.queue(qid)
    bench.queue("full", capacity=1)
    bench.push(b"y", qid="full")
    [mid] = bench.push(b"x")
    with pytest.raises(QueueFullError):
        bench.engine.copy("q", mid, ["r", "full", "s"])
    with pytest.raises(NoSuchQueueError):
        bench.engine.copy("q", mid, ["r", "no"])
    for engine in (bench.engine, bench.reopen()):
        assert [len(engine.queue(qid).list_mids(State.ALL, 10, -1)) for qid in ("q", "r", "s", "full")] == [1, 0, 0, 1]
    bench.engine.copy("q", mid, ["r", "s"])
    assert listed(bench, qid="r") == listed(bench, qid="s") == [mid]


def test_copy_up_to_the_capacity(bench: Bench) -> None:
    """Copies count against the capacity, and one that is there already needs no room."""
    bench.queue("q")
    bench.queue("r", capacity=1)
    mid = copied(bench, "r")
    bench.engine.copy("q", mid, ["r"])
    [other] = bench.push(b"y")
    with pytest.raises(QueueFullError):
        bench.engine.copy("q", other, ["r"])
    bench.engine.queue("r").delete(Receipt(mid))
    bench.engine.copy("q", other, ["r"])
    assert listed(bench, qid="r") == [other]


def test_copy_what_is_not_there(bench: Bench) -> None:
    """A message that is not in the queue cannot be copied, also when a target has it."""
    bench.queue("q")
    bench.queue("r")
    mid = copied(bench, "r")
    bench.engine.queue("q").delete(Receipt(mid))
    with pytest.raises(NoSuchMessageError):
        bench.engine.copy("q", mid, ["r"])
    assert listed(bench, qid="r") == [mid]


def test_copy_staged(bench: Bench) -> None:
    """What was pushed before is there to be copied."""
    bench.queue("q")
    bench.queue("r")
    [mid] = bench.engine.queue("q").push([Draft(b"x")])
    bench.engine.copy("q", mid, ["r"])
    assert listed(bench) == listed(bench, qid="r") == [mid]


# -- figures


def test_stats(bench: Bench) -> None:
    """Messages by state, bytes, the age of the oldest, and counts since the start."""
    bench.queue()
    bench.push(b"1", b"22", b"333", b"4444")
    bench.push(b"55555", delay=100 * SECOND)
    oldest, second = receive(bench, count=2, visibility=SECOND)
    bench.engine.queue("q").delete(Receipt(second.mid))
    bench.clock.now += SECOND
    stats = bench.engine.queue("q").stats()
    assert (stats.new, stats.ready, stats.in_flight, stats.delayed) == (3, 3, 0, 1)
    assert stats.bytes == 1 + 3 + 4 + 5
    assert stats.oldest == bench.clock.now - oldest.pushed_at
    assert (stats.pushed, stats.delivered, stats.expired, stats.deleted) == (5, 2, 1, 1)
    assert stats.storage == bench.engine.name


def test_stats_of_empty_queue(any_bench: Bench) -> None:
    """An empty queue has nothing, and no oldest message."""
    any_bench.queue()
    stats = any_bench.engine.queue("q").stats()
    assert stats.oldest is None
    assert {value for name, value in vars_of(stats).items() if name not in ("oldest", "storage")} == {0}


def vars_of(stats: Stats) -> dict[str, object]:
    return asdict(stats)


def test_stats_after_reopening(bench: Bench) -> None:
    """Prepared in slices or at once, the figures after reopening are those before, but for the counts."""
    needs(bench, Feature.FIGURES)
    bench.queue()
    bench.push(*[b"x" * n for n in range(30)])
    receive(bench, count=5)
    bench.push(b"z", delay=SECOND)
    before = vars_of(bench.engine.queue("q").stats())
    bench.reopen()
    while bench.engine.queue("q").prepare_stats():
        pass
    after = vars_of(bench.engine.queue("q").stats())
    counts = {"pushed", "delivered", "expired", "deleted"}
    assert {k: v for k, v in before.items() if k not in counts} == {k: v for k, v in after.items() if k not in counts}
    assert {after[name] for name in counts} == {0}


# -- time


def test_next_expiry(bench: Bench) -> None:
    """The next time at which a message becomes visible by itself, over all queues, whatever became of earlier ones."""
    bench.queue("a")
    bench.queue("b")
    engine = bench.engine
    assert engine.effects().next_expiry is None
    now = bench.clock.now
    [late] = bench.push(b"", qid="a", delay=300)
    [early] = bench.push(b"", qid="b", delay=100)
    assert engine.effects().next_expiry == now + 101
    engine.queue("b").delete(Receipt(early))
    assert engine.effects().next_expiry == now + 300
    engine.queue("a").release(Receipt(late), 0)
    assert engine.effects().next_expiry is None
    engine.receive(["a"], 1, 50, 1)
    assert engine.effects().next_expiry == bench.clock.now + 50
    engine.remove("a", force=True)
    assert engine.effects().next_expiry is None


def test_next_expiry_after_reopening(bench: Bench) -> None:
    """A reopened engine knows what is to expire."""
    bench.queue()
    bench.push(b"x")
    [message] = receive(bench, visibility=77)
    assert bench.reopen().effects().next_expiry == message.visible_at


def test_expire(bench: Bench) -> None:
    """What is due becomes visible, at most so many messages, over all queues, and is announced."""
    bench.queue("a")
    bench.queue("b")
    bench.push(*[b"x"] * 3, qid="a")
    bench.push(*[b"x"] * 3, qid="b")
    receive(bench, "a", "b", visibility=10)
    arrived(bench.engine)
    bench.engine.expire(100)
    assert not arrived(bench.engine)
    bench.clock.now += 10
    bench.engine.expire(4)
    assert sum(arrived(bench.engine).values()) == 4
    assert bench.engine.effects().next_expiry == bench.clock.now
    bench.engine.expire(4)
    assert bench.engine.effects().next_expiry is None
    assert {qid: bench.engine.queue(qid).stats().expired for qid in "ab"} == {"a": 3, "b": 3}


def test_arrivals(bench: Bench) -> None:
    """Queues where messages have become visible, and how many are visible now; none for a delayed or a taken one."""
    bench.queue("a")
    bench.queue("b")
    bench.push(b"1", b"2", qid="a")
    bench.push(b"1", qid="b", delay=5)
    assert arrived(bench.engine) == {"a": 2}
    bench.push(b"3", qid="a")
    assert arrived(bench.engine) == {"a": 3}
    receive(bench, "a", visibility=SECOND)
    assert arrived(bench.engine) == {}
    bench.clock.now += 5
    bench.engine.expire(10)
    assert arrived(bench.engine) == {"b": 1}


def test_arrivals_at_the_start(bench: Bench) -> None:
    """What is visible when an engine is opened is an arrival."""
    bench.queue()
    bench.push(b"x")
    assert arrived(bench.reopen()) == {"q": 1}


@pytest.mark.parametrize("way", ["release", "expiry", "reopen", "release later"])
def test_receives_survive(bench: Bench, way: str) -> None:
    """That a message was retrieved, and how often, survives release, expiry and reopening."""
    bench.queue()
    [mid] = bench.push(b"x")
    for count in range(1, 4):
        [message] = receive(bench, visibility=100)
        assert (message.mid, message.receives) == (mid, count)
        if way == "release":
            bench.engine.queue("q").release(Receipt(mid, count), 0)
        elif way == "release later":
            bench.engine.queue("q").release(Receipt(mid, count), 10)
        elif way == "reopen":
            bench.engine.commit()
            bench.reopen()
        bench.clock.now += 100
        assert not states(bench)["new"]
        assert bench.engine.queue("q").get(mid, peek=True, visibility=None).receives == count


def test_close_keeps_what_was_pushed(bench: Bench) -> None:
    """Closing makes everything that was pushed visible and durable."""
    bench.queue()
    [mid] = bench.engine.queue("q").push([Draft(b"x")])
    bench.reopen()
    assert mids(receive(bench)) == [mid]


def test_options_type(any_bench: Bench) -> None:
    """The options that were passed stay the caller's."""
    options = Options(visibility=SECOND)
    any_bench.engine.create("q", options)
    assert options.storage == ""
