"""The watch notices what other processes do in the directories, tells it apart from our own changes, and verifies
it."""

import os
import select
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.calls import next_due
from support.storage.engines import Bench, FaultyDisk, arrived, files_engine

from qs_storage.engine import (
    Draft,
    Durability,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    QueueNotEmptyError,
    Receipt,
    StaleReceiptError,
    State,
)
from qs_storage.files.listing import WatchedDirectory
from qs_storage.watch import OVERFLOW, Inotify, Watch


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(files_engine(Durability.NONE)(tmp_path))
    bench.queue()
    bench.engine.refresh()
    yield bench
    bench.engine.close()


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names that reach a queue as changed by others."""
    found: list[bytes] = []
    original = WatchedDirectory.changed

    def changed(self: WatchedDirectory, name: bytes, *, appeared: bool, moved: bool = False) -> None:
        found.append(name)
        original(self, name, appeared=appeared, moved=moved)

    monkeypatch.setattr(WatchedDirectory, "changed", changed)
    return found


def listed(bench: Bench, state: State = State.ALL) -> list[int]:
    return bench.engine.queue("q").list_mids(state, 1000, -1)


def put(directory: Path, mid: int, payload: bytes = b"foreign") -> None:
    (directory / f"{mid}.new").write_bytes(payload)
    (directory / f"{mid}.new").rename(directory / str(mid))


def readable(bench: Bench) -> bool:
    return bool(select.select([bench.engine.fileno() or 0], [], [], 0)[0])


def test_own_changes(bench: Bench, reports: list[bytes]) -> None:
    """The engine's own changes are not taken for another program's, and afterwards the descriptor is quiet."""
    a, b, c = bench.push(b"a", b"b", b"c")
    bench.engine.receive(["q"], 2, 10, 100)
    bench.engine.queue("q").extend(Receipt(a), 20)
    bench.engine.queue("q").release(Receipt(b), 0)
    bench.engine.queue("q").delete(Receipt(c))
    bench.clock.now += 20
    bench.engine.expire(10)
    assert readable(bench)
    bench.engine.refresh()
    assert not readable(bench)
    assert reports == []
    assert listed(bench, State.READY) == [a, b]


def test_foreign_changes(bench: Bench, tmp_path: Path) -> None:
    """After a refresh, publications, receives, requeues and deletions of others are known and announced."""
    queue = tmp_path / "q"
    arrived(bench.engine)
    put(queue, 5)
    assert readable(bench)
    bench.engine.refresh()
    assert arrived(bench.engine) == {"q": 1}
    assert listed(bench, State.NEW) == [5]
    until = bench.clock.now + 10
    (queue / "5").rename(queue / f"5.{until}")
    bench.engine.refresh()
    assert next_due(bench.engine) == until
    assert listed(bench, State.IN_FLIGHT) == [5]
    (queue / f"5.{until}").rename(queue / "5")
    bench.engine.refresh()
    assert listed(bench, State.READY) == [5]
    assert listed(bench, State.NEW) == []
    (queue / "5").unlink()
    bench.engine.refresh()
    assert listed(bench) == []


def test_files_that_are_no_messages(bench: Bench, tmp_path: Path) -> None:
    """Files with other names, directories, links and pipes are not messages, whatever they are called."""
    queue = tmp_path / "q"
    put(queue, 9)
    for name in ("note", "05", "5.0", "6.7.8", ".7", "8.new"):
        (queue / name).write_text("x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "10").symlink_to(queue / "9")
    (outside / "11").mkdir()
    os.mkfifo(outside / "12")
    for name in ("10", "11", "12"):
        (outside / name).rename(queue / name)
    bench.engine.refresh()
    assert listed(bench) == [9]
    assert bench.engine.queue("q").stats().bytes == len("foreign")
    bench.reopen()
    assert listed(bench) == [9]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_message_replaced_by_something_else(bench: Bench, tmp_path: Path, kind: str) -> None:
    """A message in whose place something else lies is none any more; those behind it are received."""
    a, b = bench.push(b"a", b"b")
    path = tmp_path / "q" / str(a)
    path.unlink()
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert [m.mid for m in bench.engine.receive(["q"], 5, 10, 100)] == [b]
    assert listed(bench) == [b]


def test_foreign_rename_then_own(bench: Bench, tmp_path: Path) -> None:
    """A foreign change that is reported together with later ones of ours does not win over them."""
    queue = tmp_path / "q"
    [a] = bench.push(b"a")
    for _ in range(3):
        (queue / str(a)).rename(queue / f"{a}.77")
        (queue / f"{a}.77").rename(queue / str(a))
        [message] = bench.engine.receive(["q"], 1, 50, 100)
        (queue / f"{a}.{message.visible_at}").rename(queue / f"{a}.78")
        (queue / f"{a}.78").rename(queue / f"{a}.{message.visible_at}")
        bench.engine.refresh()
        assert listed(bench, State.IN_FLIGHT) == [a]
        assert bench.engine.queue("q").release(Receipt(a), 0) is None
        bench.engine.refresh()
        assert listed(bench, State.READY) == [a]


def test_many_reports_of_files_that_are_gone(bench: Bench, tmp_path: Path, reports: list[bytes]) -> None:
    """Reports about files that have moved on, mixed with reports of ours, leave the queue as its directory is."""
    queue = tmp_path / "q"
    for mid in range(100, 200):
        put(queue, mid)
        (queue / str(mid)).rename(queue / f"{mid}.99")
        bench.push(b"own")
        (queue / f"{mid}.99").rename(queue / str(mid))
        if mid % 2:
            (queue / str(mid)).unlink()
    bench.engine.refresh()
    foreign = [mid for mid in listed(bench) if mid < 200]
    assert foreign == list(range(100, 200, 2))
    assert len(listed(bench)) == 150
    assert len(reports) < 100 * 6


def test_late_report_of_a_close(bench: Bench) -> None:
    """`vsqs` closes a file after renaming it; that report says nothing new, also when the message has moved on
    since."""
    [mid] = bench.push(b"x")
    bench.engine.receive(["q"], 1, 50, 100)
    queue = bench.engine._queues["q"]  # type: ignore[attr-defined]
    queue.store.changed(b"%d" % mid, appeared=True)
    assert listed(bench, State.IN_FLIGHT) == [mid]


def test_lost_race(bench: Bench, tmp_path: Path) -> None:
    """Each operation on a message that somebody has just moved or removed sees what has become of it."""
    queue = tmp_path / "q"
    a, b, c, d = bench.push(b"a", b"b", b"c", b"d")
    bench.engine.receive(["q"], 4, 50, 100)
    until = bench.clock.now + 50
    for mid in (a, b, c):
        (queue / f"{mid}.{until}").rename(queue / str(mid))
    (queue / f"{d}.{until}").unlink()
    bench.engine.queue("q").delete(Receipt(a, 1))
    with pytest.raises(StaleReceiptError):
        bench.engine.queue("q").release(Receipt(b, 1), 0)
    with pytest.raises(NoSuchMessageError):
        bench.engine.queue("q").delete(Receipt(d, 1))
    assert listed(bench, State.READY) == [b, c]
    (queue / str(b)).unlink()
    assert [m.mid for m in bench.engine.receive(["q"], 5, 10, 100)] == [c]


def test_purge_of_moved_messages(bench: Bench, tmp_path: Path) -> None:
    """A purge goes on past messages that somebody has just removed or moved."""
    queue = tmp_path / "q"
    a, b, _ = bench.push(b"a", b"b", b"c")
    (queue / str(a)).unlink()
    (queue / str(b)).rename(queue / f"{b}.{bench.clock.now + 5}")
    assert bench.engine.queue("q").purge(bench.clock.now, 2) == 2
    assert listed(bench) == []


def test_retrieved_by_others(bench: Bench, tmp_path: Path) -> None:
    """A message that vsqs has received, and did not delete, is not new when it comes back."""
    queue = tmp_path / "q"
    [mid] = bench.push(b"x")
    (queue / str(mid)).rename(queue / f"{mid}.{bench.clock.now + 10}")
    bench.engine.refresh()
    bench.clock.now += 10
    [message] = bench.engine.receive(["q"], 1, 10, 100)
    assert message.receives == 2


def test_overflow(bench: Bench, tmp_path: Path) -> None:
    """When reports were lost the directories are listed again: queues and messages are known as they are."""
    queue = tmp_path / "q"
    [own] = bench.push(b"own")
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip(f"fs.inotify.max_queued_events is {limit}: too many to fill")
    put(queue, 5)
    for _ in range(limit // 4 + 10):
        (queue / "5").rename(queue / "5.6")
        (queue / "5.6").rename(queue / "5")
    put(queue, 6)
    bench.engine.queue("q").push([Draft(b"in between")])
    (tmp_path / "later").mkdir()
    put(tmp_path / "later", 8)
    bench.engine.refresh()
    assert bench.engine.queue("later").list_mids(State.ALL, 9, -1) == [8]
    assert listed(bench)[:3] == [5, 6, own]
    assert len(listed(bench)) == 4
    put(queue, 7)
    bench.engine.refresh()
    assert listed(bench)[:3] == [5, 6, 7]


def test_overflow_with_a_queue_removed(bench: Bench, tmp_path: Path) -> None:
    """A queue that was removed while reports were lost is forgotten, and the others are listed nevertheless."""
    bench.queue("r")
    [mid] = bench.push(b"x", qid="r")
    shutil.rmtree(tmp_path / "q")
    watch: Watch = bench.engine._watch  # type: ignore[attr-defined]
    watch._foreign(-1, OVERFLOW, b"")
    assert list(bench.engine.queues()) == ["r"]
    assert bench.engine.queue("r").list_mids(State.ALL, 9, -1) == [mid]


def test_failure_while_looking(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A foreign file that cannot be looked at stops nothing: it is logged, and looked at when it is asked for."""
    disk = FaultyDisk()
    bench = Bench(files_engine(Durability.NONE, lambda: disk)(tmp_path))
    bench.queue()
    bench.engine.refresh()
    arrived(bench.engine)
    put(tmp_path / "q", 5)
    (tmp_path / "q" / "5").rename(tmp_path / "q" / f"5.{bench.clock.now + 9}")
    disk.arm(1, 5, "setxattr")
    bench.engine.refresh()
    assert "cannot be looked at yet" in caplog.text
    assert next_due(bench.engine) == bench.clock.now + 9
    assert listed(bench, State.IN_FLIGHT) == [5]
    bench.engine.close()


