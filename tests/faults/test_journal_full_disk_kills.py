"""A journal that is killed while its disk is full: the next start serves deletes and releases, without a free byte."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.storage.crashing import segments_of
from support.storage.small_engine import SEGMENT, SmallEngine

from qs_storage.engine import SECOND, Draft, Options, Receipt, State
from qs_storage.journal.log.frames import FRAME_HEAD
from qs_storage.journal.log.log import Log

HOUR = 3600 * SECOND
LOTS = 10**6
KILLS = 3
"""How often a server is killed in turn, each time when it has just begun a segment."""
PLACES = 5
"""The most segments at whose beginning the first server is killed, each time in another copy."""
SIZES = {
    "even": ((SEGMENT, SEGMENT), (SEGMENT, SEGMENT)),
    "growing": ((SEGMENT // 4, SEGMENT), (SEGMENT // 4, SEGMENT)),
    "small then large": ((SEGMENT // 4, SEGMENT // 4), (SEGMENT, 2 * SEGMENT)),
    "large then small": ((SEGMENT, 2 * SEGMENT), (SEGMENT // 4, SEGMENT // 4)),
}
"""Bytes of the first and of the largest segments: of the server that wrote the oldest ones, and of the others."""


@contextmanager
def watching(begun: Callable[[], None]) -> Iterator[None]:
    """Calls a function whenever a segment has just been begun."""
    begin = Log.begin_segment

    def begin_segment(*args: object) -> None:
        begin(*args)  # type: ignore[arg-type]
        begun()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "begin_segment", begin_segment)
        yield


def release_all(small: SmallEngine) -> None:
    """Receives and releases each message, in a batch of its own."""
    for mid in small.queue.list_mids(State.ALL, LOTS, -1):
        small.engine.begin_batch()
        assert small.queue.take(mid, HOUR) is not None
        small.queue.release(Receipt(mid), 0, count=False)
        small.engine.commit()


def delete_all(small: SmallEngine, *, newest_first: bool) -> None:
    """Deletes each message, in a batch of its own."""
    mids = small.queue.list_mids(State.ALL, LOTS, -1)
    for mid in reversed(mids) if newest_first else mids:
        small.engine.begin_batch()
        small.queue.delete(Receipt(mid))
        small.engine.commit()


def fill_disk(root: Path, sizes: str, segments: int, monkeypatch: pytest.MonkeyPatch) -> SmallEngine:
    """Fills the disk, with a start in between."""
    old, new = SIZES[sizes]
    root.mkdir()
    segments_of(monkeypatch, *old)
    small = SmallEngine(root, segments // 2)
    small.fill()
    small.close()
    segments_of(monkeypatch, *new)
    small.start()
    small.disk.capacity = segments * SEGMENT
    small.fill()
    return small


def serve_and_kill(root: Path, following: Path) -> None:
    """Starts on a disk without a free byte, and releases and deletes all messages. following: what a kill would leave
    when the first segment has just been begun."""
    small = SmallEngine(root, None)

    def keep() -> None:
        if not following.exists():
            shutil.copytree(root, following)

    with watching(keep):
        release_all(small)
        delete_all(small, newest_first=False)
    small.close()


@pytest.mark.parametrize("newest_first", [False, True], ids=["oldest first", "newest first"])
@pytest.mark.parametrize("segments", [8, 16])
@pytest.mark.parametrize("sizes", list(SIZES))
def test_kill_after_a_segment_was_begun_refuses_no_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: str, segments: int, newest_first: bool
) -> None:
    """A consumer deletes on a full disk. At each segment that is begun for that, the server is killed; so are those
    that follow, when they have begun their first one. Each of them serves all releases and deletes that come."""
    small = fill_disk(tmp_path / "full", sizes, segments, monkeypatch)
    killed: list[Path] = []

    def keep() -> None:
        if len(killed) < PLACES:
            killed.append(tmp_path / f"killed {len(killed)}")
            shutil.copytree(small.root, killed[-1])

    with watching(keep):
        delete_all(small, newest_first=newest_first)
    small.close()
    assert killed
    for root in killed:
        for kill in range(KILLS):
            following = tmp_path / f"{root.name}, then {kill}"
            serve_and_kill(root, following)
            if not following.exists():
                break
            root = following  # noqa: PLW2901


def kill(small: SmallEngine) -> SmallEngine:
    """Returns the engine that follows, on a disk without a free byte."""
    small.close()
    return SmallEngine(small.root, None)


def test_start_in_old_segment_drops_frames_behind_a_torn_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start cuts off a torn frame, and the whole one behind it. Then it writes a frame that ends where that one
    begins, which must not count again."""
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, 8)
    first, second, *others = small.fill()
    small = kill(small)
    small.engine.begin_batch()
    log = small.engine._journal.open().log
    writer = log.writer
    assert writer is not None
    assert not writer.header.recycled  # else a block of zeros would follow each frame
    torn = writer.end
    for mid in (first, second):
        small.queue.delete(Receipt(mid))
        small.engine.commit()
    with open(writer.path, "r+b") as file:
        file.seek(torn + FRAME_HEAD)
        file.write(b"\xff" * 8)
    small = kill(small)
    assert small.queue.list_mids(State.ALL, LOTS, -1) == [first, second, *others]
    small.engine.begin_batch()
    small.queue.delete(Receipt(first))
    small.engine.commit()
    assert small.engine._journal.open().log.number == log.number
    small = kill(small)
    assert small.queue.list_mids(State.ALL, LOTS, -1) == [second, *others]
    small.close()


def test_start_in_old_segment_names_new_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill leaves the directory of a queue that the log does not name yet. The start that goes on in the last segment
    names it there, before any message of it."""
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, 8)
    mids = small.fill()
    small.engine.create("new", Options("journal"))
    small = kill(small)
    number = small.engine._journal.open().log.number
    small.engine.begin_batch()
    small.queue.delete(Receipt(mids[0]))
    small.engine.commit()
    assert small.engine._journal.open().log.number == number
    small.disk.capacity *= 2
    small.rest()
    [mid] = small.engine.queue("new").push([Draft(b"x")])
    small.engine.commit()
    small = kill(small)
    assert small.queue.list_mids(State.ALL, LOTS, -1) == mids[1:]
    assert small.engine.queue("new").list_mids(State.ALL, LOTS, -1) == [mid]
    small.close()
