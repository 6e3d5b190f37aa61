"""Waiting for messages of a memcached, which tells nobody of changes."""

import threading
from collections.abc import Sequence

LOOK_EVERY = 0.5
"""Seconds. What this process does wakes its waiters at once, and it knows when windows end; a push of another process
can only be noticed by looking. That costs one round trip for each queue that anybody waits for, however many do."""


class Changes:
    """Of all queues of an engine, as far as this process has made them. For many threads."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._counts: dict[str, int] = {}

    def note(self, qid: str) -> None:
        """Something may be there to be received, or sooner than was known."""
        with self._condition:
            self._counts[qid] = self._counts.get(qid, 0) + 1
            self._condition.notify_all()

    def counts(self, qids: Sequence[str]) -> list[int]:
        """Numbers that are others after a change of one of these queues."""
        with self._condition:
            return [self._counts.get(qid, 0) for qid in qids]

    def wait(self, qids: Sequence[str], seen: list[int], seconds: float) -> bool:
        """Waits until there is a change since the counts were seen. False: there was none in so many seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: [self._counts.get(qid, 0) for qid in qids] != seen, seconds)
