"""`qs-dir purge`: removes what was left behind, frees what was taken and not removed, or removes everything."""

import contextlib
import os
import sys
import time
from argparse import Namespace
from typing import Any

from qs_storage.dirq import QueueError
from qs_storage.disk import Disk
from qs_storage.engine import Durability, wall_clock
from qs_storage.files.files_queue import open_files_queue
from qs_storage.in_use import check_no_server
from qs_storage.names import MAX_MID, NEW, parse_message
from qs_storage.settings import read_options
from qs_storage.shared import Activity, Shared
from qs_storage.watch import Watch

from .bodies import Body
from .dirq_end import open_dirq
from .element_listing import LOCKED, UNFINISHED, elements
from .layouts import MAX_LOCK, MAX_TEMP, MAX_TEMP_VSQS, VSQS, layout_of, names_in
from .meter import counted
from .output import UsageError, say


def purge(arguments: Namespace) -> int:
    """Returns the exit code."""
    directory = arguments.directory
    layout = layout_of(directory, arguments.layout)
    if layout == VSQS:
        if arguments.max_lock is not None:
            raise UsageError("--max-lock is for the layouts of dirq: a message of vsqs comes back by itself")
        check_no_server(directory)
    if arguments.all and not _is_sure(arguments, layout):
        sys.stderr.write("qs-dir: nothing was removed\n")
        return 1
    if layout is None:
        told = "there is nothing in it"
    elif layout == VSQS:
        told = _purge_vsqs(directory, arguments.max_temp, everything=arguments.all)
    else:
        told = _purge_dirq(arguments, layout)
    say(f"{directory}: {told}\n")
    return 0


def _is_sure(arguments: Namespace, layout: str | None) -> bool:
    if arguments.yes:
        return True
    if sys.stdin is None or sys.stderr is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError("--all removes every message: add --yes (on a terminal you would be asked)")
    found = () if layout is None else elements(arguments.directory, layout, time.time())
    many = counted(sum(1 for each in found if each.state not in UNFINISHED), "message")
    answer = ""
    try:
        sys.stderr.write(f"Remove all of {arguments.directory}, {many}? [y/N] ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    finally:
        if not answer:  # Ctrl-C or Ctrl-D has left the cursor in the line
            sys.stderr.write("\n")
    return answer.strip().lower() in ("y", "yes")


def _purge_vsqs(path: str, max_temp: float | None, *, everything: bool) -> str:
    path = os.path.abspath(path)
    watch, activity = Watch(), Activity()
    try:
        shared = Shared(wall_clock, Durability.ALWAYS, Disk(), watch, activity)
        options = read_options(path, "files")
        options.backoff = None  # what has expired is made ready, as the user asks
        # Files that are being written are removed here, as old as the user says.
        queue = open_files_queue(path, os.path.basename(path), options, shared, clears_unfinished=False)
        expired = queue.expire()
        removed = queue.purge(MAX_MID, len(queue)) if everything else 0
        written = _remove_written(path, MAX_TEMP_VSQS if max_temp is None else max_temp)
        queue.commit()
        queue.close()
    finally:
        watch.close()
    told = f"{counted(written, 'unfinished file')} removed, {counted(expired, 'expired message')} made ready"
    return f"{told}, {counted(removed, 'message')} removed" if everything else told


def _remove_written(path: str, max_temp: float) -> int:
    """Removes files being written that did not change for so many seconds. Returns how many."""
    removed = 0
    for name, is_dir in names_in(path) if max_temp else ():
        parsed = parse_message(os.fsencode(name))
        written = parsed is not None and parsed[1] == NEW
        if is_dir or not (written or (name.startswith(".") and name.endswith(".tmp"))):
            continue
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished
            if time.time() - os.lstat(f"{path}/{name}").st_mtime > max_temp:
                os.unlink(f"{path}/{name}")
                removed += 1
    return removed


def _purge_dirq(arguments: Namespace, layout: str) -> str:
    path = arguments.directory
    max_temp = MAX_TEMP if arguments.max_temp is None else arguments.max_temp
    max_lock = MAX_LOCK if arguments.max_lock is None else arguments.max_lock
    queue = open_dirq(path, layout, Body("body=binary"))  # a purge looks into no element
    removed = _remove_all(queue) if arguments.all else 0
    before = _old(path, layout, max_temp, max_lock)
    queue.purge(max_temp, max_lock)
    gone = before - _old(path, layout, max_temp, max_lock)
    locks = sum(1 for state, _ in gone if state == LOCKED)
    told = f"{counted(len(gone) - locks, 'unfinished element')} removed, {counted(locks, 'old lock')} removed"
    return f"{told}, {counted(removed, 'message')} removed" if arguments.all else told


def _old(path: str, layout: str, max_temp: float, max_lock: float) -> set[tuple[str, str]]:
    """Returns the state and name of what the purge removes or unlocks."""
    limits = {**dict.fromkeys(UNFINISHED, max_temp), LOCKED: max_lock}
    return {
        (each.state, each.name)
        for each in elements(path, layout, time.time())
        if each.since is not None and (limit := limits.get(each.state)) and each.since > limit
    }


def _remove_all(queue: Any) -> int:
    removed = 0
    name = queue.first()
    while name:
        queue.lock(name)  # a consumer that has it will not find it any more
        try:
            queue.remove(name)
            removed += 1
        except (FileNotFoundError, QueueError):
            if os.path.lexists(f"{queue.path}/{name}"):
                raise
        name = queue.next()
    return removed
