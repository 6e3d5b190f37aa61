"""RabbitMQ with pika: a fan-out exchange, and a durable queue for each subscriber."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from pika import BasicProperties, ConnectionParameters, DeliveryMode
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.exchange_type import ExchangeType
from pika.spec import Basic
from rival import Program, Publish, Received, free_port

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's command on the PATH runs this one as another user, who cannot write to our folder."""
_PREFETCH = 100
_TIMEOUT = 60


class RabbitMQ:
    """Durable exchange and queues, persistent messages, publisher confirms, each delivery acknowledged."""

    name = "RabbitMQ, persistent, confirms"
    survives = "what was confirmed"

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """With the settings that are built in. Its name server, epmd, is one of our own: it would outlive us."""
        self._port, names = free_port(), free_port()
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_ALLOW_INPUT": "1",  # and so it is the very process that is started, and ends when that does
        }
        with (
            Program(["epmd", "-address", "127.0.0.1", "-port", str(names)], names, folder / "epmd.log"),
            Program([SERVER], self._port, folder / "log", environment),
        ):
            yield

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """What is published together waits for its confirms together."""

        async def publish(payloads: Sequence[bytes]) -> float:
            started = time.perf_counter()
            for payload in payloads:
                confirms.expect()
                publisher.basic_publish("q", "", payload, persistent)
            await confirms.all()
            return started

        persistent = BasicProperties(delivery_mode=DeliveryMode.Persistent)
        async with AsyncExitStack() as stack:
            publisher = await self._channel(stack)
            confirms = _Confirms()
            await _done(publisher.confirm_delivery, confirms.take)
            await _done(publisher.exchange_declare, "q", ExchangeType.fanout, durable=True)
            for number in range(subscribers):
                channel = await self._channel(stack)
                queue = f"queue-{number}"
                await _done(channel.queue_declare, queue, durable=True)
                stack.push_async_callback(_done, channel.queue_delete, queue)
                await _done(channel.queue_bind, queue, "q")
                await _done(channel.basic_qos, prefetch_count=_PREFETCH)
                tag = channel.basic_consume(queue, _acknowledging(received, number))
                stack.push_async_callback(_done, channel.basic_cancel, tag)
            yield publish

    async def _channel(self, stack: AsyncExitStack) -> Channel:
        """On a connection of its own."""
        parameters = ConnectionParameters("127.0.0.1", self._port)
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


class _Confirms:
    """What the server has yet to confirm. It numbers what is published on a channel from 1."""

    def __init__(self) -> None:
        self._published = 0
        self._missing: set[int] = set()
        self._none: asyncio.Future[None] = asyncio.Future()

    def expect(self) -> None:
        """Before each message that is published."""
        self._published += 1
        self._missing.add(self._published)

    def take(self, frame: Any) -> None:
        """One message is confirmed, or all up to one."""
        if not isinstance(frame.method, Basic.Ack):
            self._none.set_exception(RuntimeError("the server has refused a message"))
        elif frame.method.multiple:
            self._missing = {number for number in self._missing if number > frame.method.delivery_tag}
        else:
            self._missing.discard(frame.method.delivery_tag)
        if not self._missing and not self._none.done():
            self._none.set_result(None)

    async def all(self) -> None:
        """Until everything is confirmed."""
        if self._missing:
            self._none = asyncio.Future()
            await self._none


async def _done(method: Callable[..., object], *arguments: object, **named: object) -> None:
    """Calls a method of a channel, and waits for the answer."""
    answer: asyncio.Future[object] = asyncio.Future()
    method(*arguments, callback=answer.set_result, **named)
    await asyncio.wait_for(answer, _TIMEOUT)


def _acknowledging(received: Received, number: int) -> Callable[[Channel, Basic.Deliver, object, bytes], None]:
    def handle(channel: Channel, delivery: Basic.Deliver, _: object, __: bytes) -> None:
        received(number)
        channel.basic_ack(delivery.delivery_tag)

    return handle


RIVALS = [RabbitMQ()]
