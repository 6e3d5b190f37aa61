"""Redis, as a queue: one stream, one consumer group that all clients share, with redis-py and with raw sockets. For
fan-out: pub/sub, and Streams with a consumer group for each subscriber."""

import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import Client as Line
from load import Exchange, Pushes, Script
from peer import QUEUE, FanOutPeer, Peer, Publish, Received, Running, Target
from processes import redis_server

_GROUP = "group"
_ID = re.compile(rb"\r\n(\d+-\d+)\r\n")

_BLOCK = 100
"""Milliseconds that a read waits for messages, before it is repeated."""


class RedisClient:
    """A client that pushes with XADD, takes with XREADGROUP, and deletes with XACK and XDEL in one round trip, because
    an acknowledged message would otherwise stay. A list is a pipeline."""

    def __init__(self, target: Target) -> None:
        import redis  # noqa: PLC0415 - the server can be driven without it

        self._client = redis.Redis(port=target["port"], protocol=2)
        self._client.ping()
        self._me = f"consumer-{os.getpid()}"

    async def push(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            self._client.xadd(QUEUE, {"payload": payloads[0]})
            return
        pipeline = self._client.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(QUEUE, {"payload": payload})
        pipeline.execute()

    async def receive(self, count: int) -> list[bytes]:
        found = self._client.xreadgroup(_GROUP, self._me, {QUEUE: ">"}, count=count, block=1000)
        return [entry for _, entries in found or () for entry, _ in entries]

    async def delete(self, received: Sequence[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xack(QUEUE, _GROUP, *received)
        pipeline.xdel(QUEUE, *received)
        pipeline.execute()

    async def close(self) -> None:
        self._client.close()


async def connect(target: Target) -> RedisClient:
    return RedisClient(target)


def _command(*words: bytes) -> bytes:
    """Encodes a command in the protocol of Redis."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _add(size: int) -> bytes:
    return _command(b"XADD", QUEUE.encode(), b"*", b"payload", b"x" * size)


class _Cycle:
    worth = 1

    def __init__(self, size: int) -> None:
        self._add = _add(size)
        me = b"raw-%d" % os.getpid()
        words = (b"XREADGROUP", b"GROUP", _GROUP.encode(), me, b"COUNT", b"1", b"BLOCK", b"1000")
        self._read = _command(*words, b"STREAMS", QUEUE.encode(), b">")

    def round(self) -> Iterator[Exchange]:
        yield self._add, 2
        answer = yield self._read, 13  # type: ignore[misc]
        found = _ID.search(answer)
        if found is None:
            raise RuntimeError(f"no message in {answer!r}")
        name, group = QUEUE.encode(), _GROUP.encode()
        yield _command(b"XACK", name, group, found[1]) + _command(b"XDEL", name, found[1]), 2


def script(target: Target, work: str, size: int, batch: int) -> Script:
    """Returns the requests of a raw connection, by the work. A batch is that many commands sent together."""
    return _Cycle(size) if work == "cycle" else Pushes(_add(size) * batch, 2 * batch, batch)


@dataclass(frozen=True)
class Redis(Peer):
    """A Redis server. flags: the server's flags."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        with redis_server(folder, "--appendonly", "yes", "--save", "", *self.flags) as program:
            with Line(("127.0.0.1", program.port)) as line:
                line.lines(_command(b"XGROUP", b"CREATE", QUEUE.encode(), _GROUP.encode(), b"0", b"MKSTREAM"))
            yield Running({"module": "peer_redis", "port": program.port}, program.pid)


def peers() -> list[Peer]:
    """Returns the peers: one with `appendfsync always`, and one with the default of a Redis with an append-only
    file."""
    missing = "" if shutil.which("redis-server") else "apt-get install redis-server"
    common: dict[str, Any] = {
        "client": "redis-py",
        "versions": ("redis-server", "redis", "hiredis"),
        "missing": missing,
    }
    always: dict[str, Any] = {"flags": ("--appendfsync", "always")}
    return [
        Redis("redis", "Redis Streams, appendfsync always", "always", "what was answered", **common, **always),
        Redis(
            "redis-raw", "Redis Streams, appendfsync always, raw sockets", "always", "what was answered",
            **{**common, **always, "client": "raw sockets", "raw": True, "deep": False},
        ),
        Redis(
            "redis-everysec", "Redis Streams, appendfsync everysec", "interval", "all but the last 1 to 2 s",
            flags=("--appendfsync", "everysec"), **common,
        ),
    ]  # fmt: skip


# -- fan-out -----------------------------------------------------------------------------------------------------------


class _FanOut:
    _flags: tuple[str, ...] = ()

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """Runs Redis with its built-in settings: Debian's file says the same about storage."""
        with redis_server(folder, *self._flags) as program:
            self._port = program.port
            yield

    def _connection(self) -> Any:
        from redis.asyncio import Redis  # noqa: PLC0415 - the server can be driven without it

        return Redis(port=self._port)


class PubSub(_FanOut):
    """Redis with PUBLISH and SUBSCRIBE."""

    name = "Redis pub/sub"
    survives = "nothing is stored"

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """Publishes in a pipeline; each subscriber loops over `listen`."""

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
            publisher = await stack.enter_async_context(self._connection())
            channels = []
            for _ in range(subscribers):
                client = await stack.enter_async_context(self._connection())
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


class Streams(_FanOut):
    """Redis Streams with XADD, XREADGROUP and XACK."""

    name = "Redis Streams, as installed"
    survives = "a snapshot: what came since, up to an hour, is lost in a crash"

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """Publishes with a pipeline of XADD; each subscriber reads up to 100 in a group of its own, and acknowledges
        them together."""

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
            publisher = await stack.enter_async_context(self._connection())
            clients = []
            for number in range(subscribers):
                clients.append(await stack.enter_async_context(self._connection()))
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


def fan_out_peers() -> list[FanOutPeer]:
    """Returns the systems that give a message to all."""
    return [DurableStreams(), Streams(), PubSub()]
