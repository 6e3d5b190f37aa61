"""The `memcached` engine over a real memcached: what the contract of all engines does not ask for."""

import logging
import multiprocessing
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.engines import EPOCH, ManualClock
from support.memcached_serving import Memcached, engine_on, needs_memcached, push_and_receive

from qs_server.storage.engine import (
    SECOND,
    Draft,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    OtherMessageError,
    QueueFullError,
    QueueNotEmptyError,
    Receipt,
    RemoteError,
    State,
    UnsupportedError,
)
from qs_server.storage.remote.memcached import MemcachedEngine
from qs_server.storage.remote.memcached.servers import Server

pytestmark = needs_memcached
LOTS = 1 << 40
LONG = 20
"""Seconds: only a failure waits that long."""
MakeEngine = Callable[..., MemcachedEngine]


@pytest.fixture(scope="module")
def memcached() -> Iterator[Memcached]:
    with Memcached() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(memcached: Memcached, tmp_path: Path, clock: ManualClock) -> Iterator[MakeEngine]:
    """Engines of several qs servers, which share queues: each has its own root."""
    engines: list[MemcachedEngine] = []
    namespace = uuid.uuid4().hex

    def make(*servers: Memcached, **options: Any) -> MemcachedEngine:
        root = tmp_path / str(len(engines))
        root.mkdir()
        engine = engine_on(*(servers or (memcached,)), root=root, clock=clock, namespace=namespace)
        engine.create("q", Options(**options))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often memcached was called, by method."""
    counter: Counter[str] = Counter()
    original = Server.call

    def call(self: Server, method: str, *args: Any, **named: Any) -> Any:
        counter[method] += 1
        return original(self, method, *args, **named)

    monkeypatch.setattr(Server, "call", call)
    return counter


def push(engine: MemcachedEngine, count: int, *, delay: int = 0, at_once: int = 100) -> list[int]:
    mids: list[int] = []
    for start in range(0, count, at_once):
        numbers = range(start, min(start + at_once, count))
        mids += engine.queue("q").push([Draft(b"%d" % number, delay) for number in numbers])
    return mids


def drain(engine: MemcachedEngine, count: int = 1000) -> list[int]:
    """Receives and deletes everything; the ids in their order."""
    found = []
    while messages := engine.receive(["q"], count, None, LOTS):
        for message in messages:
            engine.queue("q").delete(Receipt(message.mid, message.receives))
            found.append(message.mid)
    return found


def listed(engine: MemcachedEngine, state: State = State.ALL) -> list[int]:
    return engine.queue("q").list_mids(state, 1_000_000, -1)


# -- several servers


def test_shared_queue(make: MakeEngine) -> None:
    """What one server is given another one hands out, and nobody gets it twice within its window."""
    a, b = make(), make()
    mids = push(a, 10)
    first = b.receive(["q"], 4, None, LOTS)
    rest = a.receive(["q"], 10, None, LOTS)
    assert [m.mid for m in first] + [m.mid for m in rest] == mids
    assert [m.payload for m in first] == [b"0", b"1", b"2", b"3"]
    assert not b.receive(["q"], 10, None, LOTS)
    a.queue("q").delete(Receipt(first[0].mid, 1))
    with pytest.raises(NoSuchMessageError):
        b.queue("q").delete(Receipt(first[0].mid, 1))


def test_ids_of_several_servers(make: MakeEngine, clock: ManualClock) -> None:
    """Ids increase over all servers, although the clock of one is behind."""
    a, b = make(), make()
    found = []
    for engine, now in [(a, 0), (b, -1000), (a, -500), (b, 0), (b, -(10**9)), (a, -(10**9))]:
        clock.now = EPOCH + now
        found += engine.queue("q").push([Draft(b"")])
    assert found == sorted(set(found))
    assert a.queue("q").last_mid == b.queue("q").last_mid == found[-1]


@pytest.mark.parametrize("way", ["release", "extend", "copy"])
def test_made_visible_by_another_server(make: MakeEngine, clock: ManualClock, way: str) -> None:
    """A message far from the end of the queue that another server makes visible is received, although it was known
    here that nothing is to come from there."""
    a, b = make(), make()
    a.create("source", Options())
    mids = push(a, 1000, delay=100 * SECOND)
    for engine in (a, b):
        assert not engine.receive(["q"], 1, None, LOTS)
    if way == "release":
        a.queue("q").release(Receipt(mids[500]), 0)
    elif way == "extend":
        clock.now += 100 * SECOND
        assert len(b.receive(["q"], 1000, 100 * SECOND, LOTS)) == 1000
        assert not b.receive(["q"], 1000, None, LOTS)
        a.queue("q").extend(Receipt(mids[500]), 0)
    else:
        a.queue("q").delete(Receipt(mids[500]))
        clock.now = mids[500]
        assert a.queue("source").push([Draft(b"copy")]) == [mids[500]]
        a.copy("source", mids[500], ["q"])
    assert [m.mid for m in b.receive(["q"], 10, None, LOTS)] == [mids[500]]


def test_removed_by_one_server(make: MakeEngine) -> None:
    """A server that has a queue which another one has removed goes on with an empty one."""
    a, b = make(), make()
    push(a, 500)
    with pytest.raises(QueueNotEmptyError):
        b.remove("q", force=False)
    b.remove("q", force=True)
    assert not a.receive(["q"], 1, None, LOTS)
    assert listed(a) == []
    [mid] = push(a, 1)
    assert listed(a) == [mid]


def test_remove_leaves_nothing(make: MakeEngine, tmp_path: Path) -> None:
    """A removed queue leaves no items, whether it was used up before or had messages."""
    with Memcached() as alone:
        engine = make(alone)
        empty = items(alone)
        for force in (False, True):
            push(engine, 1000)
            if not force:
                drain(engine)
            engine.remove("q", force=force)
            # Reserves stay, and for a minute the graves of pages that were used up.
            assert items(alone) <= empty + 1 + 5
            engine.create("q", Options())


def items(memcached: Memcached) -> int:
    lines = memcached.command("stats").decode().split("\r\n")
    return next(int(line.split()[2]) for line in lines if line.startswith("STAT curr_items "))


@pytest.mark.parametrize("servers", [1, 3])
def test_threads(make: MakeEngine, servers: int) -> None:
    """Many threads of two servers push and receive at once: nothing comes twice, nothing is lost, each in its order."""
    extra = [Memcached() for _ in range(servers - 1)]
    try:
        with Memcached() as first:
            engines = [make(first, *extra), make(*extra, first)]
            pushed, received = at_work(engines, pushers=3, receivers=3, each=100)
            assert Counter(received) == Counter(pushed)
            assert listed(engines[0]) == []
    finally:
        for server in extra:
            server.kill()


def at_work(
    engines: list[MemcachedEngine], *, pushers: int, receivers: int, each: int
) -> tuple[list[bytes], list[bytes]]:
    """The payloads that were pushed, and those that were received, in any order."""
    total = pushers * each
    received: list[bytes] = []
    stop = threading.Event()

    def pushing(worker: int) -> list[bytes]:
        payloads = [b"%d-%d" % (worker, number) for number in range(each)]
        last = -1
        for payload in payloads:
            [mid] = engines[worker % len(engines)].queue("q").push([Draft(payload)])
            assert mid > last
            last = mid
        return payloads

    def receiving(worker: int) -> None:
        engine = engines[worker % len(engines)]
        while len(received) < total:
            for message in engine.receive(["q"], 7, 600 * SECOND, LOTS, wait=1, stop=stop):
                received.append(message.payload or b"")
                engine.queue("q").delete(Receipt(message.mid, message.receives))

    with ThreadPoolExecutor(pushers + receivers) as pool:
        pushes = [pool.submit(pushing, worker) for worker in range(pushers)]
        receives = [pool.submit(receiving, worker) for worker in range(receivers)]
        pushed = [payload for future in pushes for payload in future.result(LONG * 2)]
        for future in receives:
            future.result(LONG * 2)
    return pushed, received


@pytest.mark.slow
def test_processes(memcached: Memcached, tmp_path: Path) -> None:
    """Three processes on one queue: nothing comes twice, nothing is lost. Some 5 s: each has to start."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    namespace = uuid.uuid4().hex
    processes = []
    for number in range(3):
        root = tmp_path / str(number)
        root.mkdir()
        arguments = (memcached.address, str(root), namespace, 200, results)
        processes.append(context.Process(target=push_and_receive, args=arguments))
    for process in processes:
        process.start()
    found = [mid for _ in processes for mid in results.get(timeout=5 * LONG)]
    for process in processes:
        process.join(LONG)
    results.close()
    results.join_thread()
    assert len(found) == len(set(found)) == 600


