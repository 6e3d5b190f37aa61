"""Directory queues beside the original package dirq 1.8: what one has written the other reads, locks, removes, purges;
and both make the same files."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dirq.queue as original_queue  # type: ignore[import-untyped]
import pytest
from dirq.QueueSimple import QueueSimple as OriginalSimple  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from qs_storage.dirq import Queue, QueueError, QueueSet, QueueSimple
from qs_storage.dirq.schema import decode_table, encode_table

SCHEMA = {"body": "string", "header": "table?", "raw": "binary?"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NOW = 1700000000.123456
Make = Callable[..., Any]


def our_simple(path: Path, **named: Any) -> Any:
    return QueueSimple(str(path), **named)


def their_simple(path: Path, **named: Any) -> Any:
    return OriginalSimple(str(path), **named)


def our_queue(path: Path, **named: Any) -> Any:
    return Queue(str(path), schema=SCHEMA, **named)


def their_queue(path: Path, **named: Any) -> Any:
    return original_queue.Queue(str(path), schema=SCHEMA, **named)


PAIRS = [(our_simple, their_simple), (their_simple, our_simple), (our_queue, their_queue), (their_queue, our_queue)]
PAIR_NAMES = ["simple-ours-theirs", "simple-theirs-ours", "queue-ours-theirs", "queue-theirs-ours"]
pairs = pytest.mark.parametrize(("make", "other"), PAIRS, ids=PAIR_NAMES)


def content(make: Make, number: int) -> Any:
    if make in (our_simple, their_simple):
        return b"element \0\xff\n%d" % number
    return {"body": f"Gruß\r\n{number}\x85", "header": {"a\t": "\\n\n", "B": "", "ä": "€"}, "raw": bytes(range(256))}


def tree(path: Path) -> dict[str, tuple[int, bytes | None]]:
    """Modes, and contents of files, by path."""
    found = sorted(path.rglob("*"))
    return {
        str(one.relative_to(path)): (one.stat().st_mode, one.read_bytes() if one.is_file() else None) for one in found
    }


@pairs
def test_elements_go_from_one_to_the_other(tmp_path: Path, make: Make, other: Make) -> None:
    """Added by one; walked, counted, locked, got and removed by the other."""
    writer, reader = make(tmp_path), other(tmp_path)
    names = [writer.add(content(make, number)) for number in range(10)]
    assert list(reader) == list(writer) == names
    assert writer.count() == 10
    for number, name in enumerate(names):
        assert reader.lock(name) is True
        assert writer.lock(name) is False
        assert reader.get(name) == writer.get(name) == content(make, number)
        reader.remove(name)
        assert writer.lock(name) is False
    assert list(writer) == list(reader) == []
    assert writer.count() == 0


@pairs
def test_locks_of_the_other(tmp_path: Path, make: Make, other: Make) -> None:
    """Each sees and releases the other's locks; a permissive unlock says when there was none."""
    one, two = make(tmp_path), other(tmp_path)
    name = one.add(content(make, 0))
    assert one.lock(name)
    for queue in (one, two):
        with pytest.raises(OSError, match="File exists"):
            queue.lock(name, permissive=False)
    assert two.unlock(name) is True
    assert one.unlock(name, permissive=True) is two.unlock(name, permissive=True) is False
    assert two.lock(name)
    one.remove(name)
    assert one.lock(name) is two.lock(name) is False


def test_their_purge_of_what_is_being_added(tmp_path: Path) -> None:
    """The original removes new elements without a file, and the lock of any; at one with a file it raises, and has not
    looked at old locks. With maxtemp=0 it does. Our purge leaves all of that alone."""
    theirs, ours = their_queue(tmp_path), our_queue(tmp_path)
    name = theirs.add(content(their_queue, 0))
    theirs.lock(name)
    os.utime(tmp_path / name, (0, 0))
    element = tmp_path / "temporary" / ("1" * 14)
    (element / "locked").mkdir(parents=True)
    ours.purge(maxlock=0)
    assert (element / "locked").exists()
    theirs.purge(maxlock=0)
    assert not element.exists()
    (element / "locked").mkdir(parents=True)
    (element / "body").touch()
    with pytest.raises(OSError, match="not empty"):
        theirs.purge()
    assert os.listdir(element) == ["body"]
    assert theirs.lock(name) is False
    theirs.purge(maxtemp=0)
    assert theirs.lock(name) is True


