"""Counts messages and their rate: in a line that is renewed each second on a terminal, and in one at the end."""

import sys
import time

_CLEAR = "\r\x1b[K"


def counted(number: int, what: str) -> str:
    """Returns `1 message`, `2 messages`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Meter:
    def __init__(self, done: str, *, live: bool = True, what: str = "message") -> None:
        """done: a verb, as in `stored`; live: whether to renew a line on a terminal meanwhile; what: is counted."""
        self.messages = 0
        self.bytes = 0
        self._done = done
        self._what = what
        self._live = live and sys.stderr is not None and sys.stderr.isatty()
        self._first = self._last = self._shown_at = time.monotonic()
        self._shown = 0
        self._on_line = False

    def add(self, size: int, count: int = 1) -> None:
        """size: bytes of all."""
        self._last = time.monotonic()
        if not self.messages:
            self._first = self._last
        self.messages += count
        self.bytes += size

    def tick(self) -> None:
        """Renews the line each second. Cheap: call it after each step and each wait."""
        if not self._live or (now := time.monotonic()) - self._shown_at < 1:
            return
        rate = (self.messages - self._shown) / (now - self._shown_at)
        self._shown, self._shown_at = self.messages, now
        self._write(f"{_CLEAR}{self._done} {counted(self.messages, self._what)}, {rate:.0f} a second")
        self._on_line = True

    def clear(self) -> None:
        """Clears the line for other output."""
        if self._on_line:
            self._on_line = False
            self._write(_CLEAR)

    def summary(self, more: str = "") -> None:
        """Writes the last line, about the time from the first message to the last. more: its end."""
        self.clear()
        took = self._last - self._first
        text = f"{self._done} {counted(self.messages, self._what)}, {counted(self.bytes, 'byte')}"
        if took > 0:
            text += f", in {took:.2f} s: {(self.messages - 1) / took:.0f} a second"
        self._write(f"{text}{more}\n")

    def _write(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
