"""RabbitMQ with pika: persistent messages and publisher confirms. As a queue: a durable one, with a consumer for each
client. For fan-out: an exchange, and a durable queue for each subscriber.

pika is imported where it is used, because the server can be started without it.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer import QUEUE, FanOutPeer, Peer, Publish, Received, Running, Target
from processes import RABBITMQ, debian_version, rabbitmq_server

if TYPE_CHECKING:
    from pika.channel import Channel
    from pika.spec import Basic


_TIMEOUT = 60

_PREFETCH = 100


async def open_channel(stack: AsyncExitStack, port: int) -> "Channel":
    """Opens a channel on a connection of its own, which the stack closes."""
    from pika import ConnectionParameters  # noqa: PLC0415
    from pika.adapters.asyncio_connection import AsyncioConnection  # noqa: PLC0415

    parameters = ConnectionParameters("127.0.0.1", port)
    opened: asyncio.Future[AsyncioConnection] = asyncio.Future()
    closed: asyncio.Future[object] = asyncio.Future()
    connection = AsyncioConnection(
        parameters,
        opened.set_result,
        lambda _, error: opened.set_exception(error),
        lambda *_: closed.set_result(None),
    )
    await opened

    async def close() -> None:
        connection.close()
        await closed

    stack.push_async_callback(close)
    channel: asyncio.Future[Channel] = asyncio.Future()
    connection.channel(on_open_callback=channel.set_result)
    return await channel


async def _answered(method: Callable[..., object], *arguments: object, **named: object) -> None:
    """Calls a method of a channel, and waits for the answer."""
    answer: asyncio.Future[object] = asyncio.Future()
    method(*arguments, callback=answer.set_result, **named)
    await asyncio.wait_for(answer, _TIMEOUT)


class Confirms:
    """Messages that the server has yet to confirm. The server numbers the messages published on a channel from 1."""

    def __init__(self) -> None:
        self._published = 0
        self._missing: set[int] = set()
        self._none: asyncio.Future[None] = asyncio.Future()

    def expect(self) -> None:
        """Notes a message. Call it before it is published."""
        self._published += 1
        self._missing.add(self._published)

    def take(self, frame: Any) -> None:
        """Notes that one message is confirmed, or all up to one."""
        from pika.spec import Basic  # noqa: PLC0415

        if not isinstance(frame.method, Basic.Ack):
            self._none.set_exception(RuntimeError("the server refused a message"))
        elif frame.method.multiple:
            self._missing = {number for number in self._missing if number > frame.method.delivery_tag}
        else:
            self._missing.discard(frame.method.delivery_tag)
        if not self._missing and not self._none.done():
            self._none.set_result(None)

    async def all(self) -> None:
        """Waits until everything is confirmed."""
        if self._missing:
            self._none = asyncio.Future()
            await self._none


class RabbitClient:
    """A client that waits for the confirms of a batch together. An acknowledgement has no answer in AMQP 0.9.1."""

    def __init__(self, target: Target) -> None:
        self._port = target["port"]
        self._stack = AsyncExitStack()
        self._came: asyncio.Queue[int] = asyncio.Queue()
        self._consuming = False

    async def open(self) -> None:
        """Connects, and declares the queue."""
        from pika import BasicProperties, DeliveryMode  # noqa: PLC0415

        self._persistent = BasicProperties(delivery_mode=DeliveryMode.Persistent)
        self._channel = await open_channel(self._stack, self._port)
        self._confirms = Confirms()
        await _answered(self._channel.confirm_delivery, self._confirms.take)
        await _answered(self._channel.queue_declare, QUEUE, durable=True)

    async def push(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._confirms.expect()
            self._channel.basic_publish("", QUEUE, payload, self._persistent)
        await self._confirms.all()

    async def receive(self, count: int) -> list[int]:
        if not self._consuming:
            self._consuming = True
            await _answered(self._channel.basic_qos, prefetch_count=count)
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
    async with AsyncExitStack() as stack:
        channel = await open_channel(stack, port)
        await _answered(channel.queue_delete, QUEUE)


@dataclass(frozen=True)
class RabbitMQ(Peer):
    """RabbitMQ, whose start takes several seconds: one server serves all cells, and its queue is deleted after each
    cell."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        with rabbitmq_server(folder) as program:
            target = {"module": "peer_rabbitmq", "port": program.port}
            yield Running(target, program.pid, lambda: asyncio.run(_drop(program.port)))


def peers() -> list[Peer]:
    """Returns the peer, as durable as a single server can be."""
    missing = "" if shutil.which(RABBITMQ) and debian_version("rabbitmq-server") else "apt-get install rabbitmq-server"
    common: dict[str, Any] = {"client": "pika", "versions": ("rabbitmq-server", "pika"), "missing": missing}
    return [
        RabbitMQ(
            "rabbitmq", "RabbitMQ, persistent, confirms", "always", "what was confirmed",
            keeps=True, single=False, **common,
        )
    ]  # fmt: skip


# -- fan-out -----------------------------------------------------------------------------------------------------------


class FanOut:
    """RabbitMQ with durable exchange and queues, persistent messages, publisher confirms, and acknowledged
    deliveries."""

    name = "RabbitMQ, persistent, confirms"
    survives = "what was confirmed"

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """Runs RabbitMQ with its built-in settings."""
        with rabbitmq_server(folder) as program:
            self._port = program.port
            yield

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """Publishes a batch, and waits for its confirms together."""
        from pika import BasicProperties, DeliveryMode  # noqa: PLC0415
        from pika.exchange_type import ExchangeType  # noqa: PLC0415

        async def publish(payloads: Sequence[bytes]) -> float:
            started = time.perf_counter()
            for payload in payloads:
                confirms.expect()
                publisher.basic_publish("q", "", payload, persistent)
            await confirms.all()
            return started

        persistent = BasicProperties(delivery_mode=DeliveryMode.Persistent)
        async with AsyncExitStack() as stack:
            publisher = await open_channel(stack, self._port)
            confirms = Confirms()
            await _answered(publisher.confirm_delivery, confirms.take)
            await _answered(publisher.exchange_declare, "q", ExchangeType.fanout, durable=True)
            for number in range(subscribers):
                channel = await open_channel(stack, self._port)
                queue = f"queue-{number}"
                await _answered(channel.queue_declare, queue, durable=True)
                stack.push_async_callback(_answered, channel.queue_delete, queue)
                await _answered(channel.queue_bind, queue, "q")
                await _answered(channel.basic_qos, prefetch_count=_PREFETCH)
                tag = channel.basic_consume(queue, _acknowledging(received, number))
                stack.push_async_callback(_answered, channel.basic_cancel, tag)
            yield publish


def _acknowledging(received: Received, number: int) -> "Callable[[Channel, Basic.Deliver, object, bytes], None]":
    def handle(channel: "Channel", delivery: "Basic.Deliver", _: object, __: bytes) -> None:
        received(number)
        channel.basic_ack(delivery.delivery_tag)

    return handle


def fan_out_peers() -> list[FanOutPeer]:
    """Returns the system that gives a message to all."""
    return [FanOut()]
