"""The names of elements and of intermediate directories: `SSSSSSSS/SSSSSSSSMMMMMR`, hexadecimal.

An element's name is seconds since the Epoch, microseconds, and a digit that tells apart what two programs add in the
same microsecond. As a number it is the id of a message of the server, so the order of ids is that of time.
"""

import re
import time

from ..engine import SECOND

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

MAX_MID = 16**14 - 1
FAR = 0xF0000000 << 24
"""Ids from here on (the year 2097) are a slip of whoever made the element."""


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


def name_of(mid: int) -> str:
    """Returns the name of an element inside of its intermediate directory."""
    return f"{mid:014x}"


def mid_of(name: str) -> int:
    """Returns the id that 14 hexadecimal digits stand for."""
    return int(name, 16)


def time_of(mid: int) -> int:
    """Returns when the element was added, in microseconds since the Epoch."""
    return (mid >> 24) * SECOND + (mid >> 4 & 0xFFFFF)


def mid_at(time: int, digit: int) -> int:
    """Returns the id of an element that is added then. digit: 0 to 15."""
    seconds, micros = divmod(time, SECOND)
    return seconds << 24 | micros << 4 | digit


def following(mid: int) -> int:
    """Returns the next id: after the last digit comes the next microsecond, after the last microsecond the next
    second."""
    mid += 1
    return mid if (mid >> 4 & 0xFFFFF) < SECOND else (mid >> 24) + 1 << 24
