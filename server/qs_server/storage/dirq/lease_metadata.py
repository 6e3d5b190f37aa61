"""The leases of elements in the layouts of dirq: how often an element was received, and until when a server of ours has
it locked.

They are one extended attribute of the element's file or directory, `user.qs.state`. Where the file system has none: a
hidden file `.NAME.state` in the queue's directory.

A lock is ours when the time of the element's last change is not after the end of the lease. A server of ours sets it
to that end. Any other program's lock sets it to the present, and comes after the end of the lease if it comes at all:
until then there is our lock, and afterwards dirq's `purge`, which goes by the same time, leaves it for as long again as
it leaves every lock.
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
    """receives: how often; until: the end of the window or the delay, 0 when a server of ours has no lock; delayed:
    whether it is a delay."""

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
    """Returns the store that the directory's file system can carry. sync: whether a hidden file is synced when it is
    written. OSError."""
    medium: Medium[Lease] = _ExtendedAttribute(disk)
    if lists_attributes(directory, disk) is None:
        medium = SidecarFiles(directory, disk, _CODEC, sync=sync)
    return MetadataStore(medium, lambda stored, unwritten: unwritten)


def stamp(path: str, until: int) -> None:
    """Sets the time of an element's last change to the end of our lease. Only its owner can; without, another program's
    `purge` may take our lock for an old one earlier."""
    seconds, micros = divmod(until, 1_000_000)
    if seconds > _LATEST_STAMP:
        seconds, micros = _LATEST_STAMP, 0
    when = seconds * 1_000_000_000 + micros * 1000
    with contextlib.suppress(PermissionError, FileNotFoundError):
        os.utime(path, ns=(when, when))


def is_ours(lease: Lease, status: os.stat_result) -> bool:
    """Tells whether the lock of an element that is locked was made by a server of ours. status: looked up after the
    lock."""
    return lease.until > 0 and status.st_mtime_ns // 1000 <= lease.until
