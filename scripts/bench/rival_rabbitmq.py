"""RabbitMQ with pika: a fan-out exchange, and a durable queue for each subscriber."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from pika import BasicProperties, DeliveryMode
from pika.channel import Channel
from pika.exchange_type import ExchangeType
from pika.spec import Basic
from pika_channels import Confirms, done, open_channel
from rival import Publish, Received
from systems import rabbitmq_server

_PREFETCH = 100


class RabbitMQ:
    """Durable exchange and queues, persistent messages, publisher confirms, each delivery acknowledged."""

    name = "RabbitMQ, persistent, confirms"
    survives = "what was confirmed"

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """With the settings that are built in."""
        with rabbitmq_server(folder) as program:
            self._port = program.port
            yield

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """Waits for the confirms of a batch together."""

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
            await done(publisher.confirm_delivery, confirms.take)
            await done(publisher.exchange_declare, "q", ExchangeType.fanout, durable=True)
            for number in range(subscribers):
                channel = await open_channel(stack, self._port)
                queue = f"queue-{number}"
                await done(channel.queue_declare, queue, durable=True)
                stack.push_async_callback(done, channel.queue_delete, queue)
                await done(channel.queue_bind, queue, "q")
                await done(channel.basic_qos, prefetch_count=_PREFETCH)
                tag = channel.basic_consume(queue, _acknowledging(received, number))
                stack.push_async_callback(done, channel.basic_cancel, tag)
            yield publish


def _acknowledging(received: Received, number: int) -> Callable[[Channel, Basic.Deliver, object, bytes], None]:
    def handle(channel: Channel, delivery: Basic.Deliver, _: object, __: bytes) -> None:
        received(number)
        channel.basic_ack(delivery.delivery_tag)

    return handle


RIVALS = [RabbitMQ()]
