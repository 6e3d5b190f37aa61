"""A queue in memcached that several qs servers share, and many threads."""

import multiprocessing
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.storage.engines import EPOCH, LOTS, ManualClock
from support.storage.memcached import (
    LONG,
    MakeEngine,
    Memcached,
    listed,
    needs_memcached,
    push_and_receive,
    push_numbers,
)

from qs_storage.engine import (
    SECOND,
    Draft,
    NoSuchMessageError,
    Options,
    QueueFullError,
    QueueNotEmptyError,
    Receipt,
)
from qs_storage.remote.memcached import MemcachedEngine

pytestmark = needs_memcached


def test_shared_queue(make: MakeEngine) -> None:
    """One server hands out messages that another was given, each once within its window."""
    a, b = make(), make()
    mids = push_numbers(a, 10)
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
    mids = push_numbers(a, 1000, delay=100 * SECOND)
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
    push_numbers(a, 500)
    with pytest.raises(QueueNotEmptyError):
        b.remove("q", force=False)
    b.remove("q", force=True)
    assert not a.receive(["q"], 1, None, LOTS)
    assert listed(a) == []
    [mid] = push_numbers(a, 1)
    assert listed(a) == [mid]


def test_one_key_at_once(make: MakeEngine) -> None:
    """Only one of many simultaneous pushes with one key stores a message."""
    engines = [make(), make()]
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(engines[n % 2].queue("q").push, [Draft(b"%d" % n, key="k")]) for n in range(16)]
        found = {mid for future in futures for mid in future.result(LONG)}
    assert listed(engines[0]) == [*found]


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


def test_threads(make: MakeEngine) -> None:
    """Many threads of two servers push and receive at once: nothing comes twice, nothing is lost, each in its order."""
    extra = [Memcached() for _ in range(2)]
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
