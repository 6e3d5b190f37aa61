"""Redis with redis-py: pub/sub, and Streams with a consumer group for each subscriber."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from redis.asyncio import Redis
from rival import Publish, Received
from systems import redis_server

_BLOCK = 100
"""Milliseconds that a read waits for messages, before it is repeated."""


class _Redis:
    _flags: tuple[str, ...] = ()

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """With the settings that are built in: Debian's file says the same about what is stored."""
        with redis_server(folder, *self._flags) as program:
            self._port = program.port
            yield


class PubSub(_Redis):
    """PUBLISH and SUBSCRIBE."""

    name = "Redis pub/sub"
    survives = "nothing is stored"

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """A pipeline of PUBLISH, and `listen` for each subscriber."""

        async def listen(number: int) -> None:
            async for message in channels[number].listen():
                if message["type"] == "message":
                    received(number)

        async def publish(payloads: Sequence[bytes]) -> float:
            started = time.perf_counter()
            pipeline = publisher.pipeline(transaction=False)
            for payload in payloads:
                pipeline.publish("q", payload)
            await pipeline.execute()
            return started

        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(Redis(port=self._port))
            channels = []
            for _ in range(subscribers):
                client = await stack.enter_async_context(Redis(port=self._port))
                channel = await stack.enter_async_context(client.pubsub())
                await channel.subscribe("q")
                await channel.get_message(timeout=10)  # that it has subscribed
                channels.append(channel)
            async with asyncio.TaskGroup() as group:
                for number in range(subscribers):
                    group.create_task(listen(number))
                try:
                    yield publish
                finally:
                    for channel in channels:
                        await channel.unsubscribe()  # and so it stops to listen


class Streams(_Redis):
    """XADD, XREADGROUP, XACK."""

    name = "Redis Streams, as installed"
    survives = "a snapshot: what came since, up to an hour, is lost in a crash"

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """A pipeline of XADD; each subscriber reads up to 100 in a group of its own, and acknowledges them together."""

        async def listen(number: int) -> None:
            group = f"group-{number}"
            while not ended.is_set():  # redis-py does not always let itself be cancelled
                for _, entries in await clients[number].xreadgroup(group, "one", {"q": ">"}, count=100, block=_BLOCK):
                    for _ in entries:
                        received(number)
                    await clients[number].xack("q", group, *(entry for entry, _ in entries))

        async def publish(payloads: Sequence[bytes]) -> float:
            started = time.perf_counter()
            pipeline = publisher.pipeline(transaction=False)
            for payload in payloads:
                pipeline.xadd("q", {"payload": payload})
            await pipeline.execute()
            return started

        ended = asyncio.Event()
        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(Redis(port=self._port))
            clients = []
            for number in range(subscribers):
                clients.append(await stack.enter_async_context(Redis(port=self._port)))
                await publisher.xgroup_create("q", f"group-{number}", id="$", mkstream=True)
            async with asyncio.TaskGroup() as group:
                for number in range(subscribers):
                    group.create_task(listen(number))
                try:
                    yield publish
                finally:
                    ended.set()
            await publisher.delete("q")


class DurableStreams(Streams):
    """Redis Streams, as durable as Redis can be."""

    name = "Redis Streams, appendfsync always"
    survives = "what was answered"
    _flags = ("--appendonly", "yes", "--appendfsync", "always")


RIVALS = [DurableStreams(), Streams(), PubSub()]
