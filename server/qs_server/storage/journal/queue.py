"""The operations on a queue of the journal: each a record or more, and the same change in memory.

What is answered is in the journal; the directory follows later (`spill.py`). A message that is deleted before that
never gets a file.
"""

from collections.abc import Sequence

from ..engine import (
    Draft,
    Message,
    NoSuchMessageError,
    OtherMessageError,
    QueueFullError,
    Receipt,
    StaleReceiptError,
)
from ..names import MAX_MID
from ..publishing import PublishingDirectory
from . import records
from .entries import CLEAN, IN_FILE, NOWHERE, Entry
from .keys import digest
from .recorded import ANNOUNCE, RecordedQueue


class JournalQueue(RecordedQueue):
    """The messages of one directory, of which this process is the only consumer."""

    _arriving = False

    # -- pushing --------------------------------------------------------------------------------------------------

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        now = self._clock()
        if len(drafts) == 1 and drafts[0].key is None:
            mids = [self._next_mid(now)]
            fresh: list[tuple[int, Draft, bytes | None]] = [(mids[0], drafts[0], None)]
        elif (run := self._run(drafts, now)) is not None:
            return self._push_run(run, [draft.payload for draft in drafts], now)
        else:
            mids, fresh = self._assign(drafts, now)
        self._check_capacity(len(fresh))
        size = 0
        for _, draft, _ in fresh:
            size += len(draft.payload)
        self._reserve_pushes(len(fresh), size)
        for mid, draft, key in fresh:
            visible = self.number(now + draft.delay) if draft.delay else 0
            self._keep(mid, visible, draft.payload, key, now)
        if fresh:
            self.last_mid = max(fresh[-1][0], self.last_mid)
            self.counts.pushed += len(fresh)
        return mids

    def _check_capacity(self, count: int) -> None:
        capacity = self.options.capacity
        if capacity is not None and len(self) + count > capacity:
            raise QueueFullError(f"queue {self.qid!r} holds {len(self)} messages; its capacity is {capacity}")

    def _reserve_pushes(self, count: int, size: int) -> None:
        size += ANNOUNCE + records.PUSH_SIZE * count
        if self._journal.left_to_pushes < size or self.ledger.refusal is not None:
            self.ledger.reserve(size, push=True)

    def _run(self, drafts: Sequence[Draft], now: int) -> range | None:
        """Ids for messages that follow one another behind all others, visible at once; None: they are not so."""
        if any(draft.key is not None or draft.delay for draft in drafts) or not drafts:
            return None
        first = self._next_mid(now)
        last = self._index.messages.last()
        if (last is not None and last >= first) or first + len(drafts) - 1 > MAX_MID:
            return None
        return range(first, first + len(drafts))

    def _push_run(self, mids: range, payloads: list[bytes], now: int) -> list[int]:
        """What `push` does, for all of them at once: a third of the time."""
        count = len(payloads)
        self._check_capacity(count)
        sizes = list(map(len, payloads))
        size = sum(sizes)
        self._reserve_pushes(count, size)
        if self._announced < self._journal.number:
            self._announce()
        self.ledger.changed.add(self)
        self._journal.append_pushes(records.pushes(self.journal_number, mids, now), payloads, size)
        self._undo.update(dict.fromkeys(mids))
        self.entries.add_run(mids, payloads, size, self._journal.number, now)
        self._index.add_run(mids, sizes)
        self._arriving = True
        self.last_mid = mids[-1]
        self.counts.pushed += count
        if self._shared.lifecycle is not None:
            for mid in mids:
                self.note("pushed", mid, 0)
        return list(mids)

    def _keep(self, mid: int, visible: int, payload: bytes, key: bytes | None, now: int) -> None:
        """A new message, for which the room is reserved."""
        self._append(records.push(self.journal_number, mid, visible, key, now), payload)
        self._add(mid, visible, payload, now)
        if key is not None:
            self.keys.note(key, mid, now, self._journal.number)
            self._undo_keys.append(key)

    def _add(self, mid: int, visible: int, payload: bytes, now: int) -> None:
        self._undo[mid] = None
        self.entries.add(mid, Entry(payload, 0, NOWHERE, self._journal.number, now))
        self._index.add(mid, visible, len(payload))
        if visible:
            self.hidden(visible)
        else:
            self._arriving = True
        if self._shared.lifecycle is not None:
            self.note("pushed", mid, 0)

    def flush(self) -> dict[int, OSError]:
        """They were visible at once; now they are announced."""
        if self._arriving:
            self._arriving = False
            self.arrived()
        return {}

    def _assign(self, drafts: Sequence[Draft], now: int) -> tuple[list[int], list[tuple[int, Draft, bytes | None]]]:
        """An id for each: that of an earlier message where the key is known. And those that are to be stored."""
        mids: list[int] = []
        fresh: list[tuple[int, Draft, bytes | None]] = []
        asked: dict[bytes, int] = {}
        following = self._next_mid(now)
        for draft in drafts:
            key = None
            if draft.key is not None:
                key = digest(draft.key)
                self.keys.forget_old(now)
                known = asked.get(key) or self.keys.find(key, now)
                if known is not None:
                    mids.append(known)
                    continue
            if key is not None:
                asked[key] = following
            fresh.append((following, draft, key))
            mids.append(following)
            following = self._free(following + 1)
        return mids, fresh

    def _next_mid(self, now: int) -> int:
        return self._free(max(now // self._unit, self.last_mid + 1))

    def _free(self, mid: int) -> int:
        """This id, or the first one after it that nobody has. QueueFullError."""
        last = self._index.messages.last()
        while last is not None and mid <= last and self._index.expiry(mid) is not None:
            mid += 1
        if mid > MAX_MID:
            raise QueueFullError(f"queue {self.qid!r} has seen the message {self.last_mid}: no greater id is left")
        return mid

    # -- copying --------------------------------------------------------------------------------------------------

    def copy_to(self, mid: int, target: PublishingDirectory) -> bool:
        entry = self.entries.get(mid)
        if not isinstance(target, JournalQueue) and (entry is None or entry.payload is None):
            return super().copy_to(mid, target)
        while True:
            expiry = self._found(mid)
            payload = self._content(mid, expiry, None)
            if payload is not None:
                return target.take_in(mid, payload)

    def copy_in(self, mid: int, path: str, size: int) -> bool:
        return self.take_in(mid, self._content_of(path))

    def take_in(self, mid: int, payload: bytes) -> bool:
        """Stores the message of another queue. False: it is here. OtherMessageError, QueueFullError."""
        while (expiry := self._index.expiry(mid)) is not None:
            own = self._content(mid, expiry, None)
            if own is not None and own != payload:
                raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
            if own is not None:
                return False
        if self.options.capacity is not None and len(self) >= self.options.capacity:
            raise QueueFullError(f"queue {self.qid!r} holds {len(self)} messages, as many as its capacity allows")
        self.ledger.reserve(len(payload) + records.PUSH_SIZE + ANNOUNCE, push=True)
        if self._journal.repeats(payload):  # when it is copied into several queues
            self._append(records.same(self.journal_number, mid, 0))
            self._add(mid, 0, payload, self._clock())
        else:
            self._keep(mid, 0, payload, None, self._clock())
        self._dig_up(mid)
        self._saw(mid)
        self.counts.pushed += 1
        return True

    def _dig_up(self, mid: int) -> None:
        """A message is there again whose file was to be removed: that is the file of the new one now."""
        buried = self.entries.gone.pop(mid, None)
        entry = self.entries.get(mid)
        if buried is not None and entry is not None:
            self._dug_up[mid] = buried
            self.entries.change(mid, entry._replace(disk=buried.disk, segment=buried.segment))

    # -- changes --------------------------------------------------------------------------------------------------

    def _change(
        self,
        mid: int,
        entry: Entry | None,
        expiry: int,
        receives: int,
        visible: int,
        *,
        delayed: bool,
        held: bool = False,
    ) -> None:
        """A message's state has another record: how often it was received, and until when it is hidden. entry, expiry:
        as they are now."""
        self._reserve()
        self._remember(mid, entry, expiry, delayed=expiry != 0 and self._index.is_delayed(mid))
        self._append(records.state(self.journal_number, mid, receives, visible, delayed))
        if entry is None:
            self.entries.add(mid, Entry(None, receives, expiry, self._journal.number, self._clock(), held))
        elif entry.segment == CLEAN:
            changed = Entry(entry.payload, receives, entry.disk, self._journal.number, self._clock(), held)
            self.entries.replace(mid, changed)
        else:
            payload, _, disk, segment, since, _ = entry
            self.entries.replace(mid, Entry(payload, receives, disk, segment, since, held))

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, holder: str = ""
    ) -> Message | None:
        entry = self.entries.get(mid)
        if entry is None or entry.payload is None or entry.segment == CLEAN:
            return self._take_written(mid, visibility, max_bytes, held=bool(holder))
        payload, receives, disk, segment, since, _ = entry
        if payload is None or (max_bytes is not None and len(payload) > max_bytes):
            return None
        # As below, in fewer steps: this is what nearly every message goes through.
        self._reserve()
        expiry = self._end_of(visibility)
        self._remember(mid, entry, 0)
        receives += 1
        self._append(records.state(self.journal_number, mid, receives, 0 if holder else expiry, delayed=False))
        self.entries.change(mid, Entry(payload, receives, disk, segment, since, bool(holder)))
        return self._taken(mid, payload, receives, expiry)

    def _take_written(self, mid: int, visibility: int | None, max_bytes: int | None, *, held: bool) -> Message | None:
        payload = self._content(mid, 0, max_bytes)
        if payload is None or not self.load(mid):
            return None
        receives = self._attributes.receives(self.name_path(mid, 0), mid) + 1
        expiry = self._end_of(visibility)
        self._change(mid, self.entries.get(mid), 0, receives, 0 if held else expiry, delayed=False, held=held)
        return self._taken(mid, payload, receives, expiry)

    def _taken(self, mid: int, payload: bytes, receives: int, expiry: int) -> Message:
        self._index.take(mid, expiry, retrieved=receives > 1)
        unit = self._unit
        self._activity.announce(self.qid, expiry * unit)
        self.counts.delivered += 1
        if self._shared.lifecycle is not None:
            self.note("received", mid, receives)
        return Message(self.qid, mid, "delivered", receives, mid * unit, expiry * unit, payload)

    def delete(self, receipt: Receipt) -> None:
        mid = receipt.mid
        expiry = self._found(mid) if receipt.receives is None else self._held(receipt)[0]
        self.remove(mid, expiry)
        self.counts.deleted += 1

    def unlink(self, mid: int, expiry: int) -> bool:
        """Removes a message. Its file, if it has one, goes later."""
        entry = self.entries.get(mid)
        self._reserve()
        self._remember(mid, entry, expiry, delayed=expiry != 0 and self._index.is_delayed(mid))
        self._append(records.delete(self.journal_number, mid))
        if entry is None:
            self.entries.bury(mid, Entry(None, 0, expiry, self._journal.number, self._clock()))
        else:
            self.entries.pop(mid)
            if entry.disk != NOWHERE:
                segment = self._journal.number if entry.segment == CLEAN else entry.segment
                self.entries.bury(mid, Entry(None, 0, entry.disk, segment, entry.since))
        self._facts[mid] = self._index.remove(mid, retrieved=entry is not None and entry.receives > 0)
        return True

    def release(self, receipt: Receipt, delay: int) -> int | None:
        mid = receipt.mid
        self.expire()
        expiry, attributes = self._held(receipt)
        until = self.number(self._clock() + delay) if delay else 0
        if not self.load(mid):
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        entry = self.entries.get(mid)
        if not until and entry is not None and entry.held:
            self._remember(mid, entry, expiry)  # for the journal it is ready already
            self.entries.replace(mid, entry._replace(held=False))
        elif until or expiry:
            self._change(mid, entry, expiry, attributes.receives, until, delayed=bool(until))
        if until:
            self._index.hide(mid, until, delayed=True)
            self.hidden(until)
        elif expiry:
            self._index.show(mid)
            self.arrived()
        else:
            return None  # it was visible before
        self.note("released", mid, attributes.receives)
        return self.time(until) if until else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        mid = receipt.mid
        self.expire()
        expiry, attributes = self._held(receipt)
        if not expiry or not self.load(mid) or self._index.is_delayed(mid):
            raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is not in flight")
        until = self._end_of(visibility)
        entry = self.entries.get(mid)
        if entry is not None and entry.held:
            self._remember(mid, entry, expiry)
        else:
            self._change(mid, entry, expiry, attributes.receives, until, delayed=False)
        self._index.hide(mid, until, delayed=False)
        self.hidden(until)
        self.note("extended", mid, attributes.receives)
        return self.time(until)

    def rename(self, mid: int, old: int, new: int) -> bool:
        """A window, or a delay, is over: what a name says of it is in the past, and true without a record."""
        entry = self.entries.get(mid)
        if entry is None:
            self.entries.add(mid, Entry(None, IN_FILE, old, CLEAN, self._clock()))
        elif entry.held:
            self.entries.replace(mid, entry._replace(held=False))
        return True
