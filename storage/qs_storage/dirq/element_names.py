"""The names of elements and of intermediate directories: `SSSSSSSS/SSSSSSSSMMMMMR`, hexadecimal.

An element's name is seconds since the Epoch, microseconds, and a digit that tells apart what two programs add in the
same microsecond. As a number it is the id of a message of the server, so the order of ids is that of time.
"""

import re
import time

from ..engine import SECOND

TEMPORARY_SUFFIX = ".tmp"
"""QueueSimple: an element that is being added."""
LOCKED_SUFFIX = ".lck"
"""QueueSimple: the second link of a locked element."""
TEMPORARY_DIRECTORY = "temporary"
"""Queue: elements that are being added."""
OBSOLETE_DIRECTORY = "obsolete"
"""Queue: elements that are being removed."""
LOCKED_DIRECTORY = "locked"
"""Queue: in a locked element."""
DELAYED_SUFFIX = ".delayed"
"""Queue: an element in `temporary` that is locked before it is visible. The Python package dirq removes the lock of
everything there that has an element's name, however new."""

is_directory = re.compile("[0-9a-f]{8}").fullmatch
is_element = re.compile("[0-9a-f]{14}").fullmatch
is_being_added = re.compile(f"[0-9a-f]{{14}}(?:{re.escape(DELAYED_SUFFIX)})?").fullmatch
"""Matches a name in `temporary`."""
is_full_name = re.compile("[0-9a-f]{8}/[0-9a-f]{14}").fullmatch
"""Matches DIRECTORY/ELEMENT."""

ATTEMPTS = 1000
"""Attempts to find a free name, or a directory that a purge has not removed, before it is an error."""

MAX_MID = 16**14 - 1
FAR = 0xF0000000 << 24
"""Ids from here on (the year 2097) are mistakes."""


def element_name(rndhex: int, attempt: int = 0) -> str:
    """Returns 14 digits: seconds since the Epoch (8), microseconds (5), rndhex (0 to 15). attempt: microseconds to
    add, so that attempts end even if the clock stands."""
    now = time.time()
    seconds = int(now)
    micros = int((now - seconds) * 1_000_000) + attempt
    if micros >= 1_000_000:
        seconds, micros = seconds + 1, micros - 1_000_000
    return f"{seconds:08x}{micros:05x}{rndhex:x}"


def directory_of_now(granularity: int) -> str:
    """Returns 8 digits: seconds since the Epoch, rounded down to a multiple of granularity."""
    now = int(time.time())
    return f"{now - now % granularity if granularity > 1 else now:08x}"


def name_of(mid: int) -> str:
    return f"{mid:014x}"


def mid_of(name: str) -> int:
    return int(name, 16)


def time_of(mid: int) -> int:
    """Returns microseconds since the Epoch."""
    return (mid >> 24) * SECOND + (mid >> 4 & 0xFFFFF)


def mid_at(time: int, digit: int) -> int:
    """digit: 0 to 15."""
    seconds, micros = divmod(time, SECOND)
    return seconds << 24 | micros << 4 | digit


def following(mid: int) -> int:
    """Returns the next id: microseconds end at SECOND."""
    mid += 1
    return mid if (mid >> 4 & 0xFFFFF) < SECOND else (mid >> 24) + 1 << 24
