"""With durability ALWAYS, what a commit has covered is on disk: all files and directories that changed were synced."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.storage.engines import EPOCH, ManualClock, WithoutAttributes

from qs_storage.directories import DirqEngine, DirqSimpleEngine
from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Draft, Durability, Engine, Options, Receipt, State

ENGINES = {"dirq-simple": DirqSimpleEngine, "dirq": DirqEngine}


class Unsynced(Disk):
    """Knows which paths have changed since they were synced."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self._descriptors: dict[int, str] = {}

    def _changed(self, *paths: str) -> None:
        self.paths.update(map(os.path.abspath, paths))

    def _names(self, path: str) -> None:
        self._changed(os.path.dirname(path))

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        if flags & os.O_CREAT and not os.path.lexists(path):
            self._names(path)
            self._changed(path)
        fd = os.open(path, flags, mode)
        self._descriptors[fd] = os.path.abspath(path)
        return fd

    def _write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        self._changed(self._descriptors[fd])
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        path = self._descriptors[fd]
        status = os.fstat(fd)
        # Links of one file are synced together.
        self.paths = {p for p in self.paths if p != path and not _is(p, status)}

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        os.rename(old, new)
        self._names(old)
        self._names(new)
        old, new = os.path.abspath(old), os.path.abspath(new)
        self.paths = {new + p[len(old) :] if (p + "/").startswith(old + "/") else p for p in self.paths}

    def link(self, old: str, new: str, **named: Any) -> None:  # type: ignore[override]
        os.link(old, new, **named)
        self._names(new)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        os.unlink(path)
        self._names(path)

    def mkdir(self, path: str) -> None:  # type: ignore[override]
        os.mkdir(path)
        self._names(path)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        os.rmdir(path)
        self._names(path)

    def setxattr(self, path: str, name: str, value: bytes, **named: Any) -> None:  # type: ignore[override]
        os.setxattr(path, name, value, **named)
        if name != "user.qs.probe":
            self._changed(path)

    def left(self) -> set[str]:
        """Returns the elements that are still there, without unfinished additions and removals."""
        return {p for p in self.paths if os.path.lexists(p) and "/temporary" not in p and "/obsolete" not in p}


def _is(path: str, status: os.stat_result) -> bool:
    return os.path.lexists(path) and os.path.samestat(os.lstat(path), status)


class UnsyncedWithoutAttributes(Unsynced, WithoutAttributes):
    getxattr = listxattr = setxattr = removexattr = WithoutAttributes._refuse  # type: ignore[assignment]


@pytest.fixture(params=ENGINES)
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[Unsynced, UnsyncedWithoutAttributes], ids=["attributes", "sidecar"])
def disk(request: pytest.FixtureRequest) -> Unsynced:
    made: Unsynced = request.param()
    return made


@pytest.fixture
def engine(tmp_path: Path, storage: str, disk: Unsynced) -> Iterator[Engine]:
    clock = ManualClock()
    engine = ENGINES[storage](str(tmp_path), clock=clock, durability=Durability.ALWAYS, disk=disk)
    engine.create("q", Options())
    engine.commit()
    yield engine
    engine.close()


def test_everything_is_synced(engine: Engine, disk: Unsynced) -> None:
    """After the commit of any operation nothing is left to sync."""
    [first, second, third] = engine.queue("q").push([Draft(b"1"), Draft(b"2", SECOND), Draft(b"3")])
    operations: list[Any] = [
        engine.effects,
        lambda: engine.receive(["q"], 1, None, 1),
        lambda: engine.queue("q").extend(Receipt(first, 1), SECOND),
        lambda: engine.queue("q").release(Receipt(first), 0),
        lambda: engine.receive(["q"], 1, None, 1),
        lambda: engine.queue("q").extend(Receipt(first, 2), SECOND),
        lambda: engine.queue("q").release(Receipt(first, 2), SECOND),
        lambda: engine.queue("q").release(Receipt(second), 0),
        lambda: engine.queue("q").delete(Receipt(first)),
        lambda: engine.queue("q").delete(Receipt(second)),
        lambda: engine.queue("q").purge(third, 10),
    ]
    for number, operation in enumerate(operations):
        before = len(disk.paths)
        operation()
        assert len(disk.paths) > before or number == 0
        engine.commit()
        assert disk.left() == set(), number


