"""The rules by which a subscription to the queue server waits after a lost connection, and subscribes again.

No I/O: the sync and the async subscription wait, and make the next attempt. The bus client has its own rules, as it may
start before its bus (`bus_session`).
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .backoff import delays
from .errors import Disconnected, passes_by_itself

if TYPE_CHECKING:
    from typing import Literal


_STEADY = 10.0
"""Seconds that a subscription has to last: after a shorter one the pauses go on growing, as a server that ends each one
at once would be asked without a pause."""


def log(level: "Literal['info', 'warning']", text: str) -> None:
    """Logs a line of the client, to the logger `qs_client`."""
    import logging  # noqa: PLC0415 - a third of the start of a short command, which has nothing to log

    getattr(logging.getLogger("qs_client"), level)("%s", text)


class Outages:
    """Decides after each error of one subscription whether to subscribe again, and when.

    Ensures: an error before the first success is raised (a wrong address must not look like an outage), and so is every
    error that another attempt cannot cure; an outage is logged once when it begins and once when it ends.
    """

    def __init__(
        self,
        queues: str,
        reconnect: bool | float,
        *,
        clock: Callable[[], float] = time.monotonic,
        pauses: Callable[[], Iterator[float]] = delays,
    ) -> None:
        """queues: for the log; reconnect: True for ever, False not at all, else the seconds that an outage may last."""
        self._queues = queues
        self._patience = float("inf") if reconnect is True else float(reconnect)
        self._clock = clock
        self._pauses = pauses
        self._pause = pauses()
        self._began: int | None = None  # the count of disconnects at the first attempt
        self._subscribed = False
        self._since = 0.0  # when the server took the last subscription
        self._until: float | None = None  # of an outage: when to give up

    def disconnected(self, disconnects: int) -> bool:
        """Tells whether the program has called `disconnect()` since the first attempt: there may be no connection that
        could tell. disconnects: how often it has called it."""
        if self._began is None:
            self._began = disconnects
        return self._began != disconnects

    def check(self, disconnects: int) -> None:
        """Begins an attempt. Raises Disconnected if the program has called `disconnect()` since the first one."""
        if self.disconnected(disconnects):
            raise Disconnected("the subscription has ended, as this program has called disconnect()")

    def pause_after(self, error: Exception) -> float:
        """Returns the seconds to wait before the next attempt. Raises the error when there is none."""
        if not self._subscribed or not self._patience or not passes_by_itself(error):
            raise error
        now = self._clock()
        if self._until is None:
            self._until = now + self._patience
            if now - self._since >= _STEADY:
                self._pause = self._pauses()
            log("warning", f"{error} (subscribing to {self._queues} again until that succeeds)")
        if now >= self._until:
            raise error
        # Never longer than the outage may last: a last attempt is made at its end.
        return min(next(self._pause), self._until - now)

    def over(self) -> None:
        """Notes that the server has taken the subscription. May be called again while it lasts."""
        if self._subscribed and self._until is None:
            return
        self._subscribed = True
        self._since = self._clock()
        if self._until is not None:
            self._until = None
            log("warning", f"subscribed to {self._queues} again")  # as loud as the line that it ends
