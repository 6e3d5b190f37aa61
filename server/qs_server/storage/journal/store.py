"""The state that the queues of one log share: the log itself, payloads, space, and how to take back what failed.

A batch of changes is either in the log as a whole or, when its commit fails, taken back as a whole: what was answered
is true, and nothing else is.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..engine import Origin
from ..index.midmap import MidMap
from . import records
from .cache import PayloadCache
from .log_interface import RecordLog
from .places import Position
from .usage import Usage

SLICE = 0.002
"""Seconds that a slice of compaction or of a checkpoint takes, about."""


def record_size(size: int) -> int:
    """Bytes of a message's record, about. size: of its payload."""
    return size + records.PUSH_SIZE


State = tuple[int, int, bool]
"""The state of a message: receives, hidden until (0: visible), and whether that is a delay."""
READY: State = (0, 0, False)


class Holder(Protocol):
    """A queue, as far as a store knows it."""

    number: int
    places: MidMap
    origins: dict[int, Origin]

    def state_of(self, mid: int, /) -> tuple[int, int, bool]: ...


class PayloadReader(Protocol):
    """Reads payloads that are not in memory any more."""

    def payload(self, place: int, /) -> bytes:
        """Returns the payload of the record at a place. DamagedRecordError, OSError."""

    def forget(self, segment: int, /) -> None:
        """Closes the file of a segment that is removed."""

    def close(self) -> None:
        """Closes all files."""


class Store:
    """One log and its queues."""

    def __init__(self, log: RecordLog, reader: PayloadReader, cache: int) -> None:
        """cache: bytes of payloads in memory."""
        self.log = log
        self._links = log.segments.links
        self.log.commit_batch = self.commit_early
        self.cache = PayloadCache(cache)
        self.reader = reader
        self.usage = Usage()
        self.checkpointed: Position | None = None
        """The position of the last checkpoint that was begun or read."""
        self.undo: list[tuple[Any, ...]] = []
        """The calls that take back the changes of this batch: functions and arguments, in the order of the changes."""
        self.tables: dict[int, Holder] = {}
        """The queues, by their numbers."""
        self.committed_early: Callable[[], None] = lambda: None
        """Called after a commit in the middle of a batch."""
        self.rollbacks = 0
        """The number of times that changes were taken back."""
        self.families: dict[int, set[int]] = {}
        """The queues that may have payloads of each queue's records, which may be gone itself: see `leave`."""
        self._gone: dict[int, int] = {}  # numbers of queues that are gone: the last segment that may have their records
        self.keyed: set[Any] = set()
        """The keys of the queues that know any, perhaps old ones."""
        self._failure: OSError | None = None

    # -- commits --------------------------------------------------------------------------------------------------

    def commit(self, *, notes: bool = False) -> None:
        """Makes durable what was changed since the last commit. notes: see Log.commit. OSError: all of it has been
        taken back."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.roll_back()
            raise failure
        try:
            self.log.commit(notes=notes)
        except OSError:
            self.roll_back()
            raise
        self.undo.clear()
        if self.cache.size > self.cache.limit:
            self.cache.trim()

    def commit_early(self) -> None:
        """Commits in the middle of a batch. When that fails, the batch's own commit fails too. OSError."""
        changed = bool(self.undo) or self._failure is not None
        try:
            self.commit(notes=True)
        except OSError as error:
            self._failure = error if changed else None
            raise
        self.committed_early()

    def roll_back(self) -> None:
        """Takes back the changes since the last commit."""
        self._failure = None
        self.rollbacks += 1
        self.log.discard()
        undo, self.undo = self.undo, []
        for function, *arguments in reversed(undo):
            function(*arguments)
        self.undo.clear()

    def make_room_for_notes(self, count: int = 1) -> None:
        """Has room for the records of so many receives, if there is any: on a full disk the notes are not written.
        OSError: what was changed before could not be committed and is taken back; who has looked must look again."""
        size = count * records.SMALL
        if self.log.left_to_pushes < size:
            try:
                self.log.reserve(size, push=True)
            except OSError:
                if self._failure is not None:
                    raise

    # -- payloads -------------------------------------------------------------------------------------------------

    def payload(self, place: int) -> bytes:
        """The payload of the record at a place. DamagedRecordError, OSError."""
        payload = self.cache.get(place)
        if payload is None:
            payload = self.log.unwritten.get(place)
        return self.reader.payload(place) if payload is None else payload

    def drop(self, queue: Holder, mid: int, place: int, size: int) -> None:
        """A queue does not need a payload any more. size: its bytes."""
        self.refer(queue, place)
        if not self.families or not self._is_shared(queue, mid, place):
            self.usage.drop(place, size + records.PUSH_SIZE)
            self.cache.drop(place)

    def refer(self, queue: Holder, place: int) -> None:
        """Notes that a record has just been appended, or read, about a message. place: of its payload. If the message
        is a copy, other records say that it is there."""
        if self.families and queue.number in self.families:
            self._links.widen()
        elif place >> 32 != self._links.segment:
            self._links.note(place)

    def refer_all(self, queue: Holder, places: Iterable[int | None]) -> None:
        """Notes the same of several messages."""
        if self.families and queue.number in self.families:
            self._links.widen()
        else:
            self._links.note_all(places)

    def keep(self, queue: Holder, mid: int, place: int, size: int) -> None:
        """Takes back `drop`."""
        if not self._is_shared(queue, mid, place):
            self.usage.add(place, record_size(size))

    def _is_shared(self, queue: Holder, mid: int, place: int) -> bool:
        if queue.number not in self.families:
            return False
        return any(sharer.number != queue.number for sharer in self.sharers(queue.number, mid, place))

    def sharers(self, number: int, mid: int, place: int) -> Iterable[Holder]:
        """The queues that have a message with the payload at a place, of those that share payloads with a queue."""
        for each in self.families.get(number, (number,)):
            queue = self.tables.get(each)
            if queue is not None and queue.places.get(mid) == place:
                yield queue

    def join(self, one: int, other: int) -> None:
        """Two queues may share payloads from now on: a copy keeps its id."""
        own = self.families.get(one, {one})
        if other in own:
            return
        joined = self.families.get(other, {other})
        family = own | joined
        for number, known in list(self.families.items()):
            if known is own or known is joined:
                self.families[number] = family
        for number in family:
            self.families[number] = family

    def leave(self, number: int) -> None:
        """A queue is gone. Copies of its messages may still need the payloads of its records."""
        self.tables.pop(number, None)
        family = self.families.get(number)
        if family is not None:
            family.discard(number)
            if not family:
                del self.families[number]

    def forget(self, segment: int) -> None:
        """Forgets what only a segment had, as it is removed, and queues that are gone with all their records."""
        self.usage.forget(segment)
        self.reader.forget(segment)
        self.cache.forget(segment)
        for number in self.families.keys() - self.tables.keys():
            if self._gone.setdefault(number, self.log.number) < (self.log.segments.oldest or 0):
                del self.families[number], self._gone[number]

    def reset(self) -> None:
        """Forgets what was read of a log at a start, to read it in another way."""
        self.usage = Usage()
        self._links.clear()
        self.families.clear()
        self._gone.clear()
        self.keyed.clear()
        self.tables.clear()
        self.undo.clear()

    def close(self) -> None:
        """Lets go of the files."""
        self.reader.close()
        self.log.close()
