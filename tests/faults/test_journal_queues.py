"""Queues of the journal that are made, removed, moved or replaced just when something else goes wrong."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.storage.crashing import Place, places, segments_of
from support.storage.engines import LOTS

from qs_storage.engine import NoSuchQueueError, Options
from qs_storage.journal.upkeep.checkpoint import Snapshot

INFINITE = float("inf")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A root whose journal has small segments."""
    segments_of(monkeypatch, 24576, 24576)
    yield from places(tmp_path)


# -- a new segment that cannot be begun --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "pattern", "times"),
    [
        ("create", "*/.journal/*", INFINITE),
        ("_pwrite", "*/.journal/spare*", INFINITE),
        ("fsync", "*/.journal/spare*", INFINITE),
        ("rename", "*/.journal/spare*", INFINITE),
        ("rename", "*.segment", INFINITE),
        ("fsync", "*/.journal", 1),
        ("_pwrite", "*/.journal/lock", INFINITE),
        ("fdatasync", "*/.journal/lock", 1),
    ],
)
def test_a_queue_younger_than_the_segment(place: Place, operation: str, pattern: str, times: float) -> None:
    """When no new segment can be begun, the one there is goes on, and names the queues that are new since its
    beginning: what is pushed into them is there after a crash."""
    place.queue("a")
    [first] = place.push("a", b"x")
    place.queue("b")
    place.disk.refuse(operation, pattern, times=times)
    large: list[int] = []
    with pytest.raises(OSError, match="space") if times == INFINITE else suppress(OSError):
        large = place.push("b", bytes(1 << 20))  # a second try may find room
    place.disk.disarm()
    place.engine.commit()
    [mid] = place.push("b", b"small")
    place.crash()
    assert (place.mids("a"), place.mids("b")) == ([first], [*large, mid])
    assert place.payloads("b")[-1] == b"small"


@pytest.mark.parametrize(("operation", "pattern"), [("fsync", "*/.journal"), ("fdatasync", "*/.journal/lock")])
def test_a_name_that_cannot_be_taken_back(place: Place, operation: str, pattern: str) -> None:
    """When nobody can say which segment a power loss would leave, nothing is accepted until the next start, which has
    what was answered."""
    place.queue("a")
    [mid] = place.push("a", b"x")
    place.disk.refuse(operation, pattern)
    with pytest.raises(OSError, match="space"):
        place.push("a", bytes(1 << 20))
    place.disk.disarm()
    with pytest.raises(OSError, match="journal failed"):
        place.push("a", b"y")
    place.crash()
    assert place.mids("a") == [mid]
    place.push("a", b"z")


def test_a_queue_younger_than_a_segment_that_a_batch_is_refused_in(place: Place) -> None:
    """When a batch is refused, its record of the queue's name goes with it, and the next batch writes it again."""
    place.queue("a")
    place.push("a", b"x")
    place.queue("b")
    place.ask_push("b", b"refused")
    place.disk.refuse("_pwrite", "*.segment", times=1)
    with pytest.raises(OSError, match="space"):
        place.engine.commit()
    [mid] = place.push("b", b"small")
    place.crash()
    assert (place.mids("b"), place.payloads("b")) == ([mid], [b"small"])


# -- directories that others move or replace, in one batch with something of ours --------------------------------------


def test_a_directory_is_replaced_and_a_crash(place: Place) -> None:
    """A push in the batch that finds another directory in the queue's place survives a crash; messages of the former
    queue are gone."""
    place.queue("q")
    place.push("q", b"old")
    shutil.copytree(place.root / "q", place.root / ".other")
    shutil.rmtree(place.root / "q")
    (place.root / ".other").rename(place.root / "q")
    place.engine.refresh()
    mids = place.push("q", b"new")
    assert place.mids("q") == mids
    place.crash()
    assert (place.mids("q"), place.payloads("q")) == (mids, [b"new"])
    place.restart()
    assert place.payloads("q") == [b"new"]


