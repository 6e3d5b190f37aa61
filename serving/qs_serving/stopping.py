"""Stops a server on signals: the first signal stops the server gently, a second one at once, and a time limit ends the
process. SIGHUP makes the server read files again.

Everything that was answered survives, whenever the process ends. So a stop that takes too long, for instance because a
disk does not respond, is cut short.
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
    """Describes a server that can be stopped."""

    def stop(self) -> None:
        """Begins a gentle stop: requests that have begun are still answered."""

    def cut_off(self) -> None:
        """Disconnects clients at once. Called after `stop`."""


class Reloadable(Protocol):
    """Describes a part of a server whose files can be read again."""

    def reload(self) -> None:
        """Reads the files again. Raises StartError if they cannot be used, and then changes nothing."""


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

    reloads: the parts to reload on SIGHUP, in this order; one that fails does not keep the others from reloading.
    Without reloads and without a service manager, SIGHUP ends the process, as usual for a process. manager: gets
    reports of the process's state. probe: returns when the server has shown that it works; then a service manager with
    a watchdog gets a sign of life.

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
    """Reads files again on SIGHUP, in the loop. Handles one signal after the other."""

    def __init__(self, reloads: Sequence[Reloadable], manager: ServiceManager, status: str) -> None:
        """status: the line for the service manager after a successful reload."""
        self._reloads = reloads
        self._manager = manager
        self._status = status
        self._token = trio.lowlevel.current_trio_token()

    def begin(self) -> None:
        """Installs the handler for SIGHUP."""
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
    """Counts signals, and stops the server accordingly. The handlers run in the main thread between any two steps of
    Python, so they work also while the event loop is blocked."""

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
    """Ends the process at once, with a line that says why. Does not use the log, because the process may be waiting for
    one of the log's locks."""
    line = error_line(os.path.basename(sys.argv[0]), f"{why}, and was cut short; nothing that was answered is lost")
    if select.select([], [2], [], 0)[1]:
        os.write(2, line.encode())
    os._exit(_CUT_SHORT)
