"""Reads the messages of a queue's directory and their states from names and attributes. Changes nothing."""

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from qs_storage.dirq.element_names import (
    LOCKED_DIRECTORY,
    LOCKED_SUFFIX,
    OBSOLETE_DIRECTORY,
    TEMPORARY_DIRECTORY,
    TEMPORARY_SUFFIX,
    is_being_added,
    is_element,
)
from qs_storage.disk import Disk
from qs_storage.engine import SECOND
from qs_storage.files.attributes import in_files, in_sidecars
from qs_storage.names import NEW, message_name, parse_message
from qs_storage.settings import read_options

from .layouts import DIRQ, DIRQ_SIMPLE, VSQS, intermediates, names_in

READY, IN_FLIGHT, DELAYED, EXPIRED, LOCKED = "ready", "in-flight", "delayed", "expired", "locked"
WRITTEN, REMOVED = "being-written", "being-removed"
STATES = (READY, IN_FLIGHT, DELAYED, EXPIRED, LOCKED, WRITTEN, REMOVED)
UNFINISHED = (WRITTEN, REMOVED)
"""States of elements that are no message yet, or no longer."""


class Element(NamedTuple):
    """name: without the layout's suffix; age: seconds; size: bytes; left: seconds until it can be taken; since:
    seconds since a lock, or the last change of one being written or removed."""

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
    delays = _Delays(path)
    found = filter(None, (parse_message(os.fsencode(name)) for name, is_dir in names_in(path) if not is_dir))
    for mid, expiry in sorted(found):
        name = f"{mid}.new" if expiry == NEW else message_name(mid, expiry)
        status = _status(os.path.join(path, name))
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
            state = DELAYED if delays.end_of(name, mid) == expiry else IN_FLIGHT
            yield Element(str(mid), state, age, status.st_size, left)


class _Delays:
    """Reads the ends of delays, unlike `store_for` without writing a probe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stores = (in_files(Disk()), in_sidecars(path, Disk(), sync=False))

    def end_of(self, name: str, mid: int) -> int:
        return max(store.read(os.path.join(self._path, name), mid).delayed for store in self._stores)


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
    """The name is 8 hexadecimal digits of seconds, 5 of microseconds, 1 random."""
    return now - int(name[:8], 16) - int(name[8:13], 16) / SECOND


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
