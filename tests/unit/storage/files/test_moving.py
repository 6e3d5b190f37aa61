"""Moves of messages between directories of the vsqs layout: each step of them, and what others do meanwhile."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.storage.engines import LOTS, Bench, Crash, FaultyDisk, FileServers, WithoutAttributes, arrived

from qs_storage.disk import Disk
from qs_storage.engine import Engine, Message, NoSuchQueueError, Origin, Receipt, State
from qs_storage.vsqs import Queue

WINDOW = 5_000_000
Step = Callable[[Bench], object]


@pytest.fixture
def bench(tmp_path: Path, servers: FileServers, disk: FaultyDisk) -> Bench:
    """A queue `q` with a message that has been received as often as it may be."""
    made = servers.start(tmp_path / "root", disk)
    made.queue(dead_letter="dead", max_receives=1)
    made.queue("dead")
    made.push(b"x")
    receive(made.engine)
    made.engine.commit()
    return made


def receive(engine: Engine, qid: str = "q", visibility: int = WINDOW) -> list[Message]:
    return engine.receive([qid], 10, visibility, LOTS)


def held(engine: Engine, qid: str) -> list[int]:
    return engine.queue(qid).list_mids(State.ALL, 1000, -1)


def release(bench: Bench) -> None:
    [mid] = held(bench.engine, "q")
    bench.engine.queue("q").release(Receipt(mid), 0)
    bench.engine.commit()


def redrive(bench: Bench, qid: str = "dead") -> list[int]:
    tool = bench.engine.queue(qid).redrive
    assert tool is not None
    letters = [(mid, bench.engine.queue(came_from)) for mid, came_from in tool.letters((), 1000)]
    moved = tool.move(letters)
    bench.engine.commit()
    return [new for _, new in moved]


def die_and_be_received(bench: Bench) -> None:
    release(bench)
    receive(bench.engine, "dead")
    bench.engine.commit()


STEPS: dict[str, tuple[Step, Step]] = {
    "death": (lambda bench: None, release),
    "redrive": (die_and_be_received, redrive),
}
"""What comes before, and the move."""


def where(engine: Engine) -> tuple[str, int, bool]:
    """The queue that has the message, how often it was received there, whether it is a dead letter."""
    [(qid, mid)] = [(qid, mid) for qid in ("q", "dead") for mid in held(engine, qid)]
    message = engine.queue(qid).read(Receipt(mid))
    assert message.payload == b"x"
    return qid, message.receives, message.origin is not None


@pytest.mark.parametrize("move", STEPS)
def test_move_with_crash_at_each_step(
    tmp_path: Path, servers: FileServers, disk: FaultyDisk, bench: Bench, move: str
) -> None:
    """The message is in one queue, as it was before or as it is afterwards, for servers that run and for the next."""
    before, step = STEPS[move]
    seen = set()
    for at in range(1, 100):
        root = tmp_path / f"root-{at}"
        here = servers.start(root, disk)
        here.queue(dead_letter="dead", max_receives=1)
        here.queue("dead")
        here.push(b"x")
        receive(here.engine)
        before(here)
        other = servers.start(root, disk)
        crashed = False
        disk.arm(at, Crash)
        try:
            step(here)
        except Crash:
            crashed = True
        disk.disarm()
        other.engine.refresh()
        live = where(other.engine)
        found = where(servers.start(root, disk).engine)
        seen.add(found)
        assert found == live
        servers.kill(but=1)
        if not crashed:
            break
    expected = {("q", 1, False), ("dead", 0, True)} if move == "death" else {("dead", 1, True), ("q", 0, False)}
    assert seen == expected


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EXDEV])
def test_what_cannot_be_moved_stays(
    disk: FaultyDisk, bench: Bench, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """Whatever step fails, the message is visible and as it was; the log says so once, and the next release moves
    it."""
    for at in range(1, 100):
        before = len(caplog.records)
        disk.arm(at, code)
        try:
            release(bench)
        except OSError:
            disk.disarm()
            bench.engine.commit()
        disk.disarm()
        if held(bench.engine, "dead"):
            break
        qid, receives, is_dead = where(bench.engine)
        assert (qid, is_dead) == ("q", False)
        assert len(caplog.records) - before <= 1
        assert not [name for name in os.listdir(bench.engine.queue("dead").path) if name != ".queue.toml"]  # type: ignore[attr-defined]
        if receive(bench.engine):  # else the release has failed, and it is in flight still
            assert where(bench.engine)[1] == receives + 1
    assert where(bench.engine) == ("dead", 0, True)
    assert bench.engine.queue("q").stats().dead == 1


def test_the_same_time(tmp_path: Path, servers: FileServers) -> None:
    """A clock that stands still: each move gives another id, by which its attributes are known."""
    bench = servers.start(tmp_path / "root", Disk())
    bench.queue(dead_letter="dead", max_receives=1)
    bench.queue("dead", dead_letter="last", max_receives=1)
    [mid] = bench.push(b"x")
    bench.clock.now = mid
    receive(bench.engine)
    release(bench)
    [dead] = held(bench.engine, "dead")
    receive(bench.engine, "dead")
    bench.engine.queue("dead").release(Receipt(dead), 0)
    [last] = held(bench.engine, "last")
    assert mid < dead
    assert last != dead
    for _ in range(2):
        message = bench.engine.queue("last").get(last, peek=True, visibility=None)
        assert (message.origin, message.receives) == (Origin("dead", dead, 1, mid, "receives", mid), 0)
        bench.reopen()


def test_move_between_units_of_ids(tmp_path: Path, servers: FileServers) -> None:
    """Ids of the two queues may be in different units; the times are right."""
    bench = servers.start(tmp_path / "root", Disk())
    bench.queue(dead_letter="dead", max_receives=1, timestamps="ms")
    [mid] = bench.push(b"x")
    receive(bench.engine)
    release(bench)
    [dead] = held(bench.engine, "dead")
    message = bench.engine.queue("dead").get(dead, peek=True, visibility=None)
    assert message.origin is not None
    assert (message.origin.mid, message.pushed_at, dead) == (mid, mid * 1000, bench.clock.now)


def test_beside_another_server(tmp_path: Path, servers: FileServers, disk: FaultyDisk, bench: Bench) -> None:
    """Another server sees the move at once, with the origin, and is the first to receive the dead letter and to move it
    back."""
    other = servers.start(tmp_path / "root", disk)
    arrived(other.engine)
    [mid] = held(bench.engine, "q")
    release(bench)
    other.engine.refresh()
    assert arrived(other.engine) == {"dead": 1}
    [message] = receive(other.engine, "dead")
    assert message.origin is not None
    assert (message.origin.qid, message.origin.mid, message.receives) == ("q", mid, 1)
    [new] = redrive(other)
    bench.engine.refresh()
    assert (held(bench.engine, "q"), held(bench.engine, "dead")) == ([new], [])
    assert [m.receives for m in receive(bench.engine)] == [1]


def test_overtaken(bench: Bench, tmp_path: Path) -> None:
    """If another program deletes the message or makes it visible before its reports are read, nothing is moved."""
    [file] = (tmp_path / "root" / "q").glob("*.*[0-9]")
    letters = bench.engine.queue("q").redrive
    assert letters is not None
    bench.clock.now += WINDOW
    os.rename(file, file.with_suffix(""))
    bench.engine.expire(1000)
    assert (held(bench.engine, "dead"), bench.engine.queue("q").stats().dead) == ([], 0)
    receive(bench.engine)
    [file] = (tmp_path / "root" / "q").glob("*.*[0-9]")
    file.unlink()
    bench.clock.now += WINDOW
    bench.engine.expire(1000)
    assert [held(bench.engine, qid) for qid in ("q", "dead")] == [[], []]


def test_a_dead_letter_queue_that_has_just_gone(bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Removed by hand, and nobody has noticed: the message stays; the queue is made again for the next one. A redrive
    to such a queue is 404."""
    for path in (tmp_path / "root" / "dead").iterdir():
        path.unlink()
    (tmp_path / "root" / "dead").rmdir()
    release(bench)
    assert "is gone" in caplog.text
    bench.engine.refresh()
    receive(bench.engine)
    release(bench)
    assert where(bench.engine) == ("dead", 0, True)
    tool, target = bench.engine.queue("dead").redrive, bench.engine.queue("q")
    assert tool is not None
    for path in (tmp_path / "root" / "q").iterdir():
        path.unlink()
    (tmp_path / "root" / "q").rmdir()
    with pytest.raises(NoSuchQueueError):
        tool.move([(held(bench.engine, "dead")[0], target)])
    assert len(held(bench.engine, "dead")) == 1


