"""Writing back: what is in memory, and in the journal only, goes into the directories, many messages at a time.

A spill is planned where the engine runs, done in any thread while the engine goes on, and settled where the engine
runs. What changes meanwhile is seen when it is settled. A message's file appears under its name with all of its
content; all files are made durable by one sync of the file system, and only then are the segments given up that had
them.
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import NamedTuple

from ..attributes import Attributes
from ..disk import Disk, has_no_room
from .entries import CLEAN, IN_FILE, NOWHERE, Entry
from .journal import Journal
from .queue import JournalQueue

_logger = logging.getLogger(__name__)
_MESSAGES = 4000
"""Messages of one spill: settling it takes some 10 ms."""
_BYTES = 16 << 20
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
        self.done: list[Item] = []
        self._missing: list[Item] = []
        self.buried: list[Burial] = []
        self.segment = journal.number
        """Whatever is changed while it runs is in this one or in a later one."""
        self.synced = False
        self.error: OSError | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._spare = spare and journal.wants_spare
        self._journal = journal
        self._disk = disk
        self._sync = sync

    def __bool__(self) -> bool:
        return bool(self.items or self.burials or self.garbage or self._spare)

    def plan(self, queues: Iterable[JournalQueue], now: int, age: int) -> None:
        """What is behind for that long, the oldest of each queue first; not what the batch has changed that is under
        way. What seems to be of the future is of a clock that was set back, and old enough."""
        size = 0
        queues = list(queues)
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

    def _run(self) -> None:
        for burial in self.burials:
            self._bury(burial)
        failure = self._write_all()
        if self._sync:
            self._sync_written()
        self.synced = True
        self._clear()
        if self._spare:
            self._journal.prepare_spare()
        if failure is not None:
            raise failure

    def _write_all(self) -> OSError | None:
        """What went wrong with one of them, if anything did. A full disk ends it."""
        failure: OSError | None = None
        for item in self.items:
            try:
                self._write(item)
            except FileNotFoundError:
                self._missing.append(item)  # somebody has taken it, or the whole queue
            except OSError as error:
                failure = error
                if has_no_room(error):
                    break
            else:
                self.done.append(item)
        return failure

    def _clear(self) -> None:
        """Removes old segments; first of all, that they may go has to last as long as that they have gone."""
        if self.garbage and (sync := self._journal.background_sync()) is not None:
            sync()
        for path in self.garbage:
            with suppress(FileNotFoundError):
                self._disk.unlink(path)

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
        if entry.disk not in (NOWHERE, expiry):
            # First, so that at no moment two files are the same message.
            old = queue.file_path(mid, entry.disk)
            if entry.payload is None and entry.receives != IN_FILE:
                queue.files.write(old, mid, attributes)
            with suppress(FileNotFoundError) if entry.payload is not None else nullcontext():
                self._disk.rename(old, path)
        elif entry.payload is None and entry.receives != IN_FILE:
            queue.files.write(path, mid, attributes)
        if entry.payload is not None:
            self._write_file(item, path, entry.payload)

    def _write_file(self, item: Item, path: str, payload: bytes) -> None:
        temporary = f"{item.queue.path}/.{item.mid}.tmp"
        fd = self._disk.open(temporary, _NEW_FILE, 0o666)
        try:
            try:
                self._disk.write(fd, payload)
            finally:
                self._disk.close(fd)
            if any(item.attributes):
                item.queue.files.write(temporary, item.mid, item.attributes)
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

    def settle(self) -> None:
        """Where the engine runs, after it: notes what the directories show now."""
        for item in self.done:
            if not item.queue.is_closed:
                self._settle(item)
        for queue, mid, entry in self.buried:
            if self.synced and queue.entries.gone.get(mid) is entry:
                del queue.entries.gone[mid]
        for queue, mid in self._files():
            queue.writing.discard(mid)
        for item in self._missing:
            if not item.queue.is_closed and item.queue.entries.get(item.mid) is item.entry:
                item.queue.lost(item.mid, item.entry.disk)

    def _settle(self, item: Item) -> None:
        queue, mid, entry, expiry, _ = item
        entries = queue.entries
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
