"""Counts what went through, and how fast: a line that is renewed once a second on a terminal, and one at the end."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

_CLEAR = "\r\x1b[K"


def counted(number: int, what: str) -> str:
    """Returns a count with its noun: `1 message`, `2 messages`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Meter:
    """Counts messages and their bytes."""

    def __init__(
        self,
        done: str,
        stream: TextIO | None,
        *,
        live: bool,
        what: str = "message",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """done: what is said of the messages, as in `stored`; stream: where to, None for nowhere; live: whether to
        renew a line there while it goes on; what: is counted; clock: in seconds, from any start."""
        self.messages = 0
        self.bytes = 0
        self._done = done
        self._what = what
        self._stream = stream
        self._live = live and stream is not None
        self._clock = clock
        self._first = self._last = self._shown_at = clock()
        self._shown = 0
        self._on_line = False

    def add(self, size: int, count: int = 1) -> None:
        """Counts messages, of so many bytes together, that went through just now."""
        self._last = self._clock()
        if not self.messages:
            self._first = self._last
        self.messages += count
        self.bytes += size

    def tick(self) -> None:
        """Renews the line when a second has passed. Cheap: call it after each step and each wait."""
        if not self._live or (now := self._clock()) - self._shown_at < 1:
            return
        rate = (self.messages - self._shown) / (now - self._shown_at)
        self._shown, self._shown_at = self.messages, now
        self._write(f"{_CLEAR}{self._done} {counted(self.messages, self._what)}, {rate:.0f} a second")
        self._on_line = True

    def clear(self) -> None:
        """Takes the line away, so that something else can be written."""
        if self._on_line:
            self._on_line = False
            self._write(_CLEAR)

    def summary(self, more: str = "") -> None:
        """Writes the line at the end. Its time is from the first message to the last. more: what it says beside."""
        self.clear()
        took = self._last - self._first
        text = f"{self._done} {counted(self.messages, self._what)}, {counted(self.bytes, 'byte')}"
        if took > 0:
            text += f", in {took:.2f} s: {(self.messages - 1) / took:.0f} a second"
        self._write(f"{text}{more}\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


def meter_for(done: str, *, live: bool = True, what: str = "message") -> Meter:
    """Returns a meter on standard error; it is live if that is a terminal and `live` is wanted. See Meter."""
    return Meter(done, sys.stderr, live=live and sys.stderr is not None and sys.stderr.isatty(), what=what)
