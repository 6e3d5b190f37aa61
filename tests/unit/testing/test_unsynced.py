"""The record of what is not synced: undone, it leaves what the model of a file system says that a power loss leaves."""

import contextlib
import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.power_loss.disk import RECORDED, RecordingDisk, everything_recorded
from support.power_loss.file_system import FileSystem, lay_out, power_loss
from support.power_loss.nodes import NOTHING

from qs_storage.disk import Disk
from qs_testing.inside import Faults
from qs_testing.unsynced import Unsynced

Tree = dict[str, tuple[bytes | None, dict[str, bytes]]]
NAMES = ["a", "b", "c"]
PLACES = [".", "d", "e", "d/f"]


@pytest.fixture(name="unsynced")
def _unsynced(tmp_path: Path) -> Unsynced:
    return faults_in(tmp_path).record


def faults_in(tmp_path: Path) -> Faults:
    for name in ("root", "keep"):
        (tmp_path / name).mkdir()
    return Faults(str(tmp_path / "keep"), [str(tmp_path / "root")])


def tree(root: Path) -> Tree:
    """Returns the content (None: a directory) and the attributes of all that is there."""
    return {
        str(path.relative_to(root)): (
            None if path.is_dir() else path.read_bytes(),
            {name: os.getxattr(path, name) for name in os.listxattr(path) if name.startswith("user.")},
        )
        for path in root.rglob("*")
    }


def test_no_call_is_missing(tmp_path: Path) -> None:
    """Every call of Disk that the tests of power losses write down is recorded here too: a new one must not be missing
    from the power losses of others' tests."""
    calls = faults_in(tmp_path).calls()
    assert {name for name in RECORDED if hasattr(Disk, name)} <= set(calls)
    assert all(hasattr(Disk, name) for name in calls)


class Actions:
    """Random operations on a disk, the same on each with the same seed. Those that are not possible raise OSError."""

    def __init__(self, root: Path, disk: Disk, seed: int) -> None:
        self.root, self.disk, self.rng = root, disk, random.Random(seed)
        self.open: list[int] = []

    def path(self) -> str:
        return f"{self.root}/{self.rng.choice(PLACES)}/{self.rng.choice(NAMES)}"

    def directory(self) -> str:
        return f"{self.root}/{self.rng.choice(PLACES)}"

    def step(self) -> None:
        rng, disk = self.rng, self.disk
        action = rng.choice(
            ["open", "open", "write", "write", "pwrite", "pwrite", "truncate", "rename", "rename", "link", "unlink"]
            + ["unlink", "mkdir", "rmdir", "tree", "set", "remove", "fsync", "fdatasync", "directory", "directory"]
            + ["everything"] * (rng.random() < 0.2)
        )
        paths, number, size, data = [self.path(), self.path()], rng.random(), rng.randrange(12000), rng.randbytes(3000)
        data, place, moved = (
            data[: rng.randrange(1, 3001)],
            self.directory(),
            rng.choice([self.path(), self.directory()]),
        )
        flag = rng.choice([os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_DSYNC, os.O_WRONLY | os.O_SYNC])
        fd = self.open[int(number * len(self.open))] if self.open else -1
        steps: dict[str, Callable[[], object]] = {
            "open": lambda: self.open_file(paths[0], flag | os.O_CREAT | rng.choice([0, 0, os.O_EXCL])),
            "write": lambda: disk.write(fd, data),
            "pwrite": lambda: disk.pwrite(fd, data, size),
            "truncate": lambda: disk.ftruncate(fd, size),
            "rename": lambda: self.rename(moved, paths[1]),
            "link": lambda: disk.link(paths[0], paths[1]),
            "unlink": lambda: disk.unlink(paths[0]),
            "mkdir": lambda: disk.mkdir(place),
            "rmdir": lambda: disk.rmdir(place),
            "tree": lambda: shutil.rmtree(place) if place.endswith("f") else None,
            "set": lambda: disk.setxattr(rng.choice([paths[0], place]), "user.x", data[:50]),
            "remove": lambda: disk.removexattr(paths[0], "user.x"),
            "fsync": lambda: disk.fsync(fd),
            "fdatasync": lambda: disk.fdatasync(fd),
            "directory": lambda: disk.sync_directory(place),
            "everything": lambda: disk.sync_file_system(str(self.root)),
        }
        if self.open or action not in ("write", "pwrite", "truncate", "fsync", "fdatasync"):
            with contextlib.suppress(OSError):
                steps[action]()

    def open_file(self, path: str, flags: int) -> None:
        self.open.append(self.disk.open(path, flags))
        if len(self.open) > 6:
            self.disk.close(self.open.pop(0))

    def rename(self, old: str, new: str) -> None:
        # The model replaces no directories, and moves one of two names of a file, which the system leaves both.
        if os.path.isdir(new) or (os.path.exists(new) and os.path.samefile(old, new)):
            raise FileExistsError(errno.EEXIST, new)
        self.disk.rename(old, new)


@pytest.mark.parametrize("seed", range(100))
def test_the_model_agrees(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After random operations, syncs among them, what is left is what the model leaves, and nothing is open or kept."""
    steps = random.Random(f"{seed} steps").randrange(5, 150)
    recording = RecordingDisk(tmp_path / "recorded")
    (tmp_path / "recorded").mkdir()
    with everything_recorded(recording):
        played = Actions(tmp_path / "recorded", recording, seed)
        for _ in range(steps):
            played.step()
    model = FileSystem(whole=True)
    for entry in recording.log:
        model.play(entry)
    (tmp_path / "model").mkdir()
    lay_out(power_loss(model, NOTHING), str(tmp_path / "model"))
    opened = set(os.listdir("/proc/self/fd"))
    faults = faults_in(tmp_path)
    disk = Disk()
    for name, call in faults.calls().items():
        setattr(disk, name, call)
    monkeypatch.setattr("shutil.rmtree", faults.record.remove_tree)
    actions = Actions(tmp_path / "root", disk, seed)
    for _ in range(steps):
        actions.step()
    assert tree(tmp_path / "root") == tree(tmp_path / "recorded")
    faults.record.undo([str(tmp_path / "root")])
    assert tree(tmp_path / "root") == tree(tmp_path / "model")
    recording.end()
    for fd in actions.open:
        os.close(fd)
    for directory in faults.record._directories.values():
        os.close(directory.fd)
    assert set(os.listdir("/proc/self/fd")) <= opened