# -- size


def test_many_pages(make: MakeEngine) -> None:
    """A queue of many pages keeps its order; any message of it can be read, listed and deleted."""
    engine, other = make(), make()
    mids = push(engine, 2500, at_once=130)
    assert mids == sorted(set(mids))
    assert listed(other) == mids
    for number in (0, 1, 199, 200, 777, 1300, 2499):
        message = other.queue("q").get(mids[number], peek=True, visibility=None)
        assert message.payload == b"%d" % number
        assert other.queue("q").list_mids(State.READY, 3, mids[number]) == mids[number + 1 : number + 4]
        engine.queue("q").delete(Receipt(mids[number]))
        mids[number] = -1
    left = [mid for mid in mids if mid >= 0]
    stats = engine.queue("q").stats()
    assert (stats.ready, stats.new, stats.deleted) == (len(left), len(left), 7)
    assert drain(other, 333) == left


def test_long_list(make: MakeEngine) -> None:
    """A list that is longer than a page is one push all the same, and what is too long for memcached is refused."""
    engine = make()
    push(engine, 150)
    mids = push(engine, 1500, at_once=1500)
    assert listed(engine)[150:] == mids
    with pytest.raises(UnsupportedError, match="20000 is the most"):
        engine.queue("q").push([Draft(b"")] * 20_001)
    assert engine.queue("q").purge(mids[-1], 10_000) == 1650


