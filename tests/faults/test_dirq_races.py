"""Directory queues while others work on the same directory: the package dirq 1.8 in other processes, and single races
played step by step."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.servers.processes import PROJECT
from support.storage.directories import Foreign, PurgingDisk, SteppingDisk

from qs_storage.dirq import Queue, QueueSimple
from qs_storage.disk import Disk

WORKER = PROJECT / "tests" / "support" / "storage" / "dirq_worker.py"
OF_EACH = 4
"""Processes of ours, and of the original."""
OLD = time.time() - 10_000
SCHEMA = {"body": "string"}
BYTES_SCHEMA = {"body": "binary", "header": "table?"}


def hammer(layout: str, directory: Path, seconds: float) -> list[dict[str, Any]]:
    """Returns what each process reports: first ours, then those of the original."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), kind, layout, f"{kind}{number}", str(directory), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in ("ours", "original")
        for number in range(OF_EACH)
    ]
    try:
        texts = [process.communicate(timeout=seconds + 60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(text) for text in texts]


def drain(layout: str, directory: Path) -> list[str]:
    """Returns what the processes have left."""
    if layout == "simple":
        simple = QueueSimple(str(directory), sync=False)
        return [simple.get(name).decode() for name in simple if simple.lock(name)]
    queue = Queue(str(directory), schema=SCHEMA, sync=False)
    return [queue.dequeue(name)["body"] for name in queue]


def check(layout: str, directory: Path, seconds: float) -> None:
    reports = hammer(layout, directory, seconds)
    added = Counter(payload for report in reports for payload in report["added"])
    handled = Counter(payload for report in reports for payload in report["handled"])
    handled.update(drain(layout, directory))
    assert max(added.values()) == 1
    assert handled == added
    ours = [payload for report in reports[:OF_EACH] for payload in report["handled"]]
    theirs = [payload for report in reports[OF_EACH:] for payload in report["handled"]]
    assert any(payload.startswith("original") for payload in ours)
    assert any(payload.startswith("ours") for payload in theirs)
    if layout == "simple":
        assert not [name for _, _, names in os.walk(directory) for name in names if name.endswith(".tmp")]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["simple", "schema"])
def test_each_element_once(tmp_path: Path, layout: str) -> None:
    """Four processes of ours and four of the original add, lock, remove and purge: each element is handled once.
    4 seconds each."""
    check(layout, tmp_path / "q", 3)


@pytest.mark.long
@pytest.mark.parametrize("layout", ["simple", "schema"])
def test_each_element_once_for_longer(tmp_path: Path, layout: str) -> None:
    """Each element is handled once in half a minute of each layout."""
    check(layout, tmp_path / "q", 30)


# -- purges at every step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["ours", "original"])
@pytest.mark.parametrize("layout", ["dirq-simple", "dirq"])
def test_a_purge_at_each_step_of_an_element_s_life(tmp_path: Path, layout: str, whose: str) -> None:
    """Between any two steps of adding, locking, getting and removing an element, a purge of either changes nothing."""

    def played(path: Path, at: int) -> int:
        disk = PurgingDisk()
        foreign = Foreign(layout, path)
        purger: Any = foreign.queue if whose == "original" else opened(path, Disk())

        def purge() -> None:
            with contextlib.suppress(*([OSError] if whose == "original" else [])):
                purger.purge()

        disk.at, disk.happen = at, purge
        queue = opened(path, disk)
        names = [queue.add(b"x" if layout == "dirq-simple" else {"body": b"x", "header": {}}) for _ in range(2)]
        assert list(queue.names()) == names
        assert all(map(queue.lock, names))
        assert foreign.payload(names[0]) == b"x"
        queue.remove(names[0])
        queue.unlock(names[1])
        assert queue.count() == 1
        assert foreign.consume() == [b"x"]
        assert [each for each in path.rglob("*") if len(each.name) >= 14] == []
        return disk.steps

    def opened(path: Path, disk: Disk) -> Any:
        return QueueSimple(path, disk=disk) if layout == "dirq-simple" else Queue(path, schema=BYTES_SCHEMA, disk=disk)

    steps = played(tmp_path / "undisturbed", -1)
    for at in range(1, steps + 1):
        played(tmp_path / str(at), at)


