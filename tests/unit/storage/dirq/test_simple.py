"""QueueSimple: each documented method, its arguments, results and errors, and the files that it makes."""

import copy
import os
import pickle
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qs_storage.dirq import QueueSimple, elements
from qs_storage.dirq.QueueSimple import QueueSimple as BySubmodule

NAME = re.compile(r"[0-9a-f]{8}/[0-9a-f]{14}")


def make(path: Path, **named: Any) -> QueueSimple:
    return QueueSimple(str(path / "q"), sync=False, **named)


@pytest.fixture
def q(tmp_path: Path) -> QueueSimple:
    return make(tmp_path)


def locked(q: QueueSimple, data: bytes | str = b"x") -> str:
    name = q.add(data)
    assert q.lock(name) is True
    return name


def files(q: QueueSimple) -> list[str]:
    return sorted(str(path.relative_to(q.path)) for path in Path(q.path).glob("*/*"))


def age(q: QueueSimple, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(f"{q.path}/{name}", (then, then))


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("data", [b"", b"x", b"\0\xff\r\n" * 3, b"y" * (3 << 20)], ids=len)
def test_simple_add_and_get(tmp_path: Path, sync: bool, data: bytes) -> None:
    """The locked element has the added content, as bytes."""
    q = QueueSimple(str(tmp_path / "q"), sync=sync)
    name = q.add(data)
    assert NAME.fullmatch(name)
    assert files(q) == [name]
    assert q.lock(name)
    assert q.get(name) == q.get_ref(name) == data
    q.remove(name)
    assert files(q) == []


def test_a_string_is_utf8(q: QueueSimple) -> None:
    """A string is stored as UTF-8, and comes back as bytes."""
    assert q.get(locked(q, "Gruß\r\n€")) == "Gruß\r\n€".encode()


@pytest.mark.parametrize("data", [bytearray(b"ab"), memoryview(b"ab")])
def test_other_bytes(q: QueueSimple, data: Any) -> None:
    """Other things that are bytes are taken too."""
    assert q.get(locked(q, data)) == b"ab"


@pytest.mark.parametrize(("data", "error"), [(1, TypeError), (None, TypeError), ("\ud800", UnicodeEncodeError)])
def test_add_refuses(q: QueueSimple, data: Any, error: type[Exception]) -> None:
    """Values that are neither bytes nor a string, and strings that UTF-8 cannot hold, are refused, and nothing is made
    on disk."""
    with pytest.raises(error):
        q.add(data)
    assert os.listdir(q.path) == []


def test_add_path_that_is_missing(q: QueueSimple, tmp_path: Path) -> None:
    """FileNotFoundError, and nothing is added."""
    with pytest.raises(FileNotFoundError):
        q.add_path(tmp_path / "nothing")
    assert q.count() == 0


def test_lock_is_a_second_link(q: QueueSimple) -> None:
    """With the suffix .lck; and its time is that of the lock."""
    name = q.add(b"x")
    age(q, name, 5000)
    assert q.lock(name) is True
    assert files(q) == [name, f"{name}.lck"]
    status = os.stat(f"{q.path}/{name}")
    assert status.st_nlink == 2
    assert time.time() - status.st_mtime < 100


def test_simple_get_and_remove_need_lock(q: QueueSimple) -> None:
    """FileNotFoundError, and the element is still there."""
    name = q.add(b"x")
    with pytest.raises(FileNotFoundError):
        q.get(name)
    with pytest.raises(FileNotFoundError):
        q.remove(name)
    assert q.lock(name)
    assert q.get(name) == b"x"


def test_simple_count_includes_locked(q: QueueSimple) -> None:
    """Locked ones count, temporary ones and other files do not."""
    assert q.count() == 0
    first = locked(q)
    q.add(b"y")
    for other in (f"{first}.tmp", f"{first[:9]}notes", "notes"):
        Path(q.path, other).write_bytes(b"")
    assert q.count() == 2


def test_walk_through_directories(q: QueueSimple) -> None:
    """In the order of the directories, then of the elements; names that are none are passed over."""
    names = ["00000001/ffffffffffffff", "00000002/00000000000000", "00000002/00000000100000", "0000000a/1234567890abcd"]
    for name in [*reversed(names), "00000003/short", "nothex00/00000000000000", "00000002/00000000000000.tmp"]:
        path = Path(q.path, name)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert list(q) == names
    assert q.count() == 4


def test_next_uses_what_is_cached(q: QueueSimple) -> None:
    """During a walk, additions to a directory that was read are not seen; `first` looks again."""
    one, two = q.add(b""), q.add(b"")
    assert q.first() == one
    three = q.add(b"")
    assert [q.next(), q.next()] == [two, ""]
    assert list(q) == [one, two, three]


def test_next_before_first(q: QueueSimple) -> None:
    """A `next` before the first `first` returns "", because no names are cached."""
    q.add(b"")
    assert q.next() == ""


def test_end_of_an_iteration(q: QueueSimple) -> None:
    """With iter(), next() ends with StopIteration; after first() it does not, even if a loop was left before."""
    name = q.add(b"")
    walk = iter(q)
    assert walk.next() == name
    with pytest.raises(StopIteration):
        walk.next()
    for _ in q:
        break
    assert q.first() == name
    assert q.next() == ""
    with pytest.raises(StopIteration):
        next(q)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda q: pickle.loads(pickle.dumps(q))], ids=["deepcopy", "pickle"]
)
def test_other_copies(tmp_path: Path, duplicate: Any) -> None:
    """Copies made with Python's `copy` can be used and thrown away without harm to the others."""
    q = QueueSimple(str(tmp_path / "q"))
    q.add(b"1")
    other = duplicate(q)
    other.add(b"2")
    del other
    q.add(b"3")
    assert q.count() == 3


