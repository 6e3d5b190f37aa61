"""Delays the answers to wrong tokens, and logs wrong tokens with one line a second, however many there are.

Nobody guesses a token of 32 random bytes. The delay protects the server's time: guesses of any number of clients must
not take time from those who work.
"""

import logging
import time
from collections.abc import Callable

import trio

_logger = logging.getLogger(__name__)
_QUIET = 1.0
"""Seconds between two lines of the log."""
_DELAY = 0.1
"""Seconds after which a wrong token is answered, at least."""
_RATE = 1000
"""Wrong tokens that are answered a second, for all connections together."""


class Failures:
    """Counts wrong tokens, and logs the count.

    Any thread may call `note`; `serve` runs in the loop, and sleeps while there are no wrong tokens, so that an idle
    server does not wake up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered = 0.0  # when the last wrong token is answered
        self.total = 0
        """Wrong tokens since the start."""
        self._logged = 0
        self._peer = ""
        self._event = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    def note(self, peer: str) -> float:
        """Counts a wrong token. Returns the seconds after which the client is to be answered: 0.1, or more when wrong
        tokens come faster than `_RATE`. peer: the client's address. Any thread may call this."""
        first = self.total == self._logged
        self.total += 1
        self._peer = peer
        if first and self._token is not None:  # `note` runs in the broker's thread too, where no Event may be set
            self._token.run_sync_soon(self._wake)
        now = self._clock()
        # Answers queue up behind one another, at `_RATE` a second: more guesses only wait longer.
        self._answered = max(now + _DELAY, self._answered + 1 / _RATE)
        return self._answered - now

    def _wake(self) -> None:
        self._event.set()

    async def serve(self) -> None:
        """Logs until it is cancelled."""
        self._token = trio.lowlevel.current_trio_token()
        try:
            while True:
                if self.total == self._logged:
                    await self._event.wait()
                self._event = trio.Event()
                self._report()
                await trio.sleep(_QUIET)
        finally:
            self._token = None
            self._report()

    def _report(self) -> None:
        count = self.total - self._logged
        if count:
            self._logged += count
            many = f"{count} wrong tokens" if count > 1 else "a wrong token"
            _logger.warning("%s, the last from %s", many, self._peer)
