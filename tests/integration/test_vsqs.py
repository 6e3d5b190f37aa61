"""Queues as a library, alone and beside the original package vsqs 0.3 in other processes."""

import itertools
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import EPOCH, ManualClock

from qs_server.storage import vsqs as queue
from qs_server.storage.engine import Durability, Receipt, State
from qs_server.storage.files import FilesEngine

ORIGINAL = str(Path(__file__).with_name("original_vsqs.py"))
LONG = 20
"""Seconds: only a failure waits that long."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(path: Path, clock: ManualClock) -> Iterator[queue.Queue]:
    with queue.Queue(path, sync=False, clock=clock) as made:
        yield made


def names(q: queue.Queue) -> list[str]:
    return sorted(os.listdir(q.path))


def original(*arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, ORIGINAL, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def output(process: "subprocess.Popen[str]") -> list[str]:
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return text.splitlines()


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    return thread, found


def wait_for_waiter(q: queue.Queue) -> None:
    """Until a thread waits for the queue to change."""
    while True:
        with q._changes:
            if q._changes._waiters:  # type: ignore[attr-defined]
                return
        time.sleep(0)


# -- what the original's own tests hold


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Replaces the clock of the module, as programs that test themselves do."""

    def stop(now: int) -> None:
        monkeypatch.setattr(queue, "micros", lambda: now)

    stop(0)
    return stop


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[queue.QueueManager]:
    made = queue.QueueManager(str(tmp_path))
    yield made
    made.close()


def test_fresh_queue_is_an_empty_directory(manager: queue.QueueManager, tmp_path: Path) -> None:
    """A queue is made with its directory, in which there is nothing."""
    q = manager.get_queue("test")
    assert q.path == str(tmp_path / "test")
    assert os.listdir(q.path) == []
    assert q.size() == 0
    assert q.capacity is None


def test_published_message_is_a_file(manager: queue.QueueManager, stopped: Callable[[int], None]) -> None:
    """A message is the file named by the time; its content is the payload."""
    q = manager.get_queue("test")
    assert q.publish(b"hello") == "0"
    assert os.listdir(q.path) == ["0"]
    assert Path(q.path, "0").read_bytes() == b"hello"
    stopped(1)
    assert q.publish(b"world") == "1"
    assert q.size() == 2


def test_receive_renames(manager: queue.QueueManager, stopped: Callable[[int], None]) -> None:
    """A received message stays, hidden under the end of its window, and counts; the next one is the next oldest."""
    q = manager.get_queue("test")
    q.publish(b"a")
    stopped(1)
    q.publish(b"b")
    assert q.receive(visibility_timeout=5) == ("0", b"a")
    assert sorted(os.listdir(q.path)) == ["0.5000001", "1"]
    assert q.receive() == ("1", b"b")
    assert sorted(os.listdir(q.path)) == ["0.5000001", "1.10000001"]
    assert q.size() == 2
    q.delete("0")
    assert os.listdir(q.path) == ["1.10000001"]


def test_requeue_at_exactly_the_timeout(manager: queue.QueueManager, stopped: Callable[[int], None]) -> None:
    """When the clock has moved by exactly the window the message is received again."""
    q = manager.get_queue("test")
    q.publish(b"a")
    assert q.receive(visibility_timeout=1) == ("0", b"a")
    stopped(999_999)
    assert q.receive(timeout=0) == (None, None)
    stopped(1_000_000)
    assert q.receive(timeout=0) == ("0", b"a")


def test_capacity(manager: queue.QueueManager) -> None:
    """A full queue makes the publisher wait, and raise when it will not wait longer; the capacity can be set later."""
    q = manager.get_queue("test", capacity=1)
    q.publish(b"a")
    with pytest.raises(queue.QueueFullException):
        q.publish(b"b", timeout=0.1)
    assert q.size() == 1
    q.capacity = 2
    q.publish(b"b", timeout=0.1)
    with pytest.raises(queue.QueueException):
        q.publish(b"c", timeout=0)