def test_costs_do_not_grow(make: MakeEngine, calls: Counter[str]) -> None:
    """Operations make no more calls on a queue of 10,000 messages, half of them delayed, than on one of 1,000."""
    engine = make()

    def cost() -> int:
        before = calls.total()
        push(engine, 1)
        [message] = engine.receive(["q"], 1, None, LOTS)
        engine.queue("q").extend(Receipt(message.mid, message.receives), 100 * SECOND)
        engine.queue("q").release(Receipt(message.mid, message.receives), 0)
        [message] = engine.receive(["q"], 1, None, LOTS)
        engine.queue("q").delete(Receipt(message.mid, message.receives))
        return calls.total() - before

    costs = []
    for depth in (500, 4500):
        push(engine, depth, delay=10**6 * SECOND)
        push(engine, depth)
        assert engine.receive(["q"], 1, None, LOTS)  # which looks at each page of delayed ones once
        costs.append(cost())
    assert costs[1] <= costs[0] < 30


def test_used_up_pages_are_given_up(make: MakeEngine) -> None:
    """What has been received and deleted leaves no items but pages' graves, and those end by themselves."""
    with Memcached() as alone:
        engine = make(alone)
        empty = items(alone)
        for _ in range(3):
            push(engine, 1000)
            drain(engine)
        assert items(alone) <= empty + 20


def test_large_payloads(make: MakeEngine) -> None:
    """A payload may be larger than memcached's items."""
    engine = make()
    payloads = [bytes([n]) * size for n, size in enumerate((500_000, 500_001, 8 * 1024 * 1024, 1_000_000, 0))]
    engine.queue("q").push([Draft(payload) for payload in payloads])
    assert [message.payload for message in engine.receive(["q"], 10, None, LOTS)] == payloads


@pytest.mark.parametrize("qid", ["a" * 200, "ü" * 41, "a b\t"[:3] + "c", "%", "=a", "a:b"])
def test_any_name(make: MakeEngine, qid: str) -> None:
    """Names that keys cannot have, or that are too long for them, are queues like any other, and different ones."""
    engine = make()
    other = qid[:-1] + "x"
    for name in (qid, other):
        engine.create(name, Options())
        engine.queue(name).push([Draft(name.encode())])
    for name in (qid, other):
        assert [m.payload for m in engine.receive([name], 10, None, LOTS)] == [name.encode()]


# -- keys


def test_key(make: MakeEngine, clock: ManualClock) -> None:
    """A push with a key that was used in the last five minutes, here or at another server, gives the first id."""
    a, b = make(), make()
    [mid] = a.queue("q").push([Draft(b"x", key="k")])
    clock.now += 299 * SECOND
    assert b.queue("q").push([Draft(b"y", key="k")]) == [mid]
    a.queue("q").delete(Receipt(mid))
    assert a.queue("q").push([Draft(b"y", key="k")]) == [mid]
    assert listed(b) == []
    clock.now += SECOND
    [later] = b.queue("q").push([Draft(b"z", key="k")])
    assert later > mid
    assert listed(a) == [later]


def test_keys_in_a_list(make: MakeEngine) -> None:
    """A list stores what is new of it."""
    engine = make()
    [old] = engine.queue("q").push([Draft(b"old", key="a")])
    found = engine.queue("q").push(
        [Draft(b"1"), Draft(b"2", key="a"), Draft(b"3", key="b"), Draft(b"4", key="b"), Draft(b"5")]
    )
    assert found[1] == old
    assert found[2] == found[3]
    assert listed(engine) == [old, found[0], found[2], found[4]]
    assert [m.payload for m in engine.receive(["q"], 10, None, LOTS)] == [b"old", b"1", b"3", b"5"]


