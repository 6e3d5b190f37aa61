"""`queue-journal.py export`: the messages of a journal as files, without a server."""

import os
import sys
import time
from argparse import Namespace
from dataclasses import replace

from ...storage.disk import Disk
from ...storage.engine import SECOND, Options, StorageError
from ...storage.journal.offline import OfflineJournal
from ...storage.journal.queue import LogQueue
from ...storage.journal.reader import DamagedRecordError
from ...storage.names import directory_of
from ...storage.settings import FILE, read_options, write_options
from .files import MessageFiles
from .progress import Progress, counted


def export(arguments: Namespace) -> int:
    """Writes the messages of some queues, or all. The exit code. StorageError, OSError."""
    disk = Disk()
    with OfflineJournal(arguments.root, disk, wall_clock) as journal:
        wanted = arguments.queues or sorted(journal.queues)
        if missing := [qid for qid in wanted if qid not in journal.queues]:
            raise StorageError(f"the journal has no queue {missing[0]!r}; it has {', '.join(sorted(journal.queues))}")
        target = os.path.abspath(arguments.to)
        disk.make_directories(target, sync=True)
        if os.path.samefile(target, arguments.root):
            raise StorageError(f"{arguments.to} is the root itself: name another directory")
        for qid in wanted:
            _export_queue(journal, journal.queues[qid], arguments, disk)
    return 0


def wall_clock() -> int:
    """Microseconds since the Epoch."""
    return time.time_ns() // (10**9 // SECOND)


def _export_queue(journal: OfflineJournal, queue: LogQueue, arguments: Namespace, disk: Disk) -> None:
    name = directory_of(queue.qid)
    directory = f"{os.path.abspath(arguments.to)}/{name}"
    disk.make_directories(directory, sync=True)
    if not os.path.lexists(f"{directory}/{FILE}"):
        options = _options(f"{arguments.root}/{name}")
        write_options(directory, replace(options, storage="files"), disk)
    progress = Progress(f"messages of queue {queue.qid!r}")
    try:
        count = MessageFiles(directory, disk).write(journal.messages(queue), progress)
    except DamagedRecordError as error:
        raise StorageError(f"{error}; see 'queue-journal.py check'") from None
    finally:
        progress.clear()
    there = progress.count - count
    known = f", {there} of them were there already" if there else ""
    sys.stdout.write(f"{arguments.to}/{name}: {counted(progress.count, 'message')}{known}\n")
    sys.stdout.flush()


def _options(directory: str) -> Options:
    return read_options(directory, "journal")