def test_a_directory_is_replaced_twice_and_a_crash(place: Place) -> None:
    """If the directory is replaced again before the batch ends, the last queue's messages count."""
    place.queue("q")
    place.push("q", b"old")
    for payload in (b"between", b"new"):
        (place.root / ".other").mkdir()
        shutil.rmtree(place.root / "q")
        (place.root / ".other").rename(place.root / "q")
        place.engine.refresh()
        place.ask_push("q", payload)
    place.engine.commit()
    assert place.payloads("q") == [b"new"]
    place.crash()
    assert place.payloads("q") == [b"new"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_others_make_a_queue_right_after_ours_is_removed(place: Place, force: bool, apart: bool) -> None:
    """A queue that somebody makes under the name of one that was just removed is a new one: what it is given is there
    after a crash, and nothing of the old one is. apart: whether the removal is committed before."""
    place.queue("q", "other")
    [old] = place.push("q", b"old")
    if not force:
        place.receive("q")
        place.engine.queue("q").purge(old, LOTS)
        place.engine.commit()
    place.engine.remove("q", force=force)
    if apart:
        place.engine.commit()
    (place.root / "q").mkdir()
    place.engine.refresh()
    assert place.mids("q") == []
    mids = place.push("q", b"new")
    place.crash()
    assert (place.mids("q"), place.payloads("q")) == (mids, [b"new"])
    place.restart()
    assert place.payloads("q") == [b"new"]


def test_a_queue_is_removed_and_a_crash(place: Place) -> None:
    """A queue whose removal was committed with a push into another one is gone; the push is there."""
    place.queue("q", "other")
    place.push("q", b"old")
    place.engine.remove("q", force=True)
    mids = place.push("other", b"new")
    place.crash()
    with pytest.raises(NoSuchQueueError):
        place.mids("q")
    assert place.mids("other") == mids


# -- a removal that cannot be made durable -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_removal_and_a_push_in_a_batch_that_is_refused(place: Place, error: int, at_once: bool) -> None:
    """When the root cannot be synced, the batch has not happened, for later requests and after a crash; the next one
    has. at_once: whether that is so when the queue is removed, or only at the commit."""
    place.queue("a", "b")
    if at_once:
        place.disk.refuse("fsync", os.fspath(place.root), error)
    place.engine.remove("b", force=False)
    place.disk.refuse("fsync", os.fspath(place.root), error)
    place.ask_push("a", b"refused")
    with pytest.raises(OSError, match=os.strerror(error)):
        place.engine.commit()
    place.disk.disarm()
    assert place.mids("a") == []
    place.engine.commit()
    assert place.mids("a") == []
    mids = place.push("a", b"new")
    place.crash()
    assert place.mids("a") == mids
    assert list(place.engine.queues()) == ["a"]
    place.queue("b")
    assert place.mids("b") == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_new_queue_and_a_push_in_a_batch_that_is_refused(place: Place, error: int) -> None:
    """Nor has a push happened when the name of a queue that was made in its batch could not be made durable."""
    place.queue("a")
    place.engine.create("b", Options())
    place.ask_push("a", b"refused")
    place.disk.refuse("fsync", os.fspath(place.root), error)
    with pytest.raises(OSError, match=os.strerror(error)):
        place.engine.commit()
    place.disk.disarm()
    place.engine.commit()
    assert place.mids("a") == []
    mids = place.push("a", b"new")
    others = place.push("b", b"other")
    place.crash()
    assert (place.mids("a"), place.mids("b")) == (mids, others)


@pytest.mark.parametrize("back", [False, True])
def test_a_queue_is_made_while_a_checkpoint_is_written(place: Place, back: bool) -> None:
    """A start from the checkpoint, which has none of the queue's messages but knows with whom it shares some, can read
    the copies. back: whether the first copy goes from the new queue to another one."""
    place.queue("a")
    mids = place.push("a", b"x", b"y")
    store = place.engine._journal.store
    assert store is not None
    snapshot = Snapshot(store, place.engine._journal.queues.values())
    place.queue("b", "c")
    if back:
        place.clock.now += 10
        [mid] = place.push("b", b"z")
        place.engine.copy("b", mid, ["a"])
    place.engine.copy("a", mids[1], ["b", "c"])
    place.engine.commit()
    while not snapshot.step():
        pass
    snapshot.publish()
    place.crash()
    assert place.payloads("a") == [b"x", b"y", *[b"z"] * back]
    assert place.payloads("b") == [b"y", *[b"z"] * back]
    assert place.payloads("c") == [b"y"]
