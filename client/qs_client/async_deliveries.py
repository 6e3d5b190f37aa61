"""A subscription of the async client as an async iterator. The session knows which messages belong to it."""

import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Self

import anyio

from qs_schemas import Error, GetMessage, Ping, Subscribe

from .acknowledgements import Acknowledgements
from .asking import Exchange
from .async_connection import AsyncConnection
from .backoff import Outages
from .errors import Ended, OtherProcess, ServerError, exception_for
from .lifetimes import AsyncClosing, call_after_fork
from .waiting import Pending, Subscription


class AsyncDeliveries(AsyncClosing):
    """Iterates over the messages of a subscription.

    It ends with `aclose()`, also in another task, at the end of its `async with` block, or when it is no longer
    referenced, as after a `break`. Only one task at a time may ask for the next message. After a cancellation,
    iteration may be resumed: what was under way continues.
    """

    # Ensures what `Deliveries` does, and that a cancelled poll loses nothing: neither a message, nor the answer to the
    # subscribe request, nor the time of the next attempt. A poll shorter than these take would never come to an end.
    #
    # Never waits in `_end`, which also runs when the iterator is collected: then `disconnect` waits until what went
    # behind is confirmed.

    def __init__(
        self,
        opened: Callable[[], Awaitable[AsyncConnection]],
        timeout: Callable[[], float | None],
        request: Subscribe,
        outages: Outages,
        acknowledgements: Acknowledgements,
        *,
        confirm: Callable[[Acknowledgements], Awaitable[None]],
        disconnects: Callable[[], int],
    ) -> None:
        """confirm: waits, at the end, until the acknowledgements are confirmed; disconnects: returns how often the
        program has called `disconnect()`."""
        self._opened = opened
        self._timeout = timeout
        self._request = request
        self._outages = outages
        self._acknowledgements = acknowledgements
        self._confirm = confirm
        self._disconnects = disconnects
        self._next_attempt = -math.inf  # on the loop's clock, after a lost connection
        self._open: tuple[AsyncConnection, Subscription] | None = None
        self._deadline = math.inf  # for the answer to subscribe
        self._closed = self._inherited = False
        self._asking = anyio.Lock(fast_acquire=True)
        self._ending: anyio.Event | None = None  # set when the `aclose` that ends the subscription is over
        self._wait_scope: anyio.CancelScope | None = None
        call_after_fork(self)

    def after_fork(self) -> None:
        """Ends the iterator in a child process, see `lifetimes`."""
        self._inherited = self._closed = True
        self._asking = anyio.Lock(fast_acquire=True)
        self._ending = None
        self._open = self._wait_scope = None
        self._acknowledgements.forget()

    @property
    def taken_away(self) -> int:
        """See `Deliveries.taken_away`."""
        return self._acknowledgements.taken_away

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GetMessage:
        if self._inherited:
            raise OtherProcess
        try:
            async with self._asking:
                with anyio.CancelScope() as self._wait_scope:
                    while not self._closed:
                        try:
                            self._acknowledgements.confirm()
                        except ServerError:  # not one of those that begin anew
                            self._end()
                            raise
                        try:
                            connection, subscription = await self._subscribed()
                            return await connection.delivery(subscription)
                        except Ended:  # by `aclose`, in another task
                            break
                        except (ServerError, OSError) as error:
                            self._lost(error)
        except (ServerError, OSError):
            await self._confirm_all()
            raise
        if self._ending is not None:  # the program may disconnect right behind the loop
            await self._ending.wait()
        await self._confirm_all()  # of messages that were handled while another task closed
        raise StopAsyncIteration

    def _lost(self, error: ServerError | OSError) -> None:
        """Sets the time of the next attempt. Raises the error when there is to be none."""
        if self._open is not None:
            self._open[1].lease.lost = True  # so a late `delete` of one of its messages is not an error
        if self._closed:  # by another task, which is why the call failed
            return
        try:
            self._next_attempt = anyio.current_time() + self._outages.pause_after(error)
        except BaseException:
            self._end()
            raise
        self._open = None

    async def _subscribed(self) -> tuple[AsyncConnection, Subscription]:
        """Returns the open subscription once the server has accepted it. After a cancellation the attempt continues."""
        timeout = self._timeout()
        if self._open is None:
            if anyio.current_time() < self._next_attempt:
                await anyio.sleep_until(self._next_attempt)
            self._outages.check(self._disconnects())
            connection = await self._opened()
            await connection.await_greeting(timeout)  # see `QueueClient._begin_subscription`
            subscription = connection.session.subscribe(replace(self._request), self._acknowledgements)
            self._open = connection, subscription
            self._deadline = math.inf if timeout is None else anyio.current_time() + timeout
        connection, subscription = self._open
        asked = subscription.asked
        if not asked.ready:
            await connection.answered(asked, self._deadline, timeout)
        if isinstance(asked.answer, Error):
            raise exception_for(asked.answer)
        self._outages.over()
        return connection, subscription

    async def aclose(self) -> None:
        """Ends the subscription and releases messages that were sent ahead, if the server can be reached. A loop that
        waits in another task ends."""
        ended = self._end()
        if self._wait_scope is not None:
            self._wait_scope.cancel()
        if ended is None:
            await self._confirm_all()
            return
        self._ending = anyio.Event()
        try:
            connection, subscription, asked = ended
            with contextlib.suppress(OSError):
                await connection.answer(asked, self._timeout())
                if subscription.released:  # see `QueueClient._confirm_end`
                    await connection.exchange(Exchange(Ping()), self._timeout())
        finally:
            self._ending.set()
            await self._confirm_all()

    async def _confirm_all(self) -> None:
        if not self._acknowledgements.done:
            await self._confirm(self._acknowledgements)

    def _end(self) -> tuple[AsyncConnection, Subscription, Pending] | None:
        """Sends the request to end the subscription, without waiting. Messages that still come are released when they
        are read."""
        self._closed = True
        opened, self._open = self._open, None
        if opened is None:
            return None
        connection, subscription = opened
        asked = connection.session.end(subscription)
        connection.flush()
        return None if asked is None else (connection, subscription, asked)

    def __del__(self) -> None:
        self._end()