def test_blocked_publisher_goes_on(manager: queue.QueueManager) -> None:
    """A publisher that waits for room goes on after a delete."""
    q = manager.get_queue("test", capacity=1)
    first = q.publish(b"a")
    thread, found = in_thread(lambda: q.publish(b"b"))
    wait_for_waiter(q)
    q.delete(first)
    thread.join(LONG)
    assert q.receive() == (found[0], b"b")


# -- as a library


def test_order(q: queue.Queue) -> None:
    """Messages come in the order of their publishing, by number and not by text."""
    with queue.Queue(q.path, clock=ManualClock(98)) as early:
        mids = [early.publish(b"%d" % n) for n in range(5)]
    assert mids == ["98", "99", "100", "101", "102"]
    assert [q.receive(timeout=0) for _ in range(6)] == [
        *zip(mids, map(b"%d".__mod__, range(5)), strict=True),
        (None, None),
    ]


def test_delete(q: queue.Queue) -> None:
    """A message is deleted in any state, by text or number; one that is not there is fine."""
    ready, flying = q.publish(b"a"), q.publish(b"b")
    q.receive(timeout=0)
    q.delete(ready)
    q.delete(int(flying))
    q.delete(flying)
    q.delete("123")
    assert names(q) == []


def test_delete_by_another_process(q: queue.Queue) -> None:
    """A message that was received elsewhere can be deleted: the original's cache forgot such ids."""
    q.publish(b"a")
    with queue.Queue(q.path) as other:
        mid, _ = other.receive(timeout=0)
    q.delete(mid or "")
    assert names(q) == []


@pytest.mark.parametrize("payload", [b"", b"x" * 100_000, bytearray(b"x"), memoryview(b"xyz")])
def test_payloads(q: queue.Queue, payload: bytes) -> None:
    """Anything with bytes in it is published, and comes back as bytes."""
    mid = q.publish(payload)
    assert q.receive(timeout=0) == (mid, bytes(payload))


def test_no_text(q: queue.Queue) -> None:
    """Text is no payload, and leaves nothing behind."""
    with pytest.raises(TypeError):
        q.publish("text")  # type: ignore[arg-type]
    assert names(q) == []


def test_timeout(q: queue.Queue) -> None:
    """Receiving from an empty queue ends when it was told to."""
    start = time.monotonic()
    assert q.receive(timeout=0.05) == (None, None)
    assert 0.05 <= time.monotonic() - start < 5


def test_wake_up_by_a_thread(q: queue.Queue) -> None:
    """A receiver that waits gets what another thread publishes."""
    thread, found = in_thread(lambda: q.receive(timeout=LONG))
    wait_for_waiter(q)
    mid = q.publish(b"x")
    thread.join(LONG)
    assert found == [(mid, b"x")]


def test_wake_up_by_another(q: queue.Queue) -> None:
    """A receiver that waits gets what somebody else publishes into the directory."""
    thread, found = in_thread(lambda: q.receive(timeout=LONG))
    wait_for_waiter(q)
    with queue.Queue(q.path) as other:
        mid = other.publish(b"x")
    thread.join(LONG)
    assert found == [(mid, b"x")]


def test_wake_up_by_the_original(q: queue.Queue) -> None:
    """A receiver that waits gets what a process of the original publishes."""
    thread, found = in_thread(lambda: q.receive(timeout=LONG))
    wait_for_waiter(q)
    [mid] = output(original("publish", q.path, "m", 1))
    thread.join(LONG)
    assert found == [(mid, b"m-0")]


def test_wake_up_by_an_expiring_window(path: Path) -> None:
    """A receiver that waits gets a message when somebody else's window for it ends."""
    with queue.Queue(path) as q, queue.Queue(path) as other:
        mid = q.publish(b"x")
        other.receive(visibility_timeout=0.2)
        start = time.monotonic()
        assert q.receive(timeout=LONG) == (mid, b"x")
        assert time.monotonic() - start < 5


