"""Bounds the clients that have not said who they are, on a port with an access file.

A stranger is a client without a principal: it has not authenticated, or with a wrong token, and its certificate names
nobody. Whatever strangers do, those who may be here have a place and most of the memory:

1. A stranger that may do nothing is turned out when its time is over, whatever it sends meanwhile. One that has rights
   from [anonymous] may be a subscriber that only listens, so it stays.
2. When all places are taken, the stranger that has been here for the longest time gives its place to the next client.
3. Those that are turned out are told why, and have some time to read it. Who does not, or is the first of too many,
   is cut off.

The bounds of what one of them sends are applied by its conversation.
"""

import logging
import math
from typing import Protocol

import trio

from qs_schemas import ErrorCode
from qs_schemas import errors as table

from .logs import RareLine
from .options import ServerLimits
from .timers import STEPS

_logger = logging.getLogger(__name__)
DOCUMENT = 64 * 1024
"""The most bytes of a stranger's document. What it may send is short: an `authenticate` has some 1,200 at most."""
PIECE = 4 * 1024
"""The most bytes of a stranger that are read at a time, of its requests that are read ahead, and of the answers that it
leaves unread. A read is a turn: a client that is known waits for at most one of each stranger, some 60 pings."""
_AT_ONCE = 50
"""Strangers that are turned out before others have their turn: some 10 ms."""
_LOGGED = 60.0
"""Seconds between two lines that say that strangers gave way: a flood must not fill the log."""


class Client(Protocol):
    """A connection, as this module sees it."""

    @property
    def address(self) -> str:
        """The client's HOST:PORT."""

    @property
    def is_known(self) -> bool:
        """True if it has said who it is."""

    @property
    def may_stay(self) -> bool:
        """True if it may do more than authenticate."""

    def turn_out(self, error: ErrorCode, text: str) -> None:
        """Ends the connection once what has begun is answered, and says why."""

    def cut_off(self) -> None:
        """Ends the connection at once."""


class Strangers:
    """The strangers among the clients of a port, the oldest first.

    Ensures the three rules at the head of this file. Assumes that it is told of each client that comes, changes and
    goes. It must never turn out a client that is known, and it ends nobody who is about to be told why, but by
    `cut_off`."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        # A client that reads nothing may be at its answers for as long as a document takes, and again at the end.
        self._last_steps = math.ceil(STEPS * (2 + limits.linger / limits.document_time))
        self._oldest: dict[Client, None] = {}
        self._timed: dict[Client, int] = {}  # those whose time runs: the step in which it began
        self._step = 0
        self._begun = trio.Event()  # steps have to be counted: for these, or for those that leave
        self._gave_way = RareLine(_logger, logging.WARNING, _LOGGED)
        self.leaving: dict[Client, int] = {}
        """Clients that have been turned out, in this order, and are told why; the step in which that began. They have
        no place any more."""

    def note(self, client: Client) -> None:
        """Takes notice of who a client is: call it when it has come, and when that or its rights may have changed."""
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
        """Turns out the oldest stranger. Returns False if there is none."""
        while self._oldest:
            client = next(iter(self._oldest))
            if not client.is_known:  # it may have authenticated just now
                text = "this client has not authenticated, and its place is needed for another; authenticate at once"
                self.turn_out(client, table.TOO_MANY, text)
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
        """Ends the connection of a client, which gives up its place at once, and tells it why."""
        self.forget(client)
        if len(self.leaving) >= self._limits.leaving:
            first = next(iter(self.leaving))
            del self.leaving[first]
            first.cut_off()
        self.leaving[client] = self._step
        self._begun.set()
        client.turn_out(error, text)

    async def serve(self) -> None:
        """Turns out strangers whose time is over, until it is cancelled. Sleeps while there are no strangers.

        All have the same time, so it is counted in steps that all share, and nobody has a timer. A client has as many
        whole steps as make up its time, so at most a step more. A pause of this process is one step: see `timers`.
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
            self.turn_out(client, table.TIMEOUT, text)
            turned_out += 1
            if turned_out % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
