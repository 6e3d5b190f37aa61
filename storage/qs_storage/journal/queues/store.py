"""The state that the queues of one log share: the log, payloads, live bytes, and the undo list.

A batch of changes is either committed or taken back as a whole. Answers are sent after the commit, so they are true.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Protocol

from ...engine import Origin
from ...index.midmap import MidMap
from ..log import records
from ..log.cache import PayloadCache
from ..log.claim_records import Staged
from ..log.log_interface import RecordLog
from ..log.places import SHIFT, Position, segment_of
from .usage import Usage

KEYS = 800_000
"""The default for the most keys of pushes in memory: each takes some 300 bytes, so some 240 MB."""
SLICE = 0.002
"""Approximate seconds of a slice of compaction or of a checkpoint."""


def record_size(size: int) -> int:
    """Returns the approximate bytes of a message's record. size: bytes of its payload."""
    return size + records.PUSH_SIZE


def reason_size(reason: str) -> int:
    """Returns the bytes of a REASON record, which is copied with its message."""
    return records.STATE_SIZE + len(reason.encode())


State = tuple[int, int, bool]
"""The state of a message: receives, time until which it is hidden (0: visible), True if that is a delay."""
READY: State = (0, 0, False)


class Holder(Protocol):
    """The part of a queue's message table that a store uses."""

    number: int
    places: MidMap
    origins: dict[int, Origin]
    reasons: dict[int, str]

    id_of_staged: Callable[[Staged], int | None]

    def state_of(self, mid: int, /) -> tuple[int, int, bool]: ...


class PayloadReader(Protocol):
    """Reads payloads that are not in memory: see `Reader`."""

    def payload(
        self,
        place: int,
        number: int,
        mid: int,
        families: Mapping[int, Container[int]],
        published: Callable[[Staged], int | None],
        /,
    ) -> bytes: ...

    def forget(self, segment: int, /) -> None: ...

    def close(self) -> None: ...


