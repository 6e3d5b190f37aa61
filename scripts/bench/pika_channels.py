"""Does what pika leaves to its user on asyncio: opens a channel, and waits for answers and confirms."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from pika import ConnectionParameters
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.spec import Basic

_TIMEOUT = 60


async def open_channel(stack: AsyncExitStack, port: int) -> Channel:
    """On a connection of its own, which the stack closes."""
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


async def done(method: Callable[..., object], *arguments: object, **named: object) -> None:
    """Calls a method of a channel, and waits for the answer."""
    answer: asyncio.Future[object] = asyncio.Future()
    method(*arguments, callback=answer.set_result, **named)
    await asyncio.wait_for(answer, _TIMEOUT)


class Confirms:
    """Messages that the server has yet to confirm. It numbers what is published on a channel from 1."""

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
