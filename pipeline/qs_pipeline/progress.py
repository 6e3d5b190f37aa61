"""The progress of a job on the terminal: one line that is updated, or with -v a line for each batch."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .running import Step

_SHORTEST = 0.1
"""Seconds between two updates of the line."""


class ProgressLine:
    """Counts finished batches. Threads may share it.

    stream: gets the line; terminal: update the line in place; verbose: write a line for each batch instead.
    """

    def __init__(
        self, stream: TextIO, *, terminal: bool, verbose: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._terminal = terminal and not verbose
        self._verbose = verbose
        self._clock = clock
        self._started = clock()
        self._written = float("-inf")
        self._lock = threading.Lock()
        self._rows = 0
        self._shown = False

    def __call__(self, step: "Step") -> None:
        """Counts a finished batch."""
        with self._lock:
            self._rows += step.rows
            now = self._clock()
            if self._verbose:
                self._stream.write(f"{self._text(step, now)}\n")
                self._stream.flush()
            elif self._terminal and now - self._written >= _SHORTEST:
                self._written = now
                self._write(self._text(step, now))

    def say(self, text: str) -> None:
        """Shows another text until the next batch."""
        with self._lock:
            if self._terminal:
                self._write(text)
            elif self._verbose:
                self._stream.write(f"{text}\n")
                self._stream.flush()

    def clear(self) -> None:
        """Removes the line before other output."""
        with self._lock:
            if self._shown:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._shown = False

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()
        self._shown = True

    def _text(self, step: "Step", now: float) -> str:
        spent = now - self._started
        rate = f", {self._rows / spent:,.0f}/s" if spent > 0 else ""
        return f"{step.queue}: batch {step.batch}, {self._rows:,} messages{rate}"
