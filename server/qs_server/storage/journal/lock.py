"""The file `lock` of a journal: its server holds a lock on it, and it says which segment was begun last.

Without that, a last segment that is gone could not be told from one that never was. Two places are written in turn, so
that one of them counts whatever a power loss or a bad bit does to the other: at worst the number is one too low.
"""

import errno
import fcntl
import os
import struct
from contextlib import suppress
from zlib import crc32

from ..disk import Disk
from ..engine import StorageError

_NAME = "lock"
_MAGIC = b"qs-journal last\n"
_PLACE = struct.Struct("<16sQ")
_SECTOR = 512
"""What a disk writes as a whole."""


class InUseError(StorageError):
    """Another server has the journal."""


def take_lock(directory: str, disk: Disk) -> int:
    """The descriptor that holds the lock, until it is closed. InUseError, OSError."""
    fd = disk.open(f"{directory}/{_NAME}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
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
    """Whether a server has the journal just now. Changes nothing."""
    try:
        fd = os.open(f"{directory}/{_NAME}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def write_last(fd: int, number: int, disk: Disk) -> None:
    """Notes, durably, that the segment of that number is there, under its name. fd: from `take_lock`. OSError."""
    fields = _PLACE.pack(_MAGIC, number)
    disk.pwrite(fd, fields + struct.pack("<I", crc32(fields)), number % 2 * _SECTOR)
    disk.fdatasync(fd)  # whatever the durability: a start refuses a segment that is two ahead of what it finds here


def forget_last(fd: int, number: int, disk: Disk) -> None:
    """Takes back what `write_last` has written. OSError."""
    disk.pwrite(fd, bytes(_PLACE.size + 4), number % 2 * _SECTOR)


def read_last(directory: str) -> int | None:
    """The number of the segment that was begun last, or of the one before it. None: nothing says so."""
    found: list[int] = []
    with suppress(FileNotFoundError), open(f"{directory}/{_NAME}", "rb") as file:
        data = file.read(2 * _SECTOR)
        for at in (0, _SECTOR):
            place = data[at : at + _PLACE.size + 4]
            if len(place) == _PLACE.size + 4 and crc32(place[:-4]).to_bytes(4, "little") == place[-4:]:
                magic, number = _PLACE.unpack_from(place)
                found += [number] * (magic == _MAGIC)
    return max(found, default=None)
