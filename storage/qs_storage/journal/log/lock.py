"""The file `lock` of a journal: the server holds a lock on it, and it contains the number of the last segment, without
which the loss of that segment would not be noticed.

The number is written alternately at two offsets of the file, so that a power loss or a bad bit spoils one of them at
most: at worst the number is one too low.
"""

import errno
import fcntl
import os
import struct
from contextlib import suppress
from zlib import crc32

from ...disk import Disk, check_directory
from ...engine import StorageError

_NAME = "lock"
_MAGIC = b"qs-journal last\n"
_PLACE = struct.Struct("<16sQ")
_SECTOR = 512
"""Bytes that a disk writes atomically. Each of the two numbers has a sector of its own, so a torn write spoils one."""


class InUseError(StorageError):
    """Another server is using the journal."""


def take_lock(directory: str, disk: Disk) -> int:
    """Takes the lock. Returns the descriptor that holds it until it is closed. InUseError, OSError."""
    check_directory(directory)
    fd = disk.open_file(f"{directory}/{_NAME}", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        # The kernel releases the lock when the process ends, however it ends: there is nothing to clear after a
        # crash.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        disk.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise InUseError(
                f"another server is using {directory}; one journal has one server (servers that are to share "
                "a directory all use --storage files)"
            ) from None
        raise
    return fd


def is_in_use(directory: str) -> bool:
    """Tells whether a server has a journal open. OSError."""
    check_directory(directory)
    try:
        fd = Disk().open_file(f"{directory}/{_NAME}", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # A shared lock, so that two commands that look at the same time do not take each other for a server.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def write_last(fd: int, number: int, disk: Disk) -> None:
    """Records durably that the segment `number` exists. fd: the descriptor from `take_lock`. OSError."""
    fields = _PLACE.pack(_MAGIC, number)
    disk.pwrite(fd, fields + struct.pack("<I", crc32(fields)), number % 2 * _SECTOR)
    disk.fdatasync(fd)  # with any durability: a start refuses a segment two ahead of the recorded number


def forget_last(fd: int, number: int, disk: Disk) -> None:
    """Takes the record of a segment back, durably: a start refuses a log whose recorded segment is missing. OSError."""
    disk.pwrite(fd, bytes(_PLACE.size + 4), number % 2 * _SECTOR)
    disk.fdatasync(fd)


def read_last(directory: str) -> int | None:
    """Returns the recorded number of the last segment, which may be one too low; None without a record."""
    numbers: list[int] = []
    with suppress(FileNotFoundError), open(Disk().open_file(f"{directory}/{_NAME}", os.O_RDONLY), "rb") as file:
        data = file.read(2 * _SECTOR)
        for at in (0, _SECTOR):
            place = data[at : at + _PLACE.size + 4]
            if len(place) == _PLACE.size + 4 and crc32(place[:-4]).to_bytes(4, "little") == place[-4:]:
                magic, number = _PLACE.unpack_from(place)
                # The greater one of those that can be read: the other is one older, or was being written.
                numbers += [number] * (magic == _MAGIC)
    return max(numbers, default=None)
