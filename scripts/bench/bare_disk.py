"""The least cost of storing a message, without any server: in one existing file, or in a file of its own."""

import os
import time
from pathlib import Path
from types import TracebackType

_LENGTH = 64 * 1024 * 1024
_HEAD = b"h" * 32
"""Bytes that a record may have before its payload."""


class BareJournal:
    """A preallocated, zero-filled file, written from the start again when its end is reached."""

    def __init__(self, path: Path, size: int, batch: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        zeros = b"\0" * (1 << 20)
        for _ in range(_LENGTH // len(zeros)):
            os.write(self._file, zeros)
        os.fsync(self._file)
        self._pieces = [_HEAD, b"x" * size] * batch
        self._batch = batch
        self._length = sum(map(len, self._pieces))
        self._at = 0

    def rate(self, seconds: float) -> float:
        """Writes for that many seconds. Returns messages a second."""
        written = 0
        started = now = time.monotonic()
        while now - started < seconds:
            if self._at + self._length > _LENGTH:
                self._at = 0
            os.pwritev(self._file, self._pieces, self._at)
            os.fdatasync(self._file)
            self._at += self._length
            written += self._batch
            now = time.monotonic()
        return written / (now - started)

    def __enter__(self) -> "BareJournal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


class BareFiles:
    """Stores files one by one, each created, written and renamed; with sync also synced, with its directory."""

    def __init__(self, directory: Path, size: int, *, sync: bool) -> None:
        directory.mkdir()
        self._folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._number = 0
        self._payload = b"x" * size
        self._sync = sync

    def store(self) -> None:
        """Stores one more file."""
        self._number += 1
        name = str(self._number)
        file = os.open(f"{name}.new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=self._folder)
        os.write(file, self._payload)
        if self._sync:
            os.fsync(file)
        os.close(file)
        os.rename(f"{name}.new", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        if self._sync:
            os.fsync(self._folder)

    def __enter__(self) -> "BareFiles":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)
