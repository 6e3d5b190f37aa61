"""The names of elements and of intermediate directories: `SSSSSSSS/SSSSSSSSMMMMMR`, hexadecimal."""

import re
import time

TEMPORARY_SUFFIX = ".tmp"
"""QueueSimple: of an element that is being added."""
LOCKED_SUFFIX = ".lck"
"""QueueSimple: of the second link of a locked element."""
TEMPORARY_DIRECTORY = "temporary"
"""Queue: where elements are that are being added."""
OBSOLETE_DIRECTORY = "obsolete"
"""Queue: where elements are that are being removed."""
LOCKED_DIRECTORY = "locked"
"""Queue: in a locked element."""
DELAYED_SUFFIX = ".delayed"
"""Queue: of an element in `temporary` that is locked before it is visible. Without the suffix it could lose its lock:
the purge of the Python package dirq removes the lock of whatever has the name of an element there, however new."""

is_directory = re.compile("[0-9a-f]{8}").fullmatch
"""Matches the name of an intermediate directory."""
is_element = re.compile("[0-9a-f]{14}").fullmatch
"""Matches the name of an element inside of one."""
is_being_added = re.compile(f"[0-9a-f]{{14}}(?:{re.escape(DELAYED_SUFFIX)})?").fullmatch
"""Matches the name of an element in `temporary`."""
is_full_name = re.compile("[0-9a-f]{8}/[0-9a-f]{14}").fullmatch
"""Matches the name of an element, DIRECTORY/ELEMENT."""

ATTEMPTS = 1000
"""Attempts to find a name that is free, or a directory that a purge has not just removed, before it is an error."""


def element_name(rndhex: int, attempt: int = 0) -> str:
    """Returns 14 digits: seconds since the Epoch (8), microseconds (5), and rndhex, 0 to 15.

    attempt: counts names that were taken. Each moves it on by a microsecond, so that it ends even if the clock stands.
    """
    now = time.time()
    seconds = int(now)
    micros = int((now - seconds) * 1_000_000) + attempt
    if micros >= 1_000_000:
        seconds, micros = seconds + 1, micros - 1_000_000
    return f"{seconds:08x}{micros:05x}{rndhex:x}"


def directory_of_now(granularity: int) -> str:
    """Returns 8 digits: seconds since the Epoch, rounded down to a multiple of granularity when that is more than 1."""
    now = int(time.time())
    return f"{now - now % granularity if granularity > 1 else now:08x}"
