"""Moves a queue's messages from the journal to files, or back; and writes the messages of a journal to files elsewhere.

To the journal: `.queue.toml` is changed and the files are ingested; after a crash, the next start ingests the rest. To
files: the messages are written to `.converting` in the queue's directory, with the new `.queue.toml`. `.queue.toml`
moves to the queue's directory first, and makes the files count. Then the files move, and then the log forgets the
queue. No server starts in between, as the journal has messages of a queue of files.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self

from ..directories import DirectoriesEngine, JournalEngine
from ..disk import Disk, check_directory
from ..engine import Clock, Durability, NoRoomError, StorageError, wall_clock
from ..journal.journal import Journal
from ..journal.log import records
from ..journal.log.attributes import Attributes as MessageAttributes
from ..journal.log.attributes import split_content
from ..journal.queues.queue import LogQueue
from ..metadata import Attributes, FileMessage, store_for
from ..names import NEW, WITHHELD, directory_of, message_name, parse_message
from ..policy import obeyed
from ..settings import FILE, read_options, write_options
from ..shared import Activity, EngineContext
from ..watch import Watch

_PAGE = 1000


class OfflineJournal:
    """A journal that is read without a server. Its queues are those of the log, even without a directory.

    Ensures that no server uses the log meanwhile, by holding its lock. Use it in a with statement."""

    def __init__(self, root: str, disk: Disk, clock: Clock) -> None:
        """Locks and reads the journal. JournalDamagedError; InUseError if a server uses the log; OSError."""
        self._watch = Watch()
        self._clock = clock
        self._journal = Journal(root, clock, Durability.ALWAYS, disk)
        try:
            context = EngineContext(clock, Durability.ALWAYS, disk, self._watch, Activity())
            self.queues = self._journal.read_alone(context)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the log, which releases the lock."""
        self._journal.close()
        self._watch.close()

    def messages(self, queue: LogQueue) -> Iterator[FileMessage]:
        """Yields all messages of a queue, oldest first. Messages in a claim are visible in the result.
        DamagedRecordError, OSError."""
        after = -1
        store = self._journal.open()
        nothing = MessageAttributes()
        while mids := queue.index.messages.after(after, _PAGE):
            for mid in mids:
                receives, expiry, delayed = queue.state_of(mid)
                # Files know no claims, and a window that is over needs no name of its own.
                if expiry == WITHHELD or queue.time(expiry) <= self._clock():
                    expiry = 0
                attributes = Attributes(receives, expiry if delayed else 0)
                place = queue.places.get(mid) or 0
                content = store.payload(queue.number, mid, place)
                headers, payload = split_content(content, queue.attributes.get(mid, nothing))
                yield FileMessage(mid, expiry, attributes, payload, queue.reasons.get(mid, ""), headers)
            after = mids[-1]

    def forget(self, queue: LogQueue) -> None:
        """Removes a queue from the log, durably. OSError: the queue is still in the log."""
        self._journal.secure()
        if self._journal.open().transaction.left < records.SMALL:
            raise NoRoomError(records.SMALL)  # else the removal would wait for a later commit
        self._journal.forget(queue)
        self._journal.commit()
        # So that the next start does not read what was just removed.
        self._journal.rest()


_AT_ONCE = 200
"""Files that are synced together: syncs share commits of ext4's journal."""


class Lost(NamedTuple):
    """What a queue of files cannot keep. options: the names of options; messages: the number of messages with each
    attribute, by its name."""

    options: Sequence[str] = ()
    messages: Mapping[str, int] = MappingProxyType({})

    def __bool__(self) -> bool:
        return bool(self.options or self.messages)


def lost_of(queue: LogQueue) -> dict[str, int]:
    """Counts the messages of a queue whose attributes files cannot keep, by the names of the attributes."""
    found = queue.attributes.values()
    counts = {
        "priority": sum([each.priority > 0 for each in found]),
        "group": sum([each.group != "" for each in found]),
        "expires": sum([each.expires > 0 for each in found]),
        "unique": sum([each.key != b"" for each in found]),
    }
    return {name: number for name, number in counts.items() if number}


class Exported(NamedTuple):
    """A queue that was exported. directory: its name in the target; messages: their number; there: the number of
    messages that were in the directory before; lost: what the files do not have."""

    directory: str
    messages: int
    there: int
    lost: Lost


def export(root: str, target: str, qids: Sequence[str], progress: Callable[[int], object]) -> Iterator[Exported]:
    """Exports queues (all if none is named), each to a directory of the target. Yields the result for each queue. The
    export can be repeated after an interruption: files that exist with the same content stay.

    progress: called with the number of messages since the last call. StorageError, InUseError, OSError."""
    disk = Disk()
    with OfflineJournal(root, disk, wall_clock) as journal:
        wanted = qids or sorted(journal.queues)
        if missing := [qid for qid in wanted if qid not in journal.queues]:
            raise StorageError(f"the journal has no queue {missing[0]!r}; it has {', '.join(sorted(journal.queues))}")
        above = os.path.abspath(target)
        disk.make_directories(above, sync=True)
        if os.path.samefile(above, root):
            raise StorageError(f"{target} is the root itself: name another directory")
        for qid in wanted:
            name = directory_of(qid)
            directory = f"{above}/{name}"
            disk.make_directories(directory, sync=True)
            check_directory(f"{root}/{name}")
            options, lost = obeyed(read_options(f"{root}/{name}", "journal"), "files")
            if not os.path.lexists(f"{directory}/{FILE}"):
                write_options(directory, options, disk)
            queue = journal.queues[qid]
            written = MessageFiles(directory, disk).write(journal.messages(queue), progress)
            yield Exported(name, *written, Lost(lost, lost_of(queue)))