def test_a_window_that_ends(tmp_path: Path, storage: str) -> None:
    """The end of a window is synced too."""
    disk, clock = Unsynced(), ManualClock()
    engine = ENGINES[storage](str(tmp_path), clock=clock, durability=Durability.ALWAYS, disk=disk)
    engine.create("q", Options())
    engine.queue("q").push([Draft(b"x", 5)])
    engine.commit()
    clock.now += 5
    engine.expire(10)
    engine.commit()
    assert disk.left() == set()
    engine.close()


def test_contents_before_names(tmp_path: Path, storage: str) -> None:
    """A message is synced before it has a name, and an element's pieces go after the sync of the name's removal."""
    steps: list[str] = []

    class Steps(Disk):
        def fsync(self, fd: int) -> None:  # type: ignore[override]
            steps.append("sync " + os.readlink(f"/proc/self/fd/{fd}").removeprefix(str(tmp_path / "q")))

        def link(self, old: str, new: str) -> None:  # type: ignore[override]
            os.link(old, new)
            steps.append("name " + new.removeprefix(str(tmp_path / "q")))

        def rename(self, old: str, new: str) -> None:  # type: ignore[override]
            os.rename(old, new)
            steps.append("name " + new.removeprefix(str(tmp_path / "q")))

        def unlink(self, path: str) -> None:  # type: ignore[override]
            os.unlink(path)
            steps.append("gone " + path.removeprefix(str(tmp_path / "q")))

    clock = ManualClock()
    engine = ENGINES[storage](str(tmp_path), clock=clock, durability=Durability.ALWAYS, disk=Steps())
    engine.create("q", Options())
    engine.commit()
    steps.clear()
    [mid] = engine.queue("q").push([Draft(b"x")])
    engine.commit()
    name = f"{mid:014x}"
    if storage == "dirq":
        temporary = f"/temporary/{name}"
        folder = "/00000000"
        assert steps[:3] == [f"sync {temporary}/body", f"sync {temporary}", f"name {folder}/{name}"]
    else:
        folder = f"/{EPOCH // SECOND // 60 * 60:08x}"
        assert steps[:2] == [f"sync {folder}/{name}.tmp", f"name {folder}/{name}"]
    assert steps[-2:] == [f"sync {folder}", "sync "]
    steps.clear()
    engine.queue("q").delete(Receipt(mid))
    engine.commit()
    gone = [number for number, step in enumerate(steps) if step.startswith("gone") and step.endswith("/body")]
    if storage == "dirq":
        assert gone[0] > steps.index(f"sync {folder}") > 0
    else:
        assert steps[-1] == f"sync {folder}"
    engine.close()


def test_a_directory_that_others_made(tmp_path: Path, storage: str) -> None:
    """A message in an intermediate directory of another program is durable, though that may not have synced it."""
    synced: list[str] = []

    class Syncs(Disk):
        def fsync(self, fd: int) -> None:  # type: ignore[override]
            synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    engine = ENGINES[storage](str(tmp_path), clock=ManualClock(), durability=Durability.ALWAYS, disk=Syncs())
    engine.create("q", Options())
    engine.commit()
    synced.clear()
    folder = tmp_path / "q" / ("00000000" if storage == "dirq" else f"{EPOCH // SECOND // 60 * 60:08x}")
    folder.mkdir()
    engine.queue("q").push([Draft(b"x")])
    engine.commit()
    assert synced[-2:] == [str(folder), str(tmp_path / "q")]
    engine.refresh()
    assert len(engine.queue("q").list_mids(State.ALL, 10, -1)) == 1
    engine.close()