def test_unreadable_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A message that we may not read is left to others; those behind it are received."""

    class Denied(FaultyDisk):
        def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
            if path.endswith("/5"):
                raise PermissionError(13, "Permission denied", path)
            return super().open(path, flags, mode)

    bench = Bench(files_engine(Durability.NONE, Denied)(tmp_path))
    bench.queue()
    put(tmp_path / "q", 5)
    put(tmp_path / "q", 6)
    bench.engine.refresh()
    assert [m.mid for m in bench.engine.receive(["q"], 5, 10, 100)] == [6]
    assert "5" in caplog.text
    assert (tmp_path / "q" / "5").exists()
    bench.engine.close()


# -- queues made and removed by others


def test_queue_made(bench: Bench, tmp_path: Path) -> None:
    """A directory that somebody makes is a queue at once, whatever its name; one that is not a queue's is none."""
    for name in ("new", "q.new", "%2E", "not%41", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "new")
    put(tmp_path / "new", 5)
    bench.engine.refresh()
    assert set(bench.engine.queues()) == {"q", "new", "q.new", "."}
    assert bench.engine.queue("new").list_mids(State.ALL, 9, -1) == [5]


def test_queue_removed(bench: Bench, tmp_path: Path) -> None:
    """A queue whose directory somebody removes is gone, and nothing of it is waited for."""
    bench.push(b"x", delay=100)
    shutil.rmtree(tmp_path / "q")
    bench.engine.refresh()
    assert not list(bench.engine.queues())
    assert next_due(bench.engine) is None
    assert arrived(bench.engine) == {"q": sys.maxsize}  # a receive that waits for it has to hear of it
    with pytest.raises(NoSuchQueueError):
        listed(bench)
    bench.queue()
    assert listed(bench) == []


