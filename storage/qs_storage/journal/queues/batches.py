"""Batches of a queue's producers: staged part by part, published as a whole, and never twice.

Staged payloads stay in place in the log: publishing appends one record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...engine import BatchOrderError, Clock, NoSuchPartError, Options
from ...names import check_name, quoted
from ...policy import require_room
from ..log import records
from ..log.claim_records import EMPTY, Published, Staged
from ..log.places import segment_of
from .store import READY, Store, record_size

Name = tuple[int, int, int]
"""Identifies an attempt at a part: batch, part, attempt."""


class Publishing(Protocol):
    """The part of a queue's message table that batches use."""

    qid: str
    number: int
    options: Options

    def __len__(self) -> int: ...
    def free_ids(self, count: int, now: int, /) -> range: ...
    def push_run(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int], /) -> None: ...
    def saw(self, mid: int, /) -> None: ...
    def is_newer(self, mid: int, place: int, /) -> bool: ...
    def restore(self, mid: int, place: int, size: int, state: tuple[int, int, bool], /) -> None: ...


class Publication:
    """A published batch. Maps its staged records to their messages' ids."""

    __slots__ = ("_firsts", "place", "record")

    def __init__(self, place: int, record: Published) -> None:
        self.place = place
        self.record = record
        self._firsts: dict[tuple[int, int], int] = {}
        first = record.first
        for number, attempt, count in record.parts:
            self._firsts[number, attempt] = first
            first += count

    def id_of(self, staged: Staged) -> int | None:
        """Returns the id of a staged record's message, None if its part was not published."""
        first = self._firsts.get((staged.part, staged.attempt))
        return None if first is None else first + staged.position


@dataclass(slots=True)
class Producer:
    """The state of a producer. last: its last published batch, -1: none; place: of that PUBLISHED record; staged:
    (place, size) of each attempt's messages by position; publications: by batch, those whose staged records may still
    be in the log."""

    last: int = -1
    place: int = 0
    staged: dict[Name, dict[int, tuple[int, int]]] = field(default_factory=dict)
    publications: dict[int, Publication] = field(default_factory=dict)


