"""Writes the messages of a journal to files of the layout vsqs, with their counts, windows and reasons.

Overwrites nothing. After an interruption it is done again: files that are there with the same content stay.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..disk import Disk, check_directory
from ..engine import StorageError, wall_clock
from ..journal.rescue.offline import OfflineJournal
from ..metadata import Attributes, Stored, store_for
from ..names import NEW, directory_of, message_name, parse_message
from ..settings import FILE, read_options, write_options

_AT_ONCE = 200
"""Files that are synced together: syncs share commits of ext4's journal."""


class Exported(NamedTuple):
    """directory: its name in the target; messages: in it; there: those that were there before."""

    directory: str
    messages: int
    there: int


def export(root: str, target: str, qids: Sequence[str], progress: Callable[[int], object]) -> Iterator[Exported]:
    """Exports queues, all for none named, each to a directory of the target, and yields what it has done with each.
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
            if not os.path.lexists(f"{directory}/{FILE}"):
                check_directory(f"{root}/{name}")
                options = read_options(f"{root}/{name}", "journal")
                write_options(directory, replace(options, storage="files"), disk)
            messages = journal.messages(journal.queues[qid])
            yield Exported(name, *MessageFiles(directory, disk).write(messages, progress))


def message_names(directory: str, disk: Disk) -> dict[int, str]:
    """Returns the names of the complete messages in a directory by id. OSError."""
    parsed = ((name, parse_message(os.fsencode(name))) for name in disk.files_in(directory))
    return {found[0]: name for name, found in parsed if found is not None and found[1] != NEW}


class MessageFiles:
    def __init__(self, directory: str, disk: Disk) -> None:
        """directory: exists. OSError."""
        self._directory = directory
        self._disk = disk
        self._attributes = store_for(directory, disk, sync=True)
        self._there = message_names(directory, disk)

    def write(self, messages: Iterable[Stored], progress: Callable[[int], object]) -> tuple[int, int]:
        """Writes files durably, unless they are there with the same content. Returns how many messages there were, and
        how many of them were there before. progress: see `export`. StorageError for other content; OSError."""
        count = there = 0
        written: list[tuple[int, Stored]] = []
        try:
            for message in messages:
                if self._is_there(message):
                    there += 1
                else:
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

    def _is_there(self, message: Stored) -> bool:
        name = self._there.get(message.mid)
        if name is None:
            return False
        path = f"{self._directory}/{name}"
        with open(self._disk.open_file(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size == len(message.payload) and file.read() == message.payload:
                return True
        raise StorageError(f"{path} is there already, and is another message: it is not overwritten")

    def _temporary(self, message: Stored) -> str:
        return f"{self._directory}/.{message.mid}.tmp"

    def _begin(self, message: Stored) -> int:
        path = self._temporary(message)
        descriptor = self._disk.open_file(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            self._disk.write(descriptor, message.payload)
            if message.attributes != Attributes():
                self._attributes.write(path, message.mid, message.attributes, or_fail=True)
            if message.reason:
                self._attributes.reasons.write(path, message.mid, message.reason, or_fail=True)
            self._disk.begin_writing(descriptor)
        except BaseException:
            self._disk.close(descriptor)
            raise
        return descriptor

    def _finish(self, written: list[tuple[int, Stored]]) -> None:
        for descriptor, _ in written:
            self._disk.fsync(descriptor)
        while written:
            descriptor, message = written.pop()
            self._disk.close(descriptor)
            name = message_name(message.mid, message.expiry)
            self._disk.rename(self._temporary(message), f"{self._directory}/{name}")