def message_names(directory: str, disk: Disk) -> dict[int, str]:
    """Returns the names of the complete messages in a directory by id. OSError."""
    parsed = ((name, parse_message(os.fsencode(name))) for name in disk.files_in(directory))
    return {found[0]: name for name, found in parsed if found is not None and found[1] != NEW}


class MessageFiles:
    """Writes messages as files of the layout vsqs into a directory.

    Ensures that nothing is overwritten, and that writing can be repeated after an interruption: files that exist with
    the same content stay, and any other content is an error."""

    def __init__(self, directory: str, disk: Disk) -> None:
        """directory: an existing one. OSError."""
        self._directory = directory
        self._disk = disk
        self._attributes = store_for(directory, disk, sync=True)
        self._there = message_names(directory, disk)

    def write(self, messages: Iterable[FileMessage], progress: Callable[[int], object]) -> tuple[int, int]:
        """Writes files durably, unless they exist with the same content. Returns the number of messages, and of those
        that existed before. progress: see `export`. StorageError for other content; OSError."""
        count = there = 0
        written: list[tuple[int, FileMessage]] = []
        try:
            for message in messages:
                if self._is_there(message):
                    there += 1
                else:
                    # Begun now, synced later with others: so syncs share commits of the file system.
                    written.append((self._begin(message), message))
                if len(written) >= _AT_ONCE:
                    self._finish(written)
                count += 1
                progress(1)
            self._finish(written)
        finally:
            for descriptor, _ in written:
                self._disk.close(descriptor)
        self._disk.sync_directory(self._directory)
        return count, there

    def _is_there(self, message: FileMessage) -> bool:
        name = self._there.get(message.mid)
        if name is None:
            return False
        path = f"{self._directory}/{name}"
        with open(self._disk.open_file(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size == len(message.payload) and file.read() == message.payload:
                return True
        raise StorageError(f"{path} is there already, and is another message: it is not overwritten")

    def _temporary(self, message: FileMessage) -> str:
        return f"{self._directory}/.{message.mid}.tmp"

    def _begin(self, message: FileMessage) -> int:
        path = self._temporary(message)
        descriptor = self._disk.open_file(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            self._disk.write(descriptor, message.payload)
            if message.attributes != Attributes():
                self._attributes.write(path, message.mid, message.attributes, or_fail=True)
            if message.reason:
                self._attributes.reasons.write(path, message.mid, message.reason, or_fail=True)
            if message.headers:
                self._attributes.headers.write(path, message.mid, message.headers)
            self._disk.begin_writing(descriptor)
        except BaseException:
            self._disk.close(descriptor)
            raise
        return descriptor

    def _finish(self, written: list[tuple[int, FileMessage]]) -> None:
        for descriptor, _ in written:
            self._disk.fsync(descriptor)
        while written:
            descriptor, message = written.pop()
            self._disk.close(descriptor)
            name = message_name(message.mid, message.expiry)
            self._disk.rename(self._temporary(message), f"{self._directory}/{name}")


_KINDS = ("journal", "files")


class Conversion:
    """Converts one queue.

    Ensures that each message is in the journal or a file at any moment, and counts once: one rename of `.queue.toml`
    says which. A conversion that was interrupted is finished by the next one of the same queue. Assumes that no server
    uses the root."""

    def __init__(self, root: str, qid: str, disk: Disk, clock: Clock, progress: Callable[[int], object]) -> None:
        """root: used by no server; progress: called with the number of messages that were moved since the last call."""
        self._root = root
        self._qid = qid
        self._path = f"{root}/{directory_of(qid)}"
        self._converting = f"{self._path}/.converting"
        self._disk = disk
        self._clock = clock
        self._progress = progress
        self.lost = Lost()
        """What was lost, after `run`."""

    def run(self, storage: str) -> int:
        """Converts the queue, or finishes a conversion. Returns the number of messages in the queue. StorageError,
        InUseError, OSError."""
        check_directory(self._path)
        if not os.path.isdir(self._path):
            raise StorageError(f"there is no queue {self._qid!r} in {self._root}")
        now = read_options(self._path, "journal").storage
        if now not in _KINDS:
            raise StorageError(f"queue {self._qid!r} has the storage {now}: only journal and files can be changed")
        # The file with the new options has moved, and the messages have not all followed.
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
            # Nothing of it is in the journal: an interrupted conversion to files is over, or never began.
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
        """Makes the files messages of the journal. Returns the number of messages in the queue."""
        engine = self._engine()
        for count in engine.ingest_files(self._qid):
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
        """Writes the messages to files, and then moves `.queue.toml`, which makes the files count."""
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
        # The one step that decides: before it the journal counts, after it the files.
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
                self.lost = self.lost._replace(messages=lost_of(queue))
                journal.forget(queue)
        self._disk.rmdir(self._converting)
        self._disk.sync_directory(self._path)
        return len(message_names(self._path, self._disk))

    def _write_options(self, directory: str, storage: str) -> None:
        options, lost = obeyed(read_options(self._path, "journal"), storage)
        self.lost = self.lost._replace(options=lost)
        write_options(directory, options, self._disk)
        self._disk.sync_directory(directory)
