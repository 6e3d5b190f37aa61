"""Queue: schemas, each documented method with its arguments, results and errors, and the files that it makes."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from qs_storage.dirq import Queue, QueueError, QueueLockError
from qs_storage.dirq.schema import decode_table

SCHEMA = {"body": "string", "header": "table?", "raw": "binary?*"}


def make(path: Path, **named: Any) -> Queue:
    return Queue(str(path / "q"), **{"schema": SCHEMA, "sync": False, **named})


@pytest.fixture
def q(tmp_path: Path) -> Queue:
    return make(tmp_path)


def locked(q: Queue, **data: Any) -> str:
    name = q.add({"body": "x", **data})
    assert q.lock(name) is True
    return name


def files(q: Queue) -> list[str]:
    """All that is in the queue, but for directories with something in them."""
    found = (Path(above) / name for above, directories, files in os.walk(q.path) for name in [*directories, *files])
    return sorted(str(path.relative_to(q.path)) for path in found if path.is_file() or not os.listdir(path))


def age(path: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize(
    "schema",
    [
        {"a": "text"},
        {"a": "string "},
        {"a": "string\n"},
        {"a": "string???"},
        {"a": "binary?"},
        {"a": "table*?"},
        {"a b": "string"},
        {"a\n": "string"},
        {"": "string"},
        {"a.b": "string"},
        {"locked": "string"},
        {"ä": "string"},
        {1: "string"},
        {"a": b"string"},
        {"a": None},
        ["a"],
        "string",
    ],
    ids=repr,
)
def test_wrong_schemas(tmp_path: Path, schema: Any) -> None:
    """QueueError, and no directory is made."""
    with pytest.raises(QueueError, match=r"invalid"):
        make(tmp_path, schema=schema)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("schema", [{}, None])
def test_without_a_schema(tmp_path: Path, schema: Any) -> None:
    """Only add, get and what is made of them need one."""
    name = make(tmp_path).add({"body": "x"})
    q = make(tmp_path, schema=schema)
    with pytest.raises(QueueError, match="unknown schema"):
        q.add({"body": "x"})
    assert q.lock(name)
    with pytest.raises(QueueError, match="unknown schema"):
        q.get(name)
    q.remove(name)
    assert q.count() == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "missing mandatory data: body"),
        ({"header": {}}, "missing mandatory data: body"),
        ({"body": "x", "other": "y"}, "unexpected data: other"),
        ({"body": b"x"}, "unexpected string data in body"),
        ({"body": 1}, "unexpected string data in body"),
        ({"body": "\ud800"}, "unexpected string data in body"),
        ({"body": "x", "raw": "y"}, "unexpected binary data in raw"),
        ({"body": "x", "raw": None}, "unexpected binary data in raw"),
        ({"body": "x", "header": "y"}, "unexpected table data in header"),
        ({"body": "x", "header": {"a": 1}}, "invalid hash value type: 1"),
        ({"body": "x", "header": {"a": b"b"}}, "invalid hash value type: b'b'"),
        ({"body": "x", "header": {1: "b"}}, "invalid hash value type: 1"),
        ({"body": "x", "header": {"a": "\ud800"}}, "unexpected string data in header"),
        ("x", "unexpected data: 'x'"),
    ],
    ids=repr,
)
def test_wrong_data(q: Queue, data: Any, message: str) -> None:
    """QueueError, and nothing is left on disk."""
    with pytest.raises(QueueError, match=message):
        q.add(data)
    assert files(q) == ["obsolete", "temporary"]


@pytest.mark.parametrize("sync", [False, True])
def test_queue_add_and_get(tmp_path: Path, sync: bool) -> None:
    """All types come back as they were, in the order of the schema, each from a file of its own."""
    q = make(tmp_path, sync=sync)
    data = {"raw": b"\0\xff\r\n", "header": {"Gruß\t": "\\n\n", "": ""}, "body": "a\r\nb\x85€\n"}
    name = q.add(data)
    assert name.startswith("00000000/")
    assert files(q) == [f"{name}/{piece}" for piece in sorted(data)] + ["obsolete", "temporary"]
    assert q.lock(name)
    assert files(q)[2] == f"{name}/locked"
    assert q.get(name) == data
    assert list(q.get(name)) == list(SCHEMA)
    q.remove(name)
    assert files(q) == ["00000000", "obsolete", "temporary"]


def test_optional_data(q: Queue) -> None:
    """A missing optional piece is left out; an empty one is empty."""
    assert q.dequeue(q.enqueue({"body": ""})) == {"body": ""}
    assert q.dequeue(q.add({"body": "", "header": {}})) == {"body": "", "header": {}}


@pytest.mark.parametrize(
    ("text", "table"),
    [("", {}), ("\n", {}), ("a\tb", {"a": "b"}), ("a\tb\na\tc\n", {"a": "c"}), ("\\x\t\\", {"\\x": "\\"})],
)
def test_tables_of_others(text: str, table: dict[str, str]) -> None:
    """No line end at the end, a key that comes twice, a backslash that escapes nothing."""
    assert decode_table(text) == table


@pytest.mark.parametrize("text", ["a", "a\tb\tc", "a\tb\n\nc\td\n"])
def test_no_tables(text: str) -> None:
    """QueueError that shows the line."""
    with pytest.raises(QueueError, match="unexpected hash line"):
        decode_table(text)


def test_get_of_what_others_wrote(q: Queue) -> None:
    """A mandatory piece that is missing, a string that is not UTF-8, a table that is none."""
    name = locked(q, header={})
    body, header = Path(q.path, name, "body"), Path(q.path, name, "header")
    header.write_text("x")
    with pytest.raises(QueueError, match="unexpected hash line"):
        q.get(name)
    header.unlink()
    body.write_bytes(b"\xff")
    with pytest.raises(OSError, match="cannot read, not UTF-8"):
        q.get(name)
    body.unlink()
    with pytest.raises(QueueError, match="missing data file"):
        q.get(name)


def test_queue_get_and_remove_need_lock(q: Queue) -> None:
    """QueueError, and the element is still there; also when it has never been there."""
    for name in (q.add({"body": "x"}), "00000000/00000000000000"):
        with pytest.raises(QueueError, match=r"cannot get .*: not locked"):
            q.get(name)
        with pytest.raises(QueueError, match=r"cannot remove .*: not locked"):
            q.remove(name)
    assert q.count() == 1


@pytest.mark.parametrize(
    "name", ["", "x", "00000000", "00000000/0000000000000g", "00000000/00000000000000\n", "../../x"]
)
def test_names_that_are_none(q: Queue, name: str) -> None:
    """QueueError from each method that takes a name."""
    for method in (q.lock, q.unlock, q.get, q.remove, q.dequeue, q.get_element):
        with pytest.raises(QueueError, match="invalid element name"):
            method(name)


def test_remove_of_an_element_with_something_else(q: Queue) -> None:
    """QueueError, and the element stays as it is; pieces that are not in the schema go too."""
    name = locked(q)
    Path(q.path, name, "piece2").touch()
    Path(q.path, name, "no-piece").touch()
    with pytest.raises(QueueError, match=r"unexpected file in .*: no-piece"):
        q.remove(name)
    assert q.get(name) == {"body": "x"}
    Path(q.path, name, "no-piece").unlink()
    q.remove(name)
    assert q.count() == 0


def test_dequeue(q: Queue) -> None:
    """The element, which is gone then; QueueLockError when somebody has it, OSError if not permissive."""
    name = locked(q)
    with pytest.raises(QueueLockError, match="couldn't lock"):
        q.dequeue(name)
    with pytest.raises(FileExistsError):
        q.dequeue(name, permissive=False)
    q.unlock(name)
    assert q.dequeue(name) == {"body": "x"}
    assert q.count() == 0


def test_get_element(q: Queue) -> None:
    """The element, which stays and is not locked; QueueLockError when somebody has it."""
    name = locked(q)
    with pytest.raises(QueueLockError, match="couldn't lock"):
        q.get_element(name)
    q.unlock(name)
    assert q.get_element(name) == q.get_element(name, permissive=False) == {"body": "x"}
    assert q.lock(name)


@pytest.mark.parametrize("method", ["dequeue", "get_element"])
def test_an_element_that_cannot_be_read_is_unlocked(q: Queue, method: str) -> None:
    """An element that could be locked and not read is unlocked again."""
    name = q.add({"body": "x"})
    os.unlink(f"{q.path}/{name}/body")
    with pytest.raises(QueueError, match="missing data file"):
        getattr(q, method)(name)
    assert q.lock(name)


def test_queue_count_leaves_out_other_directories(q: Queue) -> None:
    """Elements in `temporary` and `obsolete` are none of the queue's."""
    added = [q.add({"body": str(number)}) for number in range(5)]
    for directory in ("temporary", "obsolete"):
        os.mkdir(f"{q.path}/{directory}/{'0' * 14}")
    assert list(q) == added
    assert q.count() == 5