def test_no_queue_is_closed_in_the_middle_of_its_operation(bench: Bench, tmp_path: Path) -> None:
    """A report that its directory is gone, which a queue reads while it looks for a message, is acted on afterwards."""
    [mid] = bench.push(b"x")
    queue = bench.engine.queue("q")
    shutil.rmtree(tmp_path / "q")
    with pytest.raises(NoSuchMessageError):
        queue.delete(Receipt(mid))
    assert bench.engine._root.queues["q"] is queue  # type: ignore[attr-defined]
    assert not list(bench.engine.queues())
    assert arrived(bench.engine) == {"q": sys.maxsize}


def test_queue_renamed(bench: Bench, tmp_path: Path) -> None:
    """A queue whose directory is renamed goes on under the new name, and is still watched."""
    [mid] = bench.push(b"x")
    (tmp_path / "q").rename(tmp_path / "r")
    bench.engine.refresh()
    assert list(bench.engine.queues()) == ["r"]
    put(tmp_path / "r", 5)
    bench.engine.refresh()
    assert bench.engine.queue("r").list_mids(State.ALL, 9, -1) == [5, mid]


@pytest.mark.parametrize("way", ["removed", "moved away", "open elsewhere"])
def test_queue_replaced(bench: Bench, tmp_path: Path, way: str) -> None:
    """When another directory has taken a queue's place its messages count, and it is watched."""
    bench.push(b"x")
    held = os.open(tmp_path / "q", os.O_RDONLY) if way == "open elsewhere" else -1
    if way == "moved away":
        (tmp_path / "q").rename(tmp_path / ".old")
    else:
        shutil.rmtree(tmp_path / "q")
    (tmp_path / "q").mkdir()
    put(tmp_path / "q", 5)
    bench.engine.refresh()
    if held >= 0:
        os.close(held)
        bench.engine.refresh()
    assert listed(bench) == [5]
    put(tmp_path / "q", 6)
    bench.engine.refresh()
    assert listed(bench) == [5, 6]


