"""A subscription of the async client as an async iterator. What belongs to it, the session knows; here is its life."""

import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio

from qs_schemas import Error, GetMessage, Subscribe

from .async_connection import AsyncConnection
from .errors import ServerError, exception_for
from .session import Pending, Subscription


class AsyncDeliveries:
    """Iterates over the messages of a subscription. It ends with `aclose()`, with an `async with` block that it is the
    subject of, or when nobody refers to it any more, as after a `break`. One task at a time may ask for the next."""

    def __init__(
        self,
        opened: Callable[[], Awaitable[AsyncConnection]],
        timeout: Callable[[], float | None],
        request: Subscribe,
    ) -> None:
        self._opened = opened
        self._timeout = timeout
        self._request = request
        self._open: tuple[AsyncConnection, Subscription] | None = None
        self._closed = False
        self._asking = anyio.Lock(fast_acquire=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GetMessage:
        if self._closed:
            raise StopAsyncIteration
        async with self._asking:
            try:
                connection, subscription = self._open or await self._subscribed()
                return await connection.delivery(subscription)
            except (ServerError, OSError):
                self._end()
                raise

    async def _subscribed(self) -> tuple[AsyncConnection, Subscription]:
        connection = await self._opened()
        subscription = connection.session.subscribe(self._request)
        answer = await connection.answer(subscription.asked, self._timeout())
        if isinstance(answer, Error):
            raise exception_for(answer)
        self._open = connection, subscription
        return self._open

    async def aclose(self) -> None:
        """Ends the subscription, and gives back what was sent ahead; as far as the server can be reached."""
        ended = self._end()
        if ended is not None:
            connection, asked = ended
            with contextlib.suppress(OSError):
                await connection.answer(asked, self._timeout())

    def _end(self) -> tuple[AsyncConnection, Pending] | None:
        """Sends what ends it, and waits for nothing. What still comes is given back when somebody reads it."""
        self._closed = True
        opened, self._open = self._open, None
        if opened is None:
            return None
        connection, subscription = opened
        asked = connection.session.end(subscription)
        connection.flush()
        return None if asked is None else (connection, asked)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._end()
