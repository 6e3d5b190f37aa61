"""Batches of a queue's producers: staged part by part, published as a whole, and never twice.

Staged payloads stay in place in the log: publishing appends one record.
"""

from array import array
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

from ...engine import BatchOrderError, Draft, NoSuchPartError
from ...index.midmap import MidMap
from ...names import check_name, quoted
from ...policy import require_room
from ..log import records
from ..log.attributes import Attributes, content_of
from ..log.places import segment_of
from ..log.records import EMPTY, Published, Staged, record_size
from .messages import MessageTable

Name = tuple[int, int, int]
"""Identifies an attempt at a part: batch, part, attempt."""


class StagedPart(MutableMapping[int, tuple[int, int]]):
    """The messages that are staged for an attempt at a part: maps the position of each to its place and size.

    Takes 32 bytes for a message without attributes, as a part may have a million, and a publication goes over all of
    them in one step."""

    __slots__ = ("_places", "_sizes", "attributes")

    def __init__(self, positions: Sequence[int] = (), places: Sequence[int] = (), sizes: Sequence[int] = ()) -> None:
        """positions: increasing."""
        self._places, self._sizes = MidMap(), MidMap()
        self.attributes: dict[int, Attributes] = {}
        """The attributes of the messages that have some, by position."""
        if positions:
            self._places.set_run(positions, places)
            self._sizes.set_run(positions, sizes)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[int]:
        for positions, _ in self._places.pages(-1):
            yield from positions

    def __getitem__(self, position: int) -> tuple[int, int]:
        place = self._places.get(position)
        if place is None:
            raise KeyError(position)
        return place, self._sizes.get(position) or 0

    def __setitem__(self, position: int, where: tuple[int, int]) -> None:
        self._places.set(position, where[0])
        self._sizes.set(position, where[1])

    def __delitem__(self, position: int) -> None:
        if self._places.pop(position) is None:
            raise KeyError(position)
        self._sizes.pop(position)
        self.attributes.pop(position, None)

    def columns(self) -> "tuple[array[int], array[int], array[int]]":
        """Returns all positions, places and sizes, in the order of the positions."""
        positions, places, sizes = array("Q"), array("Q"), array("Q")
        for (some, their), (_, bytes_) in zip(self._places.pages(-1), self._sizes.pages(-1), strict=True):
            positions += some
            places += their
            sizes += bytes_
        return positions, places, sizes


class Publication:
    """A published batch: maps the places of its staged records to the ids of its messages."""

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
        """Returns the id of the message that a staged record has become, None if its part was not published."""
        first = self._firsts.get((staged.part, staged.attempt))
        return None if first is None else first + staged.position


@dataclass(slots=True)
class Producer:
    """The state of a producer. last: its last published batch, -1 without any; place: the place of that batch's
    PUBLISHED record; staged: the messages of each attempt; publications: by batch, those whose staged records may still
    be in the log."""

    last: int = -1
    place: int = 0
    staged: dict[Name, StagedPart] = field(default_factory=dict)
    publications: dict[int, Publication] = field(default_factory=dict)

    def staged_places(self) -> Iterator[int]:
        for part in self.staged.values():
            for place, _ in part.values():
                yield place


