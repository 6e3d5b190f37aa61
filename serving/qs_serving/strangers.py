"""Bounds the clients that have given no valid credential, on a port with an access file.

A stranger is a client without a principal: it has not authenticated, or only with a wrong token, and its certificate
names no principal. Whatever strangers do, known clients have most of the connections and of the memory:

1. A stranger that may do nothing is turned out when its time is over, whatever it sends meanwhile. A stranger that has
   rights from [anonymous] may be a subscriber that only listens, and stays.
2. When all connections are taken, the oldest stranger is turned out for the next client.
3. A client that is turned out is told why, and has some time to read the error. A client that does not read in time, or
   is the oldest of too many, is cut off.

`Connection.identify` applies the bounds on what a single stranger may send.
"""

import logging
import math
from typing import Protocol

import trio

from qs_schemas import ErrorCode, errors

from .logs import RareLine
from .options import ServerLimits
from .timers import STEPS

_logger = logging.getLogger(__name__)
DOCUMENT = 64 * 1024
"""The most bytes of a stranger's document. What it may send is short: an `authenticate` has some 1,200 at most."""
PIECE = 4 * 1024
"""The most bytes of a stranger that are read at a time, of its requests that are read ahead, and of the answers that it
leaves unread. Known clients are served between the reads: they wait for at most one read of each
stranger, some 60 pings."""
_AT_ONCE = 50
"""Strangers that are turned out, in some 10 ms, before other tasks run."""
_LOGGED = 60.0
"""Seconds between two lines that say that strangers gave way: a flood must not fill the log."""


class Client(Protocol):
    """Describes a connection, as this module uses it."""

    @property
    def address(self) -> str:
        """The client's HOST:PORT."""

    @property
    def is_known(self) -> bool:
        """True if the client has given a valid credential."""

    @property
    def may_stay(self) -> bool:
        """True if the client may do more than authenticate."""

    def turn_out(self, error: ErrorCode, text: str) -> None:
        """Ends the connection after the requests that have begun are answered, and says why."""

    def cut_off(self) -> None:
        """Ends the connection at once."""


class Strangers:
    """Keeps the strangers among the clients of a port, the oldest first.

    Ensures the three rules at the head of this file. Assumes that `note` and `forget` are called for each client that
    comes, changes or goes. Must never turn out a known client, and must end a client that is being told why only with
    `cut_off`."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        # A client that reads nothing may keep its answers waiting for as long as a document takes, and again at the
        # end.
        self._last_steps = math.ceil(STEPS * (2 + limits.linger / limits.document_time))
        self._oldest: dict[Client, None] = {}
        self._timed: dict[Client, int] = {}  # strangers whose time runs: the step in which it began
        self._step = 0
        self._begun = trio.Event()  # set when steps have to be counted, for strangers or for clients that leave
        self._gave_way = RareLine(_logger, logging.WARNING, _LOGGED)
        self.leaving: dict[Client, int] = {}
        """Clients that have been turned out, in this order, and are told why; the step in which that began. Their
        connections do not count any more."""

    def note(self, client: Client) -> None:
        """Records a client's identity. Call this when the client has come, and when its identity or its rights may have
        changed."""
        if client in self.leaving:
            return
        if client.is_known:
            self._oldest.pop(client, None)
        else:
            self._oldest.setdefault(client)
        if client.may_stay:
            self._timed.pop(client, None)
        elif client not in self._timed:
            self._timed[client] = self._step
            self._begun.set()

    def forget(self, client: Client) -> None:
        """Forgets a client that has gone."""
        self._oldest.pop(client, None)
        self._timed.pop(client, None)
        self.leaving.pop(client, None)

    def make_room(self) -> bool:
        """Turns out the oldest stranger. Returns False if there are no strangers."""
        while self._oldest:
            client = next(iter(self._oldest))
            if not client.is_known:  # it may have authenticated just now
                text = "this client has not authenticated, and its place is needed for another; authenticate at once"
                self.turn_out(client, errors.TOO_MANY, text)
                self._gave_way.log(
                    "all %d connections are taken: clients that had not authenticated were closed for others, the last "
                    "from %s",
                    self._limits.connections,
                    client.address,
                )
                return True
            del self._oldest[client]
        return False

    def turn_out(self, client: Client, error: ErrorCode, text: str) -> None:
        """Ends the connection of a client and tells the client why. The connection does not count from now on."""
        self.forget(client)
        if len(self.leaving) >= self._limits.leaving:
            first = next(iter(self.leaving))
            del self.leaving[first]
            first.cut_off()
        self.leaving[client] = self._step
        self._begun.set()
        client.turn_out(error, text)

    async def serve(self) -> None:
        """Turns out strangers whose time is over, until cancelled. Sleeps while there are no strangers.

        All strangers have the same time, so it is counted in steps that all share, without a timer for each. Only whole
        steps count, so a stranger may get up to one step more than its time. A pause of this process counts as one
        step: see `timers`.
        """
        while True:
            if not self._timed and not self.leaving:
                self._begun = trio.Event()
                await self._begun.wait()
            await trio.sleep(self._limits.document_time / STEPS)
            self._step += 1
            await self._turn_out_late()
            for client, began in list(self.leaving.items()):
                if self._step - began > self._last_steps:
                    client.cut_off()

    async def _turn_out_late(self) -> None:
        text = f"this client has not authenticated within {self._limits.document_time:g} s; send authenticate first"
        turned_out = 0
        while self._timed:
            client, began = next(iter(self._timed.items()))
            if self._step - began <= STEPS:
                return
            _logger.debug("%s: not authenticated within %g s", client.address, self._limits.document_time)
            self.turn_out(client, errors.TIMEOUT, text)
            turned_out += 1
            if turned_out % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
