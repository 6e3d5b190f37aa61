"""When to try again: pauses that grow, and the rules by which a subscription outlives its connection.

Nothing here waits: the sync and the async subscriptions do, and make the next attempt. The bus clients have rules of
their own, as they may start before their bus (`bus_session`).
"""

import random
import time
from collections.abc import Callable, Iterator

from .errors import Disconnected, log, passes_by_itself


def delays(
    first: float = 0.1,
    most: float = 2.0,
    factor: float = 2.0,
    uniform: Callable[[float, float], float] = random.uniform,
) -> Iterator[float]:
    """Yields the seconds to wait before each further attempt, without end: exponential growth with full jitter, so that
    the clients of a server that has been away do not all come back in the same moment.

    The first delay is between 0 and `first`; that bound grows by `factor` up to `most`. uniform: draws from a range,
    for tests. Start a new iterator after an attempt has succeeded.
    """
    bound = min(first, most)
    while True:
        yield uniform(0.0, bound)
        bound = min(bound * factor, most)


_STEADY = 10.0
"""Seconds that a subscription has to last: after a shorter one the pauses go on growing, as a server that ends each one
at once would be asked without a pause."""


class Outages:
    """Decides after each error of one subscription whether to subscribe again, and when.

    Ensures
    1. An error before the first success is raised: a wrong address must not look like an outage.
    2. So is every error that another attempt cannot cure (`passes_by_itself`).
    3. An outage is logged once when it begins and once when it ends, whatever the number of attempts.
    4. `disconnect()` ends a subscription in an outage too, when there is no connection that could tell.

    Assumes that its one user reports each success with `over` and each error with `pause_after`.
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
        """Tells whether the program has called `disconnect()` since the first attempt: in an outage there may be no
        connection that could tell. disconnects: how often the program has called it."""
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
