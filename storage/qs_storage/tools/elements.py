"""Looks at a queue's directory: recognizes its layout, and reads its messages and their states from names and
attributes. And purges a directory: removes files that were left behind, frees messages that were taken and not removed,
or removes all messages.

Only `purge` changes something. The other functions may run while other programs work on the directory.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..dirq import Queue, QueueError, QueueSimple
from ..dirq.elements import (
    LOCKED_DIRECTORY,
    LOCKED_SUFFIX,
    OBSOLETE_DIRECTORY,
    TEMPORARY_DIRECTORY,
    TEMPORARY_SUFFIX,
    is_being_added,
    is_directory,
    is_element,
)
from ..disk import Disk
from ..engine import SECOND, Durability, StorageError, wall_clock
from ..files.queue import FilesQueue
from ..metadata import AttributeStore
from ..names import JOURNAL, MAX_MID, NEW, message_name, parse_message
from ..settings import FILE, read_options
from ..shared import Activity, EngineContext
from ..watch import Watch

VSQS, DIRQ_SIMPLE, DIRQ = LAYOUTS = ("vsqs", "dirq-simple", "dirq")
_EMPTY_SIMPLE = "?"
"""Told by an empty intermediate directory: only a queue of the layout dirq-simple has nothing else."""

READY, IN_FLIGHT, DELAYED, EXPIRED, LOCKED = "ready", "in-flight", "delayed", "expired", "locked"
WRITTEN, REMOVED = "being-written", "being-removed"
STATES = (READY, IN_FLIGHT, DELAYED, EXPIRED, LOCKED, WRITTEN, REMOVED)
UNFINISHED = (WRITTEN, REMOVED)
"""States of elements that are not messages yet, or not any more."""

# -- layouts ----------------------------------------------------------------------------------------------------------


def layout_of(path: str, wanted: str | None = None) -> str | None:
    """Returns the layout of an existing directory, `wanted` for an empty one. StorageError if the directory has another
    layout than the wanted one, or holds other things; OSError."""
    others = False
    found: str | None = None
    with os.scandir(path) as entries:
        for entry in entries:
            told = _told_by(entry)
            if told in LAYOUTS:
                found = told
                break
            found = told or found
            others = others or (told is None and not entry.name.startswith("."))
    found = DIRQ_SIMPLE if found == _EMPTY_SIMPLE else found
    is_root = os.path.isdir(f"{path}/{JOURNAL}")
    if wanted is None and found is None and (others or is_root):
        hint = f" (with --layout {'|'.join(LAYOUTS)} it is taken for one)"
        if is_root:
            hint = ": it is the root of a server, and each directory in it is a queue"
        raise StorageError(f"{path} holds no queue of a known layout{hint}")
    if wanted is not None and found is not None and wanted != found:
        raise StorageError(f"{path} has the layout {found}, not {wanted}")
    return found or wanted


def _told_by(entry: "os.DirEntry[str]") -> str | None:
    name = entry.name
    if not entry.is_dir(follow_symlinks=False):
        is_message = parse_message(os.fsencode(name)) and entry.is_file(follow_symlinks=False)
        return VSQS if name == FILE or is_message else None
    if name in (TEMPORARY_DIRECTORY, OBSOLETE_DIRECTORY):
        return DIRQ
    if not is_directory(name):
        return None
    within = names_in(entry.path)  # nothing also if a purge has just removed it: then it was empty
    # An element is a directory in one layout of dirq, and a file in the other.
    told = [DIRQ if is_dir else DIRQ_SIMPLE for each, is_dir in within if is_element(each[:14])]
    return told[0] if told else None if within else _EMPTY_SIMPLE


def intermediates(path: str) -> list[str]:
    """Returns the intermediate directories, oldest first."""
    return sorted(name for name, is_dir in names_in(path) if is_dir and is_directory(name))


def names_in(path: str) -> list[tuple[str, bool]]:
    """Returns the names in a directory, each with True if it is a directory's; nothing if the directory is gone."""
    try:
        with os.scandir(path) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return []


# -- messages ---------------------------------------------------------------------------------------------------------


class Element(NamedTuple):
    """A message as a listing shows it. name: without the layout's suffix; age: seconds; size: bytes; left: seconds
    until the message can be taken; since: seconds since its lock, or since the last change of a message being written
    or removed."""

    name: str
    state: str
    age: float
    size: int
    left: float | None = None
    since: float | None = None


def elements(path: str, layout: str, now: float) -> Iterator[Element]:
    """Yields the messages in the order of delivery, unfinished ones of the layout dirq last. now: seconds since the
    Epoch. OSError; StorageError for a wrong `.queue.toml`."""
    return {VSQS: _of_vsqs, DIRQ_SIMPLE: _of_dirq_simple, DIRQ: _of_dirq}[layout](path, now)


