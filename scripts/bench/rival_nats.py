"""NATS with nats-py: core, and JetStream with a durable consumer for each subscriber."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import nats
from nats.aio.client import Client
from rival import Publish, Received
from systems import nats_server


class _Nats:
    _flags: tuple[str, ...] = ()

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """With the settings that are built in."""
        with nats_server(folder, *self._flags) as program:
            self._port = program.port
            yield

    async def _connected(self, stack: AsyncExitStack) -> Client:
        client = await nats.connect(f"nats://127.0.0.1:{self._port}", allow_reconnect=False)
        stack.push_async_callback(client.close)
        return client


def _counting(received: Received, number: int) -> Callable[[object], Awaitable[None]]:
    async def handle(_: object) -> None:
        received(number)

    return handle


class Core(_Nats):
    """Publish and subscribe."""

    name = "NATS core"
    survives = "nothing is stored"

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """A flush after what is published together; a callback for each subscriber."""

        async def publish(payloads: Sequence[bytes]) -> float:
            started = time.perf_counter()
            for payload in payloads:
                await publisher.publish("q", payload)
            await publisher.flush()
            return started

        async with AsyncExitStack() as stack:
            publisher = await self._connected(stack)
            for number in range(subscribers):
                client = await self._connected(stack)
                await client.subscribe("q", cb=_counting(received, number))
                await client.flush()
            yield publish


class JetStream(_Nats):
    """A stream in files; each subscriber has a consumer whose messages are acknowledged one by one."""

    name = "NATS JetStream, file storage"
    survives = "a crash: what was answered; power loss: not the last 2 minutes (sync_interval)"
    _flags = ("--jetstream",)

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """Waits for the answers of a batch together; nats-py acknowledges after the callback."""

        async def publish(payloads: Sequence[bytes]) -> float:
            started = time.perf_counter()
            await asyncio.gather(*(stream.publish("q", payload) for payload in payloads))
            return started

        async with AsyncExitStack() as stack:
            publisher = await self._connected(stack)
            stream = publisher.jetstream()
            await stream.add_stream(name="stream", subjects=["q"])
            for number in range(subscribers):
                client = await self._connected(stack)
                handle = _counting(received, number)
                await client.jetstream().subscribe("q", durable=f"consumer-{number}", cb=handle)
            yield publish
            await stream.delete_stream("stream")


RIVALS = [JetStream(), Core()]
