"""A queue of the server in a dirq directory: every operation is what dirq does to the element.

Ready is an element that is not locked; in flight or delayed is one that is locked, as dirq's own consumers lock it. So
any number of processes may work on the directory at once, of ours and of others: making a lock succeeds for one of
them.
"""

from typing import ClassVar

from ..engine import (
    SECOND,
    Message,
    NoSuchMessageError,
    Options,
    Receipt,
    StaleReceiptError,
)
from ..files.directory import Shared
from ..index.queries import IndexedQueue
from .body import body_of
from .element_state import FOREIGN, Sight
from .layout import Layout
from .lease_metadata import Marks, stamp
from .queue_layout import NormalLayout
from .simple_layout import SimpleLayout
from .writer import PublishingElements

_SLICE = 1000
"""Elements that one slice of lazy loading looks at: some 30 ms at most."""
_LATEST = 10**17
"""Microseconds: the end of the longest window."""


class DirqQueue(PublishingElements, IndexedQueue):
    """The messages of one directory, by what their holders may do with them."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None
    _slice = _SLICE

    def __init__(self, path: str, qid: str, options: Options, shared: Shared) -> None:
        """As Elements; it is listed at once. OSError when it cannot be read; StorageError when elements of its schema
        cannot be messages."""
        body = body_of(options) if options.storage == "dirq" else None
        super().__init__(path, qid, options, shared)
        self._begin()
        try:
            self._layout: Layout
            if body is not None:
                self._layout = NormalLayout(path, shared.disk, body, sync=self._always, owner=self)
            else:
                self._layout = SimpleLayout(path, shared.disk, sync=self._always, owner=self)
            self.rescan()
        except BaseException:
            self.unwatch()
            raise

    def remove_directories(self) -> None:
        """Removes everything that is no element, but for hidden files. OSError ENOTEMPTY when there is an element."""
        self._layout.dismantle()

    # -- receiving ------------------------------------------------------------------------------------------------

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """See EngineQueue."""
        with self.alone(mid) as sight:
            if sight is None or sight.hidden or (max_bytes is not None and self._index.size(mid) > max_bytes):
                return None
            payload = self._content(mid)
            if payload is None:
                return None
            expiry = self._end_of(visibility)
            receives = sight.marks.receives + 1
            if not self._lock(mid, sight, Marks(receives, expiry)):
                return None
        self._index.hide(mid, expiry, delayed=False)
        self._hidden(mid, expiry)
        if not held:
            self._touch(mid)
        self.counts.delivered += 1
        self.note("received", mid, receives)
        return Message(self.qid, mid, "delivered", receives, self.time(mid), expiry, payload)

    def _end_of(self, visibility: int | None) -> int:
        window = self.options.visibility if visibility is None else visibility
        return max(min(self._clock() + window, _LATEST), 1)

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """See EngineQueue."""
        while True:
            self.expire()
            sight = self._seen(mid)
            message = self._look_at(mid, sight) if sight.hidden or peek else self.take(mid, visibility)
            if message is not None:
                return message

    def _look_at(self, mid: int, sight: Sight) -> Message | None:
        receives = sight.marks.receives
        if sight.hidden:
            status = "delayed" if self._index.is_delayed(mid) else "in-flight"
            return Message(self.qid, mid, status, receives, self.time(mid), _visible_at(sight))
        payload = self._content(mid)
        return None if payload is None else Message(self.qid, mid, "ready", receives, self.time(mid), None, payload)

    def read(self, receipt: Receipt) -> Message:
        """See EngineQueue."""
        mid = receipt.mid
        while True:
            sight = self._seen(mid)
            self._check(receipt, sight)
            payload = self._content(mid)
            if payload is not None:
                receives = sight.marks.receives
                return Message(self.qid, mid, "delivered", receives, self.time(mid), _visible_at(sight), payload)

    def _seen(self, mid: int) -> Sight:
        self.publish_staged()
        sight = self.look(mid)
        if sight is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return sight

    def _check(self, receipt: Receipt, sight: Sight) -> None:
        """Whether the message is as the holder of the receipt saw it."""
        mid, seen = receipt
        if seen is not None and sight.marks.receives != seen:
            raise StaleReceiptError(
                f"message {mid} of queue {self.qid!r} has been received {sight.marks.receives} times by now, not {seen}"
            )

    def _check_own(self, receipt: Receipt, sight: Sight) -> None:
        """And whether it may be changed."""
        self._check(receipt, sight)
        if sight.hidden == FOREIGN:
            raise StaleReceiptError(
                f"message {receipt.mid} of queue {self.qid!r} is locked by another program: it can be changed when "
                "that has unlocked it"
            )

    def payload_of(self, mid: int) -> bytes:
        """See EngineQueue."""
        self.publish_staged()
        payload = self._payload_of(mid)
        if payload is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return payload

    # -- ending or moving a window --------------------------------------------------------------------------------

    def delete(self, receipt: Receipt) -> None:
        """See EngineQueue. StaleReceiptError also when another program has it locked."""
        mid = receipt.mid
        while True:
            self._seen(mid)
            with self.alone(mid) as sight:
                if sight is None:
                    continue
                self._check_own(receipt, sight)
                if self._remove(mid, sight):
                    self.counts.deleted += 1
                    return

    def _remove(self, mid: int, sight: Sight) -> bool:
        """Removes a message that nobody else has locked. False when somebody was faster. Alone."""
        if not sight.hidden and not self._lock(mid, sight, sight.marks._replace(until=self._clock() + SECOND)):
            return False
        size, receives = self._index.size(mid), sight.marks.receives
        if not self._erase(mid):
            return False
        if self._shared.lifecycle is not None:
            self._shared.lifecycle.note("deleted", self.qid, mid, size, receives)
        return True

    def remove(self, mid: int, expiry: int) -> bool:
        """See EngineQueue."""
        with self.alone(mid) as sight:
            return sight is not None and sight.hidden == expiry and self._remove(mid, sight)

    def release(self, receipt: Receipt, delay: int) -> int | None:
        """See EngineQueue. StaleReceiptError also when another program has it locked."""
        mid = receipt.mid
        while True:
            self.expire()
            self._seen(mid)
            with self.alone(mid) as sight:
                if sight is None:
                    continue
                self._check_own(receipt, sight)
                receives = sight.marks.receives
                if not delay:
                    if sight.hidden:
                        self._unlock(mid, sight)
                        self.note("released", mid, receives)
                    return None
                until = min(self._clock() + delay, _LATEST)
                if self._hide_until(mid, sight, Marks(receives, until, delayed=True)):
                    self.note("released", mid, receives)
                    return until

    def _hide_until(self, mid: int, sight: Sight, marks: Marks) -> bool:
        """Locks a message, or moves the end of the lock that we have. False when somebody was faster. Alone."""
        if not sight.hidden:
            if not self._lock(mid, sight, marks):
                return False
        elif marks.until >= sight.hidden:
            # In this order: at any moment the time is not after the end in the marks, which tells that it is ours.
            self._marks.write(self._path(mid), mid, marks)
            stamp(self._path(mid), marks.until)
        else:
            stamp(self._path(mid), marks.until)
            self._marks.write(self._path(mid), mid, marks)
        self._index.hide(mid, marks.until, delayed=marks.delayed)
        self._hidden(mid, marks.until)
        self._touch(mid)
        return True

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """See EngineQueue."""
        mid = receipt.mid
        while True:
            self.expire()
            self._seen(mid)
            with self.alone(mid) as sight:
                if sight is None:
                    continue
                self._check_own(receipt, sight)
                if not sight.hidden or sight.marks.delayed:
                    raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is not in flight")
                until = self._end_of(visibility)
                self._hide_until(mid, sight, sight.marks._replace(until=until))
                self.note("extended", mid, sight.marks.receives)
                return until

    def expire(self, count: int | None = None) -> int:
        """Makes visible what is due, and looks after what others have locked; how many."""
        self.look_at_foreign()
        done = 0
        now = self._clock()
        while (count is None or done < count) and (mid := self._index.due(now)) is not None:
            done += 1
            with self.alone(mid) as sight:
                if sight is None or not 0 < sight.hidden <= now:
                    continue  # the index says so too by now
                delayed, receives = sight.marks.delayed, sight.marks.receives
                self._unlock(mid, sight)
            if not delayed:
                self.counts.expired += 1
                self.note("expired", mid, receives, peer="")
        return done

    # -- looking --------------------------------------------------------------------------------------------------

    def purge(self, upto: int, count: int) -> int:
        """See EngineQueue. What others have locked stays."""
        self.publish_staged()
        removed, after = 0, -1
        try:
            while removed < count and (mids := self._index.messages.after(after, min(count - removed, _SLICE))):
                for mid in mids:
                    after = mid
                    if mid > upto:
                        return removed
                    with self.alone(mid) as sight:
                        if sight is not None and sight.hidden != FOREIGN:
                            removed += self._remove(mid, sight)
            return removed
        finally:
            self.counts.deleted += removed


def _visible_at(sight: Sight) -> int | None:
    return sight.hidden if sight.hidden not in (0, FOREIGN) else None
