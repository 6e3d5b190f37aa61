"""`queue-journal.py export`: writes the messages of a journal to files, without a server."""

import os
from argparse import Namespace
from dataclasses import replace

from qs_storage.disk import Disk, check_directory
from qs_storage.engine import StorageError, wall_clock
from qs_storage.journal.offline import OfflineJournal
from qs_storage.journal.queue import LogQueue
from qs_storage.names import directory_of
from qs_storage.settings import FILE, read_options, write_options

from ..meter import Meter, counted
from ..output import say
from .files import MessageFiles


def export(arguments: Namespace) -> int:
    """Returns the exit code. StorageError, OSError."""
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


def _export_queue(journal: OfflineJournal, queue: LogQueue, arguments: Namespace, disk: Disk) -> None:
    name = directory_of(queue.qid)
    directory = f"{os.path.abspath(arguments.to)}/{name}"
    disk.make_directories(directory, sync=True)
    if not os.path.lexists(f"{directory}/{FILE}"):
        check_directory(f"{arguments.root}/{name}")
        options = read_options(f"{arguments.root}/{name}", "journal")
        write_options(directory, replace(options, storage="files"), disk)
    meter = Meter("exported")
    try:
        count = MessageFiles(directory, disk).write(journal.messages(queue), meter)
    finally:
        meter.clear()
    there = meter.messages - count
    known = f", {there} of them were there already" if there else ""
    say(f"{arguments.to}/{name}: {counted(meter.messages, 'message')}{known}\n")
