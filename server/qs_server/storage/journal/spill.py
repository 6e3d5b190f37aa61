"""Writing back: what is in memory, and in the journal only, goes into the directories, many messages at a time.

A spill is planned where the engine runs, done in any thread while the engine goes on, and settled where the engine
runs. What changes meanwhile is seen when it is settled. A message's file appears under its name with all of its
content; all files are made durable by one sync of the file system, and only then are the segments given up that had
them.
"""

import errno
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from math import inf
from time import perf_counter
from typing import NamedTuple

from ..attributes import Attributes
from ..disk import Disk, has_no_room
from ..names import message_name
from .entries import CLEAN, IN_FILE, NOWHERE, Entry
from .journal import Journal
from .queue import JournalQueue

_logger = logging.getLogger(__name__)
_MESSAGES = 4000
"""Messages of one spill: settling it takes some 10 ms."""
_BYTES = 16 << 20
_AT_LEAST = 200
"""Messages of one spill however long they take."""
_NEW_FILE = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC


class Item(NamedTuple):
    """A message to write. expiry, attributes: what the directory is to show."""

    queue: JournalQueue
    mid: int
    entry: Entry
    expiry: int
    attributes: Attributes


class Burial(NamedTuple):
    """A file to remove."""

    queue: JournalQueue
    mid: int
    entry: Entry


