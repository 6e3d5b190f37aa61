"""Reads the names of the regular files in a directory by getdents64(2), in half the time that `os.scandir` takes.

A queue's directory may hold a million files, nearly all of them with names of one length. The kernel then returns
entries of one length too, whose fields are columns, and no Python code runs for each of them.
"""

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterator
from itertools import islice

_SIZES = 1 << 15, 1 << 20
"""Bytes of entries that the first call may return, and any other: some 26,000 of messages, which takes 10 ms. The first
one returns also `.` and `..`, so each of its entries is looked at."""
_COUNT = 4096
"""Entries of a block where the C library lacks the call."""

# struct linux_dirent64 of getdents(2): the inode, an offset, the bytes of the entry, its type, the name and a zero
# byte. Behind that there may be anything, up to a multiple of 8 bytes.
_HEADER = struct.Struct("=QqHB")
_LENGTH_AT = 16
_TYPE_AT = 18
_UNKNOWN = 0  # DT_UNKNOWN: the file system does not keep types in directories
_REGULAR = 8  # DT_REG

_getdents64 = getattr(ctypes.CDLL(None, use_errno=True), "getdents64", None)  # glibc has it since 2.30
if _getdents64 is not None:
    _getdents64.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    _getdents64.restype = ctypes.c_ssize_t


def file_blocks(path: str) -> Iterator[list[bytes]]:
    """Gives some thousand names at a time, in no order. One may come twice, if it is removed and made again meanwhile.
    OSError as from os.scandir."""
    if _getdents64 is None:
        yield from _scanned(path)
        return
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        buffer = ctypes.create_string_buffer(_SIZES[0])
        while size := _getdents64(folder, buffer, len(buffer)):
            if size < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
            entries = memoryview(buffer)[:size].tobytes()
            names = of_one_length(entries)
            yield list(each_file(entries, folder)) if names is None else names
            if len(buffer) < _SIZES[1]:
                buffer = ctypes.create_string_buffer(_SIZES[1])
    finally:
        os.close(folder)


def _scanned(path: str) -> Iterator[list[bytes]]:
    with os.scandir(path) as entries:
        while block := list(islice(entries, _COUNT)):
            yield [os.fsencode(entry.name) for entry in block if entry.is_file(follow_symlinks=False)]


def of_one_length(entries: bytes) -> list[bytes] | None:
    """Returns the names, if all entries are regular files with names of one length; else None."""
    length = _HEADER.unpack_from(entries)[2]
    count, rest = divmod(len(entries), length)
    end = entries.index(0, _HEADER.size)
    low, high = length.to_bytes(2, sys.byteorder)
    if (
        rest
        or entries[_LENGTH_AT::length] != bytes((low,)) * count
        or entries[_LENGTH_AT + 1 :: length] != bytes((high,)) * count
        or entries[_TYPE_AT::length] != bytes((_REGULAR,)) * count
        or entries[end::length] != bytes(count)
    ):
        return None
    columns = struct.Struct(f"{_HEADER.size}x{end - _HEADER.size}s{length - end}x")
    names = [name for (name,) in columns.iter_unpack(entries)]
    return None if 0 in b"".join(names) else names  # a zero byte: one of them is shorter


def each_file(entries: bytes, folder: int) -> Iterator[bytes]:
    """Gives the names of the regular files one by one. folder: a descriptor of the directory."""
    at = 0
    while at < len(entries):
        _, _, length, kind = _HEADER.unpack_from(entries, at)
        begin = at + _HEADER.size
        name = entries[begin : entries.index(0, begin)]
        if kind == _REGULAR or (kind == _UNKNOWN and _is_regular(name, folder)):
            yield name
        at += length


def _is_regular(name: bytes, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
