"""Regular expressions from addresses that choose queues, within bounds of time and memory."""

import math
import re
from collections.abc import Iterable

import regex
import trio

from qs_client import QueueInfo

_MOST = 256
"""Characters of a pattern."""
_MATCHING = 0.1
"""Seconds that a pattern may take, of all queues."""
_COPIES = 1000
"""The most copies of one part that repetitions ask for. The library makes them all: 253 characters took gigabytes."""
_COUNTS = re.compile(r"\\.|\{([^{}]*)", re.DOTALL)
"""Matches an escaped character, or a place where the counts of a repetition may stand."""


def matching(pattern: str, queues: Iterable[QueueInfo]) -> list[QueueInfo]:
    """Returns the queues whose whole names match. ValueError, with a line for people, if the pattern is none, is too
    long, or takes too long."""
    if len(pattern) > _MOST:
        raise ValueError(f"the regular expression has more than {_MOST} characters")
    if _copies(pattern) > _COPIES:
        raise ValueError(f"the regular expression repeats a part more than {_COPIES} times")
    until = trio.current_time() + _MATCHING
    try:
        matches = regex.compile(pattern).fullmatch
        return [each for each in queues if matches(each.qid, timeout=max(until - trio.current_time(), 1e-6))]
    except regex.error as error:
        raise ValueError(f"?queue= is not a regular expression: {error}") from None
    except TimeoutError:
        raise ValueError("the regular expression takes too long: make it simpler") from None


def _copies(pattern: str) -> int:
    """Returns a bound on the copies of the most repeated part: as if each repetition were inside all others. Whatever
    stands between the digits of a count is left out, as a pattern may let it be."""
    counts = [part for match in _COUNTS.finditer(pattern) for part in (match[1] or "").split(",")]
    return math.prod(max(int("".join(filter(str.isdecimal, part)) or 1), 1) for part in counts)