# -- QueueSimple, step by step ----------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> SteppingDisk:
    return SteppingDisk()


@pytest.fixture
def simple(tmp_path: Path, disk: SteppingDisk) -> QueueSimple:
    return QueueSimple(str(tmp_path / "simple"), disk=disk, sync=False)


def purge_directories(path: str) -> None:
    """Removes empty directories as a purge does, and the last one too."""
    for name in os.listdir(path):
        os.rmdir(f"{path}/{name}")


def test_directory_goes_before_the_file_is_made(simple: QueueSimple, disk: SteppingDisk) -> None:
    """A purge removes the intermediate directory just before the temporary file is made in it."""
    name = simple.add(b"first")
    assert simple.lock(name)
    simple.remove(name)
    disk.before["open"] = lambda *_: purge_directories(simple.path)
    name = simple.add(b"x")
    assert "open" not in disk.before
    assert simple.lock(name)
    assert simple.get(name) == b"x"


def test_directory_goes_before_a_path_is_linked(simple: QueueSimple, disk: SteppingDisk, tmp_path: Path) -> None:
    """A purge removes the directory between its making and the link of add_path."""
    given = tmp_path / "given"
    given.write_bytes(b"moved")
    disk.after["mkdir"] = lambda *_: purge_directories(simple.path)
    name = simple.add_path(str(given))
    assert [operation for operation, _ in disk.calls].count("mkdir") >= 2
    assert not given.exists()
    assert simple.lock(name)
    assert simple.get(name) == b"moved"


def test_temporary_is_purged_before_the_link(simple: QueueSimple, disk: SteppingDisk) -> None:
    """A purge that takes the temporary file for an old one: the addition fails, and nothing is there."""
    disk.before["link"] = lambda old, new: os.unlink(old)
    with pytest.raises(FileNotFoundError):
        simple.add(b"x")
    assert simple.count() == 0


def test_temporary_is_purged_after_the_link(simple: QueueSimple, disk: SteppingDisk) -> None:
    """If the purge comes a moment later, the element is there, so it was added."""
    disk.after["link"] = lambda old, new: os.unlink(old)
    name = simple.add(b"x")
    assert list(simple) == [name]


def test_name_is_taken(simple: QueueSimple, disk: SteppingDisk) -> None:
    """If another program takes the name just before the link, the element gets another, and the other's is as it
    was."""
    taken = []

    def take(old: str, new: str) -> None:
        taken.append(new)
        Path(new).write_bytes(b"other")

    disk.before["link"] = take
    name = simple.add(b"mine")
    assert f"{simple.path}/{name}" not in taken
    assert Path(taken[0]).read_bytes() == b"other"
    assert simple.count() == 2


def test_element_goes_while_it_is_locked(simple: QueueSimple, disk: SteppingDisk) -> None:
    """If another program locks and removes the element during the link, no lock is left, in both modes."""
    for permissive in (True, False):
        name = simple.add(b"x")
        disk.after["link"] = lambda path, lock: os.unlink(path)
        if permissive:
            assert simple.lock(name) is False
        else:
            with pytest.raises(FileNotFoundError):
                simple.lock(name, permissive=False)
        assert os.listdir(f"{simple.path}/{name.partition('/')[0]}") == []


def test_another_element_of_the_name_comes_while_it_is_locked(simple: QueueSimple, disk: SteppingDisk) -> None:
    """If another program also adds an element under the name, we neither lock nor remove that one, which nobody has
    seen."""

    def change(path: str, lock: str) -> None:
        os.unlink(path)
        Path(path).write_bytes(b"other")

    for permissive in (True, False):
        name = simple.add(b"x")
        disk.after["link"] = change
        if permissive:
            assert simple.lock(name) is False
        else:
            with pytest.raises(FileNotFoundError):
                simple.lock(name, permissive=False)
        assert simple.lock(name)
        assert simple.get(name) == b"other"
        simple.remove(name)


