"""A queue of the vsqs layout: every operation is the operation on the file.

A file without an extension is ready; with a number it is hidden until then (in flight or delayed); with `.new` it is
being written. Any number of processes may work on the directory at once, also the original vsqs: a rename succeeds
for one of them, and ENOENT means that another one was faster.
"""

import contextlib
import os
from typing import ClassVar

from ..disk import READ
from ..engine import Message, NoSuchMessageError, Options, Receipt, StaleReceiptError, State, Stats
from ..index.queries import IndexQueries
from ..publisher import Publisher
from ..queues import EngineQueue
from ..recording import QueueRecorder
from ..shared import Shared
from .attributes import Attributes
from .copying import Copier
from .directory import MessageDirectory
from .staging import Staging
from .writer import FileWriter

_AT_ONCE = 2000
"""Messages whose files are looked at in one slice of `prepare_stats`: some 30 ms."""


class FileQueue:
    """The messages of one directory. Not for several threads at once. See EngineQueue."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None

    def __init__(
        self, path: str, qid: str, options: Options, shared: Shared, *, clears_unfinished: bool = True
    ) -> None:
        """path: an existing directory, which is listed at once; clears_unfinished: whether a file that is being written
        and has not changed for long is removed. OSError."""
        self.path = path
        self.qid = qid
        self.options = options
        self._clock = shared.clock
        self._disk = shared.disk
        staging = Staging(path, shared.disk, sync=shared.always)
        is_ours = staging.holds if clears_unfinished else lambda name: True
        directory = self._directory = MessageDirectory(path, qid, options, shared, is_ours)
        index = self._index = directory.index
        self._attributes = directory.attributes
        self._recorder = QueueRecorder(qid, index, shared.lifecycle)
        self.note_removed = self._recorder.note_all_deleted
        writer = FileWriter(qid, directory, staging, shared.clock, shared.watch)
        refresh = shared.watch.refresh
        self._publisher = Publisher(qid, options, writer, shared.activity, self._recorder, index.__len__, refresh)
        self._counts = self._publisher.counts
        self.push = self._publisher.push
        self.flush = self._publisher.flush
        self._copier = Copier(qid, directory, staging, writer, self._publisher, shared.disk, refresh)
        self._queries = IndexQueries(index, directory.load, _AT_ONCE)
        self.prepare_stats = self._queries.prepare
        self.time = directory.time
        self.arrived = directory.arrived
        self.in_place = directory.in_place
        self.commit = directory.commit
        try:
            self.rescan()
        except BaseException:
            directory.unwatch()
            raise

    def __len__(self) -> int:
        return len(self._index)

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""
        return self._directory.last_mid

    @property
    def watched(self) -> bool:
        """Whether what others do is reported. If not, call `rescan`."""
        return self._directory.watched

    def rescan(self) -> None:
        """Lists the directory anew. OSError."""
        self._directory.rescan()

    def close(self) -> list[int]:
        left = self._publisher.close()
        self._directory.unwatch()
        return left

    # -- receiving ------------------------------------------------------------------------------------------------

    def first_ready(self) -> int | None:
        self._publisher.publish()
        return self._index.ready.first()

    @property
    def ready(self) -> int:
        return len(self._index.ready)

    def take(
        self, mid: int, visibility: int | None, max_bytes: int | None = None, *, held: bool = False
    ) -> Message | None:
        directory = self._directory
        payload = directory.read(mid, 0, max_bytes)
        if payload is None:
            return None
        receives = self._attributes.receives(directory.name_path(mid, 0), mid) + 1
        expiry = self._end_of(visibility)
        if not directory.load(mid) or not directory.rename(mid, 0, expiry):
            return None
        try:
            # After the rename, so that what another consumer got is not counted by us.
            self._attributes.write(directory.name_path(mid, expiry), mid, Attributes(receives))
        except OSError:
            self._put_back(mid, expiry)
            raise
        directory.hide(mid, expiry, delayed=False, durable=not held)
        self._counts.delivered += 1
        self._recorder.note("received", mid, receives)
        return Message(self.qid, mid, "delivered", receives, self.time(mid), self.time(expiry), payload)

    def _put_back(self, mid: int, expiry: int) -> None:
        try:
            self._directory.rename(mid, expiry, 0)
        except OSError:
            self._directory.hide(mid, expiry, delayed=False)  # then it comes back when its window ends

    def _end_of(self, visibility: int | None) -> int:
        """Returns the end of a window that begins now."""
        window = self.options.visibility if visibility is None else visibility
        return max(self._directory.number(self._clock() + window), 1)

    # -- looking --------------------------------------------------------------------------------------------------

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        while True:
            self.expire()
            expiry = self._find(mid)
            if not self._directory.load(mid):
                continue
            message = self._look_at(mid, expiry) if expiry or peek else self.take(mid, visibility)
            if message is not None:
                return message

    def _look_at(self, mid: int, expiry: int) -> Message | None:
        receives = self._attributes.read(self._directory.name_path(mid, expiry), mid).receives
        if expiry:
            status = "delayed" if self._index.is_delayed(mid) else "in-flight"
            return Message(self.qid, mid, status, receives, self.time(mid), self.time(expiry))
        payload = self._directory.read(mid, 0)
        return None if payload is None else Message(self.qid, mid, "ready", receives, self.time(mid), None, payload)

    def read(self, receipt: Receipt) -> Message:
        mid = receipt.mid
        while True:
            expiry, attributes = self._find_held(receipt)
            payload = self._directory.read(mid, expiry)
            if payload is not None:
                visible_at = self.time(expiry) if expiry else None
                return Message(self.qid, mid, "delivered", attributes.receives, self.time(mid), visible_at, payload)

    def _find(self, mid: int) -> int:
        """Returns the expiry of a message. NoSuchMessageError."""
        self._publisher.publish()
        expiry = self._index.expiry(mid)
        if expiry is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return expiry

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        self._publisher.publish()
        self.expire()
        return self._queries.list_mids(state, count, after)

    def stats(self) -> Stats:
        self._publisher.publish()
        self.expire()
        return self._queries.stats(self._counts, lambda mid: self._clock() - self.time(mid))

    # -- copying --------------------------------------------------------------------------------------------------

    def payload_of(self, mid: int) -> bytes:
        while True:
            payload = self._directory.read(mid, self._find(mid))
            if payload is not None:
                return payload

    def take_in(self, mid: int, source: EngineQueue) -> bool:
        """See EngineQueue. FileExistsError when another process is writing a message of that id."""
        self._publisher.publish()
        with contextlib.ExitStack() as stack:
            if isinstance(source, FileQueue):  # the kernel copies
                payload: bytes | int = (fd := source._open_payload(mid))
                stack.callback(self._disk.close, fd)
            else:
                payload = source.payload_of(mid)
            return self._copier.copy(mid, payload, lambda: source.payload_of(mid))

    def _open_payload(self, mid: int) -> int:
        """Returns a descriptor of the file of a message. NoSuchMessageError, OSError."""
        while True:
            expiry = self._find(mid)
            if self._directory.load(mid):
                try:
                    return self._disk.open(self._directory.name_path(mid, expiry), READ)
                except FileNotFoundError:
                    self._directory.lost(mid, expiry)

    # -- ending or moving a window --------------------------------------------------------------------------------

    def _find_held(self, receipt: Receipt) -> tuple[int, Attributes]:
        """Returns the expiry and the attributes of a message that is still as the holder of the receipt saw it.
        NoSuchMessageError, StaleReceiptError."""
        mid, seen = receipt
        while True:
            expiry = self._find(mid)
            path = self._directory.name_path(mid, expiry)
            attributes = self._attributes.read(path, mid)
            if seen is None or attributes.receives == seen:
                return expiry, attributes
            if os.path.lexists(path):
                raise StaleReceiptError(
                    f"message {mid} of queue {self.qid!r} has been received {attributes.receives} times by now, "
                    f"not {seen}"
                )
            self._directory.lost(mid, expiry)

    def delete(self, receipt: Receipt) -> None:
        while True:
            expiry = self._find(receipt.mid) if receipt.receives is None else self._find_held(receipt)[0]
            if self.remove(receipt.mid, expiry):
                self._counts.deleted += 1
                self._directory.touch()
                return

    def remove(self, mid: int, expiry: int) -> bool:
        directory = self._directory
        if self._recorder.lifecycle is None:
            return directory.unlink(mid, expiry)
        if not directory.load(mid):
            return False
        size, receives = self._index.size(mid), self._receives(mid, expiry)
        if not directory.unlink(mid, expiry):
            return False
        self._recorder.note_deleted(mid, size, receives)
        return True

    def _receives(self, mid: int, expiry: int) -> int | None:
        """Returns how often a message was received, for the record; None when the disk does not say, which is no reason
        to fail."""
        try:
            return self._attributes.receives(self._directory.name_path(mid, expiry), mid)
        except OSError:
            return None

    def release(self, receipt: Receipt, delay: int) -> int | None:
        mid, directory = receipt.mid, self._directory
        while True:
            self.expire()
            expiry, attributes = self._find_held(receipt)
            until = directory.number(self._clock() + delay) if delay else 0
            if not directory.load(mid):
                continue
            if until:
                self._attributes.write(directory.name_path(mid, expiry), mid, attributes._replace(delayed=until))
            if expiry == until or directory.rename(mid, expiry, until):
                break
        if until:
            directory.hide(mid, until, delayed=True)
        elif expiry:
            directory.show(mid)
        else:
            return None  # it was visible before
        self._recorder.note("released", mid, attributes.receives)
        return self.time(until) if until else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        mid, directory = receipt.mid, self._directory
        while True:
            self.expire()
            expiry, attributes = self._find_held(receipt)
            if not directory.load(mid):
                continue
            if not expiry or self._index.is_delayed(mid):
                raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is not in flight")
            until = self._end_of(visibility)
            if until == expiry or directory.rename(mid, expiry, until):
                directory.hide(mid, until, delayed=False)
                self._recorder.note("extended", mid, attributes.receives)
                return self.time(until)

    def purge(self, upto: int, count: int) -> int:
        self._publisher.publish()
        removed = 0
        try:
            while removed < count and (mid := self._index.messages.first()) is not None and mid <= upto:
                removed += self.remove(mid, self._index.expiry(mid) or 0)
        finally:
            self._counts.deleted += removed
            self._directory.touch()
        return removed

    # -- time -----------------------------------------------------------------------------------------------------

    def next_expiry(self) -> int | None:
        number = self._index.next_expiry()
        return None if number is None else self.time(number)

    def expire(self, count: int | None = None) -> int:
        done = 0
        now = self._directory.number(self._clock())
        if not self._index.may_be_due(now):
            return 0
        while (count is None or done < count) and (mid := self._index.due(now)) is not None:
            done += 1
            if self._directory.load(mid) and self._directory.rename(mid, self._index.expiry(mid) or 0, 0):
                delayed = self._index.is_delayed(mid)
                self._directory.show(mid)
                if not delayed:
                    self._counts.expired += 1
                    if self._recorder.lifecycle is not None:
                        self._recorder.note("expired", mid, self._receives(mid, 0), peer="")
        return done
