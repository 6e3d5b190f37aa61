"""The log of wrong tokens: one line a second, however many there are."""

import logging

import trio

_logger = logging.getLogger(__name__)
_QUIET = 1.0
"""Seconds after a line without another."""


class Failures:
    """Counts wrong tokens, and logs the count. Sleeps while there are none."""

    def __init__(self) -> None:
        self.total = 0
        """Wrong tokens since the start."""
        self._logged = 0
        self._peer = ""
        self._event = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    def note(self, peer: str) -> None:
        """Counts a wrong token. peer: address of the client. Any thread may call it."""
        first = self.total == self._logged
        self.total += 1
        self._peer = peer
        if first and self._token is not None:
            self._token.run_sync_soon(self._wake)

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
