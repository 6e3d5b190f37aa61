"""A disk that fails at any file operation while room is secured for the next batch: what is answered holds, and what is
refused has not happened."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.storage.engines import FaultyDisk, JournalEngine, ManualClock

from qs_storage.engine import Draft, Durability, NoRoomError, Options, Receipt, State
from qs_storage.journal.log import pool

SIZE = 900
MOST = 400
"""Bound on the messages that a test pushes, and on the file operations of one batch."""


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, size in (("FIRST_SEGMENT", 24576), ("LARGEST_SEGMENT", 24576), ("SMALLEST", 4096)):
        monkeypatch.setattr(pool, name, size)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Room:
    """An engine, and what it has answered for: the payloads that are in its queue, by id."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root, self.disk, self.clock = str(root), FaultyDisk(), ManualClock()
        self.held: dict[int, bytes] = {}
        self.asked: dict[int, bytes] = {}
        """What was to be in the queue after the last batch."""
        self.engine = self.open()
        self.engine.create("q", Options())
        self.engine.commit()

    def open(self) -> JournalEngine:
        return JournalEngine(self.root, clock=self.clock, durability=Durability.ALWAYS, disk=self.disk, cache=0)

    def crash(self) -> None:
        """Ends the process as it is, and starts another one."""
        self.disk.disarm()
        self.disk.crash()
        self.engine._watch.close()
        self.engine = self.open()

    def push(self) -> dict[int, bytes]:
        """Pushes a message of a batch. Returns what there is then."""
        self.clock.tick()
        payload = (b"%d." % self.clock.now).ljust(SIZE, b".")
        [mid] = self.engine.queue("q").push([Draft(payload)])
        return {**self.held, mid: payload}

    def delete(self) -> dict[int, bytes]:
        """Deletes the newest message. Returns what there is then."""
        mid = max(self.held)
        self.engine.queue("q").delete(Receipt(mid))
        return {each: payload for each, payload in self.held.items() if each != mid}

    def do(self, change: Callable[[], dict[int, bytes]]) -> None:
        self.asked = change()
        self.engine.commit()
        self.held = self.asked

    def shown(self) -> dict[int, bytes | None]:
        queue = self.engine.queue("q")
        return {mid: queue.read(Receipt(mid)).payload for mid in queue.list_mids(State.ALL, MOST * 2, -1)}

    @property
    def looked_after(self) -> int:
        """A number that changes when a segment is begun, or messages are copied."""
        journal = self.engine._journal
        assert journal.store is not None
        assert journal.maintenance is not None
        return journal.store.log.number + journal.maintenance.compaction.total

    def until_room_is_secured(self, change: Callable[[], dict[int, bytes]], stop: int) -> int:
        """Changes something again and again, at most `stop` times. Returns how often, without the time that made room
        for the next batch, if there was one."""
        for number in range(stop):
            before = self.looked_after
            self.do(change)
            if self.looked_after != before:
                return number
        return stop


def full_segment(room: Room, stop: int) -> tuple[int, Callable[[], dict[int, bytes]]]:
    """The next push leaves too little of the segment."""
    return room.until_room_is_secured(room.push, stop), room.push


def full_disk(room: Room, stop: int) -> tuple[int, Callable[[], dict[int, bytes]]]:
    """Pushes are refused, and the next delete makes the oldest segment be compacted."""
    room.disk.free_bytes = lambda path: 0  # type: ignore[method-assign]
    with suppress(NoRoomError):
        for _ in range(MOST):
            room.do(room.push)
    room.engine.commit()
    return room.until_room_is_secured(room.delete, stop), room.delete


def new_start(room: Room, stop: int) -> tuple[int, Callable[[], dict[int, bytes]]]:
    """Crashes and starts again, without a write since the start."""
    for _ in range(5):
        room.do(room.push)
    room.crash()
    return 0, room.push


STATES = {"full segment": full_segment, "full disk": full_disk, "new start": new_start}


@pytest.mark.parametrize(
    ("error", "lasting"), [(errno.ENOSPC, False), (errno.ENOSPC, True), (errno.EDQUOT, False), (errno.EIO, False)]
)
@pytest.mark.parametrize("state", STATES)
def test_every_operation_fails(tmp_path: Path, state: str, error: int, lasting: bool) -> None:
    """Once for each operation: a commit that has written its frame is answered whatever happens to the room of the next
    one. Only of a frame whose own write has an error nobody knows whether it is there."""
    needed, _ = STATES[state](Room(tmp_path / "room"), MOST)
    assert needed < MOST
    answered = 0
    for at in range(1, MOST):
        room = Room(tmp_path / f"{at}")
        _, change = STATES[state](room, needed)
        fails = False
        room.disk.arm(at, error, lasting=lasting)
        try:
            room.do(change)
        except OSError:
            fails = True
            room.engine.roll_back()
        reached, operation = bool(room.disk.failed), room.disk.failed[:1]
        room.disk.disarm()
        answered += not fails
        assert room.shown() == room.held
        room.crash()
        if fails and error == errno.EIO and operation == ["_pwrite"]:
            assert room.shown() in (room.held, room.asked)
            room.held = {mid: payload or b"" for mid, payload in room.shown().items()}
        assert room.shown() == room.held
        if room.held:
            room.do(room.delete)  # which is never refused
            room.crash()
            assert room.shown() == room.held
        room.engine.close()
        if not reached:
            break
    # Nothing is written there before room is secured, and on a full disk not always something after a commit.
    assert answered > (state not in {"new start", "full disk"})


def test_a_file_with_the_frame_of_a_segment_that_was_not_begun(tmp_path: Path) -> None:
    """A file with an old frame counts as a used file: frames in it are followed by zeros."""
    room = Room(tmp_path / "room")
    room.do(room.push)
    made = room.engine._journal.room
    assert made is not None
    assert not any(file.recycled for file in made._pool._files)
    rename = room.disk.rename

    def refuse(old: str, new: str) -> None:
        if new.endswith(".segment"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(old, new)

    room.disk.rename = refuse  # type: ignore[method-assign]
    with suppress(NoRoomError):
        for _ in range(MOST):
            room.do(room.push)
    assert any(file.recycled for file in made._pool._files)


def test_files_of_the_pool_have_names_of_their_own(tmp_path: Path) -> None:
    """Two threads may make files at a time: that of upkeep, and the one that secures room."""
    files = pool.Pool(str(tmp_path), FaultyDisk(), sync=False)
    (tmp_path / "spare-3").write_bytes(bytes(4096))
    files.restore()
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: files.make(4096).path, range(40)))
    assert len({*made, str(tmp_path / "spare-3")}) == 41
