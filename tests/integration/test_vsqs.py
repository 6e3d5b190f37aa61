"""Queues as a library: what the tests of the original package vsqs hold, and what is particular to ours."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.documents import new_queue, payloads, receive
from support.servers.processes import ServerProcess, Wire
from support.storage.engines import ManualClock

from qs_client import QueueClient
from qs_storage import vsqs as queue
from qs_storage.files import listing

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


def test_publish_waits_while_queue_is_full(manager: queue.QueueManager) -> None:
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
def test_published_bytes_come_back(q: queue.Queue, payload: bytes) -> None:
    """Anything with bytes in it is published, and comes back as bytes."""
    mid = q.publish(payload)
    assert q.receive(timeout=0) == (mid, bytes(payload))


def test_no_text(q: queue.Queue) -> None:
    """Text is not a payload, and leaves nothing behind."""
    with pytest.raises(TypeError):
        q.publish("text")  # type: ignore[arg-type]
    assert names(q) == []


def test_a_mistyped_directory(tmp_path: Path) -> None:
    """A queue is not made where there is none, nor of a directory that holds other things, unless that is asked for.
    What is refused says what to do, and is left as it is."""
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-me.txt").write_text("hello")
    for path in (tmp_path / "missing" / "q", tmp_path / "q", tmp_path / "letters"):
        with pytest.raises(queue.QueueException, match="create=True") as refused:
            queue.Queue(path)
        assert str(path) in str(refused.value)
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["letters", "to-me.txt"]
    for path in (tmp_path / "missing" / "q", tmp_path / "q", tmp_path / "letters"):
        with queue.Queue(path, create=True, sync=False) as made:
            made.publish(b"x")
        with queue.Queue(path) as opened:
            assert opened.size() == 1


def test_directories_that_are_queues(tmp_path: Path) -> None:
    """A directory that is empty, or has options, is a queue; so is that of a queue of files beside a running server."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "options").mkdir()
    (tmp_path / "options" / ".queue.toml").write_text("capacity = 1")
    (tmp_path / "options" / "notes").write_text("")
    for name in ("empty", "options"):
        with queue.Queue(tmp_path / name) as opened:
            assert opened.size() == 0


def test_a_queue_of_a_live_journal(server: ServerProcess, wire: Wire) -> None:
    """The library refuses a queue of a running server's journal, except for publishing alone, names its storage and
    says what to do, and changes nothing. Queues of files beside it can be used."""
    path = server.root / "q"
    manager = queue.QueueManager(server.root)
    for opened in (lambda: queue.Queue(path), lambda: queue.Queue(path, create=True), lambda: manager.get_queue("q")):
        with pytest.raises(queue.QueueException, match=r"storage 'journal'.*qs export"):
            opened()
    with pytest.raises(queue.QueueException, match="the root of a server"):
        queue.Queue(server.root)
    with queue.Queue(path, publish_only=True) as publisher:
        mid = publisher.publish(b"by hand")
        assert payloads(wire.ask(receive("q", wait=LONG))) == ["by hand"]
        for forbidden in (publisher.size, publisher.receive, lambda: publisher.delete(mid)):
            with pytest.raises(queue.QueueException, match="publish_only"):
                forbidden()
    wire.ask(new_queue("files", '<options storage="files"/>'))
    with queue.Queue(server.root / "files") as shared:
        shared.publish(b"x")
        assert shared.size() == 1
    wire.close()
    assert server.stop() == 0
    with pytest.raises(queue.QueueException, match=r"storage 'journal'.*queue-journal.py export"):
        queue.Queue(path)


def test_publishing_leaves_claims_alone(shared_server: ServerProcess, producer: Wire, qid: str) -> None:
    """Publishing beside a running server leaves its claimed and staged messages as they are."""
    with QueueClient(shared_server.host, shared_server.port) as client:
        client.push_many(qid, [b"a", b"b"])
        client.claim_messages(qid, "consumer", 1)
        client.stage_messages(qid, "producer", [b"staged"], batch=0)
        with queue.Queue(shared_server.root / qid, publish_only=True) as publisher:
            publisher.publish(b"c")
        assert [message.payload for message in client.get_claim(qid, "consumer", 1)] == [b"a", b"b"]
        client.publish_staged(qid, "producer", 0, [(0, 0)])
        found: list[str] = []
        while len(found) < 2:  # the file is taken in when the server comes to it
            found += payloads(producer.ask(receive(qid, max=9, wait=LONG)))
        assert sorted(found) == ["c", "staged"]


def test_files_that_are_no_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each is named in the log once, whether it was there or comes; of thousands, some; hidden ones never."""
    for name in ("hello.txt", ".hidden", "007"):
        (tmp_path / name).write_text("")
    with queue.Queue(tmp_path, create=True, sync=False) as q:
        (tmp_path / "later").write_text("")
        for _ in range(2):
            q._queue.store.rescan()
            assert q.size() == 0
        assert [record.args[0] for record in caplog.records] == [  # type: ignore[index]
            *(str(tmp_path / name) for name in sorted(("hello.txt", "007"), key=os.listdir(tmp_path).index)),
            str(tmp_path / "later"),
        ]
        for number in range(100):
            (tmp_path / f"x{number}").write_text("")
        assert q.size() == 0
        assert len(caplog.records) == listing.MOST_IGNORED + 1
        assert "no more are named" in caplog.records[-1].getMessage()


def test_a_file_that_is_no_message_in_a_queue_of_the_server(
    shared_server: ServerProcess, producer: Wire, qid: str
) -> None:
    """The server's log names it once, and takes up the one that comes after it."""
    (shared_server.root / qid / "order.txt").write_text("one")
    (shared_server.root / qid / ".tmp").write_text("two")
    (shared_server.root / qid / ".tmp").rename(shared_server.root / qid / "1700000000000000")
    assert payloads(producer.ask(receive(qid, wait=LONG))) == ["two"]
    assert shared_server.log().count(f"{shared_server.root}/{qid}/order.txt is no message") == 1