def test_a_redrive_that_fails_midway(tmp_path: Path, servers: FileServers) -> None:
    """A redrive that fails midway answers with the moved messages; the next call moves the others."""
    disk = FaultyDisk()
    bench = servers.start(tmp_path / "root", disk)
    bench.queue(dead_letter="dead", max_receives=1)
    bench.push(b"1", b"2", b"3")
    for message in receive(bench.engine):
        bench.engine.queue("q").release(Receipt(message.mid), 0)
    bench.engine.commit()
    disk.arm(2, errno.EIO, "rename")
    moved = redrive(bench)
    disk.disarm()
    assert (len(moved), len(held(bench.engine, "q")), len(held(bench.engine, "dead"))) == (1, 1, 2)
    assert len(redrive(bench)) == 2
    assert [m.payload for m in receive(bench.engine)] == [b"1", b"2", b"3"]


def test_the_library_moves_nothing(bench: Bench, tmp_path: Path) -> None:
    """The library makes due messages visible; the server moves them at their next release. A dead letter is a message
    for the library."""
    with Queue(tmp_path / "root" / "q", clock=bench.clock) as queue:
        bench.clock.now += WINDOW
        mid, payload = queue.receive(visibility_timeout=5, timeout=0)
        assert (int(mid or 0), payload) == (held(bench.engine, "q")[0], b"x")
    bench.engine.refresh()
    bench.clock.now += WINDOW
    bench.engine.expire(1000)
    assert where(bench.engine) == ("dead", 0, True)
    with Queue(tmp_path / "root" / "dead", clock=bench.clock) as queue:
        mid, payload = queue.receive(timeout=0)
        assert payload == b"x"
        queue.delete(mid or "")
    bench.engine.refresh()
    assert held(bench.engine, "dead") == []


