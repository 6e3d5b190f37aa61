"""Batches of a queue's producers: staged part by part, published as a whole, and never twice.

What is staged stands in the log and stays there: publishing is one record, which says that these are messages now.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..capacity import require_room
from ..engine import NoSuchPartError, Options
from ..names import check_name
from . import records
from .claim_records import EMPTY, Published, Staged
from .places import segment_of
from .store import READY, Store, record_size

Name = tuple[int, int, int]
"""Batch, part, attempt."""


class _Table(Protocol):
    number: int

    def __len__(self) -> int: ...
    def is_news(self, mid: int, place: int, /) -> bool: ...
    def restore(self, mid: int, place: int, size: int, state: tuple[int, int, bool], /) -> None: ...


class Publishing(Protocol):
    """The queue, as far as batches know it."""

    qid: str
    options: Options

    @property
    def table(self) -> _Table: ...
    def free_range(self, count: int) -> range: ...
    def add_published(self, mids: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> None: ...


class Publication:
    """A batch that was published, and what its staged records have become."""

    __slots__ = ("_firsts", "place", "record")

    def __init__(self, place: int, record: Published) -> None:
        """place: of the record."""
        self.place = place
        self.record = record
        self._firsts: dict[tuple[int, int], int] = {}
        first = record.first
        for number, attempt, count in record.parts:
            self._firsts[number, attempt] = first
            first += count

    def id_of(self, staged: Staged) -> int | None:
        """The id of the message that a staged record of the batch has become; None: none."""
        first = self._firsts.get((staged.part, staged.attempt))
        return None if first is None else first + staged.position


@dataclass(slots=True)
class Producer:
    """last: the last batch that was published, -1: none; place: of the record that says so; staged: place and size of
    each message, by its position; publications: those of which staged records may still be in the log, by batch."""

    last: int = -1
    place: int = 0
    staged: dict[Name, dict[int, tuple[int, int]]] = field(default_factory=dict)
    publications: dict[int, Publication] = field(default_factory=dict)


class LogBatches:
    """The batches of one queue. Every method may raise OSError, and BadQueueNameError for the producer's name."""

    def __init__(self, queue: Publishing, store: Store) -> None:
        self._queue = queue
        self._store = store
        self.producers: dict[str, Producer] = {}

    def stage(self, producer: str, name: Name, payloads: Sequence[bytes]) -> None:
        """Adds messages to an attempt at a part of a batch: durable, and invisible. Nothing is kept for a batch that is
        published."""
        check_name("producer", producer)
        known = self.producers.setdefault(producer, Producer())
        if name[0] <= known.last:
            return
        template = Staged(self._queue.table.number, *name, EMPTY, producer, b"")
        size = len(template.body()) + records.HEAD.size
        self._store.log.reserve(sum(map(len, payloads)) + max(len(payloads), 1) * size, push=True)
        part = known.staged.get(name)
        if part is None:
            part = known.staged[name] = {}
            self._store.undo.append((known.staged.pop, name, None))
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
        """Makes the messages of these parts (number, attempt) visible, in order of the numbers; drops whatever else was
        staged for the batch, or for one before it. Does nothing when the batch is published, or one after it.
        NoSuchPartError, QueueFullError."""
        check_name("producer", producer)
        known = self.producers.setdefault(producer, Producer())
        if batch <= known.last:
            return
        parts = sorted(parts)
        for number, attempt in parts:
            if (batch, number, attempt) not in known.staged:
                raise NoSuchPartError(
                    f"producer {producer!r} has not staged part {number} of batch {batch}, attempt {attempt}, on queue "
                    f"{self._queue.qid!r}"
                )
        counted = [(number, attempt, len(known.staged[batch, number, attempt])) for number, attempt in parts]
        count = sum(each for _, _, each in counted)
        require_room(self._queue.qid, self._queue.options.capacity, self._queue.table.__len__, count)
        mids = self._queue.free_range(count)
        record = Published(self._queue.table.number, batch, mids.start, producer, counted)
        body = record.body()
        self._store.log.reserve(records.HEAD.size + len(body))
        place = self._store.log.append(body)
        before = known.last, known.place, dict(known.staged)
        self._store.undo.append((self._unpublish, known, before))
        self._show(known, record, place)

    def _show(self, producer: Producer, record: Published, place: int) -> None:
        """Makes messages of what was staged, and drops the rest."""
        mid = record.first
        mids: list[int] = []
        found: list[tuple[int, int]] = []
        for number, attempt, count in record.parts:
            staged = producer.staged.pop((record.batch, number, attempt), {})
            mids += [mid + position for position in sorted(staged)]
            found += [staged[position] for position in sorted(staged)]
            mid += count
        self._drop_older(producer, record.batch)
        producer.last, producer.place = record.batch, place
        if record.parts:
            producer.publications[record.batch] = Publication(place, record)
        if mids:
            self._queue.add_published(mids, [where for where, _ in found], [size for _, size in found])

    def _drop_older(self, producer: Producer, batch: int) -> None:
        """Drops whatever is still staged for a batch, or one before it."""
        for name in [name for name in producer.staged if name[0] <= batch]:
            for where, size in producer.staged.pop(name).values():
                self._store.usage.drop(where, record_size(size))
                self._store.undo.append((self._store.usage.add, where, record_size(size)))

    def _unpublish(self, producer: Producer, before: tuple[int, int, dict[Name, dict[int, tuple[int, int]]]]) -> None:
        producer.last, producer.place, producer.staged = before
        producer.publications = {batch: each for batch, each in producer.publications.items() if batch <= producer.last}

    def clear(self) -> None:
        """Drops all that is staged: the queue is gone."""
        for known in self.producers.values():
            for part in known.staged.values():
                for where, size in part.values():
                    self._store.usage.drop(where, record_size(size))
        self.producers.clear()

    # -- a start, and compaction ----------------------------------------------------------------------------------

    def restore(self, place: int, record: Staged) -> None:
        """Takes up a staged message."""
        known = self.producers.setdefault(record.producer, Producer())
        if record.batch <= known.last:
            return
        part = known.staged.setdefault((record.batch, record.part, record.attempt), {})
        if record.position == EMPTY:
            return
        if record.position in part:
            self._store.usage.drop(part[record.position][0], record_size(part[record.position][1]))
        part[record.position] = place, len(record.payload)
        self._store.usage.add(place, record_size(len(record.payload)))

    def restore_publication(self, place: int, record: Published) -> None:
        """Takes up that a batch was published."""
        known = self.producers.setdefault(record.producer, Producer())
        if record.batch > known.last or (record.batch == known.last and not record.parts):
            self._restore_shown(known, record, place)

    def _restore_shown(self, producer: Producer, record: Published, place: int) -> None:
        """Takes up the messages of a publication as far as they stand where they were staged. The others were copied
        since, and have records of their own."""
        mid = record.first
        for number, attempt, count in record.parts:
            for position, (where, size) in producer.staged.pop((record.batch, number, attempt), {}).items():
                self._store.usage.drop(where, record_size(size))
                if self._queue.table.is_news(mid + position, place):
                    self._queue.table.restore(mid + position, where, size, READY)
            mid += count
        self._drop_older(producer, record.batch)
        producer.last, producer.place = record.batch, place
        if record.parts:
            producer.publications[record.batch] = Publication(place, record)

    def move(self, place: int, record: Staged) -> bool:
        """Copies a staged record to the end of the log if it is needed as such; whether it was. OSError."""
        known = self.producers.get(record.producer)
        part = None if known is None else known.staged.get((record.batch, record.part, record.attempt))
        if part is None:
            return False
        if part.get(record.position, (None, 0))[0] != place:
            return False
        moved = self._append(record), len(record.payload)
        self._store.undo.append((part.__setitem__, record.position, part[record.position]))
        part[record.position] = moved
        self._count(*moved)
        self._store.usage.drop(place, record_size(moved[1]))
        self._store.undo.append((self._store.usage.add, place, record_size(moved[1])))
        return True

    def id_of(self, record: Staged) -> int | None:
        """The id of the message that a staged record has become, None when it was not published."""
        known = self.producers.get(record.producer)
        publication = None if known is None else known.publications.get(record.batch)
        return None if publication is None else publication.id_of(record)

    def carry(self, segment: int) -> None:
        """Says again at the end of the log what only segments up to that one say. OSError."""
        for producer, known in self.producers.items():
            if known.last >= 0 and known.place >> 32 <= segment:
                body = Published(self._queue.table.number, known.last, 0, producer, ()).body()
                self._store.log.reserve(records.HEAD.size + len(body))
                self._store.undo.append((setattr, known, "place", known.place))
                known.place = self._store.log.append(body)
            for name in [name for name, part in known.staged.items() if not part]:
                self._append(Staged(self._queue.table.number, *name, EMPTY, producer, b""))

    def forget_publications(self, segment: int) -> None:
        """The segment is removed: the staged records of what was published in it are gone too."""
        for known in self.producers.values():
            known.publications = {
                batch: each for batch, each in known.publications.items() if segment_of(each.place) > segment
            }
