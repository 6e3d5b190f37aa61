"""RabbitMQ with pika: a durable queue, persistent messages, publisher confirms, a consumer for each client."""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import QUEUE, Peer, Running, Target
from systems import RABBITMQ, debian_version, rabbitmq_server


class RabbitClient:
    """Waits for the confirms of a batch together. An acknowledgement has no answer in AMQP 0.9.1."""

    def __init__(self, target: Target) -> None:
        self._port = target["port"]
        self._stack = AsyncExitStack()
        self._came: asyncio.Queue[int] = asyncio.Queue()
        self._consuming = False

    async def open(self) -> None:
        """pika is imported here, as the server can be started without it."""
        from pika import BasicProperties, DeliveryMode  # noqa: PLC0415
        from pika_channels import Confirms, done, open_channel  # noqa: PLC0415

        self._done = done
        self._persistent = BasicProperties(delivery_mode=DeliveryMode.Persistent)
        self._channel = await open_channel(self._stack, self._port)
        self._confirms = Confirms()
        await done(self._channel.confirm_delivery, self._confirms.take)
        await done(self._channel.queue_declare, QUEUE, durable=True)

    async def push(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._confirms.expect()
            self._channel.basic_publish("", QUEUE, payload, self._persistent)
        await self._confirms.all()

    async def receive(self, count: int) -> list[int]:
        if not self._consuming:
            self._consuming = True
            await self._done(self._channel.basic_qos, prefetch_count=count)
            self._channel.basic_consume(QUEUE, lambda _, delivery, *__: self._came.put_nowait(delivery.delivery_tag))
        try:
            tags = [await asyncio.wait_for(self._came.get(), 1)]
        except TimeoutError:
            return []
        while len(tags) < count and not self._came.empty():
            tags.append(self._came.get_nowait())
        return tags

    async def delete(self, received: Sequence[int]) -> None:
        self._channel.basic_ack(received[-1], multiple=len(received) > 1)

    async def close(self) -> None:
        await self._stack.aclose()


async def connect(target: Target) -> RabbitClient:
    client = RabbitClient(target)
    await client.open()
    return client


async def _drop(port: int) -> None:
    from pika_channels import done, open_channel  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        channel = await open_channel(stack, port)
        await done(channel.queue_delete, QUEUE)


@dataclass(frozen=True)
class RabbitMQ(Peer):
    """RabbitMQ, which takes several seconds to start, so it keeps running, and its queue is deleted after each cell."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        with rabbitmq_server(folder) as program:
            target = {"module": "peer_rabbitmq", "port": program.port}
            yield Running(target, program.pid, lambda: asyncio.run(_drop(program.port)))


def peers() -> list[Peer]:
    """Returns the peer: as durable as a single server can be."""
    missing = "" if shutil.which(RABBITMQ) and debian_version("rabbitmq-server") else "apt-get install rabbitmq-server"
    common: dict[str, Any] = {"client": "pika", "versions": ("rabbitmq-server", "pika"), "missing": missing}
    return [
        RabbitMQ(
            "rabbitmq", "RabbitMQ, persistent, confirms", "always", "what was confirmed",
            keeps=True, single=False, **common,
        )
    ]  # fmt: skip