class Spill:
    """One plan. `run` touches nothing but files and itself."""

    def __init__(self, journal: Journal, disk: Disk, *, sync: bool, spare: bool = True) -> None:
        """sync: whether anything has to be durable; spare: whether it may prepare a segment too."""
        self.items: list[Item] = []
        self.burials: list[Burial] = []
        self.garbage: list[str] = []
        self.seconds = inf
        """After which it is enough, should it take longer: the files that are left are for the next one."""
        self.done: list[Item] = []
        self._missing: list[Item] = []
        self._taken: list[Item] = []
        self._moved: list[Item] = []
        self.buried: list[Burial] = []
        self.segment = journal.number
        """Whatever is changed while it runs is in this one or in a later one."""
        self.synced = False
        self.error: OSError | None = None
        """Why something was not written or removed."""
        self.spare_error: OSError | None = None
        self._made: int | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._spare = journal.wants_spare if spare else None
        self._journal = journal
        self._disk = disk
        self._sync = sync

    def __bool__(self) -> bool:
        return bool(self.items or self.burials or self.garbage or self._spare is not None)

    def plan(self, queues: Iterable[JournalQueue], now: int, age: int) -> None:
        """What is behind for that long, the oldest of each queue first, and first of all the queue whose messages the
        oldest segment is kept for; not what the batch has changed that is under way. What seems to be of the future is
        of a clock that was set back, and old enough."""
        size = 0
        queues = sorted(queues, key=_oldest)
        self.plan_burials(queues)
        for queue in queues:
            for mid, entry in queue.entries.items():
                if now - age < entry.since <= now or len(self.items) >= _MESSAGES or size > _BYTES:
                    break
                if queue.is_uncommitted(mid) or (entry.held and entry.segment == CLEAN and entry.payload is None):
                    continue
                self.items.append(Item(queue, mid, entry, *queue.target(mid, entry)))
                size += len(entry.payload or b"")
                queue.writing.add(mid)

    def plan_burials(self, queues: Iterable[JournalQueue]) -> None:
        """The files of messages that are deleted."""
        for queue in queues:
            for mid, entry in queue.entries.gone.items():
                if len(self.burials) >= _MESSAGES:
                    return
                if not queue.is_uncommitted(mid):
                    self.burials.append(Burial(queue, mid, entry))
                    queue.writing.add(mid)

    def _files(self) -> Iterator[tuple[JournalQueue, int]]:
        yield from ((item.queue, item.mid) for item in self.items)
        yield from ((burial.queue, burial.mid) for burial in self.burials)

    def run(self) -> None:
        """Does it, once; whoever calls again waits until it is done. Raises nothing: see `error`."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            try:
                self._run()
            except OSError as error:
                self.error = error
            except Exception as error:
                _logger.exception("a fault of the server")
                self.error = OSError(errno.EIO, str(error))

    def _run(self) -> None:
        for burial in self.burials:
            try:
                self._bury(burial)
            except OSError as error:
                self.error = error  # the others are removed all the same
        self._write_all()
        if self._sync:
            self._sync_written()
        self.synced = True
        self._clear()
        if self._spare is not None:
            self._make_spare(self._spare)

    def _write_all(self) -> None:
        """As many as there is room for, and time."""
        until = perf_counter() + self.seconds
        for number, item in enumerate(self.items):
            if number >= _AT_LEAST and perf_counter() > until:
                return
            try:
                self._write(item)
            except FileNotFoundError:
                self._missing.append(item)  # somebody has taken it, or the whole queue
            except FileExistsError:
                self._taken.append(item)
            except OSError as error:
                self.error = error
                if has_no_room(error):
                    return
            else:
                self.done.append(item)

    def _clear(self) -> None:
        """Removes old segments; first of all, that they may go has to last as long as that they have gone."""
        if self.garbage and (sync := self._journal.background_sync()) is not None:
            sync()
        while self.garbage:
            with suppress(FileNotFoundError):
                self._disk.unlink(self.garbage[0])
            del self.garbage[0]

    def _make_spare(self, size: int) -> None:
        try:
            self._journal.supply.make_spare(size)
        except OSError as error:
            self.spare_error = error
        else:
            self._made = size

    def _bury(self, burial: Burial) -> None:
        queue, mid, entry = burial
        with suppress(FileNotFoundError):
            self._disk.unlink(queue.file_path(mid, entry.disk))
        with suppress(OSError):  # the next start clears it away
            queue.files.forget(mid)
        self.buried.append(burial)

    def _write(self, item: Item) -> None:
        queue, mid, entry, expiry, attributes = item
        path = queue.file_path(mid, expiry)
        if entry.payload is None and entry.receives != IN_FILE:
            self._note(queue, queue.file_path(mid, entry.disk), mid, attributes)
        if entry.disk not in (NOWHERE, expiry):
            # Before there is another one, so that at no moment two files are the same message.
            with suppress(FileNotFoundError) if entry.payload is not None else nullcontext():
                self._disk.rename(queue.file_path(mid, entry.disk), path)
                self._moved.append(item)
        if entry.payload is not None:
            self._write_file(item, path, entry.payload)

    def _note(self, queue: JournalQueue, path: str, mid: int, attributes: Attributes) -> None:
        try:
            queue.files.write(path, mid, attributes, or_fail=True)
        except PermissionError:
            queue.files.write(path, mid, attributes)  # a file of somebody else, which stays as it is

    def _write_file(self, item: Item, path: str, payload: bytes) -> None:
        temporary = f"{item.queue.path}/.{item.mid}.tmp"
        fd = self._disk.open(temporary, _NEW_FILE, 0o666)
        try:
            try:
                self._disk.write(fd, payload)
            finally:
                self._disk.close(fd)
            if any(item.attributes):
                self._note(item.queue, temporary, item.mid, item.attributes)
            if item.entry.disk == NOWHERE and os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)  # somebody else's, of the same id
            self._disk.rename(temporary, path)
        except OSError:
            with suppress(OSError):
                self._disk.unlink(temporary)
            raise

    def _sync_written(self) -> None:
        """All of it at once, where the file system knows how to."""
        written = {item.queue for item in self.done} | {burial.queue for burial in self.buried}
        devices = {queue.device: queue.path for queue in written}
        whole = {device for device, path in devices.items() if self._disk.can_sync_file_system(device)}
        for device in whole:
            self._disk.sync_file_system(devices[device])
        for item in self.done:
            if item.queue.device not in whole:
                self._disk.sync_file(item.queue.file_path(item.mid, item.expiry))
        for queue in written:
            if queue.device not in whole:
                self._disk.sync_directory(queue.path)

    # -- settling -------------------------------------------------------------------------------------------------

    @property
    def stuck(self) -> bool:
        """Once it is settled: whether another one would come no further."""
        if not self.synced:
            return True
        left = all(item.queue.entries.get(item.mid) is item.entry for item in self._missing)
        return bool(self.items) and not self.done and not self._taken and left

    def settle(self) -> None:
        """Where the engine runs, after it: notes what the directories show now."""
        for item in self._moved:
            self._settle_moved(item)
        for item in self.done:
            if not item.queue.is_closed:
                self._settle(item)
        for burial in self.buried:
            self._settle_burial(burial)
        for queue, mid in self._files():
            queue.writing.discard(mid)
        self._settle_others()
        self._journal.give_back_garbage(self.garbage)
        if self._made is not None:
            self._journal.supply.has_made(self._made)
        elif self._spare is not None and self.spare_error is not None:
            self._journal.supply.could_not_make(self._spare, self.spare_error)

    def _settle_others(self) -> None:
        """What somebody else has taken away, or put in the place of a message."""
        for item in self._missing:
            if not item.queue.is_closed and item.queue.entries.get(item.mid) is item.entry:
                item.queue.lost(item.mid, item.entry.disk)
        for item in self._taken:
            if not item.queue.is_closed:
                item.queue.changed(message_name(item.mid, item.expiry).encode(), appeared=True)

    def _settle_moved(self, item: Item) -> None:
        """Its file has another name, whatever has become of the rest."""
        queue, mid, entry, expiry, _ = item
        entries = queue.entries
        for where in (entries.get(mid), entries.gone.get(mid)):
            if where is not None and where.disk == entry.disk:
                if where is entries.gone.get(mid):
                    entries.gone[mid] = where._replace(disk=expiry)
                elif item not in self.done:
                    entries.replace(mid, where._replace(disk=expiry))
        if item not in self.done:
            queue.is_written(mid, expiry, synced=False)

    def _settle_burial(self, burial: Burial) -> None:
        queue, mid, entry = burial
        if self.synced and queue.entries.gone.get(mid) is entry:
            del queue.entries.gone[mid]
        again = queue.entries.get(mid)
        if again is not None and again.disk == entry.disk and again.payload is not None:
            queue.entries.replace(mid, again._replace(disk=NOWHERE))  # a message that is there again, without the file

    def _settle(self, item: Item) -> None:
        queue, mid, entry, expiry, _ = item
        entries = queue.entries
        queue.is_written(mid, expiry, synced=self.synced)
        now = entries.get(mid)
        if now is None:
            if queue.is_known(mid):
                return  # somebody else has changed the file since, and it was taken up like that
            entries.bury(mid, Entry(None, 0, expiry, self.segment, entry.since))
        elif not self.synced or now is not entry:
            # The message has changed since; or the file may not be there after a power loss.
            payload = None if self.synced else now.payload
            entries.replace(mid, now._replace(payload=payload, disk=expiry))
        elif now.held or queue.shows(mid) != expiry:
            entries.replace(mid, Entry(None, IN_FILE, expiry, CLEAN, now.since, now.held))
        else:
            entries.pop(mid)


def _oldest(queue: JournalQueue) -> tuple[float, float]:
    """By which queues are in order: so that no queue has to wait for ever because another one has too many messages."""
    entries = queue.entries
    segment, since = entries.oldest_segment(), entries.since()
    return inf if segment is None else segment, inf if since is None else since
