"""The leases of elements in the layouts of dirq: how often an element was received, and until when a server of ours has
it locked.

They are an extended attribute of the element, `user.qs.state`, or, where the file system has none, a hidden file
`.NAME.state` in the queue's directory.

A server of ours sets the time of a locked element's last change to the end of its lease; any other program sets it
to the present. So a lock is ours while that time is not after the end of the lease: another program's lock can only
follow ours, and dirq's `purge`, which goes by that time, spares our lock as long as any.
"""

import contextlib
import os
import re
from typing import NamedTuple

from ..disk import Disk
from ..metadata import Codec, Medium, MetadataStore, SidecarFiles, lists_attributes, read_attribute

_STATE = "user.qs.state"
_STATE_OF = re.compile(rb"([0-9]{1,18}) ([0-9]{1,18}) ([01])\n?")
_LATEST_STAMP = 2**31 - 1
"""Seconds: the last time that every file system can keep."""


class Lease(NamedTuple):
    """until: the end of the window or the delay, 0 without a lock of ours; delayed: it is a delay."""

    receives: int = 0
    until: int = 0
    delayed: bool = False


LeaseStore = MetadataStore[Lease]


class _ExtendedAttribute:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, path: str, mid: int) -> Lease:
        return _decode(read_attribute(self._disk, path, _STATE))

    def write(self, path: str, mid: int, value: Lease) -> None:
        self._disk.setxattr(path, _STATE, b"%d %d %d" % value, follow_symlinks=False)


def _decode(value: bytes) -> Lease:
    found = _STATE_OF.fullmatch(value)
    if found is None:
        return Lease()
    receives, until, delayed = found.groups()
    return Lease(int(receives), int(until), delayed == b"1")


_CODEC = Codec(".state", 16, lambda lease: b"%d %d %d" % lease, _decode)


def lease_store_for(directory: str, disk: Disk, *, sync: bool) -> LeaseStore:
    """Returns the store for the directory's file system. sync: for hidden files. OSError."""
    medium: Medium[Lease] = _ExtendedAttribute(disk)
    if lists_attributes(directory, disk) is None:
        medium = SidecarFiles(directory, disk, _CODEC, sync=sync)
    return MetadataStore(medium, lambda stored, unwritten: unwritten)


def stamp(path: str, until: int) -> None:
    """Sets the time of an element's last change to the end of our lease, if we are its owner: see above."""
    seconds, micros = divmod(until, 1_000_000)
    if seconds > _LATEST_STAMP:
        seconds, micros = _LATEST_STAMP, 0
    when = seconds * 1_000_000_000 + micros * 1000
    with contextlib.suppress(PermissionError, FileNotFoundError):
        os.utime(path, ns=(when, when))


def is_ours(lease: Lease, status: os.stat_result) -> bool:
    """Tells whether a server of ours has made an element's lock. status: looked up after the lock."""
    return lease.until > 0 and status.st_mtime_ns // 1000 <= lease.until
