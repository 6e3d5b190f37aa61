"""Waiting for messages of a memcached, which tells nobody of changes."""

import threading
from collections.abc import Sequence

POLL_INTERVAL = 0.5
"""Seconds. What this process does wakes its waiters at once, and it knows when windows end; a push of another process
can only be noticed by looking. That costs one round trip for each queue that somebody waits for."""


class Notifier:
    """Counts what this process has changed in each queue of an engine, and wakes the threads that wait for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._changes: dict[str, int] = {}

    def notify(self, qid: str) -> None:
        """Notes that a queue may have a visible message, or will have one sooner than was known."""
        with self._condition:
            self._changes[qid] = self._changes.get(qid, 0) + 1
            self._condition.notify_all()

    def changes(self, qids: Sequence[str]) -> list[int]:
        """Returns how often each queue was changed."""
        with self._condition:
            return [self._changes.get(qid, 0) for qid in qids]

    def wait(self, qids: Sequence[str], seen: list[int], seconds: float) -> bool:
        """Waits for a change after `seen`, which `changes` returned. False: there was none in so many seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: [self._changes.get(qid, 0) for qid in qids] != seen, seconds)