class LogBatches:
    """Stages and publishes the batches of one queue. Every method may raise OSError, and BadQueueNameError for the
    producer's name."""

    def __init__(self, table: Publishing, store: Store, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._store = store
        self.producers: dict[str, Producer] = {}

    def stage(self, producer: str, name: Name, payloads: Sequence[bytes]) -> None:
        """Adds invisible messages to an attempt at a part of a batch. Does nothing if the batch is published."""
        check_name("producer", producer)
        state = self.producers.setdefault(producer, Producer())
        if name[0] <= state.last:
            return
        template = Staged(self._table.number, *name, EMPTY, producer, b"")
        size = len(template.body()) + records.HEAD.size
        self._store.log.reserve(sum(map(len, payloads)) + max(len(payloads), 1) * size, push=True)
        part = state.staged.get(name)
        if part is None:
            part = state.staged[name] = {}
            self._store.undo.append((state.staged.pop, name, None))
            if not payloads:
                self._append(template)
        first = len(part)
        for position, payload in enumerate(payloads, first):
            place = self._append(template._replace(position=position, payload=payload))
            part[position] = place, len(payload)
            self._store.undo.append((part.pop, position, None))
            self._count(place, len(payload))

    def _append(self, record: Staged) -> int:
        body = record.body()
        self._store.log.reserve(records.HEAD.size + len(body) + len(record.payload), push=True)
        return self._store.log.append(body, record.payload)

    def _count(self, place: int, size: int) -> None:
        self._store.usage.add(place, record_size(size))
        self._store.undo.append((self._store.usage.drop, place, record_size(size)))

    def publish(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> None:
        """Makes the messages of these parts (number, attempt) visible, in the order of the numbers, and drops all
        others staged up to this batch. Does nothing if this batch or a later one is published, or without parts.
        BatchOrderError if a batch before this one is missing, NoSuchPartError, QueueFullError."""
        check_name("producer", producer)
        state = self.producers.get(producer, Producer())
        if batch <= state.last:
            return
        # A number by mistake would make the producer's later batches "published" for good: nobody would get them.
        greatest = max(0, state.last, *(name[0] for name in state.staged))
        if batch > greatest + 1:
            raise BatchOrderError(
                f"batch {batch} of producer {quoted(producer)} on queue {self._table.qid!r} is more than one "
                f"past the greatest that was staged or published: {greatest + 1} is the greatest to publish now"
            )
        if not parts:
            return
        parts = sorted(parts)
        for number, attempt in parts:
            if (batch, number, attempt) not in state.staged:
                raise NoSuchPartError(
                    f"producer {quoted(producer)} has not staged part {number} of batch {batch}, attempt {attempt}, on "
                    f"queue {self._table.qid!r}"
                )
        counted = [(number, attempt, len(state.staged[batch, number, attempt])) for number, attempt in parts]
        count = sum(each for _, _, each in counted)
        require_room(self._table.qid, self._table.options.capacity, self._table.__len__, count)
        mids = self._table.free_ids(count, self._clock())
        record = Published(self._table.number, batch, mids.start, producer, counted)
        body = record.body()
        self._store.log.reserve(records.HEAD.size + len(body))
        place = self._store.log.append(body)
        before = state.last, state.place, dict(state.staged)
        self._store.undo.append((self._unpublish, state, before))
        self._add_messages(state, record, place)

    def _add_messages(self, producer: Producer, record: Published, place: int) -> None:
        """Adds the published messages to the queue, and drops the other staged ones."""
        mid = record.first
        mids: list[int] = []
        published: list[tuple[int, int]] = []
        for number, attempt, count in record.parts:
            staged = producer.staged.pop((record.batch, number, attempt), {})
            mids += [mid + position for position in sorted(staged)]
            published += [staged[position] for position in sorted(staged)]
            mid += count
        self._set_last(producer, record, place)
        if mids:
            self._store.undo.append((self._stage_again, published))
            self._table.push_run(mids, [where for where, _ in published], [size for _, size in published])
            self._table.saw(mids[-1])

    def _stage_again(self, published: Sequence[tuple[int, int]]) -> None:
        """Counts the live bytes of messages, (place, size), whose publication is taken back."""
        for where, size in published:
            self._store.usage.add(where, record_size(size))

    def _set_last(self, producer: Producer, record: Published, place: int) -> None:
        """Makes a batch the producer's last one, and drops messages staged for it or earlier ones."""
        for name in [name for name in producer.staged if name[0] <= record.batch]:
            for where, size in producer.staged.pop(name).values():
                self._store.usage.drop(where, record_size(size))
                self._store.undo.append((self._store.usage.add, where, record_size(size)))
        producer.last, producer.place = record.batch, place
        if record.parts:
            producer.publications[record.batch] = Publication(place, record)

    def _unpublish(self, producer: Producer, before: tuple[int, int, dict[Name, dict[int, tuple[int, int]]]]) -> None:
        producer.last, producer.place, producer.staged = before
        producer.publications = {batch: each for batch, each in producer.publications.items() if batch <= producer.last}

    def clear(self) -> None:
        """Drops all staged messages, as the queue is removed."""
        for state in self.producers.values():
            for part in state.staged.values():
                for where, size in part.values():
                    self._store.usage.drop(where, record_size(size))
        self.producers.clear()

    # -- a start, and compaction ----------------------------------------------------------------------------------

    def restore(self, place: int, record: Staged) -> None:
        state = self.producers.setdefault(record.producer, Producer())
        if record.batch <= state.last:
            return
        part = state.staged.setdefault((record.batch, record.part, record.attempt), {})
        if record.position == EMPTY:
            return
        if record.position in part:
            self._store.usage.drop(part[record.position][0], record_size(part[record.position][1]))
        part[record.position] = place, len(record.payload)
        self._store.usage.add(place, record_size(len(record.payload)))

    def restore_publication(self, place: int, record: Published) -> None:
        """Replays a PUBLISHED record. Restores the messages that are where they were staged; others were copied and
        have their own records."""
        state = self.producers.setdefault(record.producer, Producer())
        if record.batch < state.last or (record.batch == state.last and record.parts):
            return
        mid = record.first
        for number, attempt, count in record.parts:
            for position, (where, size) in state.staged.pop((record.batch, number, attempt), {}).items():
                self._store.usage.drop(where, record_size(size))
                if self._table.is_newer(mid + position, place):
                    self._table.restore(mid + position, where, size, READY)
            mid += count
        self._set_last(state, record, place)

    def move(self, place: int, record: Staged) -> bool:
        """Copies a staged record to the end of the log. Returns False if no staged message is at that place.
        OSError."""
        state = self.producers.get(record.producer)
        part = None if state is None else state.staged.get((record.batch, record.part, record.attempt))
        if part is None or part.get(record.position, (None, 0))[0] != place:
            return False
        moved = self._append(record), len(record.payload)
        self._store.undo.append((part.__setitem__, record.position, part[record.position]))
        part[record.position] = moved
        self._count(*moved)
        self._store.usage.drop(place, record_size(moved[1]))
        self._store.undo.append((self._store.usage.add, place, record_size(moved[1])))
        return True

    def id_of(self, record: Staged) -> int | None:
        """Returns the id of a staged record's message, None if it was not published."""
        state = self.producers.get(record.producer)
        publication = None if state is None else state.publications.get(record.batch)
        return None if publication is None else publication.id_of(record)

    def carry(self, segment: int) -> None:
        """Copies the needed records in the segments up to this one to the end of the log. OSError."""
        for producer, state in self.producers.items():
            if state.last >= 0 and segment_of(state.place) <= segment:
                body = Published(self._table.number, state.last, 0, producer, ()).body()
                self._store.log.reserve(records.HEAD.size + len(body))
                self._store.undo.append((setattr, state, "place", state.place))
                state.place = self._store.log.append(body)
            for name in [name for name, part in state.staged.items() if not part]:
                self._append(Staged(self._table.number, *name, EMPTY, producer, b""))

    def forget_publications(self, segment: int) -> None:
        """Forgets publications in segments up to this one: their staged records are gone too."""
        for state in self.producers.values():
            state.publications = {
                batch: each for batch, each in state.publications.items() if segment_of(each.place) > segment
            }