class LogBatches:
    """Stages and publishes the batches of one queue.

    Ensures:
    1. Nobody sees a staged message before its batch is published, and then all of the batch is visible at once.
    2. A batch is published at most once, with one attempt at each part: PUBLISHED is one record.
    3. Staging and publishing can be repeated: what is published already is left as it is.

    Assumes that a producer counts its batches up. Every method may raise OSError, and BadQueueNameError for the
    producer's name. Never copies a payload to publish it: it stays where it was staged."""

    def __init__(self, table: MessageTable) -> None:
        self._table = table
        self._clock = table.clock
        self._store = table.store
        self._transaction = table.transaction
        self.producers: dict[str, Producer] = {}

    def stage(self, producer: str, name: Name, drafts: Sequence[Draft]) -> None:
        """Adds messages, which are not visible, to an attempt at a part of a batch. Does nothing if the batch is
        published. drafts: without delays and keys."""
        check_name("producer", producer)
        known = self.producers.get(producer)
        if known is not None and name[0] <= known.last:
            return
        template = Staged(self._table.number, *name, EMPTY, producer, b"")
        now = self._clock()
        contents = [content_of(draft, now, None) for draft in drafts]
        size = max(len(drafts), 1) * (len(template.write()) + records.HEAD.size)
        size += sum([len(content) + (0 if given is None else given.size) for content, given in contents])
        if size > self._transaction.left_to_pushes:
            raise self._transaction.refusal(size, push=True)
        state = self.producers.setdefault(producer, Producer())
        part = state.staged.get(name)
        if part is None:
            part = state.staged[name] = StagedPart()
            self._transaction.undo(state.staged.pop, name, None)
            if not drafts:
                self._append(template)
        for position, (content, attributes) in enumerate(contents, len(part)):
            place = self._append(replace(template, position=position, payload=content, attributes=attributes))
            part[position] = place, len(content)
            if attributes is not None:
                part.attributes[position] = attributes
            self._transaction.undo(part.pop, position, None)
            self._count(place, len(content))

    def _append(self, record: Staged) -> int:
        return self._transaction.append(record.write(), record.payload)

    def _count(self, place: int, size: int) -> None:
        self._store.usage.add(place, record_size(size))
        self._transaction.undo(self._store.usage.drop, place, record_size(size))

    def publish(self, producer: str, batch: int, parts: Sequence[tuple[int, int]]) -> int:
        """Makes the messages of these parts (number, attempt) visible, in the order of the numbers, and drops all other
        messages staged up to this batch. Does nothing if this batch or a later one is published, or if no parts are
        named. Returns the number of published messages. BatchOrderError if the batch is too far ahead, NoSuchPartError,
        QueueFullError."""
        check_name("producer", producer)
        state = self.producers.get(producer, Producer())
        if batch <= state.last:
            return 0
        # A number by mistake would make the producer's later batches "published" for good: nobody would get them.
        greatest = max(0, state.last, *(name[0] for name in state.staged))
        if batch > greatest + 1:
            raise BatchOrderError(
                f"batch {batch} of producer {quoted(producer)} on queue {self._table.qid!r} is more than one "
                f"past the greatest that was staged or published: {greatest + 1} is the greatest to publish now"
            )
        if not parts:
            return 0
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
        # Adjacent ids, so that the record of the publication needs the first one only.
        mids = self._table.free_ids(count, self._clock())
        record = Published(self._table.number, batch, mids.start, producer, counted)
        body = record.write()
        if len(body) + records.HEAD.size > self._transaction.left:
            raise self._transaction.refusal(len(body) + records.HEAD.size)
        place = self._transaction.append(body)
        # A copy of the dict, not of the parts: these are not changed, only dropped.
        before = state.last, state.place, dict(state.staged)
        self._transaction.undo(self._unpublish, state, before)
        self._add_messages(state, record, place)
        return count

    def _add_messages(self, producer: Producer, record: Published, place: int) -> None:
        """Adds the published messages to the queue, and drops the other staged messages."""
        mid = record.first
        mids, places, sizes = array("Q"), array("Q"), array("Q")
        for number, attempt, count in record.parts:
            staged = producer.staged.pop((record.batch, number, attempt), StagedPart())
            positions, their_places, their_sizes = staged.columns()
            mids.extend([mid + position for position in positions])
            for position, attributes in staged.attributes.items():
                self._table.set_attributes(mid + position, staged[position][0], attributes)
            places += their_places
            sizes += their_sizes
            mid += count
        self._set_last(producer, record, place)
        if mids:
            self._transaction.undo(self._stage_again, places, sizes)
            self._table.appear(mids, places, sizes)
            self._table.saw(mids[-1])

    def _stage_again(self, places: Sequence[int], sizes: Sequence[int]) -> None:
        """Counts staged messages as live bytes again, after their publication is taken back."""
        for place, size in zip(places, sizes, strict=True):
            self._store.usage.add(place, record_size(size))

    def _set_last(self, producer: Producer, record: Published, place: int) -> None:
        """Makes a batch the last one of its producer, and drops messages that are staged for this batch or earlier
        ones."""
        for name in [name for name in producer.staged if name[0] <= record.batch]:
            for where, size in producer.staged.pop(name).values():
                self._store.usage.drop(where, record_size(size))
                self._transaction.undo(self._store.usage.add, where, record_size(size))
        producer.last, producer.place = record.batch, place
        if record.parts:
            producer.publications[record.batch] = Publication(place, record)

    def _unpublish(self, producer: Producer, before: tuple[int, int, dict[Name, StagedPart]]) -> None:
        producer.last, producer.place, staged = before
        producer.staged.clear()  # the same dict: what staged the parts may be taken back next
        producer.staged.update(staged)
        producer.publications = {batch: each for batch, each in producer.publications.items() if batch <= producer.last}

    def clear(self) -> None:
        """Drops all staged messages. Called when the queue is removed."""
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
        part = state.staged.setdefault((record.batch, record.part, record.attempt), StagedPart())
        if record.position == EMPTY:
            return
        # The record was copied by compaction, and both copies are read.
        if record.position in part:
            self._store.usage.drop(part[record.position][0], record_size(part[record.position][1]))
        part[record.position] = place, len(record.payload)
        if record.attributes is not None:
            part.attributes[record.position] = record.attributes
        self._store.usage.add(place, record_size(len(record.payload)))

    def restore_publication(self, place: int, record: Published) -> None:
        """Replays a PUBLISHED record. Restores the messages whose staged records are still in the log; others were
        copied, and have records of their own."""
        state = self.producers.setdefault(record.producer, Producer())
        if record.batch < state.last or (record.batch == state.last and record.parts):
            return
        mid = record.first
        for number, attempt, count in record.parts:
            staged = state.staged.pop((record.batch, number, attempt), StagedPart())
            for position, (where, size) in staged.items():
                self._store.usage.drop(where, record_size(size))
                # Otherwise a checkpoint has a newer state of the message, or its deletion.
                if self._table.is_newer(mid + position, place):
                    attributes = staged.attributes.get(position)
                    self._table.restore(mid + position, where, size, (0, 0, False), attributes)
            mid += count
        self._set_last(state, record, place)

    def move(self, place: int, record: Staged) -> bool:
        """Copies a staged record to the end of the log, where the caller has secured room. Returns False if no staged
        message has that place."""
        state = self.producers.get(record.producer)
        part = None if state is None else state.staged.get((record.batch, record.part, record.attempt))
        if part is None or part.get(record.position, (None, 0))[0] != place:
            return False
        moved = self._append(record), len(record.payload)
        self._transaction.undo(part.__setitem__, record.position, part[record.position])
        part[record.position] = moved
        self._count(*moved)
        self._store.usage.drop(place, record_size(moved[1]))
        self._transaction.undo(self._store.usage.add, place, record_size(moved[1]))
        return True

    def id_of(self, record: Staged) -> int | None:
        """Returns the id of a staged record's message, None if it was not published."""
        state = self.producers.get(record.producer)
        publication = None if state is None else state.publications.get(record.batch)
        return None if publication is None else publication.id_of(record)

    def copy_records(self, segment: int) -> Iterator[int]:
        """Copies the needed records of the segments up to this one to the end of the log. Before each copy, yields the
        bytes to append. As other requests may run at each `yield`, looks up what to copy after it."""
        number = self._table.number
        for producer, state in list(self.producers.items()):
            if state.last >= 0 and segment_of(state.place) <= segment:
                yield records.HEAD.size + len(Published(number, state.last, 0, producer, ()).write())
                if segment_of(state.place) <= segment:
                    self._transaction.undo(setattr, state, "place", state.place)
                    state.place = self._transaction.append(Published(number, state.last, 0, producer, ()).write())
            for name in [name for name, part in state.staged.items() if not part]:
                body = Staged(number, *name, EMPTY, producer, b"").write()
                yield records.HEAD.size + len(body)
                if name in state.staged:
                    self._transaction.append(body)

    def forget_publications(self, segment: int) -> None:
        """Forgets publications in segments up to this one, whose staged records are gone too."""
        for state in self.producers.values():
            state.publications = {
                batch: each for batch, each in state.publications.items() if segment_of(each.place) > segment
            }