def test_key_of_a_refused_push(make: MakeEngine) -> None:
    """A push that is refused does not use its key up."""
    engine = make(capacity=1)
    [first] = engine.queue("q").push([Draft(b"")])
    with pytest.raises(QueueFullError):
        engine.queue("q").push([Draft(b"x", key="k")])
    engine.queue("q").delete(Receipt(first))
    [mid] = engine.queue("q").push([Draft(b"x", key="k")])
    assert engine.queue("q").push([Draft(b"x", key="k")]) == [mid]
    assert listed(engine) == [mid]


def test_one_key_at_once(make: MakeEngine) -> None:
    """Of many that push with one key at the same time one does."""
    engines = [make(), make()]
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(engines[n % 2].queue("q").push, [Draft(b"%d" % n, key="k")]) for n in range(16)]
        found = {mid for future in futures for mid in future.result(LONG)}
    assert listed(engines[0]) == [*found]


# -- capacity


def test_capacity_of_several_servers(make: MakeEngine) -> None:
    """The capacity is that of the queue, not of a server, however many push at once: by as many as do so while the
    messages of a full queue are counted anew, it may be passed."""
    engines = [make(capacity=50), make(capacity=50)]

    def push_one(number: int) -> bool:
        try:
            engines[number % 2].queue("q").push([Draft(b"")])
        except QueueFullError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        stored = sum(pool.map(push_one, range(100)))
    assert 50 <= stored < 50 + 8
    assert len(listed(engines[0])) == stored
    assert engines[1].queue("q").purge(engines[1].queue("q").last_mid, 20) == 20
    assert 70 - stored <= sum(map(push_one, range(30))) <= 20  # what was beyond the capacity may not be counted


def test_capacity_is_corrected(make: MakeEngine, memcached: Memcached) -> None:
    """A count that is wrong, because a server was killed between two steps, is found out when the queue seems full."""
    engine = make(capacity=3)
    push(engine, 2)
    queue = engine.queue("q")
    look = queue.writer.make()
    engine._servers.count(queue.reader.keys.count(look.head.generation), 1)
    push(engine, 1)
    with pytest.raises(QueueFullError, match="holds 3 messages; its capacity is 3"):
        push(engine, 1)


# -- copies


def test_copy_between(make: MakeEngine) -> None:
    """Copies come to their places between others, also in queues of many pages, and go when they are deleted."""
    engine = make()
    engine.create("r", Options())
    clock = engine._clock
    assert isinstance(clock, ManualClock)
    expected = []
    for number in range(1000):
        clock.now += 10
        [mid] = engine.queue("q" if number % 10 == 0 else "r").push([Draft(b"%d" % number)])
        expected.append(mid)
    for mid in listed(engine):
        engine.copy("q", mid, ["r"])
    assert engine.queue("r").list_mids(State.ALL, 2000, -1) == expected
    for number, mid in enumerate(expected):
        message = engine.queue("r").get(mid, peek=False, visibility=None)
        assert message.payload == b"%d" % number
        engine.queue("r").delete(Receipt(mid, 1))
    assert engine.queue("r").list_mids(State.ALL, 10, -1) == []
    assert len(listed(engine)) == 100


def test_copy_of_another_message(make: MakeEngine, clock: ManualClock) -> None:
    """An id that is that of another message is not overwritten, and copies made before that is found are taken back."""
    engine = make()
    for qid in ("r", "s"):
        engine.create(qid, Options())
    [mid] = engine.queue("q").push([Draft(b"x")])
    assert engine.queue("r").push([Draft(b"y")]) == [mid]
    with pytest.raises(OtherMessageError):
        engine.copy("q", mid, ["s", "r"])
    assert engine.queue("s").list_mids(State.ALL, 10, -1) == []
    assert engine.queue("r").get(mid, peek=True, visibility=None).payload == b"y"


# -- waiting


def waiting(engine: MemcachedEngine, wait: float = LONG, stop: threading.Event | None = None) -> "Waiter":
    return Waiter(engine, wait, stop or threading.Event())


class Waiter:
    """A thread inside receive, from the moment on at which it has found nothing."""

    def __init__(self, engine: MemcachedEngine, wait: float, stop: threading.Event) -> None:
        looked = threading.Event()
        original = engine._receive_visible

        def receive(*args: Any, **named: Any) -> Any:
            result = original(*args, **named)
            looked.set()
            return result

        engine._receive_visible = receive  # type: ignore[method-assign]
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(engine.receive, ["q"], 1, None, LOTS, wait=wait, stop=stop)
        assert looked.wait(LONG)

    def result(self) -> list[int]:
        with self._pool:
            return [message.mid for message in self._future.result(LONG)]


