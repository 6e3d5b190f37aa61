"""From signals to the end of a process: the first asks a server to stop, a second one to hurry, and time ends it all.

What was answered survives the end of a process at any moment, so a stop that takes too long is cut short rather than
waited for: whatever is stuck, a full disk or one that does not answer, the process ends.
"""

import atexit
import logging
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn, Protocol

import trio

from .listening import Announce

_logger = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CLOSING = 4
"""Seconds that a process may take to close what it has open: after `--grace`, and after a second signal."""
_CUT_SHORT = 1
"""Exit code."""


class StopError(Exception):
    """The process has stopped, and not all is as a stop should leave it. The text says what, in one line."""


class Stoppable(Protocol):
    """A server that can be stopped."""

    def stop(self) -> None:
        """Gently."""

    def cut_off(self) -> None:
        """At once, after `stop`."""


async def serve_until_signalled(
    server: Stoppable,
    serve: Callable[[], Awaitable[None]],
    listeners: list[trio.SocketListener],
    announce: Announce,
    grace: float,
) -> None:
    """Runs `serve` until it returns, as it does some time after SIGTERM or SIGINT. Call it once, from the main thread.

    From here to the end of the process, a first signal stops the server gently, with `grace` seconds and a few more
    for all that follows; a second one cuts clients off, with a few seconds left; a third one, or the end of that time,
    ends the process with exit code 1 and a line on standard error.
    """
    _Stop(server, grace).begin()
    host, port = listeners[0].socket.getsockname()[:2]
    announce(host, port)
    await serve()


class _Stop:
    """Counts signals. Its handlers run in the main thread, between any two steps of whatever that is at, so that they
    have a say also where the loop has none."""

    def __init__(self, server: Stoppable, grace: float) -> None:
        self._server = server
        self._grace = grace
        self._signals = 0
        self._token = trio.lowlevel.current_trio_token()

    def begin(self) -> None:
        """Takes the signals, and the process's alarm clock."""
        signal.signal(signal.SIGALRM, self._time_is_up)
        for number in _SIGNALS:
            signal.signal(number, self._caught)
        atexit.register(_ignore_signals)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals == 1:
            self._end_within(self._grace + _CLOSING)
            self._tell(self._stop)
        elif self._signals == 2:
            self._end_within(min(_CLOSING, signal.getitimer(signal.ITIMER_REAL)[0]))
            self._tell(self._server.cut_off)
        else:
            _end(f"was told to stop {self._signals} times")

    def _stop(self) -> None:
        _logger.info("stopping")
        self._server.stop()

    def _tell(self, what: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):  # the server has stopped, and the process is about to end
            self._token.run_sync_soon(what)

    def _end_within(self, seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _time_is_up(self, number: int, frame: FrameType | None) -> None:
        _end("could not stop in time" if self._signals == 1 else "could not stop in time after a second signal")


def _ignore_signals() -> None:
    """Makes signals that come while Python itself ends do nothing: Python takes handlers away then, and a signal to
    stop would end a process that has stopped as asked with a code that says otherwise."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end(why: str) -> NoReturn:
    """Ends the process here and now. Not by the log, whose locks may be what everybody waits for."""
    line = f"{os.path.basename(sys.argv[0])}: {why}, and was cut short; nothing that was answered is lost\n"
    if select.select([], [2], [], 0)[1]:
        os.write(2, line.encode())
    os._exit(_CUT_SHORT)
