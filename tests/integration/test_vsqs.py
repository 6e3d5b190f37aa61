"""Queues as a library: what the tests of the original package vsqs hold, and what is particular to ours."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import ManualClock

from qs_server.storage import vsqs as queue

LONG = 20
"""Seconds: only a failure waits that long."""


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


def names(q: queue.Queue) -> list[str]:
    return sorted(os.listdir(q.path))


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
