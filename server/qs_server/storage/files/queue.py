"""One queue in one directory, in the vsqs layout: every operation is the operation on the file.

A file without an extension is ready; with a number it is hidden until then (in flight or delayed); with `.new` it is
being written. Any number of processes may work on the directory at once, also the original vsqs: a rename succeeds
for one of them, and ENOENT means that another one was faster.
"""

import contextlib
import errno
import os
import stat
from typing import ClassVar

from ..engine import (
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    OtherMessageError,
    Receipt,
    StaleReceiptError,
)
from ..index.queries import IndexedQueue
from ..queues import EngineQueue
from .attributes import Attributes
from .directory import READ, STALE_AFTER
from .publishing import PublishingDirectory
from .staging import Staged

_NOT_TO_OPEN = frozenset({errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM})
"""Errors that mean: no file, or none that we may read."""

_HALF_COPY = 1
"""Seconds after which nobody is at work on a copy of a message whose file is not written to."""


class FileQueue(PublishingDirectory, IndexedQueue):
    """The messages of one directory, by what their holders may do with them."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None

    # -- receiving ------------------------------------------------------------------------------------------------

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        """Receives one visible message. None when another process was faster, or its payload is over max_bytes.
        held: for a subscriber; then it need not survive a power loss that it was received."""
        payload = self._content(mid, 0, max_bytes)
        if payload is None:
            return None
        receives = self._attributes.receives(self.name_path(mid, 0), mid) + 1
        expiry = self._end_of(visibility)
        if not self.load(mid) or not self.rename(mid, 0, expiry):
            return None
        try:
            # After the rename, so that what another consumer got is not counted by us.
            self._attributes.write(self.name_path(mid, expiry), mid, Attributes(receives))
        except OSError:
            self._put_back(mid, expiry)
            raise
        self._hide(mid, expiry, delayed=False, durable=not held)
        self.counts.delivered += 1
        self.note("received", mid, receives)
        return Message(self.qid, mid, "delivered", receives, self.time(mid), self.time(expiry), payload)

    def _put_back(self, mid: int, expiry: int) -> None:
        try:
            self.rename(mid, expiry, 0)
        except OSError:
            self._hide(mid, expiry, delayed=False)  # then it comes back when its window ends

    def _end_of(self, visibility: int | None) -> int:
        """Of a window that begins now."""
        window = self.options.visibility if visibility is None else visibility
        return max(self.number(self._clock() + window), 1)

    def _content(self, mid: int, expiry: int, max_bytes: int | None) -> bytes | None:
        """The payload of a message in a state; None as for take."""
        size = self._index.known_size(mid)
        if max_bytes is not None and size is not None and size > max_bytes:
            size = None  # it is looked at whether that is so still
        path = self.name_path(mid, expiry)
        try:
            fd = self._disk.open(path, READ)
        except FileNotFoundError:
            self.lost(mid, expiry)
            return None
        except OSError as error:
            if error.errno not in _NOT_TO_OPEN:
                raise
            self.disown(mid, path)
            return None
        try:
            payload = self._read_begin(fd, size) if size else b""
            if size and len(payload) == size:
                return payload  # of a regular file, as when its size was noted; an fstat costs as much as an open
            return self._look_into(fd, path, mid, max_bytes, payload)
        finally:
            self._disk.close(fd)

    def _read_begin(self, fd: int, size: int) -> bytes:
        """One byte more than the size, if there is. Nothing when it cannot be read: either it is no regular file, or
        whoever reads it next is told."""
        try:
            return self._disk.read(fd, size + 1)
        except OSError:
            return b""

    def _look_into(self, fd: int, path: str, mid: int, max_bytes: int | None, begin: bytes) -> bytes | None:
        """The content of a file that was not looked at before, or is not what it was. begin: has been read already."""
        status = self._disk.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            self.disown(mid, path)
            return None
        if mid in self._index.ready:
            self.load_ready(mid, path, status.st_size)
        if max_bytes is not None and status.st_size > max_bytes:
            return None
        return begin + self.read_file(fd, max(status.st_size - len(begin), 0))

    def _hide(self, mid: int, expiry: int, *, delayed: bool, durable: bool = True) -> None:
        self._index.hide(mid, expiry, delayed=delayed)
        self.hidden(expiry)
        if durable:
            self.touch(mid)

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        """One message: received if it is visible and not peeked at; its state and no payload if it is hidden."""
        while True:
            self.expire()
            expiry = self._found(mid)
            if not self.load(mid):
                continue
            message = self._look_at(mid, expiry) if expiry or peek else self.take(mid, visibility)
            if message is not None:
                return message

    def _look_at(self, mid: int, expiry: int) -> Message | None:
        receives = self._attributes.read(self.name_path(mid, expiry), mid).receives
        if expiry:
            status = "delayed" if self._index.is_delayed(mid) else "in-flight"
            return Message(self.qid, mid, status, receives, self.time(mid), self.time(expiry))
        payload = self._content(mid, 0, None)
        if payload is None:
            return None
        return Message(self.qid, mid, "ready", receives, self.time(mid), None, payload)

    def read(self, receipt: Receipt) -> Message:
        """A message and its payload, for whoever holds the receipt."""
        mid = receipt.mid
        while True:
            expiry, attributes = self._held(receipt)
            payload = self._content(mid, expiry, None)
            if payload is not None:
                visible_at = self.time(expiry) if expiry else None
                return Message(self.qid, mid, "delivered", attributes.receives, self.time(mid), visible_at, payload)

    def _found(self, mid: int) -> int:
        self.publish_staged()
        expiry = self._index.expiry(mid)
        if expiry is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return expiry

    # -- copying --------------------------------------------------------------------------------------------------

    def payload_of(self, mid: int) -> bytes:
        """The payload of a message, in whatever state it is. NoSuchMessageError."""
        while True:
            payload = self._content(mid, self._found(mid), None)
            if payload is not None:
                return payload

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """Stores the message of another queue under its id. False when it is here already.
        NoSuchMessageError, OtherMessageError, QueueFullError; NoSuchQueueError when the directory is gone."""
        self.publish_staged()
        with contextlib.ExitStack() as stack:
            if isinstance(source, FileQueue):
                payload: bytes | int = (fd := source.open_payload(mid))
                stack.callback(self._disk.close, fd)
            else:
                payload = source.payload_of(mid)
            if self._holds(mid, source):
                return False
            self._must_have_room(1)
            staged = self._write_copy(mid, payload, source)
        return self._take(staged, source)

    def open_payload(self, mid: int) -> int:
        """A descriptor of the file of a message, in whatever state it is. NoSuchMessageError."""
        while True:
            expiry = self._found(mid)
            if self.load(mid):
                try:
                    return self._disk.open(self.name_path(mid, expiry), READ)
                except FileNotFoundError:
                    self.lost(mid, expiry)

    def _holds(self, mid: int, source: EngineQueue) -> bool:
        """Whether the message of another queue is here already. OtherMessageError when another one of that id is."""
        while (expiry := self._index.expiry(mid)) is not None:
            own = self._content(mid, expiry, None)
            if own is not None:
                if own != source.payload_of(mid):
                    raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
                return True
        return False

    def _write_copy(self, mid: int, payload: bytes | int, source: EngineQueue) -> Staged:
        """FileExistsError when somebody is writing a message of that id; NoSuchQueueError."""
        try:
            if os.path.lexists(self._staging.new_path(mid)):
                self._clear_half_copy(mid, source)
            return self._staging.write(mid, 0, payload)
        except FileNotFoundError:
            if self.in_place():
                raise
            self.vanished()
            raise NoSuchQueueError(f"there is no queue {self.qid!r} any more") from None

    def _clear_half_copy(self, mid: int, source: EngineQueue) -> None:
        """Removes what a crash in the middle of the same copy has left: the beginning of the payload, to which nobody
        has written for a second. Else copying would wait until it is old enough to be anybody's."""
        with contextlib.suppress(FileNotFoundError):
            fd = self._disk.open(self._staging.new_path(mid), READ)
            try:
                begun = self.read_file(fd, self._disk.fstat(fd).st_size)
            finally:
                self._disk.close(fd)
            same = source.payload_of(mid).startswith(begun)
            self.clear_left_behind(f"{mid}.new", _HALF_COPY if same else STALE_AFTER)

    def _take(self, staged: Staged, source: EngineQueue) -> bool:
        """Takes over a copy that is written, unless somebody was faster."""
        self._saw(staged.mid)
        self._watch.refresh()  # as when it is pushed: whoever was faster has been reported by now
        taken = False
        try:
            taken = not self._holds(staged.mid, source)
        finally:
            if taken:
                self._stage_request([staged])
            else:
                self._discard([staged])
        if taken:
            self.publish_staged()
            if (error := self._failed.pop(staged.mid, None)) is not None:
                raise error
        return taken

    # -- ending or moving a window --------------------------------------------------------------------------------

    def _held(self, receipt: Receipt) -> tuple[int, Attributes]:
        """Where the message is, if it is still as the holder of the receipt saw it."""
        mid, seen = receipt
        while True:
            expiry = self._found(mid)
            path = self.name_path(mid, expiry)
            attributes = self._attributes.read(path, mid)
            if seen is None or attributes.receives == seen:
                return expiry, attributes
            if os.path.lexists(path):
                raise StaleReceiptError(
                    f"message {mid} of queue {self.qid!r} has been received {attributes.receives} times by now, "
                    f"not {seen}"
                )
            self.lost(mid, expiry)

    def delete(self, receipt: Receipt) -> None:
        """Removes a message, in whatever state it is."""
        while True:
            expiry = self._found(receipt.mid) if receipt.receives is None else self._held(receipt)[0]
            if self.remove(receipt.mid, expiry):
                self.counts.deleted += 1
                self.touch()
                return

    def release(self, receipt: Receipt, delay: int) -> int | None:
        """Makes a message visible, now (None) or later (when)."""
        mid = receipt.mid
        while True:
            self.expire()
            expiry, attributes = self._held(receipt)
            until = self.number(self._clock() + delay) if delay else 0
            if not self.load(mid):
                continue
            if until:
                self._attributes.write(self.name_path(mid, expiry), mid, attributes._replace(delayed=until))
            if expiry == until or self.rename(mid, expiry, until):
                break
        if until:
            self._hide(mid, until, delayed=True)
        elif expiry:
            self._index.show(mid)
            self.arrived()
            self.touch()
        else:
            return None  # it was visible before
        self.note("released", mid, attributes.receives)
        return self.time(until) if until else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Moves the end of the window of a message in flight."""
        mid = receipt.mid
        while True:
            self.expire()
            expiry, attributes = self._held(receipt)
            if not self.load(mid):
                continue
            if not expiry or self._index.is_delayed(mid):
                raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is not in flight")
            until = self._end_of(visibility)
            if until == expiry or self.rename(mid, expiry, until):
                self._hide(mid, until, delayed=False)
                self.note("extended", mid, attributes.receives)
                return self.time(until)

    def next_expiry(self) -> int | None:
        """When the next hidden message is due."""
        number = self._index.next_expiry()
        return None if number is None else self.time(number)

    def expire(self, count: int | None = None) -> int:
        """Makes visible what is due; how many."""
        done = 0
        now = self.number(self._clock())
        if not self._index.may_be_due(now):
            return 0
        while (count is None or done < count) and (mid := self._index.due(now)) is not None:
            done += 1
            if not self.load(mid):
                continue
            if self.rename(mid, self._index.expiry(mid) or 0, 0):
                delayed = self._index.is_delayed(mid)
                self._index.show(mid)
                self.arrived()
                self.touch()
                if not delayed:
                    self.counts.expired += 1
                    self.note("expired", mid, peer="")
        return done

    # -- looking --------------------------------------------------------------------------------------------------

    def purge(self, upto: int, count: int) -> int:
        """Removes the oldest messages with ids up to upto."""
        self.publish_staged()
        removed = 0
        try:
            while removed < count and (mid := self._index.messages.first()) is not None and mid <= upto:
                removed += self.remove(mid, self._index.expiry(mid) or 0)
        finally:
            self.counts.deleted += removed
            self.touch()
        return removed
