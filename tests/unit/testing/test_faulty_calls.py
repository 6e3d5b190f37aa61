"""The calls of a disk with faults, one by one: which of them fail, with which error, and which do not."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from qs_storage.disk import Disk
from qs_testing.inside import Faults


class Place:
    """A disk with faults, on a root with a file and a directory."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        for path in (folder / "keep", self.root, self.root / "d"):
            path.mkdir()
        self.faults = Faults(str(folder / "keep"), [str(self.root)])
        self.disk = Disk()
        for name, call in self.faults.calls().items():
            setattr(self.disk, name, call)
        self.path = str(self.root / "file")
        self.fd = self.disk.open_file(self.path, os.O_CREAT | os.O_RDWR)
        self.disk.write(self.fd, b"x" * 5000)
        self.disk.setxattr(self.path, "user.x", b"value")
        self.source = self.disk.open_file(f"{self.root}/source", os.O_CREAT | os.O_RDWR)
        self.disk.pwrite(self.source, b"source", 0)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


Step = Callable[[Place], object]

NEED_ROOM: dict[str, Step] = {
    "a new file": lambda at: at.disk.open(f"{at.root}/new", os.O_CREAT | os.O_WRONLY),
    "a new directory": lambda at: at.disk.mkdir(f"{at.root}/new"),
    "a write that grows": lambda at: at.disk.write(at.fd, bytes(4000)),
    "a write over the end": lambda at: at.disk.pwrite(at.fd, bytes(5000), 4000),
    "a write behind the end": lambda at: at.disk.pwrite(at.fd, b"x", 10_000),
    "a file written at once": lambda at: at.disk.write_file(f"{at.root}/new", b"x", sync=True),
    "a new attribute": lambda at: at.disk.setxattr(at.path, "user.y", b""),
    "a longer attribute": lambda at: at.disk.setxattr(at.path, "user.x", b"longer value"),
}
NEED_NONE: dict[str, Step] = {
    "an open": lambda at: at.disk.close(at.disk.open(at.path, os.O_CREAT | os.O_WRONLY)),
    "a write in place": lambda at: at.disk.pwrite(at.fd, b"y" * 5000, 0),
    "a write in the last block": lambda at: at.disk.pwrite(at.fd, b"y" * 3192, 5000),
    "a new size": lambda at: at.disk.ftruncate(at.fd, 10),
    "syncs": lambda at: (at.disk.fsync(at.fd), at.disk.fdatasync(at.fd), at.disk.sync_directory(str(at.root))),
    "a rename": lambda at: at.disk.rename(at.path, f"{at.root}/other"),
    "a link": lambda at: at.disk.link(at.path, f"{at.root}/other"),
    "a removal": lambda at: (at.disk.unlink(at.path), at.disk.rmdir(f"{at.root}/d")),
    "another attribute": lambda at: at.disk.setxattr(at.path, "user.x", b"other"),
    "an attribute less": lambda at: at.disk.removexattr(at.path, "user.x"),
    "a read": lambda at: at.disk.read_file(at.path),
}
WRITES: dict[str, Step] = {
    "a write": lambda at: at.disk.write(at.fd, b"x"),
    "a write in place": NEED_NONE["a write in place"],
    "a new size": NEED_NONE["a new size"],
    "a copy": lambda at: at.disk.copy(at.source, at.fd),
    "a sync": lambda at: at.disk.fsync(at.fd),
    "a sync of data": lambda at: at.disk.fdatasync(at.fd),
    "a sync of names": lambda at: at.disk.sync_directory(str(at.root)),
    "a sync of all": lambda at: at.disk.sync_file_system(str(at.root)),
}


@pytest.mark.parametrize("name", NEED_ROOM)
def test_a_full_disk_refuses(place: Place, name: str) -> None:
    """A call that needs room raises ENOSPC and changes nothing; after heal() it is done."""
    place.faults.full_disk()
    before = sorted(os.listdir(place.root)), Path(place.path).read_bytes(), os.listxattr(place.path)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        NEED_ROOM[name](place)
    assert before == (sorted(os.listdir(place.root)), Path(place.path).read_bytes(), os.listxattr(place.path))
    assert place.disk.free_bytes(str(place.root)) == 0
    place.faults.heal()
    NEED_ROOM[name](place)
    assert place.disk.free_bytes(str(place.root)) > 0


@pytest.mark.parametrize("name", NEED_NONE)
def test_a_full_disk_does_the_rest(place: Place, name: str) -> None:
    """A call that needs no room is done."""
    place.faults.full_disk()
    NEED_NONE[name](place)


@pytest.mark.parametrize("name", WRITES)
def test_a_failing_disk_refuses(place: Place, name: str) -> None:
    """A write or a sync raises EIO and changes nothing; after heal() it is done."""
    place.faults.failing_disk()
    before = Path(place.path).read_bytes()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        WRITES[name](place)
    assert Path(place.path).read_bytes() == before
    place.faults.heal()
    WRITES[name](place)


def test_reads_fail_if_they_are_to(place: Place) -> None:
    """Reads fail only if that was asked for."""
    place.faults.failing_disk()
    assert place.disk.read_file(place.path) == b"x" * 5000
    place.faults.failing_disk(reads=True)
    for read in (place.disk.read_file, lambda path: place.disk.pread(place.fd, 1, 0)):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            read(place.path)


class Noticed(threading.Event):
    """An event that says when somebody begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.set()
        return super().wait(timeout)


@pytest.mark.parametrize("flag", [0, os.O_DSYNC, os.O_SYNC])
def test_a_slow_disk(place: Place, flag: int) -> None:
    """A sync waits, and so does a write with O_DSYNC or O_SYNC; others do not, and heal() ends the wait."""
    fd = place.disk.open(place.path, os.O_WRONLY | flag)
    place.faults._healed = noticed = Noticed()
    place.faults.slow(3600)
    place.disk.pwrite(place.fd, b"y", 0)
    call, arguments = (place.disk.pwrite, (fd, b"z", 0)) if flag else (place.disk.fsync, (fd,))
    waiting = threading.Thread(target=call, args=arguments)
    waiting.start()
    assert noticed.begun.wait(20)
    assert os.pread(place.fd, 1, 0) == b"y"
    assert waiting.is_alive()
    place.faults.heal()
    waiting.join(20)
    assert not waiting.is_alive()
    assert os.pread(place.fd, 1, 0) == (b"z" if flag else b"y")
