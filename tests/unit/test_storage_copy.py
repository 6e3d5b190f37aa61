"""A message in several queues: which files share their bytes, and what a disk that fails or a crash leaves."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import EPOCH, Crash, FaultyDisk, ManualClock

from qs_server.storage.disk import Disk
from qs_server.storage.engine import (
    Draft,
    Durability,
    NoSuchMessageError,
    NoSuchQueueError,
    Options,
    OtherMessageError,
    Receipt,
    State,
    UnsupportedError,
)
from qs_server.storage.files import FilesEngine

MID = EPOCH + 10
LOTS = 1 << 40


def open_engine(root: Path, disk: Disk | None = None, durability: Durability = Durability.ALWAYS) -> FilesEngine:
    return FilesEngine(str(root), clock=ManualClock(MID), durability=durability, disk=disk)


def made(root: Path, disk: Disk | None = None, durability: Durability = Durability.ALWAYS) -> FilesEngine:
    """An engine with a message in queue `q` and the empty queues `r` and `s`."""
    engine = open_engine(root, disk, durability)
    for qid in ("q", "r", "s"):
        engine.create(qid, Options())
    assert engine.push("q", [Draft(b"payload")]) == [MID]
    engine.commit()
    return engine


def inode(root: Path, qid: str) -> int:
    [path] = (root / qid).glob(f"{MID}*")
    return path.stat().st_ino


def names(root: Path) -> dict[str, list[str]]:
    return {qid: sorted(name for name in os.listdir(root / qid) if name[0] != ".") for qid in ("q", "r", "s")}


def test_the_bytes_are_shared(tmp_path: Path) -> None:
    """Queues that were empty get the very file, and are known by `links = true` from then on."""
    engine = made(tmp_path)
    engine.copy("q", MID, ["r", "s"])
    assert inode(tmp_path, "q") == inode(tmp_path, "r") == inode(tmp_path, "s")
    assert engine.options("r").links
    assert "links = true" in (tmp_path / "r" / ".queue.toml").read_text()
    assert "links" not in (tmp_path / "q" / ".queue.toml").read_text()
    engine.push("r", [Draft(b"own")])
    engine.push("q", [Draft(b"first")])
    [second] = engine.push("q", [Draft(b"second")])
    engine.copy("q", second, ["r"])
    assert (tmp_path / "q" / str(second)).stat().st_nlink == 2
    engine.close()


def test_attributes_of_each_queue(tmp_path: Path) -> None:
    """The counts of a queue with links stand in attributes whose names end in what is its own."""
    engine = made(tmp_path)
    engine.copy("q", MID, ["r", "s"])
    engine.receive(["r"], 1, 0, LOTS)
    engine.receive(["r"], 1, 10**9, LOTS, held=True)
    engine.receive(["s"], 1, 10**9, LOTS)
    found = os.listxattr(tmp_path / "q" / str(MID))
    assert sorted(name.rpartition(".")[0] for name in found) == ["user.qs.holder", *["user.qs.receives"] * 2]
    assert all(len(name.rpartition(".")[2]) == 8 for name in found)
    engine.close()


def test_a_queue_with_messages_of_its_own(tmp_path: Path) -> None:
    """A queue that is not empty, and has no links, gets a file of its own."""
    engine = made(tmp_path)
    engine.push("r", [Draft(b"")] * 2)
    engine.delete("r", Receipt(MID))  # an id may be that of a message in each of two queues
    engine.copy("q", MID, ["r"])
    assert inode(tmp_path, "q") != inode(tmp_path, "r")
    assert not engine.options("r").links
    engine.close()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.NONE])
def test_where_links_cannot_be_made(tmp_path: Path, code: int, durability: Durability) -> None:
    """On another file system, or where linking is not allowed, the bytes are copied."""
    disk = FaultyDisk()
    engine = made(tmp_path, disk, durability)
    disk.arm(1, code, "link")
    engine.copy("q", MID, ["r"])
    engine.commit()
    assert disk.failed == ["link"]
    assert inode(tmp_path, "q") != inode(tmp_path, "r")
    assert (tmp_path / "r" / str(MID)).read_bytes() == b"payload"
    engine.close()


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("only", ["link", "open", "_write", "rename", "fsync"])
def test_nothing_has_changed(tmp_path: Path, only: str, code: int, linked: bool) -> None:
    """Whichever call fails: none of the queues has the message, and nothing of it; repeated, all have it."""
    disk = FaultyDisk()
    engine = made(tmp_path, disk)
    if not linked:
        for qid in ("r", "s"):
            engine.push(qid, [Draft(b"")] * 2)
            engine.delete(qid, Receipt(MID))
            engine.commit()
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
            listed = {qid: [str(mid) for mid in engine.list_mids(qid, State.ALL, 9, -1)] for qid in "qrs"}
            assert listed == before
            continue
        break
    disk.disarm()
    assert failed or only == "fsync" or (only == "link" and not linked)
    for _ in range(2):
        assert names(tmp_path) == {qid: sorted({*found, str(MID)}) for qid, found in before.items()}
        engine.close()
        engine = open_engine(tmp_path)
        assert all(MID in engine.list_mids(qid, State.ALL, 9, -1) for qid in "qrs")
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
        after = open_engine(root, durability=durability)
        assert after.list_mids("q", State.ALL, 9, -1) == [MID]
        after.copy("q", MID, ["r", "s"])
        assert names(root) == {qid: [str(MID)] for qid in ("q", "r", "s")}
        found = after.receive(["q", "r", "s"], 9, 10, LOTS)
        assert [(message.mid, message.payload, message.receives) for message in found] == [(MID, b"payload", 1)] * 3
        after.close()
        if done:
            assert step > 4
            return
    pytest.fail("the copy was never completed")


def test_what_a_crash_left_is_taken(tmp_path: Path) -> None:
    """A `.new` that is the very file is what the copy wants; one that is another file is somebody else's push."""
    engine = made(tmp_path)
    os.link(tmp_path / "q" / str(MID), tmp_path / "r" / f"{MID}.new")
    engine.copy("q", MID, ["r"])
    assert names(tmp_path)["r"] == [str(MID)]
    (tmp_path / "s" / f"{MID}.new").write_bytes(b"of another")
    with pytest.raises(FileExistsError):
        engine.copy("q", MID, ["s"])
    assert (tmp_path / "s" / f"{MID}.new").read_bytes() == b"of another"
    engine.close()