class Store:
    """One log and its queues."""

    def __init__(self, log: RecordLog, reader: PayloadReader, cache: int, keys: int = KEYS) -> None:
        """cache: the most bytes of payloads in memory; keys: the most keys of pushes."""
        self.log = log
        self._links = log.segments.links
        self.log.commit_batch = self.commit_early
        self.cache = PayloadCache(cache)
        self.reader = reader
        self.usage = Usage()
        self.checkpointed: Position | None = None
        """The position of the last checkpoint that was begun or read."""
        self.undo: list[tuple[Any, ...]] = []
        """The calls that take back this batch, (function, *arguments), in the order of the changes."""
        self.tables: dict[int, Holder] = {}
        """The message tables of the queues, by the queues' numbers."""
        self.committed_early: Callable[[], None] = lambda: None
        """Called after a commit in the middle of a batch."""
        self.rollbacks = 0
        """How often changes were taken back."""
        self.families: dict[int, set[int]] = {}
        """For each queue number, the queues that may share payloads with it. A removed queue keeps its entry while its
        records exist: see `leave`."""
        self.is_starting = True
        """True while a start reads the log: only at its end it is known which payloads several queues have."""
        self._copied: dict[int, set[int]] = {}
        """For each segment, the places of payloads that several queues have, or once had: most have never been copied,
        and then a queue need not ask the thousands that it has shared other payloads with."""
        self._gone: dict[int, int] = {}  # for removed queues: the last segment that may have their records
        self.keyed: set[Any] = set()
        """The `Keys` of each queue that has any."""
        self.key_count = 0
        """How many keys all of them have."""
        self.most_keys = keys
        self._failure: OSError | None = None

    # -- commits --------------------------------------------------------------------------------------------------

    def commit(self, *, notes: bool = False) -> None:
        """Makes the changes since the last commit durable. notes: see Log.commit. OSError: all are taken back."""
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
        """Commits in the middle of a batch. OSError: then the batch's own commit fails too."""
        changed = bool(self.undo) or self._failure is not None
        try:
            self.commit(notes=True)
        except OSError as error:
            self._failure = error if changed else None
            raise
        self.committed_early()

    def roll_back(self) -> None:
        self._failure = None
        self.rollbacks += 1
        self.log.discard()
        undo, self.undo = self.undo, []
        for function, *arguments in reversed(undo):
            function(*arguments)
        self.undo.clear()

    def make_room_for_notes(self, count: int = 1) -> None:
        """Reserves room for `count` notes; without it, they are not written. OSError: earlier changes of the batch
        could not be committed and are taken back, so the caller must read the state again."""
        size = count * records.SMALL
        if self.log.left_to_pushes < size:
            try:
                self.log.reserve(size, push=True)
            except OSError:
                if self._failure is not None:
                    raise

    # -- payloads -------------------------------------------------------------------------------------------------

    def payload(self, number: int, mid: int, place: int) -> bytes:
        """Returns the payload of a message. number: of its queue; place: of the record with its payload. OSError;
        DamagedRecordError: that record cannot be read, or is another message's."""
        payload = self.cache.get(place)
        if payload is None:
            payload = self.log.unwritten.get(place)
        if payload is not None:
            return payload
        return self.reader.payload(place, number, mid, self.families, self._id_of_staged)

    def _id_of_staged(self, record: Staged) -> int | None:
        """Returns the id of the message that a staged record has become. None if that is not known any more, as the
        queue is removed and only copies of the message are left."""
        table = self.tables.get(record.number)
        return None if table is None else table.id_of_staged(record)

    def drop(self, queue: Holder, mid: int, place: int, size: int) -> None:
        """Releases the payload of a message that a queue removes. size: bytes of the payload."""
        self.refer(queue, place)
        if not self.families or not self._is_shared(queue, mid, place):
            self.usage.drop(place, size + records.PUSH_SIZE)
            self.cache.drop(place)

    def refer(self, queue: Holder, place: int) -> None:
        """Notes a record, just appended or read, about the message with its payload at a place: see `Links`."""
        if self.families and queue.number in self.families:
            self._links.widen()  # a copy of a message is in another segment than its payload
        elif place >> SHIFT != self._links.segment:
            self._links.note(place)

    def refer_all(self, queue: Holder, places: Iterable[int | None]) -> None:
        """Notes a record about several messages: see `refer`."""
        if self.families and queue.number in self.families:
            self._links.widen()
        else:
            self._links.note_all(places)

    def keep(self, queue: Holder, mid: int, place: int, size: int) -> None:
        """Counts the payload of a message that a queue has (again)."""
        if not self._is_shared(queue, mid, place):
            self.usage.add(place, record_size(size))

    def _is_shared(self, queue: Holder, mid: int, place: int) -> bool:
        if not self.is_starting and place not in self._copied.get(segment_of(place), ()):
            return False
        for number in self.families.get(queue.number, ()):
            other = self.tables.get(number)
            if other is not None and other is not queue and other.places.get(mid) == place:
                self.note_copied(place)
                return True
        return False

    def note_copied(self, place: int) -> None:
        """Notes that several queues have the payload at a place."""
        self._copied.setdefault(segment_of(place), set()).add(place)

    def sharers(self, number: int, mid: int, place: int) -> Iterable[Holder]:
        """Returns the tables that have a message with its payload at a place. number: of one of the queues."""
        found: list[Holder] = []  # a queue with several numbers counts once: see `IndexReader`
        for each in self.families.get(number, (number,)):
            queue = self.tables.get(each)
            if queue is not None and queue not in found and queue.places.get(mid) == place:
                found.append(queue)
        return found

    def join(self, one: int, other: int) -> None:
        """Notes that two queues share payloads from now on; a shared message has the same id in both."""
        own = self.families.get(one, {one})
        if other in own:
            return
        joined = self.families.get(other, {other})
        fewer, family = (own, joined) if len(own) < len(joined) else (joined, own)
        family |= fewer  # not a new set: a message is copied to thousands of queues, one after the other
        if (one if fewer is own else other) in self.families:  # else no other entry has the smaller set
            for number in [number for number, known in self.families.items() if known is fewer]:
                self.families[number] = family
        self.families[one] = self.families[other] = family

    def leave(self, number: int) -> None:
        """Forgets a removed queue, except its family: copies of its messages may need its payloads."""
        self.tables.pop(number, None)
        family = self.families.get(number)
        if family is not None:
            family.discard(number)
            if not family:
                del self.families[number]

    def forget(self, segment: int) -> None:
        """Forgets a removed segment, and the removed queues that have no records left."""
        self.usage.forget(segment)
        self._copied.pop(segment, None)
        self.reader.forget(segment)
        self.cache.forget(segment)
        for number in self.families.keys() - self.tables.keys():
            if self._gone.setdefault(number, self.log.number) < (self.log.segments.oldest or 0):
                del self.families[number], self._gone[number]

    def reset(self) -> None:
        """Forgets all that a start has read, so that the log can be read again."""
        self.usage = Usage()
        self._links.clear()
        self.families.clear()
        self._gone.clear()
        self._copied.clear()
        self.keyed.clear()
        self.key_count = 0
        self.tables.clear()
        self.undo.clear()

    def close(self) -> None:
        self.reader.close()
        self.log.close()
