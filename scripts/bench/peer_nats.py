"""NATS with nats-py. As a queue: JetStream in files, a work queue of which all clients are one durable pull consumer.
For fan-out: core NATS, and JetStream with a durable consumer for each subscriber."""

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import QUEUE, FanOutPeer, Peer, Publish, Received, Running, Target
from processes import nats_configuration, nats_server, version

_CONSUMER = "consumer"
_SYNC_ALWAYS = "sync_interval: always"


class NatsClient:
    """A client that waits for the answers of a batch together. `ack` is nats-py's, which waits for no answer."""

    async def open(self, target: Target) -> None:
        import nats  # noqa: PLC0415 - the server can be started without it

        self._nats = nats
        # A server that has died is an error of its cell, and not a pause.
        self._client = await nats.connect(f"nats://127.0.0.1:{target['port']}", allow_reconnect=False)
        self._stream = self._client.jetstream(timeout=60)
        self._pull = await self._stream.pull_subscribe(QUEUE, durable=_CONSUMER, stream=QUEUE)

    async def push(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            await self._stream.publish(QUEUE, payloads[0])
        else:
            await asyncio.gather(*(self._stream.publish(QUEUE, payload) for payload in payloads))

    async def fill(self, payloads: Sequence[bytes]) -> None:
        """Pushes messages for a filling, which is not measured. Only the last message is answered, after all others."""
        for payload in payloads[:-1]:
            await self._client.publish(QUEUE, payload)
        await self._stream.publish(QUEUE, payloads[-1])

    async def receive(self, count: int) -> list[Any]:
        try:
            return await self._pull.fetch(count, timeout=1)
        except TimeoutError:
            return []

    async def delete(self, received: Sequence[Any]) -> None:
        for message in received:
            await message.ack()

    async def close(self) -> None:
        await self._client.flush()
        await self._client.close()


async def connect(target: Target) -> NatsClient:
    client = NatsClient()
    await client.open(target)
    return client


async def _prepare(port: int) -> None:
    import nats  # noqa: PLC0415
    from nats.js.api import RetentionPolicy  # noqa: PLC0415

    client = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
    stream = client.jetstream(timeout=60)
    await stream.add_stream(name=QUEUE, subjects=[QUEUE], retention=RetentionPolicy.WORK_QUEUE)
    await stream.pull_subscribe(QUEUE, durable=_CONSUMER, stream=QUEUE)
    await client.close()


@dataclass(frozen=True)
class JetStream(Peer):
    """JetStream as a queue. settings: lines of its block in the configuration; command: the program."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        lines = "" if filling else self.settings["jetstream"]
        with nats_server(folder, jetstream=lines, command=self.settings["command"]) as program:
            asyncio.run(_prepare(program.port))
            yield Running({"module": "peer_nats", "port": program.port}, program.pid)


def _knows_sync_always(command: str) -> bool:
    """Tells whether the server is 2.10 or later: an earlier one refuses the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        written = nats_configuration(Path(folder), _SYNC_ALWAYS)
        tested = [command, "--config", str(written), "-t"]
        return subprocess.run(tested, capture_output=True, timeout=30, check=False).returncode == 0


def peers(command: str) -> list[Peer]:
    """Returns the peers: one with the package's settings, and one with a sync for each message where the server knows
    that."""
    missing = "" if shutil.which(command) else "apt-get install nats-server"
    common: dict[str, Any] = {
        "client": "nats-py",
        "single": False,
        "versions": (version(command, "--version"), "nats-py"),
    }
    never = missing
    if not missing and not _knows_sync_always(command):
        never = f"{version(command, '--version')} does not know sync_interval (2.10 does): name one with --nats-server"
    return [
        JetStream(
            "nats-always", "NATS JetStream, sync_interval always", "always", "what was answered", missing=never,
            fills_apart=True, settings={"jetstream": _SYNC_ALWAYS, "command": command}, **common,
        ),
        JetStream(
            "nats", "NATS JetStream", "interval", "all but the last 2 minutes", missing=missing,
            settings={"jetstream": "", "command": command}, **common,
        ),
    ]  # fmt: skip


# -- fan-out -----------------------------------------------------------------------------------------------------------


class _FanOut:
    _flags: tuple[str, ...] = ()

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """Runs NATS with its built-in settings."""
        with nats_server(folder, *self._flags) as program:
            self._port = program.port
            yield

    async def _connected(self, stack: AsyncExitStack) -> Any:
        import nats  # noqa: PLC0415 - the server can be started without it

        client = await nats.connect(f"nats://127.0.0.1:{self._port}", allow_reconnect=False)
        stack.push_async_callback(client.close)
        return client


def _counting(received: Received, number: int) -> Callable[[object], Awaitable[None]]:
    async def handle(_: object) -> None:
        received(number)

    return handle


class CoreFanOut(_FanOut):
    """Publishes and subscribes with core NATS."""

    name = "NATS core"
    survives = "nothing is stored"

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """Publishes messages and flushes them together; each subscriber has a callback."""

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


class JetStreamFanOut(_FanOut):
    """Publishes to a stream in files; each subscriber has a consumer whose messages are acknowledged one by one."""

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


def fan_out_peers() -> list[FanOutPeer]:
    """Returns the systems that give a message to all."""
    return [JetStreamFanOut(), CoreFanOut()]
