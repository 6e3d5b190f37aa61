"""Purges a queue's directory: removes what was left behind, frees what was taken and not removed, or removes all."""

import contextlib
import os
import time
from typing import Any, NamedTuple

from ..dirq import QueueError
from ..disk import Disk
from ..engine import Durability, wall_clock
from ..files.queue import FilesQueue
from ..names import MAX_MID, NEW, parse_message
from ..settings import read_options
from ..shared import Activity, Shared
from ..watch import Watch
from .elements import LOCKED, UNFINISHED, VSQS, elements, names_in
from .ends import Body, open_dirq

MAX_TEMP, MAX_TEMP_VSQS, MAX_LOCK = 300, 600, 600
"""Seconds after which a purge removes what is written, or locked: dirq's, and in vsqs our engines'."""


class Purged(NamedTuple):
    """unfinished: files or elements that were being written or removed; freed: messages that were taken and are ready
    again; removed: messages."""

    unfinished: int
    freed: int
    removed: int


def purge(path: str, layout: str, max_temp: float | None, max_lock: float | None, *, everything: bool) -> Purged:
    """Purges a directory in which no server has its messages.

    max_temp: seconds after which what is written or removed goes, 0 for never. max_lock: seconds after which a lock of
    dirq goes, 0 for never. None for the defaults. everything: removes all messages too. StorageError, OSError.
    """
    if layout == VSQS:
        return _purge_vsqs(path, MAX_TEMP_VSQS if max_temp is None else max_temp, everything=everything)
    max_temp = MAX_TEMP if max_temp is None else max_temp
    max_lock = MAX_LOCK if max_lock is None else max_lock
    queue = open_dirq(path, layout, Body("body=binary"))  # a purge looks into no element
    removed = _remove_all(queue) if everything else 0
    before = _old(path, layout, max_temp, max_lock)
    queue.purge(max_temp, max_lock)
    gone = before - _old(path, layout, max_temp, max_lock)
    locks = sum(1 for state, _ in gone if state == LOCKED)
    return Purged(len(gone) - locks, locks, removed)


def _purge_vsqs(path: str, max_temp: float, *, everything: bool) -> Purged:
    path = os.path.abspath(path)
    watch = Watch()
    try:
        shared = Shared(wall_clock, Durability.ALWAYS, Disk(), watch, Activity())
        options = read_options(path, "files")
        options.backoff = None  # what has expired is made ready, as the user asks
        # Files that are being written are removed here, as old as the user says.
        queue = FilesQueue(path, os.path.basename(path), options, shared, clears_unfinished=False)
        expired = queue.expire()
        removed = queue.purge(MAX_MID, len(queue)) if everything else 0
        written = _remove_written(path, max_temp) if max_temp else 0
        queue.commit()
        queue.close()
    finally:
        watch.close()
    return Purged(written, expired, removed)


def _remove_written(path: str, max_temp: float) -> int:
    """Removes files being written that did not change for so many seconds. Returns how many."""
    removed = 0
    for name, is_dir in names_in(path):
        parsed = parse_message(os.fsencode(name))
        written = parsed is not None and parsed[1] == NEW
        if is_dir or not (written or (name.startswith(".") and name.endswith(".tmp"))):
            continue
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished
            if time.time() - os.lstat(f"{path}/{name}").st_mtime > max_temp:
                os.unlink(f"{path}/{name}")
                removed += 1
    return removed


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
    for name in queue.names():
        queue.lock(name)  # a consumer that has it will not find it any more
        try:
            queue.remove(name)
            removed += 1
        except (FileNotFoundError, QueueError):
            if os.path.lexists(f"{queue.path}/{name}"):
                raise
    return removed