def test_room_made_by_a_process(q: queue.Queue) -> None:
    """A publisher that waits for room goes on when another process deletes."""
    q.capacity = 1
    q.publish(b"a")
    thread, found = in_thread(lambda: q.publish(b"b", timeout=LONG))
    wait_for_waiter(q)
    assert output(original("consume", q.path, 1))[0].endswith(" a")
    thread.join(LONG)
    assert len(found) == 1


def test_close(q: queue.Queue) -> None:
    """Closing ends every wait with an exception, and every later operation; the messages stay."""
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            q.receive()
        except queue.QueueException as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for_waiter(q)
    q.close()
    q.close()
    for thread in threads:
        thread.join(LONG)
    assert len(errors) == 3
    with pytest.raises(queue.QueueException, match="closed"):
        q.size()


def test_close_closes_descriptors(path: Path) -> None:
    """A closed queue holds nothing open."""
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        with queue.Queue(path) as q:
            q.publish(b"x")
            q.receive(timeout=0.01)
            q.receive(timeout=0.01)
    assert os.listdir("/proc/self/fd") == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch")]


def test_threads(path: Path) -> None:
    """Several threads publish, receive and delete on one queue: each message is handled once."""
    handled: list[bytes] = []
    with queue.Queue(path, capacity=10, sync=False) as q:

        def publish(name: int) -> None:
            for n in range(50):
                q.publish(b"%d-%d" % (name, n), timeout=LONG)

        def consume() -> None:
            while True:
                mid, data = q.receive(timeout=LONG)
                if mid is None or data == b"end":
                    return
                q.delete(mid)
                handled.append(data or b"")

        consumers = [threading.Thread(target=consume) for _ in range(3)]
        publishers = [threading.Thread(target=publish, args=(n,)) for n in range(3)]
        for thread in (*consumers, *publishers):
            thread.start()
        for thread in publishers:
            thread.join(LONG)
        for _ in consumers:
            q.publish(b"end")
        for thread in consumers:
            thread.join(LONG)
    assert sorted(handled) == sorted(b"%d-%d" % (name, n) for name in range(3) for n in range(50))


