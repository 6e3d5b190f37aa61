"""qs's server and bus with qs's own client."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from processes import queue_bus, queue_server
from rival import Publish, Received

from qs_client import AsyncBusClient, AsyncBusMessages, AsyncQueueClient, QueueClient

_TIMEOUT = 60


class Bus:
    """A message is deleted when it has been written to every subscriber's connection."""

    name = "qs bus"
    survives = "what was answered, until it is written to each subscriber"
    _ack = False
    _flags: tuple[str, ...] = ()

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """With the settings that are built in."""
        with queue_server(folder / "root", *self._flags) as server:
            with QueueClient(*server.address) as client:
                client.new_queue("q")
            with queue_bus(folder, server.address, "q") as bus:
                self._server, self._bus = server.address, bus.address
                yield

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """Publishes a batch as a list; each subscriber loops over its messages."""

        async def listen(messages: AsyncBusMessages, number: int) -> None:
            async for _ in messages:
                received(number)

        async def publish(payloads: Sequence[bytes]) -> float:
            started = time.perf_counter()
            if len(payloads) == 1:
                await publisher.push("q", payloads[0])
            else:
                await publisher.push_many("q", payloads)
            return started

        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(AsyncQueueClient(*self._server))
            group = await stack.enter_async_context(asyncio.TaskGroup())
            bus = await stack.enter_async_context(AsyncBusClient(*self._bus))
            for number in range(subscribers):
                messages = bus.subscribe("q", ack=self._ack)
                await messages.open()
                group.create_task(listen(messages, number))
            yield publish
            await _emptied(publisher)


async def _emptied(client: AsyncQueueClient) -> None:
    """Waits until the queue is empty: what was handled is deleted a moment later."""
    async with asyncio.timeout(_TIMEOUT):
        while True:
            (figures,) = await client.stats("q")
            if not (figures.ready or figures.in_flight):
                return
            await asyncio.sleep(0.02)


class AcknowledgedBus(Bus):
    """A message is deleted when every subscriber has acknowledged it, each one by itself."""

    name = "qs bus, acknowledged"
    survives = "what was answered, until each subscriber has acknowledged it"
    _ack = True


class FastBus(Bus):
    """Like `Bus`, with a server that syncs nothing."""

    name = "qs bus, durability none"
    survives = "a crash: what was answered; power loss: nothing for sure"
    _flags = ("--durability", "none")


RIVALS = [Bus(), AcknowledgedBus(), FastBus()]
