"""One queue in one directory, in the vsqs layout: every operation is the operation on the file.

A file without an extension is ready; with a number it is hidden until then (in flight or delayed); with `.new` it is
being written. Any number of processes may work on the directory at once, also the original vsqs: a rename succeeds for one of
them, and ENOENT means that another one was faster.
"""

import errno
import stat
from collections.abc import Callable, Sequence

from .activity import Activity
from .attributes import Attributes
from .directory import READ, MessageDirectory
from .disk import Disk
from .engine import (
    Clock,
    Draft,
    Durability,
    Message,
    NoSuchMessageError,
    Options,
    QueueFullError,
    Receipt,
    StaleReceiptError,
    State,
    Stats,
)
from .names import MAX_MID, message_name
from .staging import Staged, Staging
from .watch import Watch

_SLICE = 2000
"""Files that one slice of lazy loading looks at: some 10 ms."""


class FileQueue(MessageDirectory):
    """The messages of one directory. Not for several threads at once."""

    def __init__(
        self,
        path: str,
        qid: str,
        options: Options,
        *,
        clock: Clock,
        durability: Durability,
        disk: Disk,
        watch: Watch,
        activity: Activity,
        on_vanished: Callable[[str], None] = lambda qid: None,
    ) -> None:
        """path: an existing directory; qid: what messages are said to come from. OSError when it cannot be read."""
        sync = durability is Durability.ALWAYS
        super().__init__(path, options, clock=clock, disk=disk, watch=watch, sync=sync)
        self.qid = qid
        self._durability = durability
        self._activity = activity
        self._on_vanished = on_vanished
        self._staging = Staging(path, disk, sync=sync)
        self._unsynced: set[int] = set()  # messages whose file has to be synced at the next commit
        self._counts = Stats()
        self._load_after = -1
        self.rescan()

    def close(self) -> None:
        """Takes back what is not visible, and stops watching."""
        for request in self._staging.take():
            self._staging.discard(request)
        self.unwatch()
        self._activity.forget(self.qid)

    def arrived(self, mid: int) -> None:
        self._activity.arrived.add(self.qid)

    def hidden(self, mid: int, expiry: int) -> None:
        self._activity.announce(self.qid, self.time(expiry))

    def vanished(self) -> None:
        self._on_vanished(self.qid)

    def is_staged(self, mid: int) -> bool:
        return self._staging.holds(mid)

    def _touch(self, mid: int | None = None) -> None:
        """Names have changed, and the attributes of a message."""
        if self._durability is not Durability.NONE:
            self._activity.dirty.add(self.qid)
            if mid is not None and self._durability is Durability.ALWAYS:
                self._unsynced.add(mid)

    # -- pushing --------------------------------------------------------------------------------------------------

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Writes messages, all or none, invisible until `flush`. Their ids."""
        capacity = self.options.capacity
        if capacity is not None and len(self) + len(self._staging) + len(drafts) > capacity:
            raise QueueFullError(f"queue {self.qid!r} holds {len(self)} messages; its capacity is {capacity}")
        request: list[Staged] = []
        try:
            for draft in drafts:
                request.append(self._stage(draft))  # noqa: PERF401 - what was written before an error is discarded
        except BaseException:
            self._staging.discard(request)
            raise
        self._staging.add(request)
        return [staged.mid for staged in request]

    def _stage(self, draft: Draft) -> Staged:
        while True:
            now = self._clock()
            mid = max(self.number(now), self.last_mid + 1)
            if mid > MAX_MID:
                raise QueueFullError(f"queue {self.qid!r} has seen the message {self.last_mid}: no greater id is left")
            self.last_mid = mid
            expiry = self.number(now + draft.delay) if draft.delay else 0
            try:
                staged = self._staging.write(mid, expiry, draft.payload)
            except FileExistsError:
                continue
            # Our `.new` keeps others from taking the id from here on. Whoever had it before has been reported by now.
            self._watch.refresh()
            if self._index.expiry(mid) is None:
                return staged
            self._staging.discard([staged])

    def flush(self) -> dict[int, OSError]:
        """Makes every pushed message visible, request by request. Those that came to nothing, by first id, and why."""
        failures = self._staging.sync()
        for request in self._staging.take():
            try:
                self._publish(request)
            except OSError as error:
                self._staging.discard(request)
                failures[request[0].mid] = error
        return failures

    def _publish(self, request: list[Staged]) -> None:
        done: list[Staged] = []
        try:
            for staged in request:
                self._show(staged)
                done.append(staged)
            self._staging.finish(request)
        except OSError:
            for staged in done:
                self.unlink(staged.mid, staged.expiry)
            raise
        self._counts.pushed += len(request)
        self._touch()

    def _show(self, staged: Staged) -> None:
        mid, expiry = staged.mid, staged.expiry
        path = self._staging.new_path(mid)
        if expiry:
            self._attributes.write(path, mid, Attributes(delayed=expiry))
        self._disk.rename(path, self.name_path(mid, expiry))
        self._watch.expect_arrival(self._watched, message_name(mid, expiry))
        self._index.add(mid, expiry)
        self._index.load(mid, staged.size, retrieved=False, delayed=bool(expiry))
        if expiry:
            self._touch(mid)
            self.hidden(mid, expiry)
        else:
            self.arrived(mid)

    # -- receiving ------------------------------------------------------------------------------------------------

    def first_ready(self) -> int | None:
        """The oldest visible message."""
        return self._index.ready.first()

    @property
    def ready(self) -> int:
        """How many messages are visible."""
        return len(self._index.ready)

    def take(self, mid: int, visibility: int | None, max_bytes: int | None = None) -> Message | None:
        """Receives one visible message. None when another process was faster, or its payload is over max_bytes."""
        payload = self._content(mid, max_bytes)
        if payload is None:
            return None
        receives = self._attributes.receives(self.name_path(mid, 0), mid) + 1
        window = self.options.visibility if visibility is None else visibility
        expiry = max(self.number(self._clock() + window), 1)
        if not self.load(mid) or not self.rename(mid, 0, expiry):
            return None
        # After the rename, so that what another consumer got is not counted by us.
        self._attributes.write(self.name_path(mid, expiry), mid, Attributes(receives))
        self._hide(mid, expiry, delayed=False)
        self._counts.delivered += 1
        return Message(self.qid, mid, "delivered", receives, self.time(mid), self.time(expiry), payload)

    def _content(self, mid: int, max_bytes: int | None) -> bytes | None:
        """The payload of a visible message; None as for take."""
        path = self.name_path(mid, 0)
        try:
            fd = self._disk.open(path, READ)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                raise
            self.lost(mid, 0)
            if self._index.expiry(mid) == 0:
                self.disown(mid, path)
            return None
        try:
            status = self._disk.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self.disown(mid, path)
                return None
            return None if max_bytes is not None and status.st_size > max_bytes else self.read(fd, status.st_size)
        finally:
            self._disk.close(fd)

    def _hide(self, mid: int, expiry: int, *, delayed: bool) -> None:
        self._index.hide(mid, expiry, delayed=delayed)
        self.hidden(mid, expiry)
        self._touch(mid)

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
        payload = self._content(mid, None)
        if payload is None:
            return None
        return Message(self.qid, mid, "ready", receives, self.time(mid), None, payload)

    def _found(self, mid: int) -> int:
        expiry = self._index.expiry(mid)
        if expiry is None:
            raise NoSuchMessageError(f"queue {self.qid!r} holds no message {mid}")
        return expiry

    # -- ending or moving a window --------------------------------------------------------------------------------

    def _held(self, receipt: Receipt) -> tuple[int, Attributes]:
        """Where the message is, if it is still as the holder of the receipt saw it."""
        mid, seen = receipt
        expiry = self._found(mid)
        attributes = self._attributes.read(self.name_path(mid, expiry), mid)
        if seen is not None and attributes.receives != seen:
            raise StaleReceiptError(
                f"message {mid} of queue {self.qid!r} has been received {attributes.receives} times by now, not {seen}"
            )
        return expiry, attributes

    def delete(self, receipt: Receipt) -> None:
        """Removes a message, in whatever state it is."""
        while True:
            expiry = self._found(receipt.mid) if receipt.receives is None else self._held(receipt)[0]
            if self.unlink(receipt.mid, expiry):
                self._counts.deleted += 1
                self._touch()
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
            return self.time(until)
        if expiry:
            self._index.show(mid)
            self.arrived(mid)
            self._touch()
        return None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Moves the end of the window of a message in flight."""
        mid = receipt.mid
        while True:
            self.expire()
            expiry, _ = self._held(receipt)
            if not self.load(mid):
                continue
            if not expiry or self._index.is_delayed(mid):
                raise StaleReceiptError(f"message {mid} of queue {self.qid!r} is not in flight")
            window = self.options.visibility if visibility is None else visibility
            until = max(self.number(self._clock() + window), 1)
            if until == expiry or self.rename(mid, expiry, until):
                self._hide(mid, until, delayed=False)
                return self.time(until)

    def next_expiry(self) -> int | None:
        """When the next hidden message is due."""
        number = self._index.next_expiry()
        return None if number is None else self.time(number)

    def expire(self, count: int | None = None) -> int:
        """Makes visible what is due; how many."""
        done = 0
        now = self.number(self._clock())
        while (count is None or done < count) and (mid := self._index.due(now)) is not None:
            done += 1
            if not self.load(mid):
                continue
            if self.rename(mid, self._index.expiry(mid) or 0, 0):
                self._counts.expired += not self._index.is_delayed(mid)
                self._index.show(mid)
                self.arrived(mid)
                self._touch()
        return done

    # -- looking --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._index.messages)

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        """Ids greater than after, oldest first."""
        self.expire()
        index = self._index
        if state is State.READY:
            return index.ready.after(after, count)
        if state is State.ALL:
            return index.messages.after(after, count)
        source = index.new if state is State.NEW else index.hidden
        found: list[int] = []
        while len(found) < count and (mids := source.after(after, count)):
            after = mids[-1]
            found += [mid for mid in mids if self.load(mid) and self._is(mid, state)]
        return found[:count]

    def _is(self, mid: int, state: State) -> bool:
        if state is State.NEW:
            return mid in self._index.new
        return self._index.is_delayed(mid) is (state is State.DELAYED)

    def prepare_stats(self) -> bool:
        """Loads a slice of what has not been loaded; False when nothing is left."""
        if not self._index.unloaded:
            return False
        mids = self._index.messages.after(self._load_after, _SLICE)
        for mid in mids:
            self.load(mid)
        self._load_after = mids[-1] if mids else -1
        return self._index.unloaded > 0

    def stats(self) -> Stats:
        """Figures of the queue."""
        self.expire()
        while self.prepare_stats():
            pass
        index, counts = self._index, self._counts
        oldest = index.messages.first()
        return Stats(
            new=len(index.new),
            ready=len(index.ready),
            in_flight=len(index.hidden) - index.delayed,
            delayed=index.delayed,
            bytes=index.bytes,
            oldest=None if oldest is None else max(self._clock() - self.time(oldest), 0),
            pushed=counts.pushed,
            delivered=counts.delivered,
            expired=counts.expired,
            deleted=counts.deleted,
            storage=self.options.storage,
        )

    def purge(self, upto: int, count: int) -> int:
        """Removes the oldest messages with ids up to upto."""
        removed = 0
        for mid in self._index.messages.after(-1, count):
            if mid > upto:
                break
            expiry = self._index.expiry(mid)
            removed += expiry is not None and self.unlink(mid, expiry)
        self._counts.deleted += removed
        self._touch()
        return removed

    # -- durability -----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Syncs what has changed (durability ALWAYS): the attributes of messages, then the names."""
        while self._unsynced:
            mid = self._unsynced.pop()
            expiry = self._index.expiry(mid)
            if expiry is not None:
                self._sync_message(self.name_path(mid, expiry))
        self._disk.sync_directory(self.path)

    def _sync_message(self, path: str) -> None:
        try:
            fd = self._disk.open(path, READ)
        except FileNotFoundError:
            return
        try:
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
