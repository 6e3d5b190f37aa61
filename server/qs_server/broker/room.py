"""Logs when the disk is full and when it has free space again: one line for each, however many requests are refused in
between.

The disk counts as full from the first request that is refused for lack of space. It counts as free again when no
request was refused for ten seconds and, in addition, a request was stored that is at least as large as the smallest
refused one, or much more space is free than at the last refusal. So nothing is logged when small messages still fit and
large ones do not, or when each deleted message frees the space for the next one.
"""

import logging
import os

import trio

from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Clock

_logger = logging.getLogger(__name__)
_QUIET = 10 * SECOND
"""Microseconds without a refusal after which the disk may have free space again: longer than most clients wait before
they try again, so that their next try would have been refused by now."""
_MORE = 256 << 20
"""Bytes that must have become free if nobody has tried a request of that size again: more than all that the journal
makes in advance and keeps for itself, which would be no room for clients."""
_LOOK = 1.0
"""Seconds between looks at the disk while it is full. Nothing tells when somebody else has freed some of it."""


class DiskRoom:
    """Knows whether the disk of a root has free space, and logs changes.

    Ensures one line in the log when the disk becomes full, and one when it has free space again: see above. While there
    is free space nothing runs, and a request costs one look at `full`. Assumes that `refused` and `stored` are called
    in batches, which run in the loop or in the worker thread, one at a time.

    This class must never decide whether a request is refused: the engine decides, and may find space for a small
    request."""

    def __init__(self, root: str, clock: Clock, disk: Disk | None = None) -> None:
        """clock: the engine's clock."""
        self._root = os.path.abspath(root)
        self._clock = clock
        self._disk = disk or Disk()
        self.full = False
        """True while the disk is full. Call `stored` only while this is True."""
        self._least = 0  # bytes of the smallest request that was refused
        self._refusals = 0
        self._last = 0  # when a request was refused last
        self._fits = False  # True if a request as large as the smallest refused one was stored since
        self._free: int | None = None  # bytes that were free at the last refusal
        self._began = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None  # of the loop in which `serve` sleeps

    def refused(self, size: int) -> None:
        """Notes that a request was refused for lack of space. size: bytes of the request's payloads, 0 without
        payloads."""
        if not self.full:
            self.full, self._least, self._refusals = True, size, 0
            _logger.error(
                "the disk of %s is full: it has %s free, and a request with %d bytes of payload is refused. Pushes are "
                "answered with 507 until there is room; receiving and deleting go on",
                self._root,
                self._left(),
                size,
            )
            if self._token is not None:  # a trio event may be set in the loop's thread only
                self._token.run_sync_soon(self._began.set)
        self._least = min(self._least, size)
        self._last, self._fits, self._free = self._clock(), False, self._free_bytes()
        self._refusals += 1

    def stored(self, size: int) -> None:
        """Notes that a request that stores so many bytes was carried out. Call this only while the disk is full."""
        self._fits = self._fits or size >= self._least

    async def serve(self) -> None:
        """Finds out when there is free space again. Runs until cancelled; sleeps while the disk is not full."""
        self._token = trio.lowlevel.current_trio_token()
        while True:
            await self._began.wait()
            self._began = trio.Event()
            while self.full:
                await trio.sleep(_LOOK)
                self._look()

    def _look(self) -> None:
        if self._clock() - self._last >= _QUIET and (self._fits or self._has_more()):
            self.full = self._fits = False
            _logger.warning(
                "the disk of %s has room again: pushes are stored, and %s are free; %d requests were refused",
                self._root,
                self._left(),
                self._refusals,
            )

    def _has_more(self) -> bool:
        free, before = self._free_bytes(), self._free
        return free is not None and before is not None and free - before >= _MORE + self._least

    def _free_bytes(self) -> int | None:
        try:
            return self._disk.free_bytes(self._root)
        except OSError:  # then only a stored request shows that there is free space
            return None

    def _left(self) -> str:
        free = self._free_bytes()
        return "an unknown number of bytes" if free is None else f"{free} bytes"