@pairs
def test_purge_of_the_other(tmp_path: Path, make: Make, other: Make) -> None:
    """Stale locks and temporary elements of one are purged by the other; young ones are not."""
    one, two = make(tmp_path), other(tmp_path)
    names = [one.add(content(make, number)) for number in range(3)]
    old, young = names[:2]
    one.lock(old)
    one.lock(young)
    then = time.time() - 1000
    os.utime(f"{tmp_path}/{old}", (then, then))
    if make in (our_simple, their_simple):
        temporary = Path(f"{tmp_path}/{old}.tmp")
        temporary.touch()
    else:
        temporary = Path(tmp_path, "temporary", "0" * 14)
        temporary.mkdir()
    os.utime(temporary, (then, then))
    two.purge()
    assert not temporary.exists()
    assert one.lock(old) is True
    assert one.lock(young) is False
    one.touch(old)
    two.purge()
    assert two.lock(old) is False
    assert one.count() == 3


@pairs
def test_directories_that_the_other_has_purged(tmp_path: Path, make: Make, other: Make) -> None:
    """One goes on adding while the other removes empty intermediate directories."""
    named = {"granularity": 1} if make in (our_simple, their_simple) else {"maxelts": 2}
    one, two = make(tmp_path, **named), other(tmp_path, **named)
    os.makedirs(tmp_path / "00000000", exist_ok=True)
    for number in range(10):
        name = one.add(content(make, number))
        two.purge()
        if number % 3:
            assert two.lock(name)
            two.remove(name)
    assert one.count() == two.count() == 4
    assert "00000000" not in os.listdir(tmp_path) or make not in (our_simple, their_simple)


@pytest.mark.parametrize(("ours", "theirs"), [(our_simple, their_simple), (our_queue, their_queue)])
@pytest.mark.parametrize("umask", [None, 0, 0o077])
def test_same_files(
    tmp_path: Path, ours: Make, theirs: Make, umask: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, modes and contents are equal when the clock and the random digit are: added, locked, removed."""
    clock = [NOW]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    trees = []
    for make in (ours, theirs):
        path = tmp_path / make.__name__
        clock[0] = NOW
        queue = make(path, umask=umask, rndhex=11)
        names = []
        for number in range(4):
            names.append(queue.add(content(make, number)))
            clock[0] += 61.000007
        queue.lock(names[0])
        queue.lock(names[1])
        queue.remove(names[1])
        trees.append((names, os.stat(path).st_mode, tree(path)))
    assert trees[0] == trees[1]
    assert len(trees[0][2]) >= 8


def test_same_full_directories(tmp_path: Path) -> None:
    """Both begin a new intermediate directory at the same moment, whichever has filled the last."""
    makers = random.Random(7).choices([our_queue, their_queue], k=30)
    directories = [make(tmp_path, maxelts=3).add(content(make, 0))[:8] for make in makers]
    assert directories == [f"{number // 3:08x}" for number in range(30)]


@given(st.dictionaries(TEXT, TEXT))
def test_same_tables(table: dict[str, str]) -> None:
    """Tables are serialized to the same characters, and read from them."""
    text = encode_table(table)
    assert text == original_queue._hash2string(table)
    assert original_queue._string2hash(text) == decode_table(text) == table


@given(st.text(st.sampled_from("ab\t\n\\tn")))
def test_same_strange_tables(text: str) -> None:
    """A table that neither has written is read the same by both, or both raise an error."""
    try:
        expected = original_queue._string2hash(text)
    except original_queue.QueueError:
        expected = None
    try:
        found: dict[str, str] | None = decode_table(text)
    except QueueError:
        found = None
    assert found == (expected if text.strip("\n") else {})


@pytest.mark.parametrize("make", [our_simple, their_simple])
def test_paths_and_references(tmp_path: Path, make: Make) -> None:
    """Each library reads what add_path and add_ref of the other have stored, with get_ref and get_path."""
    other = their_simple if make is our_simple else our_simple
    given_path = tmp_path / "given"
    given_path.write_bytes(b"from a path")
    one, two = make(tmp_path / "q"), other(tmp_path / "q")
    names = [one.add_path(str(given_path)), one.add_ref(b"by reference"), one.add("Gruß")]
    assert not given_path.exists()
    assert [two.lock(name) and two.get_ref(name) for name in names] == [
        b"from a path",
        b"by reference",
        "Gruß".encode(),
    ]
    assert [one.get_path(name) for name in names] == [two.get_path(name) for name in names]


def test_set_of_a_shared_queue(tmp_path: Path) -> None:
    """A set of ours walks through what the original has added."""
    names = [their_queue(tmp_path / name).add(content(their_queue, 0)) for name in "abab"]
    assert [name for _, name in QueueSet(our_queue(tmp_path / "a"), our_queue(tmp_path / "b"))] == sorted(names)
