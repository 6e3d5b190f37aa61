"""Stops a server on signals: the first stops it gently, a second one at once, and a time limit ends the process. SIGHUP
makes it read files again.

Everything that was answered survives the end of the process at any moment. So a stop that takes too long, for instance
because a disk does not respond, is cut short.
"""

import atexit
import logging
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import NoReturn, Protocol

import trio

from .errors import StartError
from .listening import Announce, listening_line
from .logs import error_line
from .service_manager import ServiceManager

_logger = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CLOSING = 4
"""Seconds that a process may take to close what it has open: after `--grace`, and after a second signal."""
_CUT_SHORT = 1
"""The exit code of a process whose stop was cut short."""


class Stoppable(Protocol):
    """A server that can be stopped."""

    def stop(self) -> None:
        """Stops gently."""

    def cut_off(self) -> None:
        """Disconnects clients at once. Is called after `stop`."""


class Reloadable(Protocol):
    """Something that a server has read from files."""

    def reload(self) -> None:
        """Reads the files again. StartError if they cannot be used: then everything stays as it was."""


async def serve_until_signalled(
    server: Stoppable,
    serve: Callable[[], Awaitable[None]],
    listeners: list[trio.SocketListener],
    announce: Announce,
    grace: float,
    *,
    reloads: Sequence[Reloadable] = (),
    manager: ServiceManager | None = None,
    probe: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """Runs `serve` until it returns, some time after SIGTERM or SIGINT. Call it once, from the main thread.

    reloads: are reloaded on SIGHUP, in this order, each whether or not the others can be. Without any, and without a
    service manager, SIGHUP ends the process as it ends any other. manager: is told what the process does. probe:
    returns when the server has shown that it works; a service manager with a watchdog hears of that.

    From here to the end of the process, a first signal stops the server gently and leaves it `grace` seconds and a few
    more; a second one disconnects the clients and leaves a few seconds; a third one, or the end of that time, ends the
    process with exit code 1 and a line on standard error.
    """
    manager = manager or ServiceManager()
    host, port = listeners[0].socket.getsockname()[:2]
    status = listening_line(host, port)
    if reloads or manager.is_there:
        _Reload(reloads, manager, status).begin()
    _Stop(server, grace, manager).begin()
    announce(host, port)
    manager.ready(status)
    if manager.ping_interval is None:
        await serve()
        return
    async with trio.open_nursery() as beside:
        beside.start_soon(manager.ping, probe)
        await serve()
        beside.cancel_scope.cancel()


class _Reload:
    """Reads files again on SIGHUP, in the loop, one signal after the other."""

    def __init__(self, reloads: Sequence[Reloadable], manager: ServiceManager, status: str) -> None:
        """status: for the service manager, when all went well."""
        self._reloads = reloads
        self._manager = manager
        self._status = status
        self._token = trio.lowlevel.current_trio_token()

    def begin(self) -> None:
        """Installs the handler of the signal."""
        signal.signal(signal.SIGHUP, self._caught)
        atexit.register(_ignore_signals, (signal.SIGHUP,))

    def _caught(self, number: int, frame: FrameType | None) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._reload, idempotent=True)

    def _reload(self) -> None:
        self._manager.reloading()
        status = self._status
        for each in self._reloads:
            try:
                each.reload()
            except StartError as error:
                _logger.error("after SIGHUP: %s; what was read before stays in use", error)
                status = f"{self._status}; not reloaded: {error}"
        if status == self._status:
            _logger.info("after SIGHUP: the files have been read again")
        self._manager.ready(status)


class _Stop:
    """Counts signals. Its handlers run in the main thread between any two steps, so they work also while the event loop
    is blocked."""

    def __init__(self, server: Stoppable, grace: float, manager: ServiceManager) -> None:
        self._server = server
        self._grace = grace
        self._manager = manager
        self._signals = 0
        self._token = trio.lowlevel.current_trio_token()

    def begin(self) -> None:
        """Installs the handlers of the signals and of the process's timer."""
        signal.signal(signal.SIGALRM, self._time_is_up)
        for number in _SIGNALS:
            signal.signal(number, self._caught)
        atexit.register(_ignore_signals, _SIGNALS)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals == 1:
            signal.setitimer(signal.ITIMER_REAL, self._grace + _CLOSING)
            self._run_in_loop(self._stop)
        elif self._signals == 2:
            signal.setitimer(signal.ITIMER_REAL, min(_CLOSING, signal.getitimer(signal.ITIMER_REAL)[0]))
            self._run_in_loop(self._server.cut_off)
        else:
            _end(f"was told to stop {self._signals} times")

    def _stop(self) -> None:
        _logger.info("stopping")
        self._manager.stopping()
        self._server.stop()

    def _run_in_loop(self, call: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):  # the server has stopped, and the process is about to end
            self._token.run_sync_soon(call)

    def _time_is_up(self, number: int, frame: FrameType | None) -> None:
        _end("could not stop in time" if self._signals == 1 else "could not stop in time after a second signal")


def _ignore_signals(numbers: Sequence[int]) -> None:
    """Makes the process ignore signals while Python itself ends. Python removes handlers then, and a signal would give
    a process that has stopped cleanly another exit code."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _end(why: str) -> NoReturn:
    """Ends the process at once. Does not write to the log, whose locks may be what the process waits for."""
    line = error_line(os.path.basename(sys.argv[0]), f"{why}, and was cut short; nothing that was answered is lost")
    if select.select([], [2], [], 0)[1]:
        os.write(2, line.encode())
    os._exit(_CUT_SHORT)
