"""Queues as a library: waits for a message or for room, what ends them, and many threads at once."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.storage.vsqs_original import original, output

from qs_storage import vsqs as queue

LONG = 20
"""Seconds: only a failure waits that long."""


class Attentive(threading.Condition):
    """Knows which threads have begun to wait: the next holder of the lock finds them waiting."""

    def __init__(self) -> None:
        super().__init__(threading.RLock())
        self._seen: set[threading.Thread] = set()
        self._begun = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        if (me := threading.current_thread()) not in self._seen:
            self._seen.add(me)
            self._begun.release()
        return super().wait(timeout)

    def wait_for_waiter(self) -> None:
        """Waits until one more thread waits."""
        assert self._begun.acquire(timeout=LONG)


def waiting(q: queue.Queue, *functions: Callable[[], object]) -> tuple[list[threading.Thread], list[object]]:
    """Threads in which the functions, which wait for the queue to change, do so; and where their results will be."""
    q._changes = attentive = Attentive()
    found: list[object] = []
    threads = [threading.Thread(target=lambda call=call: found.append(call())) for call in functions]
    for thread in threads:
        thread.start()
    for _ in threads:
        attentive.wait_for_waiter()
    return threads, found


def test_blocked_publisher_goes_on(path: Path) -> None:
    """A publisher that waits for room goes on after a delete."""
    with queue.Queue(path, create=True, capacity=1) as q:
        first = q.publish(b"a")
        [thread], found = waiting(q, lambda: q.publish(b"b"))
        q.delete(first)
        thread.join(LONG)
        assert q.receive() == (found[0], b"b")


def test_timeout(q: queue.Queue) -> None:
    """Receiving from an empty queue ends when it was told to."""
    start = time.monotonic()
    assert q.receive(timeout=0.05) == (None, None)
    assert 0.05 <= time.monotonic() - start < 5


def by_a_thread(q: queue.Queue) -> str:
    return q.publish(b"m-0")


def by_another(q: queue.Queue) -> str:
    with queue.Queue(q.path) as other:
        return other.publish(b"m-0")


def by_the_original(q: queue.Queue) -> str:
    [mid] = output(original("publish", q.path, "m", 1))
    return mid


@pytest.mark.parametrize("publish", [by_a_thread, by_another, by_the_original])
def test_wake_up(q: queue.Queue, publish: Callable[[queue.Queue], str]) -> None:
    """A receiver that waits gets what is published: by another thread on the queue, by somebody else into the
    directory, by a process of the original."""
    [thread], found = waiting(q, lambda: q.receive(timeout=LONG))
    mid = publish(q)
    thread.join(LONG)
    assert found == [(mid, b"m-0")]


def test_wake_up_by_an_expiring_window(path: Path) -> None:
    """A receiver that waits gets a message when somebody else's window for it ends."""
    with queue.Queue(path, create=True) as q, queue.Queue(path) as other:
        mid = q.publish(b"x")
        other.receive(visibility_timeout=0.2)
        start = time.monotonic()
        assert q.receive(timeout=LONG) == (mid, b"x")
        assert time.monotonic() - start < 5


def test_room_made_by_a_process(q: queue.Queue) -> None:
    """A publisher that waits for room goes on when another process deletes."""
    q.capacity = 1
    q.publish(b"a")
    [thread], found = waiting(q, lambda: q.publish(b"b", timeout=LONG))
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

    threads, _ = waiting(q, wait, wait, wait)
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
        with queue.Queue(path, create=True) as q:
            q.publish(b"x")
            q.receive(timeout=0.01)
            q.receive(timeout=0.01)
    assert os.listdir("/proc/self/fd") == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch")]


def test_threads(path: Path) -> None:
    """Several threads publish, receive and delete on one queue: each message is handled once."""
    handled: list[bytes] = []
    with queue.Queue(path, create=True, capacity=10, sync=False) as q:

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
    """Without free inotify watches, changes of others are seen nevertheless."""

    def refuse(self: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("qs_storage.watch.Inotify.__init__", refuse)
        blind = queue.Queue(path, create=True, sync=False)
    with blind, queue.Queue(path, create=True) as other:
        mid = other.publish(b"x")
        assert blind.size() == 1
        assert blind.receive(timeout=0) == (mid, b"x")
        [thread], found = waiting(blind, lambda: blind.receive(timeout=LONG))
        second = other.publish(b"y")
        thread.join(LONG)
        assert found == [(second, b"y")]