def test_purge_of_directories(q: QueueSimple) -> None:
    """Empty ones go, but for the last; others stay."""
    for name in ("00000001", "00000002", "00000003", "fffffff0"):
        os.mkdir(f"{q.path}/{name}")
    Path(q.path, "00000002", "00000000000000").touch()
    q.purge(0, 0)
    assert sorted(os.listdir(q.path)) == ["00000002", "fffffff0"]


def test_granularity(q: QueueSimple, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is the time, rounded down; 0 and 1: not rounded."""
    monkeypatch.setattr(time, "time", lambda: 1000000059.5)
    queues = [make(Path(q.path).parent, granularity=each, rndhex=at) for at, each in enumerate((60, 0, 1, 7))]
    found = [queue.add(b"").partition("/") for queue in queues]  # two in one directory: under names of their own
    assert [int(directory, 16) for directory, _, _ in found] == [1000000020, 1000000059, 1000000059, 1000000057]
    assert {element[:13] for _, _, element in found} == {f"{1000000059:08x}{500000:05x}"}


def test_rndhex_is_chosen(tmp_path: Path) -> None:
    """Without it, each queue has one, and not all the same."""
    chosen = [make(tmp_path) for _ in range(100)]
    assert all(q.add(b"")[-1] == f"{q.rndhex:x}" for q in chosen[:5])
    assert len({q.rndhex for q in chosen}) > 2


def test_names_when_the_clock_stands(q: QueueSimple, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is taken is followed by the next microsecond's, also into the next second."""
    monkeypatch.setattr(time, "time", lambda: 1000000059.9999985)
    added = [q.add(b"%d" % number) for number in range(4)]
    assert added == sorted(set(added))
    assert [int(name[9:17], 16) for name in added] == [1000000059] * 2 + [1000000060] * 2
    assert [q.lock(name) and q.get(name) for name in added] == [b"0", b"1", b"2", b"3"]


def test_no_name_is_free(q: QueueSimple, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no name is free, the addition ends with an error, and leaves nothing."""
    name = q.add(b"x")
    module = vars(sys.modules["qs_storage.dirq.QueueSimple"])
    monkeypatch.setitem(module, "ATTEMPTS", 3)
    monkeypatch.setitem(module, "element_name", lambda *_: name[9:])
    monkeypatch.setitem(module, "directory_of_now", lambda *_: name[:8])
    with pytest.raises(FileExistsError, match="no free name"):
        q.add(b"y")
    assert files(q) == [name]


def modes(q: QueueSimple, name: str) -> list[int]:
    paths = (q.path, f"{q.path}/{name[:8]}", f"{q.path}/{name}")
    return [os.stat(path).st_mode & 0o777 for path in paths]


@pytest.mark.parametrize("umask", [0o077, 0o027, 0])
def test_umask(tmp_path: Path, umask: int) -> None:
    """The umask holds for all that is made; the process keeps its own, also after an error."""
    before = os.umask(0o022)
    try:
        q = make(tmp_path, umask=umask)
        name = q.add(b"x")
        assert modes(q, name) == [0o777 & ~umask, 0o777 & ~umask, 0o666 & ~umask]
        with pytest.raises(OSError, match="Not a directory"):
            QueueSimple(f"{q.path}/{name}", umask=umask)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_umask_of_the_process(tmp_path: Path) -> None:
    """Without an argument, it is respected."""
    before = os.umask(0o067)
    try:
        q = make(tmp_path)
        assert modes(q, q.add(b"x")) == [0o710, 0o710, 0o600]
    finally:
        os.umask(before)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made with all above it; relative, as bytes, as a Path; path stays as given."""
    monkeypatch.chdir(tmp_path)
    given: list[Any] = ["a/b/c", b"bytes", tmp_path / "path"]
    assert [QueueSimple(path).path for path in given] == ["a/b/c", "bytes", str(tmp_path / "path")]
    assert QueueSimple("a/b/c").add(b"x")
    assert Path("a/b/c").is_dir()


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A directory that cannot be made raises OSError."""
    (tmp_path / "file").touch()
    for path in ("file", "file/q"):
        with pytest.raises(OSError, match="Not a directory"):
            QueueSimple(str(tmp_path / path))


def test_queue_that_was_removed(q: QueueSimple) -> None:
    """A queue that was removed is empty, and an addition makes it again, as with dirq."""
    os.rmdir(q.path)
    assert (q.count(), list(q), q.first()) == (0, [], "")
    q.purge()
    q.add(b"x")
    assert q.count() == 1


def test_threads(tmp_path: Path) -> None:
    """Several may add, lock and remove with one object, with the same random digit."""
    q = QueueSimple(str(tmp_path / "q"))
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(q.add, [b"%d" % number for number in range(60)]))
        locked = list(pool.map(q.lock, added * 2))
        read = list(pool.map(q.get, added))
        list(pool.map(q.remove, added[:30]))
    assert len(set(added)) == 60 == locked.count(True)
    assert read == [b"%d" % number for number in range(60)]
    assert q.count() == 30


def test_id(tmp_path: Path) -> None:
    """Two objects for one directory have the same id."""
    assert make(tmp_path).id == make(tmp_path).id != QueueSimple(str(tmp_path / "other")).id


def test_import_by_submodule() -> None:
    """The class has the module of its name, as in dirq."""
    assert BySubmodule is QueueSimple


def test_names_grow() -> None:
    """Names that are made one after the other sort in that order."""
    made = [elements.element_name(3) for _ in range(1000)]
    assert made == sorted(made)
    assert all(map(elements.is_element, made))
    assert not elements.is_element(made[0] + "\n")
