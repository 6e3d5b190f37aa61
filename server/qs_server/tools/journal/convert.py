"""`queue-journal.py convert`: moves a queue's messages from the journal to files, or back.

To the journal: `.queue.toml` is changed and the files are taken in; after a crash, the next start takes in the rest.
To files: the messages are written to `.converting` in the queue's directory, with the new `.queue.toml`, which moves
first: from then on the files count. They move after it, and then the log forgets the queue. No server starts in
between, as the journal has messages of a queue of files.
"""

import os
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from qs_storage.directories import DirectoriesEngine, JournalEngine
from qs_storage.disk import Disk, check_directory
from qs_storage.engine import Clock, Durability, StorageError, wall_clock
from qs_storage.journal.offline import OfflineJournal
from qs_storage.names import NEW, directory_of, parse_message
from qs_storage.settings import FILE, read_options, write_options

from ..meter import Meter, counted
from ..output import say
from .files import MessageFiles

_CONVERTING = ".converting"
_KINDS = ("journal", "files")


def convert(arguments: Namespace) -> int:
    """Returns the exit code. StorageError, OSError."""
    path = f"{arguments.root}/{directory_of(arguments.queue)}"
    check_directory(path)
    if not os.path.isdir(path):
        raise StorageError(f"there is no queue {arguments.queue!r} in {arguments.root}")
    conversion = Conversion(arguments.root, arguments.queue, Disk(), wall_clock)
    try:
        conversion.run(arguments.to)
    finally:
        conversion.meter.clear()
    held = counted(conversion.count, "message")
    say(f"queue {arguments.queue!r} has the storage {arguments.to} now: {held}\n")
    return 0


class Conversion:
    def __init__(self, root: str, qid: str, disk: Disk, clock: Clock) -> None:
        """root: used by no server."""
        self._root = root
        self._qid = qid
        self._path = f"{root}/{directory_of(qid)}"
        self._converting = f"{self._path}/{_CONVERTING}"
        self._disk = disk
        self._clock = clock
        self.meter = Meter("moved")
        self.count = 0
        """Messages of the queue afterwards."""

    def run(self, storage: str) -> None:
        """Converts the queue, or finishes a conversion. StorageError, OSError."""
        now = read_options(self._path, "journal").storage
        if now not in _KINDS:
            raise StorageError(f"queue {self._qid!r} has the storage {now}: only journal and files can be changed")
        if storage == "files":
            self._to_files(now)
        else:
            self._to_journal(now)

    def _to_journal(self, now: str) -> None:
        if now != "journal":
            if not self._is_in_log():
                self._engine().close()  # puts a list right that a crash interrupted
            elif self._is_committed(now):
                raise StorageError(
                    f"queue {self._qid!r} was just being changed to files: finish that first (--to files)"
                )
            self._write_options(self._path, "journal")
        self._clear()
        self.count = self._take_in()

    def _engine(self) -> DirectoriesEngine:
        return JournalEngine(self._root, clock=self._clock, durability=Durability.ALWAYS, disk=self._disk)

    def _take_in(self) -> int:
        """Returns how many messages the journal has then."""
        engine = self._engine()
        for count in engine.take_in_files(self._qid):
            self.meter.add(0, count)
            self.meter.tick()
        size = len(engine.queue(self._qid))
        engine.close()  # not after an exception: what is in memory, and written by this, may be incomplete
        return size

    def _is_in_log(self) -> bool:
        with OfflineJournal(self._root, self._disk, self._clock) as journal:
            queue = journal.queues.get(self._qid)
            return queue is not None and len(queue) > 0

    def _is_committed(self, now: str) -> bool:
        return (
            now == "files" and os.path.lexists(self._converting) and not os.path.lexists(f"{self._converting}/{FILE}")
        )

    def _to_files(self, now: str) -> None:
        if not self._is_committed(now):
            if now == "journal":
                self._take_in()
            self._clear()
            self._begin()
            with OfflineJournal(self._root, self._disk, self._clock) as journal:
                self._write_files(journal)
            self._disk.rename(f"{self._converting}/{FILE}", f"{self._path}/{FILE}")
            self._disk.sync_directory(self._path)
            self._disk.sync_directory(self._converting)
        self._finish()

    def _clear(self) -> None:
        """Removes an unfinished conversion that does not count yet."""
        for path in (self._converting, f"{self._converting}-new"):
            if os.path.lexists(path):
                shutil.rmtree(path)
        self._disk.sync_directory(self._path)

    def _begin(self) -> None:
        new = f"{self._converting}-new"
        self._disk.mkdir(new)
        self._write_options(new, "files")
        self._disk.rename(new, self._converting)
        self._disk.sync_directory(self._path)

    def _write_files(self, journal: OfflineJournal) -> None:
        queue = journal.queues.get(self._qid)
        if queue is None:
            return
        there = {found[0]: name for name, found in self._files(self._path)}
        for mid, name in there.items():
            if mid in queue.table.index.messages:
                raise StorageError(
                    f"{self._path}/{name} is there already, and is not the message of that id: move it away"
                )
        MessageFiles(self._converting, self._disk).write(journal.messages(queue), self.meter)

    def _files(self, path: str) -> Iterator[tuple[str, tuple[int, int]]]:
        for name in self._disk.files_in(path):
            found = parse_message(os.fsencode(name))
            if found is not None and found[1] != NEW:
                yield name, found

    def _finish(self) -> None:
        """Finishes a conversion after `.queue.toml` has moved."""
        for name in self._disk.files_in(self._converting):
            self._disk.rename(f"{self._converting}/{name}", f"{self._path}/{name}")
            with suppress(FileNotFoundError):  # a power loss can leave both names: then `rename` does nothing
                self._disk.unlink(f"{self._converting}/{name}")
        self._disk.sync_directory(self._path)
        self._disk.sync_directory(self._converting)
        with OfflineJournal(self._root, self._disk, self._clock) as journal:
            queue = journal.queues.get(self._qid)
            if queue is not None:
                journal.forget(queue)
        self._disk.rmdir(self._converting)
        self._disk.sync_directory(self._path)
        self.count = sum(1 for _ in self._files(self._path))

    def _write_options(self, directory: str, storage: str) -> None:
        options = replace(read_options(self._path, "journal"), storage=storage)
        write_options(directory, options, self._disk)
        self._disk.sync_directory(directory)
