"""Counts what happens to the messages of a queue while the server runs, in many threads."""

import threading


class Counters:
    """Counts pushes, deliveries and deletions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"pushed": 0, "delivered": 0, "deleted": 0}

    def add(self, what: str, count: int = 1) -> None:
        with self._lock:
            self._counts[what] += count

    def counts(self) -> dict[str, int]:
        """Returns the counts by the names of fields of Stats."""
        with self._lock:
            return dict(self._counts)