def test_count_where_links_do_not_tell(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of some file systems have one link, whatever is in them."""
    for _ in range(3):
        q.add({"body": "x"})
    real = os.lstat

    def one_link(path: str) -> os.stat_result:
        found = list(real(path))
        found[3] = 1
        return os.stat_result(found)

    monkeypatch.setattr(q._disk, "lstat", one_link)
    assert q.count() == 3
    q.maxelts = 3
    assert q.add({"body": "x"}).startswith("00000001/")


def test_maxelts(tmp_path: Path) -> None:
    """A directory that is full is followed by the next; its number counts up, whatever happens to those before."""
    q = make(tmp_path, maxelts=2)
    added = [q.add({"body": "x"}) for _ in range(5)]
    assert [int(name[:8], 16) for name in added] == [0, 0, 1, 1, 2]
    for name in added:
        q.dequeue(name)
    q.purge()
    assert q.add({"body": "x"}).startswith("00000002/")
    assert files(q)[-2:] == ["obsolete", "temporary"]
    assert q.count() == 1


def test_purge_of_what_is_under_way(q: Queue) -> None:
    """Elements in `temporary` and `obsolete` older than maxtemp; none if it is 0. New ones stay, also empty ones."""
    name = q.add({"body": "x"})
    for directory in ("temporary", "obsolete"):
        for state, old in (("1", True), ("2", False)):
            path = Path(q.path, directory, state * 14)
            path.mkdir()
            (path / "locked").mkdir()
            (path / "body").write_text("x")
            if old:
                age(str(path), 400)
    os.mkdir(f"{q.path}/temporary/{'3' * 14}")
    q.purge(maxtemp=500)
    q.purge(maxtemp=0)
    assert len(os.listdir(f"{q.path}/temporary")) == 3
    q.purge()
    assert sorted(os.listdir(f"{q.path}/temporary")) == ["2" * 14, "3" * 14]
    assert os.listdir(f"{q.path}/obsolete") == ["2" * 14]
    assert list(q) == [name]


def test_purge_during_a_walk(q: Queue) -> None:
    """A purge during a walk moves the cursor to the end: the walk is over, without an error."""
    for _ in range(3):
        q.add({"body": "x"})
    seen = []
    for name in q:
        seen.append(name)
        q.purge()
    assert len(seen) == 1
    assert q.next() == ""


def test_directories_that_were_removed(q: Queue) -> None:
    """`temporary`, `obsolete`, and the queue itself are made again when they are needed."""
    name = locked(q)
    os.rmdir(f"{q.path}/temporary")
    os.rmdir(f"{q.path}/obsolete")
    q.purge()
    q.remove(name)
    assert q.dequeue(q.add({"body": "y"})) == {"body": "y"}
