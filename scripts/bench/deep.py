"""Queues made of files, without the server: the vsqs layout, a file named by its message's id."""

import os
from pathlib import Path

DEEP = 200_000
SHALLOW = 100
_FIRST = 1_700_000_000_000_000
_STEP = 1000
"""Microseconds between two messages: as if a thousand a second had been pushed, long ago."""


def make_queue(root: Path, qid: str, messages: int, size: int, *, after: int = 0) -> Path:
    """A queue of ready messages, each of that many bytes. Its directory. after: so many are in it already."""
    directory = root / qid
    directory.mkdir(parents=True, exist_ok=after > 0)
    payload = b"x" * size
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in range(after, after + messages):
            name = str(_FIRST + number * _STEP)
            file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=folder)
            os.write(file, payload)
            os.close(file)
    finally:
        os.close(folder)
    return directory
