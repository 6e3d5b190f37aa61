"""A queue that gets deeper and deeper, and the server that has it."""

import contextlib
import time
from pathlib import Path

from compare_load import CellError, filled
from peer import Peer, Running

_SIZE = 1024
_TELLING = 50_000
"""Messages: how long as many took says how long more will take; fewer, mostly how long a start takes."""


class DeepQueue:
    """folder: made here; kept: the server, where one serves all cells; seconds: that a filling may take.

    What was filled is kept for the next depth. A peer that fills apart has a server of its own for that, which need not
    sync, and is started again afterwards.
    """

    def __init__(self, peer: Peer, folder: Path, kept: Running | None, seconds: float) -> None:
        folder.mkdir()
        self._peer = peer
        self._folder = folder
        self._seconds = seconds
        self._stack = contextlib.ExitStack()
        self._running = kept
        self._there = 0
        self._why = ""
        self._each = 0.0

    def filled_to(self, depth: int) -> Running:
        """The server, with that many messages at least. CellError when that takes too long, or has before."""
        missing = max(0, depth - self._there)
        if not self._why and self._each * missing > 1.5 * self._seconds:
            self._why = f"filling it takes longer than {self._seconds:.0f} s"
        if self._why:
            raise CellError(self._why)
        if not missing and self._running is not None:
            return self._running
        try:
            return self._fill(missing)
        except (CellError, OSError, RuntimeError) as error:
            self._why = str(error)
            raise

    def pushed(self, messages: int) -> None:
        """A load has made it deeper."""
        self._there += messages

    def _fill(self, missing: int) -> Running:
        began = time.monotonic()
        if self._peer.fills_apart:
            self._stack.close()  # of the depth before
            with self._peer.started(self._folder, filling=True) as filling:
                self._push(filling, missing)
            self._running = self._stack.enter_context(self._peer.started(self._folder))
        else:
            if self._running is None:
                self._running = self._stack.enter_context(self._peer.started(self._folder))
            self._push(self._running, missing)
        if missing >= _TELLING:
            self._each = (time.monotonic() - began) / missing
        return self._running

    def _push(self, running: Running, missing: int) -> None:
        pushed = filled(self._peer, running, missing, _SIZE, self._seconds)
        self._there += pushed
        if pushed < 0.98 * missing:
            raise CellError(f"only {pushed:,} of {missing:,} messages in {self._seconds:.0f} s")

    def close(self) -> None:
        """Ends the server, if it is one of its own."""
        self._stack.close()
