"""Counts of acknowledging subscribers, kept on the queue server for the next start of this bus.

Subscribers of a bus that was killed come back one by one. The bus waits for as many as before, so that the messages
that have waited do not all go to the first.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import trio

from qs_client import Forbidden, NotFound, ServerError, ServerUnavailable, Unauthorized, calls
from qs_client.asking import Call

from .names import counts_queue_of

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_DEBOUNCE = 0.02
"""Seconds in which further changes are awaited before writing, as many come at once."""


class ServerCalls(Protocol):
    """Makes calls to the queue server. `Upstream` does it."""

    @property
    def connected(self) -> trio.Event:
        """The event that is set while calls can be made."""

    async def call(self, call: Call[T]) -> T:
        """Makes a call and returns its result. Raises ServerError, or ServerUnavailable when the connection ends."""


class SubscriberCounts:
    """The counts of one bus, in a queue that is named after the address of the bus."""

    def __init__(self, upstream: ServerCalls, host: str, port: int, count: Callable[[], Mapping[str, int]]) -> None:
        """count: returns the current counts: queue -> subscribers."""
        self.qid = counts_queue_of(host, port)
        self._upstream = upstream
        self._count = count
        self._written = ""
        self._changed = trio.Event()
        self._saved = trio.Event()
        self._changes = self._noted = 0
        self._closed = False
        self._failing = False  # and the log says so

    def changed(self) -> None:
        """Notes that a subscriber has come or gone."""
        if not self._closed:
            self._changes += 1
            self._changed.set()

    async def noted(self) -> None:
        """Waits until the changes so far are written, or never will be."""
        change = self._changes
        while self._noted < change and not self._closed:
            await self._saved.wait()

    def close(self) -> None:
        """Stops writing, because the bus is stopping: subscribers that leave now are expected back."""
        self._closed = True
        self._saved.set()

    async def read(self) -> dict[str, int]:
        """Reads the counts from before the last end of the bus: queue -> subscribers. Raises ServerUnavailable."""
        mids = await self._messages()
        if not mids:
            return {}
        message = await self._upstream.call(calls.peek(self.qid, mids[-1]))
        self._written = message.text
        found: dict[str, int] = {}
        for line in self._written.splitlines():
            number, _, qid = line.partition(" ")
            if number.isdigit():
                found[qid] = int(number)
        return found

    async def _messages(self) -> list[int]:
        try:
            return await self._upstream.call(next(calls.list_messages(self.qid, state="all")))  # one page has them all
        except (NotFound, Unauthorized, Forbidden):  # `_write` logs what the server says
            return []

    async def run(self) -> None:
        """Writes the counts whenever they have changed. Never returns."""
        while True:
            await self._changed.wait()
            await trio.sleep(_DEBOUNCE)
            await self._upstream.connected.wait()
            self._changed = trio.Event()
            change = self._changes
            text = "".join(f"{number} {qid}\n" for qid, number in sorted(self._count().items()) if number)
            try:
                if not self._closed and text != self._written:
                    await self._write(text)
                    self._failing = False
            except ServerUnavailable:
                self._changed.set()
                await trio.lowlevel.checkpoint()
                continue
            except ServerError as error:
                if not self._failing:
                    _logger.warning("the number of subscribers could not be stored on the queue server: %s", error)
                self._failing = True
            self._noted = change
            self._saved.set()
            self._saved = trio.Event()

    async def _write(self, text: str) -> None:
        await self._upstream.call(calls.new_queue(self.qid, exist_ok=True))
        before = await self._messages()
        await self._upstream.call(calls.push(self.qid, text))
        await self._upstream.call(calls.delete_many(self.qid, before))
        self._written = text
