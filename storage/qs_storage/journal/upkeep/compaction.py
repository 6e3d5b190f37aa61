"""Compaction: copies the needed records of a segment to the end of the log, and removes it.

The work is done in slices, each committed with a batch of requests, so that no request waits long.
"""

import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from math import inf
from time import perf_counter
from typing import Protocol

from ...engine import Clock
from ..log.frames import DamagedError
from ..log.records import BadRecordError
from ..queues.queue_state import QueueState
from ..queues.store import SLICE, Store
from .choice import Choice

_logger = logging.getLogger(__name__)
_BYTES = 512 << 10
"""Bytes after which a slice ends: they are written with the batch's commit."""


class Copier(Protocol):
    """Copies the payloads of a segment: see `Copying`."""

    total: int

    def segment(self, number: int, /) -> Iterator[None]: ...


class Compaction:
    """Compacts the log of one store."""

    def __init__(self, store: Store, queues: Callable[[], Iterable[QueueState]], copying: Copier, clock: Clock) -> None:
        """queues: returns all queues of the log."""
        self._store = store
        self._queues = queues
        self._clock = clock
        self._segment = 0
        self._work: Iterator[None] | None = None
        self._stepping = False
        self._rollbacks = 0
        self._damaged = 0  # number of the segment that cannot be read
        self._copying = copying
        self._choice = Choice(store)

    @property
    def total(self) -> int:
        """Bytes of payload copied since the start."""
        return self._copying.total

    @property
    def wanted(self) -> bool:
        return self._next() is not None

    def _next(self) -> int | None:
        """Returns the segment to compact, None if none is worth it. Prefers the one that was begun."""
        chosen = self._chosen()
        return self._segment if self._work is not None and chosen is not None else chosen

    def _chosen(self) -> int | None:
        return None if self._store.log.failed else self._choice.segment(damaged=self._damaged)

    def step(self, seconds: float = SLICE) -> None:
        """Does a slice of the work, which the caller commits. OSError: there is no room for the copies."""
        segment = self._next()
        if segment is not None:
            self._step(segment, seconds)

    def _step(self, segment: int, seconds: float) -> None:
        self._stepping = True
        try:
            self._run_slice(segment, seconds)
        finally:
            self._stepping = False

    def _run_slice(self, segment: int, seconds: float) -> None:
        if self._work is None or self._rollbacks != self._store.rollbacks or self._segment != segment:
            self._segment = segment
            self._rollbacks = self._store.rollbacks
            self._work = self._copy(self._segment)  # skips messages that are copied already
        enough = self._copying.total + _BYTES
        until = perf_counter() + seconds
        try:
            for _ in self._work:
                if perf_counter() >= until or self._copying.total >= enough:
                    return
            self._work = None
            self._remove(self._segment)
        except (DamagedError, BadRecordError, struct.error, IndexError) as error:
            self._work, self._damaged = None, self._segment
            _logger.error(
                "%s cannot be compacted and stays: %s. Stop the server; 'queue-journal.py check' says more",
                self._store.log.segments.path_of(self._segment),
                error,
            )
        except BaseException:
            self._work = None
            raise

    def run(self) -> bool:
        """Compacts a segment at once, if that frees room. Returns True if it is removed. OSError."""
        if self._stepping:
            return False  # called by a slice without room: another slice would have none either
        log = self._store.log
        segment = self._chosen() or self._oldest_that_gains()
        while segment in log.segments.sizes:
            self._step(segment, inf)  # no time limit, as each slice is a frame, which takes whole blocks
            self._store.commit_early()
            if segment == self._damaged:
                break
        return segment is not None and segment not in log.segments.sizes

    def _oldest_that_gains(self) -> int | None:
        log = self._store.log
        if log.failed or log.segments.oldest == self._damaged or not self._store.usage.gains(log.segments.sizes):
            return None
        return log.segments.oldest

    def _remove(self, segment: int) -> None:
        log = self._store.log
        log.drop(segment)
        self._store.forget(segment)
        if segment == self._damaged:
            self._damaged = 0
        for queue in self._queues():
            queue.batches.forget_publications((log.segments.oldest or 0) - 1)

    def _copy(self, segment: int) -> Iterator[None]:
        is_oldest = segment == self._store.log.segments.oldest
        for queue in list(self._queues()):
            yield from queue.keys.carry(queue.number, segment, self._clock())
            if is_oldest:
                yield from queue.carry(segment)
        if self._store.usage.live.get(segment):
            yield from self._copying.segment(segment)
