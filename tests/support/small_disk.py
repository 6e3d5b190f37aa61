"""A file system of a few bytes, for tests of disks that are really full."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """Mounts a tmpfs of that size (as mount has it: 512k) on a directory, which is made, for the length of a with
    block. Skips the test, with the reason, where nothing can be mounted."""
    directory.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"A REALLY FULL DISK WAS NOT TESTED: no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)
