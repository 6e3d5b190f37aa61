"""Keeps on the queue server how many acknowledging subscribers each queue has, for the next start of this bus.

The bus knows them by their connections only. After it was killed, or restarted, they come back one by one; the messages
that wait in the queues by then must not go to the first of them alone.
"""

import logging
from collections.abc import Callable, Mapping

import trio

from qs_client import NotFound, ServerError, ServerUnavailable, calls

from .names import counts_queue_of
from .upstream import Upstream

_logger = logging.getLogger(__name__)
_GATHER = 0.02
"""Seconds in which more changes are waited for, as many come at once."""


class SubscriberCounts:
    """The counts of one bus, in a queue of the server that is named after the address at which the bus listens."""

    def __init__(self, upstream: Upstream, host: str, port: int, count: Callable[[], Mapping[str, int]]) -> None:
        """count: returns the counts of now: queue -> subscribers."""
        self.qid = counts_queue_of(host, port)
        self._upstream = upstream
        self._count = count
        self._written = ""
        self._changed = trio.Event()
        self._kept = trio.Event()
        self._changes = self._noted = 0
        self._closed = False

    def changed(self) -> None:
        """Takes note that a subscriber has come or gone."""
        if not self._closed:
            self._changes += 1
            self._changed.set()

    async def noted(self) -> None:
        """Waits until the changes so far are written down, or never will be."""
        change = self._changes
        while self._noted < change and not self._closed:
            await self._kept.wait()

    def close(self) -> None:
        """Stops writing, as the bus is stopping: subscribers that have to go now are to come back."""
        self._closed = True
        self._kept.set()

    async def read(self) -> dict[str, int]:
        """Reads what the bus has written before its last end: queue -> subscribers. Raises ServerUnavailable."""
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
            return await self._upstream.call(next(calls.list_messages(self.qid, state="all")))  # few: one page
        except NotFound:
            return []

    async def keep(self) -> None:
        """Writes the counts down whenever they have changed, for ever."""
        while True:
            await self._changed.wait()
            await trio.sleep(_GATHER)
            await self._upstream.connected.wait()
            self._changed = trio.Event()
            change = self._changes
            text = "".join(f"{number} {qid}\n" for qid, number in sorted(self._count().items()) if number)
            try:
                if not self._closed and text != self._written:
                    await self._write(text)
            except ServerUnavailable:
                self._changed.set()
                await trio.lowlevel.checkpoint()
                continue
            except ServerError as error:
                _logger.warning("how many subscribers there are could not be noted: %s", error)
            self._noted = change
            self._kept.set()
            self._kept = trio.Event()

    async def _write(self, text: str) -> None:
        await self._upstream.call(calls.new_queue(self.qid, exist_ok=True))
        before = await self._messages()
        await self._upstream.call(calls.push(self.qid, text))
        await self._upstream.call(calls.delete_many(self.qid, before))
        self._written = text