def test_without_inotify(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more watches are to be had, what others do is seen nevertheless."""

    def refuse(self: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("qs_server.storage.inotify.Inotify.__init__", refuse)
        blind = queue.Queue(path, sync=False)
    with blind, queue.Queue(path) as other:
        mid = other.publish(b"x")
        assert blind.size() == 1
        assert blind.receive(timeout=0) == (mid, b"x")
        thread, found = in_thread(lambda: blind.receive(timeout=LONG))
        wait_for_waiter(blind)
        second = other.publish(b"y")
        thread.join(LONG)
        assert found == [(second, b"y")]


# -- beside the original


def test_original_receives_ours(q: queue.Queue) -> None:
    """The original receives what ours published, in order, and its window hides the message from ours."""
    mids = [q.publish(b"a"), q.publish(b"b")]
    q._clock = lambda: int(time.time() * 1e6)
    assert output(original("receive", q.path, 60)) == [f"{mids[0]} a"]
    assert q.receive(timeout=0) == (mids[1], b"b")
    assert q.receive(timeout=0) == (None, None)
    assert q.size() == 2


def test_ours_receives_the_originals(path: Path) -> None:
    """Ours receives what the original published, in order, and our window hides it from the original."""
    with queue.Queue(path) as q:
        mids = output(original("publish", path, "m", 3))
        assert q.receive(60, timeout=0) == (mids[0], b"m-0")
        assert output(original("consume", path, 1)) == [f"{mids[1]} m-1", f"{mids[2]} m-2"]
        assert q.size() == 1
        q.delete(mids[0])
        assert q.size() == 0


def test_original_window_ends(path: Path) -> None:
    """A message that a process of the original took with it when it died comes back when its window ends."""
    with queue.Queue(path) as q:
        mid = q.publish(b"x")
        output(original("receive", path, 1))
        assert q.receive(timeout=LONG) == (mid, b"x")


def test_our_window_ends(path: Path) -> None:
    """A message that ours did not delete is received by the original when its window has ended."""
    clock = ManualClock(int(time.time() * 1e6) - 10**6)
    with queue.Queue(path, clock=clock) as q:
        mid = q.publish(b"x")
        q.receive(visibility_timeout=0.5)
    assert output(original("consume", path, 1)) == [f"{mid} x"]


def test_engine_notices_without_polling(tmp_path: Path) -> None:
    """The descriptor of an engine becomes readable when the original publishes; a refresh then knows the message."""
    (tmp_path / "q").mkdir()
    engine = FilesEngine(str(tmp_path), clock=lambda: EPOCH, durability=Durability.NONE)
    process = original("publish", tmp_path / "q", "m", 1)
    while not engine.take_arrivals():
        assert select.select([engine.fileno() or 0], [], [], LONG)[0]
        engine.refresh()
    [mid] = output(process)
    assert engine.list_mids("q", State.NEW, 9, -1) == [int(mid)]
    engine.delete("q", Receipt(int(mid)))
    engine.close()


def test_everybody_at_once(path: Path) -> None:
    """Publishers and consumers, ours and the original, on one directory: each message is handled once, by one of them,
    no id is given twice, and nothing is left."""
    count = 100
    path.mkdir()
    originals = [original("publish", path, f"original{n}", count) for n in range(2)]
    consumers = [original("consume", path, 3) for _ in range(2)]
    ours: list[list[tuple[str, str]]] = [[], []]
    mids: list[list[str]] = [[], []]

    def publish(name: int) -> None:
        with queue.Queue(path, sync=False) as q:
            mids[name] += [q.publish(f"ours{name}-{n}".encode()) for n in range(count)]

    def drained() -> bool:
        return all(process.poll() is not None for process in consumers)

    def consume(found: list[tuple[str, str]]) -> None:
        with queue.Queue(path, sync=False) as q:
            while True:
                mid, data = q.receive(visibility_timeout=60, timeout=0.1)
                if mid is not None:
                    q.delete(mid)
                    found.append((mid, (data or b"").decode()))
                elif drained():
                    return

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(2)]
    threads += [threading.Thread(target=consume, args=(found,)) for found in ours]
    for thread in threads:
        thread.start()
    published = [*itertools.chain(*(output(process) for process in originals))]
    handled = [tuple(line.split()) for process in consumers for line in output(process)]
    for thread in threads:
        thread.join(60)
    published += mids[0] + mids[1]
    handled += ours[0] + ours[1]
    assert len(set(published)) == len(published) == 4 * count
    assert sorted(mid for mid, _ in handled) == sorted(published)
    assert sorted(data for _, data in handled) == sorted(
        f"{name}-{n}" for name in ("original0", "original1", "ours0", "ours1") for n in range(count)
    )
    assert os.listdir(path) == []


def test_ready_messages_of_everybody_in_order(path: Path) -> None:
    """What both have published waits in the order of the ids, and each publisher's in the order of its publishing."""
    path.mkdir()
    processes = [original("publish", path, f"original{n}", 20) for n in range(2)]
    with queue.Queue(path) as q:
        for n in range(20):
            q.publish(f"ours-{n}".encode())
        for process in processes:
            output(process)
        found = [q.receive(timeout=0) for _ in range(60)]
        assert q.receive(timeout=0) == (None, None)
    mids = [int(mid or "") for mid, _ in found]
    assert mids == sorted(set(mids))
    for name in ("original0", "original1", "ours"):
        mine = [data.decode() for _, data in found if data is not None and data.decode().startswith(f"{name}-")]
        assert mine == [f"{name}-{n}" for n in range(20)]
