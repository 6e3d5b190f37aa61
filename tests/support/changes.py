"""Waits for what another process does, until it writes something, instead of looking again and again."""

import select
import time
from collections.abc import Callable
from pathlib import Path

from qs_storage.watch import CREATE, DELETE, MOVED_FROM, MOVED_TO, Inotify

WITHIN = 20
"""Seconds: only a failure waits that long."""
_MODIFY = 0x2  # inotify(7)
_ANY = _MODIFY | CREATE | MOVED_FROM | MOVED_TO | DELETE


def until(condition: Callable[[], object], *directories: Path, within: float = WITHIN) -> None:
    """Returns once the condition holds. It is asked at once, and again when a file in one of the directories has been
    made, written, renamed or removed: each change that it waits for has to be followed by one of those. AssertionError
    after `within` seconds."""
    watch = Inotify()
    try:
        for directory in directories:
            watch.add(str(directory), _ANY)
        changes = select.poll()
        changes.register(watch.fd, select.POLLIN)
        end = time.monotonic() + within
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"it does not come within {within:g} s"
            if changes.poll(left * 1000):
                watch.events()
    finally:
        watch.close()