def test_somebody_else_copies_at_the_same_time(tmp_path: Path) -> None:
    """When another process is just faster, the queue has the message once, and nothing is left beside it."""

    class Slow(Disk):
        overtaken: Callable[[], None] | None = None

        def link(self, old: str, new: str, **named: bool) -> None:  # type: ignore[override]
            os.link(old, new, **named)
            if self.overtaken is not None:
                self.overtaken()

    disk = Slow()
    engine = made(tmp_path, disk)
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere" / "file"
    os.link(tmp_path / "q" / str(MID), other)
    disk.overtaken = lambda: os.rename(other, tmp_path / "r" / f"{MID}.{MID + 10**9}")
    engine.copy("q", MID, ["r"])
    engine.commit()
    assert names(tmp_path)["r"] == [f"{MID}.{MID + 10**9}"]
    assert engine.list_mids("r", State.ALL, 9, -1) == [MID]
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


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("replaced", [True, False])
def test_the_directory_of_a_target_is_gone(tmp_path: Path, linked: bool, replaced: bool) -> None:
    """A target that another program has removed is no queue, and the others get nothing; one that it has made anew in
    its place is taken up by the next copy."""
    engine = made(tmp_path)
    if not linked:
        engine.push("s", [Draft(b"")] * 2)
        engine.delete("s", Receipt(MID))
        engine.commit()
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
    """Then it is the message that is not there, and the target is as it was."""
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
    """Whatever its size and state, it stays as it is, the copy is refused, and no other queue has it."""
    engine = with_id(tmp_path, payload, state)
    for _ in range(2):
        with pytest.raises(OtherMessageError, match=f"queue 's' holds another message of the id {MID}"):
            engine.copy("q", MID, ["r", "s"])
    assert names(tmp_path) == {"q": [str(MID)], "r": [], "s": [f"{MID}{state}"]}
    assert (tmp_path / "s" / f"{MID}{state}").read_bytes() == payload
    engine.close()


@pytest.mark.parametrize("state", ["", f".{MID + 10**9}"])
def test_a_copy_that_shares_no_bytes(tmp_path: Path, state: str) -> None:
    """A file of its own with the same bytes is the message: the copy can be repeated."""
    engine = with_id(tmp_path, b"payload", state)
    engine.copy("q", MID, ["r", "s"])
    assert names(tmp_path) == {"q": [str(MID)], "r": [str(MID)], "s": [f"{MID}{state}"]}
    engine.close()


@pytest.mark.parametrize(("payload", "refused"), [(b"payload", False), (b"another", True)])
def test_somebody_pushes_the_id_meanwhile(tmp_path: Path, payload: bytes, refused: bool) -> None:
    """What appears in the target while it is copied is looked at too, and nothing is left beside it."""

    class Slow(Disk):
        def link(self, old: str, new: str, **named: bool) -> None:  # type: ignore[override]
            os.link(old, new, **named)
            (tmp_path / "r" / str(MID)).write_bytes(payload)

    engine = made(tmp_path, Slow())
    try:
        engine.copy("q", MID, ["r"])
        assert not refused
    except OtherMessageError:
        assert refused
    assert names(tmp_path)["r"] == [str(MID)]
    assert (tmp_path / "r" / str(MID)).read_bytes() == payload
    engine.close()


def test_the_other_message_is_just_deleted(tmp_path: Path) -> None:
    """A message of the id that another program has removed is in nobody's way."""
    engine = with_id(tmp_path, b"another")
    (tmp_path / "s" / str(MID)).unlink()
    engine.copy("q", MID, ["s"])
    assert (tmp_path / "s" / str(MID)).read_bytes() == b"payload"
    engine.close()
