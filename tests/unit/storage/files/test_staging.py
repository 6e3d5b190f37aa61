"""Messages that are being written: whatever happens, all of a list or nothing of it, and nothing left behind."""

import fcntl
import os
from pathlib import Path

import pytest
from support.storage.engines import EPOCH, Crash, FaultyDisk, ManualClock, failed

from qs_storage.directories import FilesEngine
from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Draft, Durability, Options, State, wall_clock

DRAFTS = [Draft(b"a"), Draft(b"b", 50), Draft(b"c")]


def open_engine(root: Path, disk: Disk | None = None, durability: Durability = Durability.ALWAYS) -> FilesEngine:
    return FilesEngine(str(root), clock=ManualClock(EPOCH + 10), durability=durability, disk=disk)


def names(root: Path) -> list[str]:
    """All that is in the queue's directory but its options, and the sidecars of messages that are there."""
    found = sorted(name for name in os.listdir(root / "q") if name != ".queue.toml")
    mids = {name.split(".")[0] for name in found}
    return [name for name in found if not (name.endswith(".attributes") and name.split(".")[1] in mids)]


@pytest.mark.parametrize("attributes", [True, False])
@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.NONE])
def test_crash_at_every_step(tmp_path: Path, durability: Durability, attributes: bool) -> None:
    """A crash at any call of the pushing of a list leaves, after a start, all of it or none, as it was pushed."""
    outcomes = set()
    for step in range(1, 60):
        root = tmp_path / str(step)
        root.mkdir()
        disk = FaultyDisk(attributes=attributes)
        engine = open_engine(root, disk, durability)
        engine.create("q", Options())
        disk.arm(step, Crash)
        try:
            engine.queue("q").push(DRAFTS)
            engine.commit()
        except Crash:
            pass
        done = not disk.failed
        disk.crash()
        engine._watch.close()  # as the kernel does
        for name in names(root):
            os.utime(root / "q" / name, (EPOCH / 10**6 - 3600,) * 2)  # the start comes an hour later
        after = open_engine(root, FaultyDisk(attributes=attributes), durability)
        found = after.queue("q").list_mids(State.ALL, 10, -1)
        assert len(found) in (0, 3)
        assert after.queue("q").list_mids(State.NEW, 10, -1) == found
        assert after.queue("q").list_mids(State.DELAYED, 10, -1) == found[1:2]
        assert len(names(root)) == len(found)
        after.close()
        outcomes.add(len(found))
        if done:
            break
    else:
        pytest.fail("the push was never completed")
    assert outcomes == {0, 3}


def test_stale_new_files(tmp_path: Path) -> None:
    """A start removes old remains of a crashed publisher; files that may still be written stay."""
    queue = tmp_path / "q"
    queue.mkdir()
    for name in ("5.new", "6.new", ".batch-5.tmp", ".7.attributes.tmp", "note.new", "x.tmp"):
        (queue / name).touch()
        if name != "6.new":
            os.utime(queue / name, (EPOCH / 10**6 - 601, EPOCH / 10**6 - 601))
    os.utime(queue / "6.new", (EPOCH / 10**6 - 599, EPOCH / 10**6 - 599))
    engine = open_engine(tmp_path)
    assert names(tmp_path) == ["6.new", "note.new", "x.tmp"]
    engine.close()


def test_batch_of_a_living_publisher(tmp_path: Path) -> None:
    """A start does not finish the list that another process is just making visible."""
    queue = tmp_path / "q"
    queue.mkdir()
    (queue / "5.new").touch()
    batch = queue / ".batch-5"
    batch.write_text("5.new 5\n6.new 6\nend")
    with batch.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        engine = open_engine(tmp_path)
        assert names(tmp_path) == [".batch-5", "5.new"]
        engine.close()
    engine = open_engine(tmp_path)
    assert names(tmp_path) == ["5"]
    engine.close()


@pytest.mark.parametrize(
    "note", [b"", b"5.new 5", b"5.new ../5\nend", b"5.new\nend", b"../q/5.new 5\nend", b"\xff\nend"]
)
def test_batch_of_nonsense(tmp_path: Path, note: bytes) -> None:
    """A note that is not whole, or names what is not a message, moves nothing, and goes."""
    queue = tmp_path / "q"
    queue.mkdir()
    (queue / "5.new").touch()
    (queue / ".batch-5").write_bytes(note)
    engine = open_engine(tmp_path)
    assert names(tmp_path) == ["5.new"]
    engine.close()


def test_id_being_written_by_another(tmp_path: Path) -> None:
    """An id that another publisher is writing, or has just published, is not used."""
    queue = tmp_path / "q"
    queue.mkdir()
    engine = open_engine(tmp_path)
    (queue / f"{EPOCH + 10}.new").touch()
    (queue / f"{EPOCH + 11}").touch()
    (queue / f"{EPOCH + 12}.{EPOCH + 99}").touch()
    assert engine.queue("q").push([Draft(b"x")]) == [EPOCH + 13]
    engine.close()


def test_close_takes_back(tmp_path: Path) -> None:
    """A queue that is gone takes what was staged in it along, and says so."""
    engine = open_engine(tmp_path)
    engine.create("q", Options())
    engine.create("r", Options())
    first, _ = engine.queue("q").push([Draft(b"x"), Draft(b"y")])
    os.rename(tmp_path / "q", tmp_path / "z")
    [other] = engine.queue("r").push([Draft(b"x")])
    engine.effects()
    failures = failed(engine)
    assert list(failures) == [("q", first)]
    assert isinstance(failures["q", first], FileNotFoundError)
    assert engine.queue("r").list_mids(State.ALL, 9, -1) == [other]
    engine.close()


def test_short_writes(tmp_path: Path) -> None:
    """A disk that takes a few bytes at a time gets them all."""

    class Slow(Disk):
        def _write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
            return os.write(fd, data[:7])

    engine = open_engine(tmp_path, Slow())
    engine.create("q", Options(capacity=77))
    [mid] = engine.queue("q").push([Draft(bytes(range(100)))])
    assert engine.queue("q").get(mid, peek=True, visibility=None).payload == bytes(range(100))
    engine.close()
    assert open_engine(tmp_path).queue("q").options.capacity == 77


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_file_that_is_written_now_stays(tmp_path: Path, ahead: int) -> None:
    """A file that another process has just begun is not taken for left behind if the server's time is an hour ahead of
    the wall clock, which stamps files, or behind it."""
    queue = tmp_path / "q"
    queue.mkdir()
    (queue / "5.new").touch()
    clock = ManualClock(wall_clock() + ahead * SECOND)
    engine = FilesEngine(str(tmp_path), clock=clock, durability=Durability.NONE)
    assert names(tmp_path) == ["5.new"]
    engine.close()
