"""Moves a queue's messages from the journal to files, or back.

To the journal: `.queue.toml` is changed and the files are taken in; after a crash, the next start takes in the rest.
To files: the messages are written to `.converting` in the queue's directory, with the new `.queue.toml`, which moves
first: from then on the files count. They move after it, and then the log forgets the queue. No server starts in
between, as the journal has messages of a queue of files.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..directories import DirectoriesEngine, JournalEngine
from ..disk import Disk, check_directory
from ..engine import Clock, Durability, StorageError
from ..journal.rescue.offline import OfflineJournal
from ..names import directory_of
from ..settings import FILE, read_options, write_options
from .journal_export import MessageFiles, message_names

_KINDS = ("journal", "files")


class Conversion:
    """Converts one queue. A conversion that was interrupted is finished by the next one of the same queue."""

    def __init__(self, root: str, qid: str, disk: Disk, clock: Clock, progress: Callable[[int], object]) -> None:
        """root: used by no server; progress: called with the number of messages that were moved since the last call."""
        self._root = root
        self._qid = qid
        self._path = f"{root}/{directory_of(qid)}"
        self._converting = f"{self._path}/.converting"
        self._disk = disk
        self._clock = clock
        self._progress = progress

    def run(self, storage: str) -> int:
        """Converts the queue, or finishes a conversion. Returns how many messages it has then. StorageError,
        InUseError, OSError."""
        check_directory(self._path)
        if not os.path.isdir(self._path):
            raise StorageError(f"there is no queue {self._qid!r} in {self._root}")
        now = read_options(self._path, "journal").storage
        if now not in _KINDS:
            raise StorageError(f"queue {self._qid!r} has the storage {now}: only journal and files can be changed")
        is_committed = (
            now == "files" and os.path.lexists(self._converting) and not os.path.lexists(f"{self._converting}/{FILE}")
        )
        if storage == "files":
            if not is_committed:
                if now == "journal":
                    self._take_in()
                self._commit_to_files()
            return self._finish()
        if now != "journal":
            if not self._is_in_log():
                self._engine().close()  # puts a list right that a crash interrupted
            elif is_committed:
                raise StorageError(
                    f"queue {self._qid!r} was just being changed to files: finish that first (--to files)"
                )
            self._write_options(self._path, "journal")
        self._clear()
        return self._take_in()

    def _engine(self) -> DirectoriesEngine:
        return JournalEngine(self._root, clock=self._clock, durability=Durability.ALWAYS, disk=self._disk)

    def _journal(self) -> OfflineJournal:
        return OfflineJournal(self._root, self._disk, self._clock)

    def _is_in_log(self) -> bool:
        with self._journal() as journal:
            queue = journal.queues.get(self._qid)
            return queue is not None and len(queue) > 0

    def _take_in(self) -> int:
        """Takes the files into the journal. Returns how many messages that has then."""
        engine = self._engine()
        for count in engine.take_in_files(self._qid):
            self._progress(count)
        size = len(engine.queue(self._qid))
        engine.close()  # not after an exception: what is in memory, and written by this, may be incomplete
        return size

    def _clear(self) -> None:
        """Removes an unfinished conversion that does not count yet."""
        for path in (self._converting, f"{self._converting}-new"):
            if os.path.lexists(path):
                shutil.rmtree(path)
        self._disk.sync_directory(self._path)

    def _commit_to_files(self) -> None:
        """Writes the messages to files, and then moves `.queue.toml`, which makes them count."""
        self._clear()
        new = f"{self._converting}-new"
        self._disk.mkdir(new)
        self._write_options(new, "files")
        self._disk.rename(new, self._converting)
        self._disk.sync_directory(self._path)
        with self._journal() as journal:
            queue = journal.queues.get(self._qid)
            if queue is not None:
                for mid, name in message_names(self._path, self._disk).items():
                    if mid in queue.index.messages:
                        raise StorageError(
                            f"{self._path}/{name} is there already, and is not the message of that id: move it away"
                        )
                MessageFiles(self._converting, self._disk).write(journal.messages(queue), self._progress)
        self._disk.rename(f"{self._converting}/{FILE}", f"{self._path}/{FILE}")
        self._disk.sync_directory(self._path)
        self._disk.sync_directory(self._converting)

    def _finish(self) -> int:
        """Finishes a conversion after `.queue.toml` has moved. Returns how many messages the queue has."""
        for name in self._disk.files_in(self._converting):
            self._disk.rename(f"{self._converting}/{name}", f"{self._path}/{name}")
            with suppress(FileNotFoundError):  # a power loss can leave both names: then `rename` does nothing
                self._disk.unlink(f"{self._converting}/{name}")
        self._disk.sync_directory(self._path)
        self._disk.sync_directory(self._converting)
        with self._journal() as journal:
            queue = journal.queues.get(self._qid)
            if queue is not None:
                journal.forget(queue)
        self._disk.rmdir(self._converting)
        self._disk.sync_directory(self._path)
        return len(message_names(self._path, self._disk))

    def _write_options(self, directory: str, storage: str) -> None:
        options = replace(read_options(self._path, "journal"), storage=storage)
        write_options(directory, options, self._disk)
        self._disk.sync_directory(directory)
