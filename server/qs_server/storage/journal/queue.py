"""The operations on a queue of the journal: each a record or more, and the same change in memory.

What is answered is in the journal; the directory follows later (`spill.py`). A message that is deleted before that
never gets a file.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from ..capacity import require_room
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
from .claimed import ClaimedQueue
from .entries import CLEAN, IN_FILE, NOWHERE, Entry
from .keys import digest
from .recorded import ANNOUNCE

_TOGETHER = 1000
_BYTES = 4 << 20
"""Messages of a batch that are appended as one, and bytes."""


class JournalQueue(ClaimedQueue):
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
        self._must_have_room(len(fresh))
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

    def _must_have_room(self, count: int) -> None:
        # Without a look at what others have done: ids are chosen already.
        require_room(self.qid, self.options.capacity, self.__len__, count)

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
        self._must_have_room(len(payloads))
        segment = self._append_run(mids, payloads, now)
        self._undo.update(dict.fromkeys(mids))
        self._add_run(mids, payloads, segment, now)
        self._arriving = True
        self.last_mid = mids[-1]
        return list(mids)

    def publish_batch(
        self,
        payloads: list[bytes],
        producer: str,
        batch: int,
        begin: Callable[[int, int], None],
        done: Callable[[], None],
    ) -> None:
        """See Publisher. The journal has all of them before `done` makes it certain; a start that finds that it was not
        takes them back."""
        self._must_have_room(len(payloads))
        now = self._clock()
        mids = self._run([Draft(payload) for payload in payloads], now)
        if mids is None:
            first = self._free(max(self._next_mid(now), (self._index.messages.last() or 0) + 1))
            mids = range(first, first + len(payloads))
        if mids[-1] > MAX_MID:
            raise QueueFullError(f"queue {self.qid!r} has seen the message {self.last_mid}: no greater ids are left")
        self.hold_fast()
        begin(mids[0], len(mids))
        self.last_mid = mids[-1]
        slices: list[tuple[range, list[bytes], int]] = []
        self.entries.pinned = self._journal.number
        try:
            for run in _runs(mids, payloads):
                some = payloads[run.start - mids.start : run.stop - mids.start]
                slices.append((run, some, self._append_run(run, some, now)))
            self.hold_fast()
            done()
        except BaseException:
            self._drop_run(range(mids.start, slices[-1][0].stop if slices else mids.start))
            raise
        finally:
            self.entries.pinned = None
        for run, some, segment in slices:
            self._add_run(run, some, segment, now)
        self.arrived()

    def _append_run(self, mids: range, payloads: list[bytes], now: int) -> int:
        """In the journal only. In which segment."""
        size = sum(map(len, payloads))
        self._reserve_pushes(len(payloads), size)
        if self._announced < self._journal.number:
            self._announce()
        self.ledger.changed.add(self)
        self._journal.append_pushes(records.pushes(self.journal_number, mids, now), payloads, size)
        return self._journal.number

    def _add_run(self, mids: range, payloads: list[bytes], segment: int, now: int) -> None:
        """In memory only."""
        sizes = list(map(len, payloads))
        self.entries.add_run(mids, payloads, sum(sizes), segment, now)
        self._index.add_run(mids, sizes)
        self.counts.pushed += len(mids)
        if self._shared.lifecycle is not None:
            for mid in mids:
                self.note("pushed", mid, 0)

    def _drop_run(self, mids: range) -> None:
        """Of what is in the journal only. Where that fails, the next batch of the producer, or the next start, does
        it."""
        with suppress(OSError):
            self.undo_batch(mids.start, None, len(mids))

    def undo_batch(self, first: int, payloads: list[bytes] | None, count: int) -> None:
        mids = [mid for mid in range(first, first + count) if not self._is_of_another(mid, first, payloads)]
        for mid in mids:
            if self._index.expiry(mid) == 0:
                self._index.withhold(mid)  # for as long as it cannot be removed
        for mid in mids:
            expiry = self._index.expiry(mid)
            if expiry is not None:
                self.unlink(mid, expiry)
            else:
                self._reserve()
                self._append(records.delete(self.journal_number, mid))
        self.hold_fast()

    def _is_of_another(self, mid: int, first: int, payloads: list[bytes] | None) -> bool:
        """Whether somebody else has put a message there; as far as that can be told."""
        expiry = self._index.expiry(mid)
        if expiry is None:
            return False
        if payloads is None:
            entry = self.entries.get(mid)
            return entry is None or entry.payload is None
        return self._content(mid, expiry, None) != payloads[mid - first]

    def finish_batch(self, first: int) -> None:
        """See Publisher. What is certain is visible as soon as the journal has been replayed."""

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
        self._must_be_new(mid)
        self._must_have_room(1)
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
        if payload is None:
            return None
        # The index knows which messages are new, as soon as they are loaded: that saves asking the file once more.
        receives = 1 if mid in self._index.new else self._attributes.receives(self.name_path(mid, 0), mid) + 1
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
        self.check_free(mid, expiry)
        self.remove(mid, expiry)
        self.counts.deleted += 1

    def unlink(self, mid: int, expiry: int) -> bool:
        """Removes a message. Its file, if it has one, goes later."""
        entry = self.entries.get(mid)
        self._reserve()
        self._remember(mid, entry, expiry, delayed=expiry != 0 and self._index.is_delayed(mid))
        self._append(records.delete(self.journal_number, mid))
        if entry is None:
            self.entries.bury(mid, Entry(None, 0, self._disk_of(expiry), self._journal.number, self._clock()))
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
        self.check_free(mid, expiry)
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
        self.check_free(mid, expiry)
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


def _runs(mids: range, payloads: Sequence[bytes]) -> Iterator[range]:
    """The ids in pieces, each of messages that are appended as one."""
    start, size = mids.start, 0
    for mid, payload in zip(mids, payloads, strict=True):
        if mid > start and (mid - start >= _TOGETHER or size + len(payload) > _BYTES):
            yield range(start, mid)
            start, size = mid, 0
        size += len(payload)
    yield range(start, mids.stop)
