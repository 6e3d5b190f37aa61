"""Writes and reads a checkpoint: the index of a log in one file, so that a start need not read all segments.

A start logs and ignores a checkpoint that is torn, damaged, or of another log, and reads the segments.

The queues change while a checkpoint is written, so parts of it are newer than its position, where a start begins to
apply records. For messages it tells which records it contains; applying other records twice does no harm.

The file: 16 bytes of magic, columns of 64-bit numbers, a JSON text with the columns' offsets, the length of the text in
8 bytes, and the CRC-32 of everything before the length in 4 bytes.
"""

import json
import os
import struct
from array import array
from typing import Any
from zlib import crc32

from ...disk import Disk
from ..log.places import Position
from ..log.scanning import map_file

NAME = "checkpoint"
_MAGIC = b"qs-checkpoint 7\n"
_END = struct.Struct("<QI")
_AHEAD = 1 << 20
"""Bytes after which the kernel is told to write: if all were written at the end, commits of requests would wait."""


class BadCheckpointError(Exception):
    """The checkpoint cannot be used. The text says why."""


class CheckpointWriter:
    """Writes a checkpoint piece by piece. The file gets its name when it is complete and durable."""

    def __init__(self, directory: str, disk: Disk) -> None:
        """Begins a temporary file in the log's directory. OSError."""
        self._directory = directory
        self._disk = disk
        self._path = f"{directory}/{NAME}.tmp"
        self._fd = disk.open_file(self._path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        self._at = 0
        self._begun = 0  # bytes that the kernel has been told to write
        self._checksum = 0
        try:
            self._write(_MAGIC)
        except OSError:
            self.give_up()
            raise

    def _write(self, data: bytes) -> None:
        self._disk.write(self._fd, data)
        self._checksum = crc32(data, self._checksum)
        self._at += len(data)
        if self._at - self._begun >= _AHEAD:
            self._disk.begin_writing(self._fd)
            self._begun = self._at

    def column(self, numbers: "array[int]") -> list[int]:
        """Writes numbers. Returns [byte in the file, count] for `CheckpointReader.column`. OSError."""
        at = self._at
        self._write(numbers.tobytes())
        return [at, len(numbers)]

    def end(self, content: dict[str, Any]) -> None:
        """Writes the JSON text. OSError."""
        text = json.dumps(content, separators=(",", ":")).encode()
        self._write(text)
        self._disk.write(self._fd, _END.pack(len(text), self._checksum))

    def publish(self) -> None:
        """Gives the file its name, durably. Takes long; may run in any thread. All changes in the file must be durable
        in the log. OSError."""
        self._disk.fsync(self._fd)
        self._close()
        self._disk.rename(self._path, f"{self._directory}/{NAME}")
        self._disk.sync_directory(self._directory)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def give_up(self) -> None:
        """Removes the temporary file. The previous checkpoint stays."""
        self._close()
        try:
            self._disk.unlink(self._path)
        except OSError:
            return  # the next checkpoint overwrites it


class CheckpointReader:
    def __init__(self, directory: str) -> None:
        """Checks the checkpoint in the log's directory. BadCheckpointError; FileNotFoundError if there is none."""
        self._data = data = map_file(f"{directory}/{NAME}")
        if len(data) < len(_MAGIC) + _END.size or data[: len(_MAGIC)] != _MAGIC:
            raise BadCheckpointError("it does not begin like a checkpoint of this version")
        length, checksum = _END.unpack_from(data, len(data) - _END.size)
        if crc32(data[: -_END.size]) != checksum:
            raise BadCheckpointError("its checksum is wrong")
        end = len(data) - _END.size
        try:
            self.content: dict[str, Any] = json.loads(bytes(data[end - length : end]))
            self.position = Position(*self.content["position"])
            """The position from which records have to be applied."""
        except (ValueError, TypeError, LookupError) as error:
            raise BadCheckpointError(f"it cannot be read: {error}") from None

    def column(self, where: list[int]) -> "array[int]":
        at, count = where
        numbers = array("Q")
        numbers.frombytes(self._data[at : at + 8 * count])
        return numbers
