"""Both stores of message attributes that are not in the file's name."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.storage.engines import Bench, FaultyDisk, WithoutAttributes, always, files_engine

from qs_storage.disk import Disk
from qs_storage.engine import Durability, Receipt, State
from qs_storage.metadata import Attributes, AttributeStore, store_for

STORES: dict[str, Callable[[Path, Disk], AttributeStore]] = {
    "extended": lambda directory, disk: AttributeStore(str(directory), disk, lists=False, sync=True),
    "listed": lambda directory, disk: AttributeStore(str(directory), disk, lists=True, sync=True),
    "sidecar": lambda directory, disk: AttributeStore(str(directory), disk, lists=None, sync=True),
}


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def disk(kind: str) -> FaultyDisk:
    return FaultyDisk(attributes=kind != "sidecar")


@pytest.fixture
def store(tmp_path: Path, kind: str, disk: FaultyDisk) -> AttributeStore:
    (tmp_path / "5").touch()
    return STORES[kind](tmp_path, disk)


def test_round_trip(tmp_path: Path, store: AttributeStore) -> None:
    """Attributes are read as written: nothing at first, and nothing once the message is gone."""
    path = str(tmp_path / "5")
    assert store.read(path, 5) == Attributes()
    store.write(path, 5, Attributes(3, 99))
    assert store.read(path, 5) == Attributes(3, 99)
    assert store.receives(path, 5) == 3
    os.unlink(path)
    store.forget(5)
    store.forget(5)
    assert store.read(path, 5) == Attributes()
    assert not list(tmp_path.iterdir())


def test_reason(tmp_path: Path, store: AttributeStore) -> None:
    """The last reason is read as written, lines and all, whatever the id; it goes with its message."""
    path = str(tmp_path / "5")
    assert store.reasons.read(path, 5) == ""
    for reason in ("first", "ValueError: no \u20ac\n  at line 3\n", "\u20ac" * 341):
        store.reasons.write(path, 5, reason)
        assert store.reasons.read(path, 5) == reason
    store.reasons.write(path, 5, "")
    assert store.reasons.read(path, 5) == ""
    assert store.read(path, 5) == Attributes()
    os.unlink(path)
    store.forget(5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_unwritten_reason(tmp_path: Path, store: AttributeStore, disk: FaultyDisk, code: int) -> None:
    """A reason that the disk does not take is known until the process ends, and replaces the stored one."""
    path = str(tmp_path / "5")
    store.reasons.write(path, 5, "stored")
    disk.arm(1, code, lasting=True)
    store.reasons.write(path, 5, "kept")
    disk.disarm()
    assert store.reasons.read(path, 5) == "kept"
    store.forget(5)
    assert store.reasons.read(path, 5) in ("", "stored")


@pytest.mark.parametrize(
    ("value", "read"),
    [(b"x" * 1025, "x" * 1024), (b"a\x00b\x1b[0m\xff\n", "a\ufffdb\ufffd[0m\ufffd")],
    ids=["long", "no text"],
)
def test_reason_of_another_program(tmp_path: Path, kind: str, store: AttributeStore, value: bytes, read: str) -> None:
    """A reason is no longer than ours are, and has only characters that an answer can carry."""
    if kind == "sidecar":
        (tmp_path / ".5.reason").write_bytes(value)
    else:
        os.setxattr(tmp_path / "5", "user.qs.reason", value)
    assert store.reasons.read(str(tmp_path / "5"), 5).rstrip("\n") == read


def test_message_gone(tmp_path: Path, kind: str) -> None:
    """Reading and writing those of a file that is gone is not an error."""
    store = STORES[kind](tmp_path, Disk())
    assert store.read(str(tmp_path / "6"), 6) == Attributes()
    if kind != "sidecar":
        store.write(str(tmp_path / "6"), 6, Attributes(1))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM])
def test_unwritten(tmp_path: Path, store: AttributeStore, disk: FaultyDisk, code: int) -> None:
    """Attributes that a full disk, or another user's file, does not take are known until the process ends."""
    path = str(tmp_path / "5")
    disk.arm(1, code, lasting=True)
    store.write(path, 5, Attributes(1))
    disk.disarm()
    assert store.read(path, 5) == Attributes(1)
    assert store.receives(path, 5) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["5"]
    store.write(path, 5, Attributes(2))
    assert store.read(path, 5) == Attributes(2)
    disk.arm(1, code, lasting=True)
    store.write(path, 5, Attributes(3))
    disk.disarm()
    store.forget(5)
    assert store.receives(path, 5) in (0, 2)  # the extended ones stay with the file


