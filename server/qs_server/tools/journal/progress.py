"""How far a command is: a line on a terminal, renewed once a second; nothing elsewhere."""

import sys
import time


def counted(number: int, what: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Progress:
    """Counts what is done."""

    def __init__(self, what: str) -> None:
        """what: is counted, as in `messages of queue 'q'`."""
        self.count = 0
        self._what = what
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._started = self._shown_at = time.monotonic()

    def add(self, count: int) -> None:
        """Counts some more."""
        self.count += count
        now = time.monotonic()
        if self._live and now - self._shown_at >= 1:
            self._shown_at = now
            rate = self.count / (now - self._started)
            sys.stderr.write(f"\r\x1b[K{self.count} {self._what}, {rate:.0f} a second")
            sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