def test_fresh_lock_of_an_old_element_is_not_purged(simple: QueueSimple, disk: SteppingDisk) -> None:
    """An element has waited for longer than maxlock: a purge just after the link must not take the lock for stale."""
    name = simple.add(b"x")
    os.utime(f"{simple.path}/{name}", (OLD, OLD))
    purger = QueueSimple(simple.path, sync=False)
    disk.after["link"] = lambda *_: purger.purge(maxlock=600)
    assert simple.lock(name)
    assert simple.get(name) == b"x"


def test_purge_waits_for_the_lock_of_another_program(simple: QueueSimple, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original links first and sets the time then: our purge, in between, gives it the time to do so."""
    name = simple.add(b"x")
    path = f"{simple.path}/{name}"
    os.utime(path, (OLD, OLD))
    os.link(path, f"{path}.lck")
    monkeypatch.setattr(time, "sleep", lambda _: os.utime(path))
    simple.purge()
    assert os.path.exists(f"{path}.lck")


def test_stale_lock_is_taken_between_two_purges(simple: QueueSimple, disk: SteppingDisk) -> None:
    """A purge sees a stale lock; before it removes it, another one did and somebody has locked the element."""
    name = simple.add(b"x")
    assert simple.lock(name)
    os.utime(f"{simple.path}/{name}", (OLD, OLD))
    other = QueueSimple(simple.path, sync=False)

    def meanwhile(*_: object) -> None:
        other.purge()
        assert other.lock(name)

    disk.after["lstat"] = meanwhile
    simple.purge()
    assert other.get(name) == b"x"


def test_lock_is_purged_while_its_element_is_removed(simple: QueueSimple, disk: SteppingDisk) -> None:
    """The lock goes between the two steps of remove: the element is removed, and that is not an error."""
    name = simple.add(b"x")
    assert simple.lock(name)
    disk.after["unlink"] = lambda path: os.unlink(f"{path}.lck")
    simple.remove(name)
    assert simple.count() == 0


@pytest.mark.parametrize("operation", ["lstat", "unlink"])
@pytest.mark.parametrize("suffix", [".tmp", ".lck"])
def test_file_goes_while_it_is_purged(simple: QueueSimple, disk: SteppingDisk, operation: str, suffix: str) -> None:
    """Between the listing and the look at it, and between that and its removal: it is gone, and so be it."""
    path = Path(f"{simple.path}/{simple.add(b'x')}{suffix}")
    path.touch()
    os.utime(path, (OLD, OLD))
    disk.before[operation] = os.unlink
    simple.purge()
    assert operation not in disk.before
    assert not path.exists()
    assert simple.count() == 1


def test_directory_goes_while_it_is_purged(simple: QueueSimple, disk: SteppingDisk) -> None:
    """Another purge removes the directory first."""
    for name in ("00000001", "00000002"):
        os.mkdir(f"{simple.path}/{name}")
    disk.before["rmdir"] = os.rmdir
    simple.purge()
    assert os.listdir(simple.path) == ["00000002"]


def test_directory_goes_while_walking(simple: QueueSimple) -> None:
    """An intermediate directory that was seen and is gone is as an empty one."""
    os.mkdir(f"{simple.path}/00000001")
    last = simple.add(b"x")
    walk = simple.names()
    os.rmdir(f"{simple.path}/00000001")
    assert list(iter(walk.__next__, last)) == []
    simple.purge()
    assert simple.count() == 1


# -- Queue, step by step ----------------------------------------------------------------------------------------------


@pytest.fixture
def queue(tmp_path: Path, disk: SteppingDisk) -> Queue:
    return Queue(str(tmp_path / "queue"), schema=SCHEMA, disk=disk, sync=False)


def test_intermediate_directory_goes_before_the_rename(queue: Queue, disk: SteppingDisk) -> None:
    """If the intermediate directory is purged because a newer one exists, the element goes to the newer one."""
    os.mkdir(f"{queue.path}/00000000")

    def purge(*_: object) -> None:
        os.rmdir(f"{queue.path}/00000000")
        os.mkdir(f"{queue.path}/00000001")

    disk.before["rename"] = purge
    assert queue.add({"body": "x"}).startswith("00000001/")


def test_temporary_directory_goes_before_its_first_file(queue: Queue, disk: SteppingDisk) -> None:
    """The original's purge removes every empty temporary element: it is made again."""
    disk.after["mkdir"] = lambda path, mode: os.rmdir(path)
    name = queue.add({"body": "x"})
    assert queue.dequeue(name) == {"body": "x"}


def test_temporary_element_is_purged_before_the_rename(queue: Queue, disk: SteppingDisk) -> None:
    """If a purge removes the temporary element as an old one, the addition fails, and nothing is there."""

    def purge(old: str, new: str) -> None:
        os.unlink(f"{old}/body")
        os.rmdir(old)

    disk.before["rename"] = purge
    with pytest.raises(FileNotFoundError):
        queue.add({"body": "x"})
    assert queue.count() == 0


def test_element_name_is_taken(queue: Queue, disk: SteppingDisk) -> None:
    """A rename never replaces an element."""
    queue.add({"body": "first"})

    def take(old: str, new: str) -> None:
        os.mkdir(new)
        Path(new, "body").write_text("other")

    disk.before["rename"] = take
    queue.add({"body": "mine"})
    assert [queue.dequeue(name)["body"] for name in queue] == ["first", "other", "mine"]


def test_element_is_removed_while_it_is_locked(queue: Queue, disk: SteppingDisk) -> None:
    """The lock is made in an element that somebody has just renamed for removal: it is not locked, in both modes."""
    for permissive in (True, False):
        name = queue.add({"body": "x"})
        disk.after["mkdir"] = lambda path, _: os.rename(os.path.dirname(path), f"{queue.path}/obsolete/{'0' * 14}")
        if permissive:
            assert queue.lock(name) is False
        else:
            with pytest.raises(FileNotFoundError):
                queue.lock(name, permissive=False)
        shutil.rmtree(f"{queue.path}/obsolete/{'0' * 14}")


def test_lock_is_made_in_an_element_that_is_being_removed(queue: Queue, disk: SteppingDisk) -> None:
    """A lock made in an element that is being removed does not stop remove."""
    name = queue.add({"body": "x"})
    assert queue.lock(name)
    disk.after["rmdir"] = os.mkdir
    queue.remove(name)
    assert os.listdir(f"{queue.path}/obsolete") == []


def test_purge_is_at_an_element_that_is_being_removed(queue: Queue, disk: SteppingDisk) -> None:
    """An element locked long ago counts as old once it is in `obsolete`: purge and remove both succeed."""
    name = queue.add({"body": "x"})
    assert queue.lock(name)
    os.utime(f"{queue.path}/{name}", (OLD, OLD))
    disk.after["rename"] = lambda *_: Queue(queue.path, sync=False).purge()
    queue.remove(name)
    assert queue.count() == 0
    assert os.listdir(f"{queue.path}/obsolete") == []


def test_old_element_is_locked_while_it_is_purged(queue: Queue, disk: SteppingDisk) -> None:
    """An element that has waited for longer than maxlock is locked during a purge: the lock stays."""
    name = queue.add({"body": "x"})
    os.utime(f"{queue.path}/{name}", (OLD, OLD))
    other = Queue(queue.path, schema=SCHEMA, sync=False)
    disk.before["lstat"] = lambda *_: other.lock(name)
    queue.purge()
    other.lock(name)
    assert other.get(name) == {"body": "x"}


def test_stale_lock_of_an_element_between_two_purges(queue: Queue, disk: SteppingDisk) -> None:
    """A purge sees a stale lock; before it removes it, another one did and somebody has locked the element."""
    name = queue.add({"body": "x"})
    assert queue.lock(name)
    os.utime(f"{queue.path}/{name}", (OLD, OLD))
    other = Queue(queue.path, schema=SCHEMA, sync=False)

    def meanwhile(*_: object) -> None:
        other.purge()
        assert other.lock(name)

    disk.after["lstat"] = meanwhile
    queue.purge()
    assert other.get(name) == {"body": "x"}
