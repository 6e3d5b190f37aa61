"""What a person sees while a job runs: one line that is written anew, or with -v a line for each batch."""

import threading
import time
from collections.abc import Callable
from typing import TextIO

from .running import Step

_SHORTEST = 0.1
"""Seconds between two writes of the line: more often nobody reads it."""


class ProgressLine:
    """Counts batches as they come. May be called by several threads.

    stream: where the line goes; terminal: whether it is written anew there; verbose: a line for each batch, instead.
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

    def __call__(self, step: Step) -> None:
        """A batch is finished."""
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
        """Something else that is going on, until the next batch."""
        with self._lock:
            if self._terminal:
                self._write(text)
            elif self._verbose:
                self._stream.write(f"{text}\n")
                self._stream.flush()

    def clear(self) -> None:
        """Takes the line away, so that something else can be written."""
        with self._lock:
            if self._shown:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._shown = False

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return self._clock() - self._started

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()
        self._shown = True

    def _text(self, step: Step, now: float) -> str:
        spent = now - self._started
        rate = f", {self._rows / spent:,.0f}/s" if spent > 0 else ""
        return f"{step.queue}: batch {step.batch}, {self._rows:,} messages{rate}"