def test_hidden_files_of_nobody(tmp_path: Path, servers: FileServers) -> None:
    """Origins of dead letters that others have deleted go when the directory is listed; the others stay."""
    bench = servers.start(tmp_path / "root", WithoutAttributes())
    bench.queue(dead_letter="dead", max_receives=1)
    bench.push(b"1", b"2")
    for message in receive(bench.engine):
        bench.engine.queue("q").release(Receipt(message.mid), 0)
    bench.engine.commit()
    gone, stays = held(bench.engine, "dead")
    directory = tmp_path / "root" / "dead"
    assert len(list(directory.glob(".*.dead"))) == 2
    (directory / str(gone)).unlink()
    bench.reopen()
    assert [path.name for path in directory.glob(".*.dead")] == [f".{stays}.dead"]
    redrive(bench)
    assert list(directory.glob(".*[0-9].*")) == []


def test_letters_among_others(tmp_path: Path, servers: FileServers) -> None:
    """Dead letters are found after a start, when nothing has been looked at yet."""
    bench = servers.start(tmp_path / "root", Disk())
    bench.queue(dead_letter="dead", max_receives=1)
    bench.queue("dead")
    bench.push(*(b"%d" % number for number in range(1200)), qid="dead")
    bench.push(b"x")
    receive(bench.engine)
    release(bench)
    bench.reopen()
    tool = bench.engine.queue("dead").redrive
    assert tool is not None
    [letter] = tool.letters((), 10)
    assert letter[1] == "q"
    bench.engine.queue("dead").stats()
    assert tool.letters((), 10) == [letter]
    assert tool.letters([letter[0] - 1], 10) == []
