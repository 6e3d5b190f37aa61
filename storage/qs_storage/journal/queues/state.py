"""The state of one queue that its records make up, and the methods by which a start restores it."""

from ...engine import Options, Origin
from ...index.message_index import Index
from ...index.midmap import MidMap
from ...names import WITHHELD
from ...shared import Shared
from ..log import records
from ..log.places import segment_of
from .batches import LogBatches
from .claims import LogClaims
from .keys import Keys
from .messages import READY, MessageTable
from .store import Store


class QueueState(MessageTable):
    """The messages of a queue, with its keys, claims, batches and taken-in files.

    Ensures that applying a record again does no harm, as a checkpoint may contain some of the records after it."""

    def __init__(self, qid: str, options: Options, shared: Shared, store: Store) -> None:
        super().__init__(qid, options, shared, store)
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
        """Drops all state, as the queue is gone."""
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
            for mid, place in zip(mids, places, strict=True) if self.reasons else ():
                self._drop_reason(mid, place)
        self.batches.clear()
        self.store.leave(self.number)
        self.reset()

    # -- a start: see `ReplayedQueue` -----------------------------------------------------------------------------

    def restore_all(self, index: Index, places: MidMap, last_mid: int) -> None:
        """Restores the messages of a checkpoint, and the greatest id. Their live bytes are the caller's to count."""
        self.index, self.places, self.last_mid = index, places, last_mid

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
        """A checkpoint may contain the message as one that is not shared: it is dropped before the queues are joined,
        so that its live bytes count once."""
        if record.mid in self.index.messages:
            self.drop(record.mid)
        self.store.join(record.source, self.number)
        self.store.note_copied(record.place)
        self.restore(record.mid, record.place, record.size, record.state)

    def restore_owners(self, record: records.Transfer) -> None:
        """Notes that the payload of a message that has moved has the message's new id too."""
        owners = self.store.owners_at(record.place) or ((record.source, record.replaced),)
        self.store.set_owners(record.place, tuple(dict.fromkeys((*owners, (self.number, record.mid)))))

    def restore_transfer(self, place: int, record: records.Transfer) -> None:
        if record.mid in self.index.messages:
            self.drop(record.mid)
        self.restore_owners(record)  # the former message may have taken them along
        self.restore(record.mid, record.place, record.size, READY)
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
        """Ends a start: announces visible messages and what is due next. Hides visible messages that were received too
        often, until `expire` moves them to the dead-letter queue: those held by subscribers of a killed process, and
        those that could not be moved."""
        self.known_upto.clear()
        self.keys.cut(self.clock())
        self.claims.settle()
        if self.options.max_receives is not None:
            for mid in [mid for mid in self.receives if mid in self.index.ready and self.is_exhausted(mid)]:
                self.show(mid, 1, delayed=False)
        if self.index.ready:
            self.arrived()
        self.announce()