def test_wait_for_push_here(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push of this process wakes who waits, without any look in between."""
    monkeypatch.setattr("qs_server.storage.remote.memcached.engine.POLL_INTERVAL", 1000)
    engine = make()
    waiter = waiting(engine)
    mids = push(engine, 1)
    assert waiter.result() == mids


def test_wait_for_release_here(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does a release."""
    monkeypatch.setattr("qs_server.storage.remote.memcached.engine.POLL_INTERVAL", 1000)
    engine = make()
    [mid] = push(engine, 1)
    engine.receive(["q"], 1, 1000 * SECOND, LOTS)
    waiter = waiting(engine)
    engine.queue("q").release(Receipt(mid, 1), 0)
    assert waiter.result() == [mid]


def test_wait_for_another_server(make: MakeEngine) -> None:
    """A push of another server is noticed."""
    a, b = make(), make()
    waiter = waiting(a)
    mids = push(b, 1)
    assert waiter.result() == mids


def test_wait_for_expiry(memcached: Memcached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a window wakes who waits, when it comes."""
    monkeypatch.setattr("qs_server.storage.remote.memcached.engine.POLL_INTERVAL", 1000)
    engine = engine_on(memcached, root=tmp_path, clock=lambda: time.time_ns() // 1000)
    engine.create("q", Options())
    mids = push(engine, 1)
    engine.receive(["q"], 1, SECOND // 5, LOTS)
    assert waiting(engine).result() == mids
    engine.close()


def test_wait_ends(make: MakeEngine) -> None:
    """Without a message the wait ends after its time, or soon after it is told to."""
    engine = make()
    assert waiting(engine, wait=0.05).result() == []
    assert engine.receive(["q"], 1, None, LOTS) == []
    stop = threading.Event()
    waiter = waiting(engine, stop=stop)
    start = time.monotonic()
    stop.set()
    assert waiter.result() == []
    assert time.monotonic() - start < 5


def test_wait_for_removed_queue(make: MakeEngine) -> None:
    """Who waits for a queue that is removed is told."""
    engine = make()
    waiter = waiting(engine)
    engine.remove("q", force=True)
    with pytest.raises(NoSuchQueueError):
        waiter.result()


def test_many_wait_one_looks(make: MakeEngine, calls: Counter[str]) -> None:
    """Many that wait for a queue make not more calls than one."""
    engine = make()
    before = calls["gets_many"]
    stop = threading.Event()
    with ThreadPoolExecutor(20) as pool:
        for _ in range(20):
            pool.submit(engine.receive, ["q"], 1, None, LOTS, wait=1.2, stop=stop)
    assert calls["gets_many"] - before <= 2 * 20 + 2 * 4  # each looks once, then somebody each half second


# -- the start


def test_without_the_client_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pymemcache the error names the extra to install."""
    monkeypatch.setitem(sys.modules, "pymemcache", None)
    with pytest.raises(RemoteError, match=r"install qsbus\[memcached\]"):
        MemcachedEngine(str(tmp_path), clock=ManualClock())


def test_bad_arguments(tmp_path: Path) -> None:
    """No server, and a namespace that keys cannot have, are refused."""
    with pytest.raises(RemoteError, match="HOST:PORT"):
        MemcachedEngine(str(tmp_path), clock=ManualClock(), servers=[])
    for namespace in ("", "a b", "a:b", "x" * 41):
        with pytest.raises(UnsupportedError, match="namespace"):
            MemcachedEngine(str(tmp_path), clock=ManualClock(), namespace=namespace)


def test_options_of_directories(make: MakeEngine) -> None:
    """Options that only directories can have are refused, and leave no queue."""
    engine = make()
    with pytest.raises(UnsupportedError, match="no files"):
        engine.create("r", Options(timestamps="ms"))
    assert list(engine.queues()) == ["q"]


def test_describe(tmp_path: Path) -> None:
    """An engine says where its messages are, and that they are volatile."""
    engine = MemcachedEngine(str(tmp_path), clock=ManualClock(), servers=[("a", 1), ("::1", 2)])
    assert engine.describe().startswith("memcached at a:1, [::1]:2: volatile: messages are gone when it restarts")


def test_foreign_items(make: MakeEngine, memcached: Memcached, caplog: pytest.LogCaptureFixture) -> None:
    """Something else under a key of a queue is an error that says what to do."""
    engine = make()
    engine._servers.set_many({engine.queue("q").reader.keys.head: b"somebody else's"})
    with pytest.raises(RemoteError, match="choose another namespace"), caplog.at_level(logging.ERROR):
        engine.receive(["q"], 1, None, LOTS)
