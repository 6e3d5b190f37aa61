"""Adds messages to a queue of the log: pushes, and copies from other queues."""

from collections.abc import Sequence

from ...engine import Clock, Draft, OtherMessageError
from ...names import MAX_MID
from ...policy import require_room
from ...shared import EngineQueue
from ..log import records
from ..log.places import SHIFT
from .keys import Keys, digest
from .store import Store, record_size
from .table import MessageTable


class Pushing:
    """Pushes to one queue. Every method may raise OSError: then nothing has changed."""

    __slots__ = ("_clock", "_keys", "_log", "_store", "_table")

    def __init__(self, table: MessageTable, keys: Keys, store: Store, clock: Clock) -> None:
        self._table = table
        self._keys = keys
        self._store = store
        self._log = store.log
        self._clock = clock

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, all or none. Returns their ids, increasing. QueueFullError."""
        table = self._table
        if table.options.capacity is not None:
            require_room(table.qid, table.options.capacity, table.__len__, len(drafts))
        now = self._clock()
        payloads: list[bytes] = []
        for draft in drafts:
            if draft.delay or draft.key is not None:
                return self._push_each(drafts, now)
            payloads.append(draft.payload)
        if not payloads:
            return []
        mids = table.free_ids(len(payloads), now)
        self.append_run(mids, payloads, now)
        table.last_mid = mids[-1]
        return list(mids)

    def append_run(self, mids: Sequence[int], payloads: Sequence[bytes], now: int) -> None:
        """Stores messages with these ids, visible at once."""
        sizes = list(map(len, payloads))
        size = sum(sizes)
        whole = size + len(sizes) * records.PUSH_SIZE
        log, table, store = self._log, self._table, self._store
        log.reserve(whole, push=True)
        places = log.append_all(records.pushes(table.number, mids, now), payloads, sizes, records.PUSH_SIZE)
        table.push_run(mids, places, sizes)
        store.usage.add(places[0], whole)
        store.cache.put(places, payloads, size)

    def _push_each(self, drafts: Sequence[Draft], now: int) -> list[int]:
        mids: list[int] = []
        fresh: list[tuple[int, Draft, bytes | None]] = []
        asked: dict[bytes, int] = {}
        following = iter(self._table.free_ids(len(drafts), now))
        self._keys.forget_old(now, len(drafts))
        for draft in drafts:
            key = None if draft.key is None else digest(draft.key)
            known = None if key is None else asked.get(key) or self._keys.find(key, now)
            if known is not None:
                mids.append(known)
                continue
            mid = next(following)
            mids.append(mid)
            fresh.append((mid, draft, key))
            if key is not None:
                asked[key] = mid
        if asked:
            self._keys.require_room(len(asked), now)
        size = sum(len(draft.payload) for _, draft, _ in fresh) + len(fresh) * records.PUSH_SIZE
        self._log.reserve(size, push=True)
        for mid, draft, key in fresh:
            self._push_one(mid, draft, key, now)
        return mids

    def _push_one(self, mid: int, draft: Draft, key: bytes | None, now: int) -> None:
        table, store, payload = self._table, self._store, draft.payload
        visible = min((now + draft.delay) // table.unit, MAX_MID) if draft.delay else 0
        place = self._log.append(records.push(table.number, mid, visible, key, now), payload)
        self._add(mid, place, len(payload), visible)
        table.last_mid = mid
        store.usage.add(place, record_size(len(payload)))
        store.cache.put((place,), (payload,), len(payload))
        if key is not None:
            self._keys.note(key, mid, now, place >> SHIFT)
            store.undo.append((self._keys.forget, key))

    def _add(self, mid: int, place: int, size: int, visible: int) -> None:
        """Adds an appended message to the table. visible: when it becomes visible, 0: at once."""
        table = self._table
        self._store.undo.append((table.unpush, (mid,)))
        table.add(mid, place, size, visible)
        table.counts.pushed += 1
        if visible:
            table.hidden(visible)
        else:
            table.arrived()
        table.note("pushed", mid)

    # -- copying --------------------------------------------------------------------------------------------------

    def copy(self, mid: int, source: EngineQueue, shares: MessageTable | None) -> bool:
        """Stores a copy of another queue's message under the same id, visible at once. shares: the other queue's table
        if both are in one log and share the payload. Returns False if this queue has the message. NoSuchMessageError,
        OtherMessageError, QueueFullError."""
        table = self._table
        known = table.places.get(mid)
        if known is not None:
            if shares is not None and shares.places.get(mid) == known:
                return False
            if self._store.payload(table.number, mid, known) != source.payload_of(mid):
                raise OtherMessageError(f"queue {table.qid!r} holds another message of the id {mid}")
            return False
        if shares is not None:
            shares.expiry_of(mid)  # raises if the message is gone
        payload = source.payload_of(mid) if shares is None else b""
        if table.options.capacity is not None:
            require_room(table.qid, table.options.capacity, table.__len__, 1)
        if shares is not None:
            self._share(mid, shares)
        else:
            self.append_run((mid,), (payload,), self._clock())
        table.saw(mid)
        return True

    def reserve_copies(self, count: int) -> None:
        """Makes sure that so many shared copies fit into one frame, so that a crash leaves all of them or none.
        OSError."""
        if count:
            self._log.reserve(records.SMALL * count, push=True)

    def _share(self, mid: int, source: MessageTable) -> None:
        table = self._table
        place, size = source.places.get(mid) or 0, source.index.size(mid)
        self._log.reserve(records.SMALL, push=True)
        self._log.append(records.shared(records.Shared(table.number, mid, 0, 0, False, place, size, source.number)))
        self._store.join(source.number, table.number)
        self._store.note_copied(place)
        self._add(mid, place, size, 0)