@pytest.mark.parametrize("call", ["push", "receive", "delete"])
def test_queue_removed_unseen(tmp_path: Path, call: str) -> None:
    """An operation on a queue that has just been removed fails with ENOENT or says that nothing is there."""
    bench = Bench(files_engine(Durability.ALWAYS)(tmp_path))
    bench.queue("q")
    bench.queue("r")
    [mid] = bench.push(b"x")
    shutil.rmtree(tmp_path / "q")
    if call == "push":
        with pytest.raises(FileNotFoundError):
            bench.engine.queue("q").push([Draft(b"x")])
    elif call == "receive":
        assert bench.engine.receive(["q", "r"], 5, 10, 100) == []
    else:
        with pytest.raises(NoSuchMessageError):
            bench.engine.queue("q").delete(Receipt(mid))
    assert bench.push(b"y", qid="r")
    bench.engine.refresh()
    assert list(bench.engine.queues()) == ["r"]
    bench.engine.close()


def test_commit_of_a_removed_queue(tmp_path: Path) -> None:
    """A commit does not fail for a queue that somebody has removed; the others are made durable."""
    bench = Bench(files_engine(Durability.ALWAYS)(tmp_path))
    bench.queue("q")
    bench.queue("r")
    bench.engine.commit()
    for qid in "qr":
        bench.engine.queue(qid).push([Draft(b"x")])
    bench.engine.effects()
    shutil.rmtree(tmp_path / "q")
    bench.engine.commit()
    assert bench.engine.queue("r").list_mids(State.ALL, 9, -1)
    bench.engine.close()


def test_two_engines(bench: Bench, tmp_path: Path) -> None:
    """Two engines over one root see each other's queues and messages, and their receipts hold for both."""
    other = files_engine(Durability.NONE)(tmp_path)(bench.clock)
    other.create("r", Options(capacity=5))
    bench.engine.refresh()
    assert bench.engine.queue("r").options.capacity == 5
    [mid] = bench.push(b"x", qid="r")
    other.refresh()
    [message] = other.receive(["r"], 1, 100, 100)
    bench.engine.refresh()
    assert bench.engine.receive(["r"], 1, 100, 100) == []
    seen = bench.engine.queue("r").get(mid, peek=True, visibility=None)
    assert (seen.status, seen.receives, seen.visible_at) == ("in-flight", 1, message.visible_at)
    bench.engine.queue("r").delete(Receipt(mid, message.receives))
    other.remove("r", force=False)
    bench.engine.refresh()
    assert list(bench.engine.queues()) == ["q"]
    other.close()


def test_stale_new_file_and_remove(bench: Bench, tmp_path: Path) -> None:
    """A file that a dead publisher left behind does not keep a queue from being removed."""
    (tmp_path / "q" / "5.new").touch()
    bench.engine.remove("q", force=False)
    assert not (tmp_path / "q").exists()


def test_message_at_the_last_moment(bench: Bench, tmp_path: Path) -> None:
    """A message that arrives while its queue is being removed keeps the queue."""

    class Late(FaultyDisk):
        def rmdir(self, path: str) -> None:  # type: ignore[override]
            put(Path(path), 5)
            os.rmdir(path)

    options = (tmp_path / "q" / ".queue.toml").read_text()
    bench.engine._root._disk = Late()  # type: ignore[attr-defined]
    with pytest.raises(QueueNotEmptyError):
        bench.engine.remove("q", force=False)
    bench.engine.refresh()
    assert listed(bench) == [5]
    assert (tmp_path / "q" / ".queue.toml").read_text() == options
    put(tmp_path / "q", 6)
    bench.engine.refresh()
    assert listed(bench) == [5, 6]


def test_no_inotify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without inotify the engine works, says so once, and sees the files of others at the next start."""

    def refuse(self: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Inotify, "__init__", refuse)
    bench = Bench(files_engine(Durability.NONE)(tmp_path))
    assert bench.engine.fileno() is None
    assert caplog.text.count("no inotify") == 1
    bench.queue()
    [mid] = bench.push(b"x")
    (tmp_path / "q" / str(mid)).unlink()
    assert bench.engine.receive(["q"], 5, 10, 100) == []
    put(tmp_path / "q", 5)
    bench.reopen()
    assert listed(bench) == [5]
    bench.engine.close()


def test_directory_that_cannot_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue for which no watch is left works without."""
    bench = Bench(files_engine(Durability.NONE)(tmp_path))

    def refuse(self: object, directory: str, mask: int) -> int:
        raise OSError(28, "No space left on device; raise fs.inotify.max_user_watches")

    monkeypatch.setattr(Inotify, "add", refuse)
    bench.queue()
    [mid] = bench.push(b"x")
    bench.engine.receive(["q"], 5, 10, 100)
    bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.refresh()
    assert listed(bench) == []
    bench.engine.close()
