"""Makes the index of a log as a start does: from the checkpoint, if it is valid, and the segments after it."""

import struct
from collections.abc import Callable
from itertools import chain
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from ...disk import Disk
from ..log.frames import Header
from ..log.opening import Applier, Found, Opened, find_segments
from ..log.places import Position, place_of, segment_of
from ..queues.replay import Replay
from ..queues.state import QueueState
from ..queues.store import Store
from .checkpoint import BadCheckpointError, CheckpointReader
from .snapshot import read_snapshot

Q = TypeVar("Q", bound=QueueState)


class Open(Protocol):
    """Applies the records of segments: `open_log`, or `read_log`, which changes nothing on disk."""

    def __call__(
        self, directory: str, disk: Disk, found: Found, applier: Applier, begin: Position | None = None, /
    ) -> Opened: ...


class Read(NamedTuple, Generic[Q]):
    """An index that was read. begin: where the checkpoint ends, None if it was not used; ignored: why a checkpoint that
    is there cannot be used."""

    replay: Replay[Q]
    opened: Opened
    begin: Position | None
    ignored: str | None = None


class IndexReader(Generic[Q]):
    """Reads the index of one log."""

    def __init__(self, directory: str, disk: Disk, store: Store, find: Callable[[str], Q], open_: Open) -> None:
        """directory: of the log; store: filled; find: returns the queue of a name, the same one each time unless it was
        removed meanwhile."""
        self._directory = directory
        self._disk = disk
        self._store = store
        self._find = find
        self._open = open_
        self._made: list[Q] = []

    def read(self, now: int, *, with_checkpoint: bool = True) -> Read[Q]:
        """Reads the index. now: microseconds since the Epoch; with_checkpoint: False to read all segments.
        JournalDamagedError, OSError."""
        found = find_segments(self._directory, self._disk)
        if not with_checkpoint:
            return self._read_segments(found, now)
        replay = Replay(self._make, now)
        try:
            begin = self._read_checkpoint(replay, {scan.header.number: scan.header for scan in found.needed}, now)
            opened = self._open(self._directory, self._disk, found, replay, begin)
            if begin is not None:
                _require_segments(self._store, opened)
            _forget_gone(self._store, opened)
        except BadCheckpointError as error:
            self._forget()
            return self._read_segments(found, now)._replace(ignored=str(error))
        return Read(replay, opened, begin)

    def _make(self, qid: str, number: int) -> Q:
        """Makes a queue that the log names."""
        queue = self._find(qid)
        queue.begin(number)
        self._made.append(queue)
        return queue

    def _read_segments(self, found: Found, now: int) -> Read[Q]:
        """Replays all segments."""
        replay = Replay(self._make, now)
        opened = self._open(self._directory, self._disk, found, replay)
        _forget_gone(self._store, opened)
        return Read(replay, opened, None)

    def _forget(self) -> None:
        """Forgets what was read so far, so that the segments can be read anew."""
        for queue in self._made:
            queue.reset()
        self._store.reset()

    def _read_checkpoint(self, replay: Replay[Q], headers: dict[int, Header], now: int) -> Position | None:
        """Restores the queues from the checkpoint. Returns its position, None without one. BadCheckpointError."""
        try:
            reader = CheckpointReader(self._directory)
            salts = {int(number): salt for number, salt in reader.content["salts"].items()}
            if any(salts.get(number, header.salt.hex()) != header.salt.hex() for number, header in headers.items()):
                raise BadCheckpointError("it belongs to another journal")
            if reader.position.segment < min(headers, default=0):
                return None  # all that it has was copied since, or is gone
            if reader.position.segment not in headers:
                raise BadCheckpointError("the segment in which it ends is missing")
            replay.queues.update(read_snapshot(reader, replay.make, self._store, now))
        except FileNotFoundError:
            return None
        except (OSError, LookupError, TypeError, ValueError, struct.error) as error:
            raise BadCheckpointError(str(error)) from None
        return reader.position


def _require_segments(store: Store, opened: Opened) -> None:
    """Raises BadCheckpointError if a message is in a segment that is missing."""
    oldest = place_of(opened.headers[0].number, 0)
    for table in cast("dict[int, QueueState]", store.tables).values():
        staged = (place for state in table.batches.producers.values() for place in state.staged_places())
        first = min(chain(staged, *(places for _, places in table.places.pages(-1))), default=oldest)
        if first < oldest:
            raise BadCheckpointError(f"segment {segment_of(first)}, which has messages of it, is missing")


def _forget_gone(store: Store, opened: Opened) -> None:
    """Counts nothing as live in segments that are gone: records may tell of what was there, before its copies follow,
    and not how the messages were related."""
    for segment in store.usage.segments() - {header.number for header in opened.headers}:
        store.usage.empty(segment)
