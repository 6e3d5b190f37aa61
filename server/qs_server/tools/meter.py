"""How many messages went through, and how fast: a line that is renewed once a second on a terminal, one at the end."""

import time
from collections.abc import Callable
from typing import TextIO

_CLEAR = "\r\x1b[K"


def counted(number: int, what: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Meter:
    """done: what is said of the messages, as in `stored`; stream: where to, None for nowhere; live: whether to renew a
    line there while it goes on; clock: in seconds, from any start."""

    def __init__(
        self, done: str, stream: TextIO | None, *, live: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.messages = 0
        self.bytes = 0
        self._done = done
        self._stream = stream
        self._live = live and stream is not None
        self._clock = clock
        self._first = self._last = self._shown_at = clock()
        self._shown = 0
        self._on_line = False

    def add(self, size: int) -> None:
        """A message of so many bytes went through just now."""
        self._last = self._clock()
        if not self.messages:
            self._first = self._last
        self.messages += 1
        self.bytes += size

    def tick(self) -> None:
        """Renews the line when a second has passed. Cheap: to be called after each step and each wait."""
        if not self._live or (now := self._clock()) - self._shown_at < 1:
            return
        rate = (self.messages - self._shown) / (now - self._shown_at)
        self._shown, self._shown_at = self.messages, now
        self._write(f"{_CLEAR}{self._done} {counted(self.messages, 'message')}, {rate:.0f} a second")
        self._on_line = True

    def clear(self) -> None:
        """Takes the line away, for something else to be written."""
        if self._on_line:
            self._on_line = False
            self._write(_CLEAR)

    def summary(self, more: str = "") -> None:
        """The line at the end. The time is that from the first message to the last. more: what else there is to say."""
        self.clear()
        took = self._last - self._first
        text = f"{self._done} {counted(self.messages, 'message')}, {counted(self.bytes, 'byte')}"
        if took > 0:
            text += f", in {took:.2f} s: {(self.messages - 1) / took:.0f} a second"
        self._write(f"{text}{more}\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