def test_other_errors(tmp_path: Path, store: AttributeStore, disk: FaultyDisk) -> None:
    """Any other failure is raised, and leaves nothing."""
    disk.arm(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        store.write(str(tmp_path / "5"), 5, Attributes(1))
    assert store.read(str(tmp_path / "5"), 5) == Attributes()
    assert [p.name for p in tmp_path.iterdir()] == ["5"]


@pytest.mark.parametrize("value", [b"", b"-1", b"x", b"9" * 5000, "\u0663".encode()])
def test_nonsense(tmp_path: Path, kind: str, store: AttributeStore, value: bytes) -> None:
    """A count that is not a number is none."""
    path = str(tmp_path / "5")
    if kind != "sidecar":
        if len(value) > 1000:
            value = value[:1000]  # ext4 has room for one block
        os.setxattr(path, "user.qs.receives", value)
    else:
        (tmp_path / ".5.attributes").write_bytes(value)
    assert store.read(path, 5) == Attributes()


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EPERM, errno.EACCES])
def test_choice_of_sidecar(tmp_path: Path, code: int) -> None:
    """A directory that takes no extended attributes gets sidecars."""
    disk = FaultyDisk()
    disk.arm(1, code)
    assert store_for(str(tmp_path), disk, sync=False).beside


@pytest.mark.parametrize("code", [None, errno.ENOSPC])
def test_choice_of_extended(tmp_path: Path, code: int | None) -> None:
    """A directory that takes them, or would if there were room, does without sidecars. The probe leaves no trace."""
    disk = FaultyDisk()
    if code:
        disk.arm(1, code)
    assert not store_for(str(tmp_path), disk, sync=False).beside
    assert os.listxattr(tmp_path) == []


@pytest.mark.parametrize("names", [["user.QS.PROBE", "user.QS.RECEIVES"], None], ids=["other-names", "no-list"])
def test_file_systems_that_do_not_list(tmp_path: Path, names: list[str] | None) -> None:
    """Attributes are found on file systems that list them under other names or not at all."""

    class Odd(Disk):
        def listxattr(self, path: str, **named: object) -> list[str]:  # type: ignore[override]
            if names is None:
                raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
            return names

    (tmp_path / "5").touch()
    store = store_for(str(tmp_path), Odd(), sync=False)
    store.write(str(tmp_path / "5"), 5, Attributes(3, 99))
    assert store.receives(str(tmp_path / "5"), 5) == 3
    assert store.read(str(tmp_path / "5"), 5) == Attributes(3, 99)
    assert os.listxattr(tmp_path) == []


def test_choice_by_two_at_once(tmp_path: Path) -> None:
    """Another process that chooses at the same moment, and cleans up first, is not an error."""

    class Raced(Disk):
        def removexattr(self, path: str, name: str) -> None:  # type: ignore[override]
            os.removexattr(path, name)
            os.removexattr(path, name)

    assert not store_for(str(tmp_path), Raced(), sync=False).beside


def test_sidecars_of_nobody(tmp_path: Path) -> None:
    """Sidecars of messages that others have deleted go when the directory is listed; the others stay."""
    bench = Bench(files_engine(Durability.NONE, WithoutAttributes)(tmp_path))
    bench.queue()
    gone, stays = bench.push(b"a", b"b")
    bench.engine.receive(["q"], 2, 10, 100)
    [file] = (tmp_path / "q").glob(f"{gone}.*")
    file.unlink()
    bench.reopen()
    assert [path.name for path in (tmp_path / "q").glob(".*.attributes")] == [f".{stays}.attributes"]
    bench.engine.close()


def test_full_disk_still_acknowledges(tmp_path: Path) -> None:
    """On a disk without any room messages are received, counted, and deleted with their receipts."""
    for attributes in (True, False):
        disk = FaultyDisk(attributes=attributes)
        root = tmp_path / str(attributes)
        root.mkdir()
        bench = Bench(files_engine(Durability.ALWAYS, always(disk))(root))
        bench.queue()
        [mid] = bench.push(b"x")
        for operation in ("setxattr", "_write"):
            disk.arm(1, errno.ENOSPC, operation, lasting=True)
            [message] = bench.engine.receive(["q"], 1, 10, 100)
            assert bench.engine.queue("q").list_mids(State.NEW, 9, -1) == []
            bench.clock.now += 10
        bench.engine.queue("q").delete(Receipt(mid, message.receives))
        disk.disarm()
        bench.engine.close()
