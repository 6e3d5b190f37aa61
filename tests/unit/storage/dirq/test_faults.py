"""Directory queues on a disk that fails: the error is raised, nothing is left in half, and nothing complete is lost."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.storage.engines import FaultyDisk

from qs_storage.dirq import Queue, QueueSimple

ERRORS = [errno.ENOSPC, errno.EIO]
SCHEMA = {"body": "string", "header": "table"}
DATA = {"body": "b" * 10_000, "header": {"a": "b"}}


def simple(path: Path, **named: Any) -> QueueSimple:
    return QueueSimple(str(path / "q"), **named)


def queue(path: Path, **named: Any) -> Queue:
    return Queue(str(path / "q"), schema=SCHEMA, **named)


def add(q: Any) -> str:
    name: str = q.add(b"x" * 10_000 if isinstance(q, QueueSimple) else DATA)
    return name


def files(path: Path) -> set[str]:
    """All files, and the directories of elements."""
    found = (Path(above) / name for above, folders, names in os.walk(path) for name in [*folders, *names])
    return {str(one.relative_to(path)) for one in found if one.is_file() or len(one.name) == 14}


def steps(make: Callable[..., Any], tmp_path: Path, action: Callable[[Any], object]) -> int:
    """Returns how many calls an action makes that can fail."""
    disk = FaultyDisk()
    q = make(tmp_path / "counted", disk=disk)
    disk.arm(0, errno.EIO)
    action(q)
    return disk.calls


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("make", [simple, queue])
def test_addition_that_fails(tmp_path: Path, make: Callable[..., Any], lasting: bool, error: int) -> None:
    """Whatever step of an addition fails, the error is raised, and no element, temporary file or open descriptor is
    left. A temporary file may stay only if it could not be removed."""
    count = steps(make, tmp_path, add)
    assert count >= 8
    for at in range(1, count + 1):
        disk = FaultyDisk()
        q = make(tmp_path / f"{at}", disk=disk)
        disk.arm(at, error, lasting=lasting)
        with pytest.raises(OSError, match=os.strerror(error)) as raised:
            add(q)
        disk.disarm()
        assert raised.value.errno == error
        assert disk.descriptors <= {q._durable._fd}, disk.failed
        assert q.count() == 0 or lasting, disk.failed
        if disk.failed == ["unlink"]:
            continue  # the temporary file itself cannot be removed
        if not lasting:
            assert files(Path(q.path)) == set(), disk.failed
        add(q)
        del q


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("kind", ["half", "_write", "fsync"])
@pytest.mark.parametrize("make", [simple, queue])
def test_content_that_cannot_be_completed(
    tmp_path: Path, make: Callable[..., Any], kind: str, lasting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room, at once or after half of the bytes, or when they are synced: nothing is left, even on a full disk."""
    disk = FaultyDisk()
    q = make(tmp_path, disk=disk)
    if kind == "half":
        written: list[int] = []

        def half(fd: int, data: bytes) -> int:
            if written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written.append(os.write(fd, data[: len(data) // 2]))
            return written[0]

        monkeypatch.setattr(disk, "_write", half)
    else:
        disk.arm(1, errno.ENOSPC, only=kind, lasting=lasting)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        add(q)
    disk.disarm()
    assert (q.count(), files(Path(q.path))) == (0, set())


def test_elements_that_are_there_stay(tmp_path: Path) -> None:
    """When additions fail at any step, what was added before is complete."""
    disk = FaultyDisk()
    q = simple(tmp_path, disk=disk)
    name = q.add(b"first")
    for at in range(1, 12):
        disk.arm(at, errno.EIO)
        try:
            q.add(b"x")
        except OSError:
            assert disk.failed
    disk.disarm()
    assert q.lock(name)
    assert q.get(name) == b"first"


@pytest.mark.parametrize("error", [*ERRORS, errno.EXDEV])
def test_path_that_cannot_be_added(tmp_path: Path, error: int) -> None:
    """Whatever step fails, the file is where it was, and the queue is empty."""
    given = tmp_path / "given"

    def add_path(q: QueueSimple) -> None:
        given.write_bytes(b"x")
        q.add_path(given)

    count = steps(simple, tmp_path, add_path)
    for at in range(1, count + 1):
        disk = FaultyDisk()
        q = simple(tmp_path / f"{at}", disk=disk)
        disk.arm(at, error)
        with pytest.raises(OSError, match=os.strerror(error)):
            add_path(q)
        disk.disarm()
        assert given.read_bytes() == b"x"
        assert q.count() == 0


@pytest.mark.parametrize("make", [simple, queue])
def test_addition_that_somebody_has_already(tmp_path: Path, make: Callable[..., Any]) -> None:
    """If the directory cannot be synced, and another program has locked the element by then, it keeps it."""
    disk = FaultyDisk()
    q = make(tmp_path, disk=disk)
    add(q)
    real = q._durable.sync

    def locked_meanwhile(top: str, directory: str, disk: FaultyDisk) -> None:
        other.extend(name for name in q.copy() if q.lock(name))
        real(top, directory, disk)
        raise OSError(errno.EIO, "a bad disk")

    other: list[str] = []
    q._durable.sync = locked_meanwhile
    with pytest.raises(OSError, match="a bad disk"):
        add(q)
    assert q.count() == 2 == len(other)


def test_removal_that_fails(tmp_path: Path) -> None:
    """The error is raised; the element is there, or is gone completely."""
    for at in range(1, 5):
        disk = FaultyDisk()
        q = queue(tmp_path / f"{at}", disk=disk, sync=False)
        name = add(q)
        q.lock(name)
        disk.arm(at, errno.EIO)
        if at < 4:
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                q.remove(name)
        else:
            q.remove(name)
        disk.disarm()
        assert q.count() == (1 if disk.failed == ["rename"] else 0)
        if q.count():
            assert q.get(name) == DATA


def test_lock_that_fails(tmp_path: Path) -> None:
    """An error that is neither of the two expected ones is raised in permissive mode too; nothing is locked."""
    disk = FaultyDisk()
    for q in (simple(tmp_path / "a", disk=disk), queue(tmp_path / "b", disk=disk)):
        name = add(q)
        disk.arm(1, errno.ENOSPC)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            q.lock(name)
        disk.disarm()
        assert q.lock(name) is True


@pytest.mark.parametrize("make", [simple, queue])
def test_errors_of_a_directory_that_may_not_be_read(tmp_path: Path, make: Callable[..., Any]) -> None:
    """Only that something is missing is not an error for what reads the queue."""
    q = make(tmp_path, sync=False)
    directory = f"{q.path}/00000000"
    Path(directory).touch()
    for look in (q.first, lambda: list(q)):
        with pytest.raises(NotADirectoryError):
            look()


@pytest.mark.parametrize("make", [simple, queue])
def test_directory_above_that_may_not_be_read(tmp_path: Path, make: Callable[..., Any]) -> None:
    """Directories above the queue are synced if that is allowed; otherwise the addition still succeeds."""

    class Private(FaultyDisk):
        def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
            if path == str(tmp_path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return super().open(path, flags, mode)

    os.mkdir(tmp_path / "q")
    q = make(tmp_path, disk=Private())
    add(q)
    assert q.count() == 1


# -- what is synced, and when -----------------------------------------------------------------------------------------


class Journal(FaultyDisk):
    """Notes what is done, with paths below a directory."""

    def __init__(self, above: Path) -> None:
        super().__init__()
        self.above, self.done = str(above), list[str]()
        self._paths: dict[int, str] = {}

    def _note(self, what: str, path: str) -> None:
        relative = os.path.relpath(path, self.above)
        shown = re.sub(r"\b[0-9a-f]{8}\b", "DIR", re.sub(r"\b[0-9a-f]{14}\b", "ELEMENT", relative))
        self.done.append(f"{what} {shown}")

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        fd = super().open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._note("fsync", self._paths[fd])

    def _write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        self._note("write", self._paths[fd])
        return super()._write(fd, data)

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        self._note("rename to", new)
        super().rename(old, new)

    def link(self, old: str, new: str, **named: Any) -> None:  # type: ignore[override]
        self._note("link to", new)
        super().link(old, new, **named)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._note("unlink", path)
        super().unlink(path)

    def mkdir(self, path: str) -> None:  # type: ignore[override]
        super().mkdir(path)
        self._note("mkdir", path)


def test_order_of_a_simple_addition(tmp_path: Path) -> None:
    """The content is synced before it has a name, the directory after; and those above it when it is new."""
    disk = Journal(tmp_path)
    q = simple(tmp_path, disk=disk)
    assert disk.done == ["mkdir q", "fsync ."]
    disk.done.clear()
    add(q)
    file = ["write q/DIR/ELEMENT.tmp", "fsync q/DIR/ELEMENT.tmp", "link to q/DIR/ELEMENT", "unlink q/DIR/ELEMENT.tmp"]
    assert disk.done == ["mkdir q/DIR", "fsync q", *file, "fsync q/DIR", "fsync q", "fsync ."]
    disk.done.clear()
    q.granularity = 1 << 40
    add(q)
    disk.done.clear()
    add(q)
    assert disk.done == [*file, "fsync q/DIR"]


def test_order_of_a_file_that_moves(tmp_path: Path) -> None:
    """The file leaves its place only when its place in the queue is durable: a power loss leaves it in one, or both."""
    disk = Journal(tmp_path)
    q = simple(tmp_path, disk=disk, granularity=1 << 40)
    add(q)
    (tmp_path / "given").write_bytes(b"x")
    disk.done.clear()
    q.add_path(tmp_path / "given")
    assert disk.done == ["fsync given", "link to q/DIR/ELEMENT", "fsync q/DIR", "unlink given"]


def test_directory_that_another_program_has_made_anew(tmp_path: Path) -> None:
    """A directory that another program has made anew may not have a durable name, so the one above it is synced
    again."""
    disk = Journal(tmp_path)
    q = simple(tmp_path, disk=disk, granularity=1 << 40)
    name = q.add(b"x")
    q.lock(name)
    q.remove(name)
    directory = Path(q.path, name[:8])
    directory.rmdir()
    directory.mkdir()
    disk.done.clear()
    add(q)
    assert disk.done[-3:] == ["fsync q/DIR", "fsync q", "fsync ."]


def test_order_of_an_addition(tmp_path: Path) -> None:
    """Files and the temporary directory are synced before the rename, the intermediate directory after."""
    disk = Journal(tmp_path)
    q = queue(tmp_path, disk=disk)
    add(q)
    disk.done.clear()
    add(q)
    pieces = [f"{what} q/temporary/ELEMENT/{piece}" for piece in DATA for what in ("write", "fsync")]
    made = ["mkdir q/temporary/ELEMENT", *pieces, "fsync q/temporary/ELEMENT"]
    assert disk.done == [*made, "rename to q/DIR/ELEMENT", "fsync q/DIR"]


def test_removals_are_synced(tmp_path: Path) -> None:
    """A removed element does not come back, neither whole nor in part."""
    for number, make in enumerate((simple, queue)):
        disk = Journal(tmp_path / str(number))
        q: Any = make(Path(disk.above), disk=disk)
        name = add(q)
        q.lock(name)
        disk.done.clear()
        q.remove(name)
        if isinstance(q, QueueSimple):
            assert disk.done == ["unlink q/DIR/ELEMENT", "unlink q/DIR/ELEMENT.lck", "fsync q/DIR"]
        else:
            assert disk.done[:2] == ["rename to q/obsolete/ELEMENT", "fsync q/DIR"]
            assert sorted(disk.done[2:]) == ["unlink q/obsolete/ELEMENT/body", "unlink q/obsolete/ELEMENT/header"]


@pytest.mark.parametrize("make", [simple, queue])
def test_nothing_is_synced_without_sync(tmp_path: Path, make: Callable[..., Any]) -> None:
    """With sync=False the queue syncs nowhere."""
    disk = Journal(tmp_path)
    q = make(tmp_path, disk=disk, sync=False)
    name = add(q)
    q.lock(name)
    q.remove(name)
    assert len(disk.done) > 5
    assert not [one for one in disk.done if one.startswith("fsync")]