def _of_vsqs(path: str, now: float) -> Iterator[Element]:
    options = read_options(path, "files")
    unit = SECOND // 1000 if options.timestamps == "ms" else 1  # of the numbers in names, in microseconds
    # `store_for` would write a probe.
    stores = [AttributeStore(path, Disk(), lists=lists, sync=False) for lists in (False, None)]
    found = filter(None, (parse_message(os.fsencode(name)) for name, is_dir in names_in(path) if not is_dir))
    for mid, expiry in sorted(found):
        file = f"{path}/{mid}.new" if expiry == NEW else f"{path}/{message_name(mid, expiry)}"
        status = _status(file)
        if status is None or not stat.S_ISREG(status.st_mode):
            continue
        age = now - mid * unit / SECOND
        if expiry == NEW:
            yield Element(str(mid), WRITTEN, age, status.st_size, since=now - status.st_mtime)
        elif not expiry:
            yield Element(str(mid), READY, age, status.st_size)
        elif (left := expiry * unit / SECOND - now) <= 0:
            yield Element(str(mid), EXPIRED, age, status.st_size)
        else:
            delayed = max(store.read(file, mid).delayed for store in stores)
            state = DELAYED if delayed == expiry else IN_FLIGHT
            yield Element(str(mid), state, age, status.st_size, left)


def _of_dirq_simple(path: str, now: float) -> Iterator[Element]:
    for intermediate in intermediates(path):
        names = {name for name, is_dir in names_in(os.path.join(path, intermediate)) if not is_dir}
        for name in sorted(names):
            element, suffix = name[:14], name[14:]
            if not is_element(element) or suffix not in ("", TEMPORARY_SUFFIX):
                continue
            status = _status(os.path.join(path, intermediate, name))
            if status is not None:
                state = WRITTEN if suffix else LOCKED if name + LOCKED_SUFFIX in names else READY
                since = None if state == READY else now - status.st_mtime
                yield Element(f"{intermediate}/{element}", state, _age(element, now), status.st_size, since=since)


def _of_dirq(path: str, now: float) -> Iterator[Element]:
    for within in (*intermediates(path), TEMPORARY_DIRECTORY, OBSOLETE_DIRECTORY):
        unfinished = {TEMPORARY_DIRECTORY: WRITTEN, OBSOLETE_DIRECTORY: REMOVED}.get(within)
        for name, is_dir in sorted(names_in(os.path.join(path, within))):
            if not is_dir or not (is_being_added(name) if within == TEMPORARY_DIRECTORY else is_element(name)):
                continue
            status = _status(os.path.join(path, within, name))
            parts = names_in(os.path.join(path, within, name))
            if status is None:
                continue
            state = unfinished or (LOCKED if (LOCKED_DIRECTORY, True) in parts else READY)
            sizes = (_status(os.path.join(path, within, name, part)) for part, is_dir in parts if not is_dir)
            size = sum(each.st_size for each in sizes if each is not None)
            since = None if state == READY else now - status.st_mtime
            yield Element(f"{within}/{name[:14]}", state, _age(name, now), size, since=since)


def _age(name: str, now: float) -> float:
    """Returns the age of an element, from its name: 8 hexadecimal digits of seconds, 5 of microseconds, 1 random."""
    return now - int(name[:8], 16) - int(name[8:13], 16) / SECOND


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


# -- purging ----------------------------------------------------------------------------------------------------------

MAX_TEMP, MAX_TEMP_VSQS, MAX_LOCK = 300, 600, 600
"""Seconds after which a purge removes what is written, or locked: dirq's, and in vsqs our engines'."""


class Purged(NamedTuple):
    """The result of a purge. unfinished: files or elements that were being written or removed; freed: messages that
    were taken and are ready again; removed: messages."""

    unfinished: int
    freed: int
    removed: int


def purge(path: str, layout: str, max_temp: float | None, max_lock: float | None, *, everything: bool) -> Purged:
    """Purges a directory whose messages are not in a server's journal.

    max_temp: seconds after which unfinished files and elements are removed, 0 for never. max_lock: seconds after which
    a lock of dirq is removed, 0 for never. None for the defaults. everything: removes all messages too. StorageError,
    OSError.
    """
    if layout == VSQS:
        return _purge_vsqs(path, MAX_TEMP_VSQS if max_temp is None else max_temp, everything=everything)
    max_temp = MAX_TEMP if max_temp is None else max_temp
    max_lock = MAX_LOCK if max_lock is None else max_lock
    # As dirq itself purges, so that all programs that share the directory find what they expect.
    queue = Queue(path) if layout == DIRQ else QueueSimple(path)  # without a schema: it looks into no element
    removed = _remove_all(queue) if everything else 0
    # The purge of dirq does not say what it has done: so it is seen by what is gone.
    before = _old(path, layout, max_temp, max_lock)
    queue.purge(max_temp, max_lock)
    gone = before - _old(path, layout, max_temp, max_lock)
    locks = sum(1 for state, _ in gone if state == LOCKED)
    return Purged(len(gone) - locks, locks, removed)


def _purge_vsqs(path: str, max_temp: float, *, everything: bool) -> Purged:
    path = os.path.abspath(path)
    watch = Watch()
    try:
        context = EngineContext(wall_clock, Durability.ALWAYS, Disk(), watch, Activity())
        options = read_options(path, "files")
        options.backoff = None  # what has expired is made ready, as the user asks
        # Files that are being written are removed here, as old as the user says.
        queue = FilesQueue(path, os.path.basename(path), options, context, clears_unfinished=False)
        expired = queue.expire()
        removed = queue.purge(MAX_MID, len(queue)) if everything else 0
        written = _remove_written(path, max_temp) if max_temp else 0
        queue.commit()
        queue.close()
    finally:
        watch.close()
    return Purged(written, expired, removed)


def _remove_written(path: str, max_temp: float) -> int:
    """Removes unfinished files that did not change for so many seconds. Returns their number."""
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
    """Returns the states and names of the elements that the purge removes or unlocks."""
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
