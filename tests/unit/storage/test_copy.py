"""Copies between queues of files and other storages: what is copied, and what a failing disk or a crash leaves."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from support.storage.engines import EPOCH, LOTS, Crash, FaultyDisk, JournalEngine, ManualClock

from qs_storage.directories import FilesEngine
from qs_storage.disk import Disk
from qs_storage.engine import (
    Draft,
    Durability,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    OtherMessageError,
    QueueFullError,
    Receipt,
    State,
    UnsupportedError,
)
from qs_storage.watch import Inotify

MID = EPOCH + 10


def open_engine(root: Path, disk: Disk | None = None, durability: Durability = Durability.ALWAYS) -> FilesEngine:
    return FilesEngine(str(root), clock=ManualClock(MID), durability=durability, disk=disk)


def made(root: Path, disk: Disk | None = None, durability: Durability = Durability.ALWAYS) -> FilesEngine:
    """An engine with a message in queue `q` and the empty queues `r` and `s`."""
    engine = open_engine(root, disk, durability)
    for qid in ("q", "r", "s"):
        engine.create(qid, Options())
    assert engine.queue("q").push([Draft(b"payload")]) == [MID]
    engine.commit()
    return engine


def names(root: Path) -> dict[str, list[str]]:
    return {qid: sorted(name for name in os.listdir(root / qid) if name[0] != ".") for qid in ("q", "r", "s")}


def test_files_of_their_own(tmp_path: Path) -> None:
    """Each queue gets a file of its own with the same bytes, and counts for itself."""
    engine = made(tmp_path)
    engine.copy("q", MID, ["r", "s"])
    files = [tmp_path / qid / str(MID) for qid in "qrs"]
    assert [file.read_bytes() for file in files] == [b"payload"] * 3
    assert [file.stat().st_nlink for file in files] == [1] * 3
    engine.receive(["r"], 1, 0, LOTS)
    assert [engine.queue(qid).get(MID, peek=True, visibility=None).receives for qid in "qrs"] == [0, 1, 0]
    engine.close()


@pytest.mark.parametrize(("hidden", "durability"), [(False, Durability.ALWAYS), (True, Durability.NONE)])
@pytest.mark.parametrize("stops", [1, 2, 3])
@pytest.mark.parametrize("code", [errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, 0])
def test_where_the_kernel_does_not_copy(
    tmp_path: Path, code: int, stops: int, hidden: bool, durability: Durability
) -> None:
    """On file systems between which copy_file_range fails, or ends too early, the rest is read and written."""

    class Partly(Disk):
        calls = 0

        def _copy_range(self, source: int, target: int, count: int) -> int:  # type: ignore[override]
            self.calls += 1
            if self.calls < stops:
                return os.copy_file_range(source, target, 2)
            if code:
                raise OSError(code, os.strerror(code))
            return 0

    engine = made(tmp_path, Partly(), durability)
    if hidden:
        engine.receive(["q"], 1, 10**9, LOTS)
    engine.copy("q", MID, ["r"])
    engine.commit()
    assert (tmp_path / "r" / str(MID)).read_bytes() == b"payload"
    assert engine.queue("r").stats().bytes == 7
    engine.close()


@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize(("first", "second"), [("journal", "files"), ("files", "journal")])
def test_between_storages(tmp_path: Path, first: str, second: str, stopped: bool) -> None:
    """A message goes from a queue of the journal to one of files and back, older or newer than what is there, and is
    there after a stop and after a kill; repeated, the copy changes nothing."""
    clock = ManualClock(MID)

    def opened() -> JournalEngine:
        return JournalEngine(str(tmp_path), clock=clock, durability=Durability.ALWAYS)

    engine = opened()
    engine.create("a", Options(storage=first))
    engine.create("b", Options(storage=second))
    [old] = engine.queue("a").push([Draft(b"old")])
    clock.now += 5
    [between] = engine.queue("b").push([Draft(b"between")])
    clock.now += 5
    [new] = engine.queue("a").push([Draft(b"new")])
    for _ in range(2):
        for mid in (new, old):
            engine.copy("a", mid, ["b"])
    engine.copy("b", between, ["a"])
    engine.commit()
    if stopped:
        engine.close()
    else:
        engine._watch.close()
        engine._journal.close()
    after = opened()
    for qid in ("a", "b"):
        found = after.receive([qid], 9, 10, LOTS)
        assert [(m.mid, m.payload, m.receives) for m in found] == [
            (old, b"old", 1), (between, b"between", 1), (new, b"new", 1)
        ]  # fmt: skip
        assert after.queue(qid).push([Draft(b"")]) == [new + 1]
    after.close()


@pytest.mark.parametrize("storage", ["journal", "files"])
def test_ids_after_a_copy(tmp_path: Path, storage: str) -> None:
    """An id that came with a copy is not given again, also when the copy has been deleted."""
    clock = ManualClock(MID + 5)
    engine = JournalEngine(str(tmp_path), clock=clock, durability=Durability.ALWAYS)
    engine.create("source", Options(storage="files" if storage == "journal" else "journal"))
    engine.create("target", Options(storage=storage))
    [mid] = engine.queue("source").push([Draft(b"payload")])
    engine.copy("source", mid, ["target"])
    engine.queue("target").delete(Receipt(mid))
    clock.now -= 5
    assert engine.queue("target").push([Draft(b"")]) == [mid + 1]
    engine.close()


@pytest.mark.parametrize("storage", ["journal", "files"])
def test_between_storages_refused(tmp_path: Path, storage: str) -> None:
    """A message of the same id and another payload is refused, a full queue too, and a message that is gone is not
    there, whichever storage the other queue has."""
    clock = ManualClock(MID)
    engine = JournalEngine(str(tmp_path), clock=clock, durability=Durability.ALWAYS)
    engine.create("source", Options(storage="files" if storage == "journal" else "journal"))
    engine.create("other", Options(storage=storage))
    engine.create("full", Options(storage=storage, capacity=1))
    engine.queue("source").push([Draft(b"payload")])
    engine.queue("other").push([Draft(b"another")])
    clock.now += 1
    engine.queue("full").push([Draft(b"")])
    with pytest.raises(OtherMessageError, match=f"queue 'other' holds another message of the id {MID}"):
        engine.copy("source", MID, ["other"])
    with pytest.raises(QueueFullError):
        engine.copy("source", MID, ["full"])
    with pytest.raises(NoSuchMessageError):
        engine.copy("source", MID + 5, ["full"])
    engine.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("only", ["open", "_copy_range", "rename", "fsync"])
def test_nothing_has_changed(tmp_path: Path, only: str, code: int) -> None:
    """Whichever call fails: none of the queues has the message, and nothing of it; repeated, all have it."""
    disk = FaultyDisk()
    engine = made(tmp_path, disk)
    before = names(tmp_path)
    failed = False
    for at in range(1, 20):
        disk.arm(at, code, only)
        try:
            engine.copy("q", MID, ["r", "s"])
        except OSError as error:
            disk.disarm()
            failed = True
            found = error.errno, names(tmp_path)
            assert found == (code, before)
            listed = {qid: [str(mid) for mid in engine.queue(qid).list_mids(State.ALL, 9, -1)] for qid in "qrs"}
            assert listed == before
            continue
        break
    disk.disarm()
    assert failed
    for _ in range(2):
        assert names(tmp_path) == {qid: sorted({*found, str(MID)}) for qid, found in before.items()}
        engine.close()
        engine = open_engine(tmp_path)
        assert all(MID in engine.queue(qid).list_mids(State.ALL, 9, -1) for qid in "qrs")
    engine.close()


@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.NONE])
def test_crash_at_every_step(tmp_path: Path, durability: Durability) -> None:
    """A crash at any call leaves the message in its queue; the copy, repeated after a start, gives each queue one."""
    for step in range(1, 60):
        root = tmp_path / str(step)
        root.mkdir()
        disk = FaultyDisk()
        engine = made(root, disk, durability)
        disk.arm(step, Crash)
        try:
            engine.copy("q", MID, ["r", "s"])
            engine.commit()
        except Crash:
            pass
        done = not disk.failed
        disk.crash()
        engine._watch.close()  # as the kernel does
        for left in root.glob("[rs]/*.new"):
            os.utime(left, (MID // 10**6 - 2,) * 2)  # the start comes two seconds later
        after = open_engine(root, durability=durability)
        assert after.queue("q").list_mids(State.ALL, 9, -1) == [MID]
        after.copy("q", MID, ["r", "s"])
        assert names(root) == {qid: [str(MID)] for qid in ("q", "r", "s")}
        found = after.receive(["q", "r", "s"], 9, 10, LOTS)
        assert [(message.mid, message.payload, message.receives) for message in found] == [(MID, b"payload", 1)] * 3
        after.close()
        if done:
            assert step > 4
            return
    pytest.fail("the copy was never completed")


@pytest.mark.parametrize(
    ("begun", "age", "removed"),
    [
        (b"", 2, True), (b"pay", 2, True), (b"payload", 2, True), (b"pay", 0, False), (b"other", 2, False),
        (b"payload and more", 2, False), (b"\0\0\0", 599, False), (b"\0\0\0", 601, True),
    ],
)  # fmt: skip
def test_what_a_crash_left(tmp_path: Path, begun: bytes, age: int, removed: bool) -> None:
    """A `.new` that is the beginning of the same payload, with no write for a second, is what a crash left of the copy;
    any other one is somebody else's push until it is ten minutes old, and stays as it is."""
    engine = made(tmp_path)
    left = tmp_path / "r" / f"{MID}.new"
    left.write_bytes(begun)
    os.utime(left, (MID // 10**6 - age,) * 2)
    if removed:
        engine.copy("q", MID, ["r"])
        assert (names(tmp_path)["r"], (tmp_path / "r" / str(MID)).read_bytes()) == ([str(MID)], b"payload")
    else:
        with pytest.raises(FileExistsError):
            engine.copy("q", MID, ["r"])
        assert (names(tmp_path)["r"], left.read_bytes()) == ([left.name], begun)
    engine.close()


def test_queues_with_other_units(tmp_path: Path) -> None:
    """A queue whose ids are milliseconds takes no message whose id is microseconds."""
    (tmp_path / "ms").mkdir()
    (tmp_path / "ms" / ".queue.toml").write_text('timestamps = "ms"\n')
    engine = made(tmp_path)
    with pytest.raises(UnsupportedError, match="timestamps"):
        engine.copy("q", MID, ["r", "ms"])
    assert names(tmp_path)["r"] == []
    engine.close()


# -- a queue that is gone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("watched", "replaced"), [(True, True), (True, False), (False, False)])
def test_the_directory_of_a_target_is_gone(
    tmp_path: Path, watched: bool, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that another program has removed is not a queue, also where nobody reports that, and the others get
    nothing; one that it has made anew in its place is taken up by the next copy."""

    def refuse(self: Inotify) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    if not watched:
        monkeypatch.setattr(Inotify, "__init__", refuse)
    engine = made(tmp_path)
    (tmp_path / "s").rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    with pytest.raises(NoSuchQueueError, match="'s'"):
        engine.copy("q", MID, ["r", "s"])
    assert [name for name in os.listdir(tmp_path / "r") if name[0] != "."] == []
    assert set(engine.queues()) == {"q", "r"}
    if replaced:
        (tmp_path / "s").mkdir()
        engine.copy("q", MID, ["r", "s"])
        assert names(tmp_path) == {qid: [str(MID)] for qid in "qrs"}
    engine.close()


def test_the_directory_of_the_source_is_gone(tmp_path: Path) -> None:
    """If the directory of the source is gone, the message is missing, and the target is as it was."""
    engine = made(tmp_path)
    shutil.rmtree(tmp_path / "q")
    with pytest.raises(NoSuchMessageError):
        engine.copy("q", MID, ["r"])
    assert "r" in engine.queues()
    engine.close()


# -- a queue that has the id ------------------------------------------------------------------------------------------


def with_id(root: Path, payload: bytes, state: str = "") -> FilesEngine:
    """An engine as made, whose queue `s` has a message of the same id."""
    engine = made(root)
    (root / "s" / f"{MID}{state}").write_bytes(payload)
    engine.refresh()
    return engine


@pytest.mark.parametrize("state", ["", f".{MID + 10**9}"])
@pytest.mark.parametrize("payload", [b"PAYLOAD", b"payload and more", b""])
def test_another_message_of_the_id(tmp_path: Path, payload: bytes, state: str) -> None:
    """Another message of the id, of any size and state, stays as it is; the copy is refused, and no other queue has
    it."""
    engine = with_id(tmp_path, payload, state)
    for _ in range(2):
        with pytest.raises(OtherMessageError, match=f"queue 's' holds another message of the id {MID}"):
            engine.copy("q", MID, ["r", "s"])
    assert names(tmp_path) == {"q": [str(MID)], "r": [], "s": [f"{MID}{state}"]}
    assert (tmp_path / "s" / f"{MID}{state}").read_bytes() == payload
    engine.close()


@pytest.mark.parametrize("state", ["", f".{MID + 10**9}"])
def test_the_same_message_is_there(tmp_path: Path, state: str) -> None:
    """A file of its own with the same bytes is the message: the copy can be repeated."""
    engine = with_id(tmp_path, b"payload", state)
    engine.copy("q", MID, ["r", "s"])
    assert names(tmp_path) == {"q": [str(MID)], "r": [str(MID)], "s": [f"{MID}{state}"]}
    engine.close()


@pytest.mark.parametrize("state", ["", f".{MID + 10**9}"])
@pytest.mark.parametrize(("payload", "refused"), [(b"payload", False), (b"another", True)])
def test_somebody_is_faster(tmp_path: Path, payload: bytes, refused: bool, state: str) -> None:
    """A message that appears in the target during the copy is compared too, and nothing else is left."""

    class Slow(Disk):
        def _copy_range(self, source: int, target: int, count: int) -> int:  # type: ignore[override]
            (tmp_path / "r" / f"{MID}{state}").write_bytes(payload)
            return os.copy_file_range(source, target, count)

    engine = made(tmp_path, Slow())
    try:
        engine.copy("q", MID, ["r"])
        assert not refused
    except OtherMessageError:
        assert refused
    assert names(tmp_path)["r"] == [f"{MID}{state}"]
    assert (tmp_path / "r" / f"{MID}{state}").read_bytes() == payload
    engine.close()


def test_the_other_message_is_just_deleted(tmp_path: Path) -> None:
    """A message of the id that another program has just removed does not hinder the copy."""
    engine = with_id(tmp_path, b"another")
    (tmp_path / "s" / str(MID)).unlink()
    engine.copy("q", MID, ["s"])
    assert (tmp_path / "s" / str(MID)).read_bytes() == b"payload"
    engine.close()
