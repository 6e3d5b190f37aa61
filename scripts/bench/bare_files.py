"""The least that keeping each message in a file of its own costs: a loop without any server."""

import os
from pathlib import Path


class BareFiles:
    """Stores files one by one, each created, written and renamed; with sync also as durably as can be."""

    def __init__(self, directory: Path, size: int, *, sync: bool) -> None:
        directory.mkdir()
        self._folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._number = 0
        self._payload = b"x" * size
        self._sync = sync

    def store(self) -> None:
        """One more file."""
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
