"""Ids of messages. SQS has its own, which are no numbers; ours travel along as an attribute.

A message that another program sent has no such attribute. Its id is made of the time at which it was sent, which SQS
gives in milliseconds, and of a hash of SQS's id within that millisecond, so it is the same each time it is received.
"""

import re
import threading
import zlib
from typing import Any

from ...engine import Clock
from .bodies import MID

_NUMBER = re.compile("0|[1-9][0-9]{0,17}")


class Mids:
    """The ids that were given and seen here, by queue. For several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._given: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._lock = threading.Lock()

    def give(self, qid: str, count: int) -> list[int]:
        """So many ids, increasing, greater than all that were given before for this queue: the time, if that is."""
        # Not greater than those seen: another program may have sent any number.
        with self._lock:
            first = max(self._clock(), self._given.get(qid, -1) + 1)
            last = self._given[qid] = first + count - 1
            self._last[qid] = max(last, self._last.get(qid, -1))
        return list(range(first, last + 1))

    def saw(self, qid: str, mid: int) -> None:
        with self._lock:
            self._last[qid] = max(mid, self._last.get(qid, -1))

    def last(self, qid: str) -> int:
        """The greatest id that was given or seen, -1 when none."""
        return self._last.get(qid, -1)

    def forget(self, qid: str) -> None:
        """The queue is gone; ids that were given are not given again."""
        with self._lock:
            self._last.pop(qid, None)


def mid_of(attributes: dict[str, Any], sent: int, message_id: str) -> int:
    """The id of a message that was received. sent: milliseconds since the Epoch."""
    ours = attributes.get(MID, {}).get("StringValue", "")
    if _NUMBER.fullmatch(ours):
        return int(ours)
    return sent * 1000 + zlib.crc32(message_id.encode()) % 1000
