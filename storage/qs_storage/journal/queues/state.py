"""The state of one queue that its records make up, and its replay: a start applies the records of a log, in order.

A record can be applied twice without harm, as a checkpoint may contain some of the records after it.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from ...engine import Options, Origin
from ...index.message_index import Index
from ...index.midmap import MidMap
from ...names import WITHHELD
from ...shared import EngineContext
from ..log import records
from ..log.places import place_of, segment_of
from .batches import LogBatches
from .claims import LogClaims
from .keys import WINDOW, Keys
from .messages import READY, MessageTable
from .store import PayloadStore


class QueueState(MessageTable):
    """The state of one queue: its messages, keys, claims, batches, and the tokens of ingested files.

    Ensures:
    1. Applying the records of a log in order makes the state that the queue had when the last one was written.
    2. Applying a record again does no harm, as a checkpoint may contain some of the records after it.
    3. `clear` gives back every live byte that the queue has counted.

    Assumes that records come in the order of the log, and that `settle` ends a start. Never appends a record: what a
    start finds needs none."""

    def __init__(self, qid: str, options: Options, context: EngineContext, store: PayloadStore) -> None:
        super().__init__(qid, options, context, store)
        self.keys = Keys(store.known_keys, store.usage, store.transaction)
        self.claims = LogClaims(self)
        self.batches = LogBatches(self)
        self.taken: dict[int, int] = {}
        """The places of TAKEN records, by token, whose files may still exist."""

    def begin(self, number: int) -> None:
        """Gives the queue the number by which records name it from now on."""
        self.number = number
        self.store.enter(number, self)

    def reset(self) -> None:
        """Forgets everything, so that the log can be read again. Counts no removals."""
        self.keys.clear()
        self.taken.clear()
        self.claims.consumers.clear()
        self.batches.producers.clear()
        self._empty()

    def clear(self) -> None:
        """Drops all state. Called when the queue is removed."""
        # The store asks each queue where it has a payload: without places, this one no longer has any.
        every, self.places = self.places, MidMap()
        # Two messages may have one payload: a copy that came back. It is released once.
        repeated = self.store.families and len(set().union(*(page for _, page in every.pages(-1)))) < len(every)
        seen: set[int] = set()
        for mids, places in every.pages(-1):
            sizes = [size or 0 for size in self.index.sizes(mids)]
            if not repeated:
                self.store.drop_all(self, mids, places, sizes)
            for mid, place, size in zip(mids, places, sizes, strict=True) if repeated else ():
                if place not in seen:
                    self.store.drop(self, mid, place, size)
                    seen.add(place)
            for mid, place in zip(mids, places, strict=True) if self.reasons or self.attributes else ():
                self._drop_reason(mid, place)
                self._drop_attributes(mid, place)
        self.batches.clear()
        self.store.leave(self.number)
        self.reset()

    # -- a start: see `ReplayedQueue` -----------------------------------------------------------------------------

    def restore_all(self, index: Index, places: MidMap, last_mid: int) -> None:
        """Restores the messages of a checkpoint, and the greatest id. The caller counts their live bytes."""
        self.index, self.places, self.last_mid = index, places, last_mid
        self.obey_options()

    def restore_reason(self, mid: int, reason: str) -> None:
        if mid in self.index.messages:
            self.set_reason(mid, reason)

    def restore_origin(self, mid: int, origin: Origin) -> None:
        self.origins[mid] = origin

    def restore_deletion(self, mid: int) -> None:
        """Removes a message, if the queue has it."""
        self.saw(mid)
        if mid in self.index.messages:
            if self.index.expiry(mid) == WITHHELD:
                self.claims.removed(mid)
            self.drop(mid)

    def restore_shared(self, record: records.Shared) -> None:
        """Restores a message that shares its payload with another queue. Drops the message first if a checkpoint has
        restored it as unshared, so that its live bytes count once."""
        if record.mid in self.index.messages:
            self.drop(record.mid)
        self.store.join(record.source, self.number)
        self.store.note_copied(record.place)
        self.restore(record.mid, record.place, record.size, record.state, record.attributes)

    def restore_owners(self, record: records.Transfer) -> None:
        """Notes the new queue and id of a message that has moved as the owner of its payload."""
        owners = self.store.owners_at(record.place) or ((record.source, record.replaced),)
        self.store.set_owners(record.place, tuple(dict.fromkeys((*owners, (self.number, record.mid)))))

    def restore_transfer(self, place: int, record: records.Transfer) -> None:
        if record.mid in self.index.messages:
            self.drop(record.mid)
        self.restore_owners(record)  # the former message may have taken them along
        self.restore(record.mid, record.place, record.size, READY, record.attributes)
        if record.origin is not None:
            self.origins[record.mid] = record.origin

    def restore_key(self, key: bytes, mid: int, at: int, place: int) -> None:
        self.keys.note(key, mid, at, segment_of(place))

    def restore_claim(self, place: int, record: records.Claim) -> None:
        self.claims.restore(place, record)

    def restore_claim_end(self, place: int, record: records.Acked | records.Unclaimed) -> None:
        self.claims.restore_end(place, record)

    def restore_staged(self, place: int, record: records.Staged) -> None:
        self.batches.restore(place, record)

    def restore_publication(self, place: int, record: records.Published) -> None:
        self.batches.restore_publication(place, record)

    def restore_token(self, token: int, place: int | None) -> None:
        if place is None:
            self.taken.pop(token, None)
        else:
            self.taken[token] = place

    def id_of_staged(self, record: records.Staged) -> int | None:
        """Returns the id of the message that a staged record has become, None if it was not published."""
        return self.batches.id_of(record)

    def settle(self) -> None:
        """Ends a start: announces visible messages and the next time at which one is due. Hides visible messages that
        were received too often, until `expire` moves them to the dead-letter queue: those held by subscribers of a
        killed process, and those that could not be moved."""
        self.known_upto.clear()
        self.keys.cut(self.clock())
        self.claims.settle()
        if self.options.max_receives is not None:
            for mid in [mid for mid in self.receives if self.index.expiry(mid) == 0 and self.is_exhausted(mid)]:
                # Hidden until time 1, which is long over: the first `expire` makes it a dead letter, in a
                # transaction.
                self.show(mid, 1, delayed=False)
        if self.index.visible_count:
            self.arrived()
        self.announce()


Q = TypeVar("Q", bound=QueueState)


class Replay(Generic[Q]):
    """Makes the queues that records name, and applies records to them: at a start, in a repair, and for a check.

    Ensures that each record is applied after all before it. Pushes that follow each other to one queue are collected
    and applied together, which is most of the work of a start.

    Assumes that frames come in the order of the log. Never writes."""

    def __init__(self, make: Callable[[str, int], Q], now: int) -> None:
        """make: makes a queue from its name and its number; now: microseconds since the Epoch."""
        self.make = make
        self.keys_since = now - WINDOW
        """Keys of pushes up to then are over. A log may have any number of them, and memory has not."""
        self.queues: dict[int, Q] = {}
        self._run = _Run()

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        """Applies the records of a frame. start: the byte of the first record in the segment. BadRecordError."""
        place = place_of(segment, start)
        run = self._run
        for body in bodies:
            push = records.plain_push(body)
            if push is not None:
                number, mid, size = push
                # Only increasing ids can be appended to the index as a block.
                if number != run.number or mid <= run.last:
                    self._flush()
                    run.number = number
                run.mids.append(mid)
                run.places.append(place)
                run.sizes.append(size)
                run.last = mid
            else:
                self._flush()
                records.parse(body).replay(self, place)
            place += records.HEAD.size + len(body)
        self._flush()

    def _flush(self) -> None:
        run = self._run
        if run.mids:
            queue = self.queues.get(run.number)
            if queue is not None:
                run.drop_covered(queue.is_newer)
                if run.mids:
                    queue.restore_run(run.mids, run.places, run.sizes)
            run.clear()

    # -- for records: see `ReplayedLog` ---------------------------------------------------------------------------

    def queue(self, number: int) -> Q | None:
        """Returns the queue with a number, None if the log has removed the queue."""
        return self.queues.get(number)

    def add_queue(self, record: records.Queue) -> None:
        """Makes the queue that a number means from this record on, unless the queue exists."""
        queue = self.queues.get(record.number)
        if queue is None:
            queue = self.queues[record.number] = self.make(record.qid, record.number)
        # The messages with the greatest ids may be deleted by now: no new one may get such an id again.
        queue.last_mid = max(queue.last_mid, record.last_mid)

    def remove_queue(self, number: int) -> None:
        """Removes the queue with a number, and all its state."""
        queue = self.queues.pop(number, None)
        if queue is not None:
            queue.clear()


class _Run:
    """Collects adjacent pushes to one queue with increasing ids, which are applied together."""

    def __init__(self) -> None:
        self.number = -1
        self.clear()

    def clear(self) -> None:
        self.last = -1
        self.mids: list[int] = []
        self.places: list[int] = []
        self.sizes: list[int] = []

    def drop_covered(self, is_newer: Callable[[int, int], bool]) -> None:
        """Drops the messages that a checkpoint already covers."""
        if is_newer(self.mids[0], self.places[0]):
            return
        new = [each for each in zip(self.mids, self.places, self.sizes, strict=True) if is_newer(*each[:2])]
        self.mids, self.places, self.sizes = ([each[at] for each in new] for at in range(3))
