"""AsyncQueueClient: QueueClient's methods as coroutines, for programs on trio or asyncio.

What the methods do stands in `calls`; how bytes move, in `async_connection`. Here is when a connection is opened, and
which: a `receive` that waits has one of its own, as the server answers what comes on one connection in order.
"""

import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import anyio

from qs_schemas import CLIENT_LIMITS, Message, Subscribe

from . import calls, claim_calls
from .asking import Call, Exchange
from .async_connect import Connecting
from .async_connection import AsyncConnection
from .async_deliveries import AsyncDeliveries
from .bounds import Settings
from .bounds import seconds as checked_seconds
from .calls import Pages, Received
from .driving import drive_async
from .errors import ServerError, ServerUnavailable
from .forks import call_after_fork
from .methods import copy_signature
from .place import Place, endpoint
from .waiting import LINGER

P = ParamSpec("P")
T = TypeVar("T")

_SPARE = 8  # connections for waiting that are kept for the next ones


def _method(call: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncQueueClient, P], Coroutine[Any, Any, T]]":
    """A call as a coroutine that returns what the call does."""

    async def method(self: "AsyncQueueClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await drive_async(call(*args, **kwargs), self._exchange)

    copy_signature(method, call, "AsyncQueueClient")
    return method


def _iterator(call: Callable[P, Pages[T]]) -> "Callable[Concatenate[AsyncQueueClient, P], AsyncIterator[T]]":
    """A call that comes in pages as a method that iterates over what they hold."""

    def method(self: "AsyncQueueClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._iterate(call(*args, **kwargs))

    copy_signature(method, call, "AsyncQueueClient", iterator=AsyncIterator)
    return method


def _subscription(call: Callable[P, Subscribe]) -> "Callable[Concatenate[AsyncQueueClient, P], AsyncDeliveries]":
    """A subscription as a method that iterates over its deliveries."""

    def method(self: "AsyncQueueClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncDeliveries:
        return AsyncDeliveries(self._opened, lambda: self.timeout, call(*args, **kwargs))

    copy_signature(method, call, "AsyncQueueClient", returns=AsyncDeliveries)
    return method


class AsyncQueueClient(Settings):
    """A connection to a queue server, opened when it is needed, for any number of tasks of one event loop at a time.

    host, port, timeout (seconds), max_document (bytes): as QueueClient has them, and so are the methods and what they
    raise. Calls of several tasks travel on one connection, side by side. A call may be cancelled at any moment: the
    others go on; whether its request was carried out is not known, but messages that it received go back to their
    queues. A `receive` that waits has a connection of its own. After NoAnswer the connection stays for other calls,
    unless nothing whole was heard of the server.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 9876,
        *,
        timeout: float | None = 30.0,
        max_document: int = CLIENT_LIMITS.document,
    ) -> None:
        super().__init__(host, port, timeout, max_document)
        self.after_fork()
        call_after_fork(self)

    def after_fork(self) -> None:
        """In a child, the connections are the parent's, and so are tasks that held the locks. For `forks`."""
        self._connection: AsyncConnection | None = None
        self._waiting: set[AsyncConnection] = set()
        self._spare: list[AsyncConnection] = []
        self._attempts: deque[Connecting] = deque()  # to connect, that were cancelled
        self._opening = anyio.Lock()
        self._receiving = anyio.Lock()

    def __repr__(self) -> str:
        state = "" if self.connected else "not "
        return f"<AsyncQueueClient {endpoint(self.host, self.port)}, {state}connected>"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.disconnect()

    # -- as bucker has it ---------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether a connection is open, as far as is known."""
        return self._connection is not None and self._connection.usable

    async def connect(self) -> None:
        """Opens the connection, if it is not open. ServerUnavailable when nothing answers at host and port."""
        await self._opened(fresh=False)

    async def disconnect(self) -> None:
        """Closes all connections; calls that wait in other tasks end with ServerUnavailable."""
        connections: list[AsyncConnection | Connecting] = [*self._waiting, *self._spare, *self._attempts]
        if self._connection is not None:
            connections.append(self._connection)
        self._connection = None
        self._spare.clear()
        self._attempts.clear()
        for connection in connections:
            connection.close()

    async def send(self, message: Message) -> None:
        """Sends a message as it is, and waits for no answer: `recv` gives it. Connects first, if need be.

        ValueError when XML cannot carry a field; ServerUnavailable when the connection fails; NoAnswer, which is a
        TimeoutError too, when the server does not read: the connection is closed then.
        """
        connection = await self._opened(fresh=False)
        connection.post(message)
        try:
            await connection.sent(self.timeout)
        except TimeoutError:
            connection.close()
            raise self._place().no_answer(self.timeout) from None

    async def recv(self, timeout: float | None = None) -> Message:  # noqa: ASYNC109
        """The next message that the server sent and no method waits for: an answer, or an `Error`, which is returned.

        timeout: seconds, None for the client's own. TimeoutError when nothing came: the connection stays open, and a
        later recv() gets what comes then. ServerUnavailable when the connection ended.
        """
        connection = self._connection
        if connection is None:
            raise ServerUnavailable(f"not connected to {endpoint(self.host, self.port)}: call connect() first")
        async with self._receiving:
            return await connection.receive(self.timeout if timeout is None else checked_seconds(timeout, "timeout"))

    # -- queues -------------------------------------------------------------------------------------------------------

    queues = _method(calls.queues)
    new_queue = _method(calls.new_queue)
    delete_queue = _method(calls.delete_queue)
    purge = _method(calls.purge)
    stats = _method(calls.stats)
    ping = _method(calls.ping)

    # -- messages -----------------------------------------------------------------------------------------------------

    push = _method(calls.push)
    push_many = _method(calls.push_many)
    receive = _method(calls.receive)
    receive_one = _method(calls.receive_one)
    get = _method(calls.get)
    peek = _method(calls.peek)
    list_messages = _iterator(calls.list_messages)
    subscribe = _subscription(calls.subscribe)
    copy = _method(calls.copy)
    delete = _method(calls.delete)
    delete_many = _method(calls.delete_many)
    release = _method(calls.release)
    extend = _method(calls.extend)

    # -- claims and batches -------------------------------------------------------------------------------------------

    claim_messages = _method(claim_calls.claim_messages)
    get_claim = _method(claim_calls.get_claim)
    ack_claim = _method(claim_calls.ack_claim)
    release_claim = _method(claim_calls.release_claim)
    list_claims = _method(claim_calls.list_claims)
    stage_messages = _method(claim_calls.stage_messages)
    publish_staged = _method(claim_calls.publish_staged)

    @contextlib.asynccontextmanager
    async def handling(self, message: Received) -> AsyncIterator[Received]:
        """`async with client.handling(delivery):` deletes the message when the block has ended well.

        When the block raises or is cancelled, the message is released for another try, as far as the server can be
        reached, and the exception goes on. Raises Stale when the block took longer than the visibility window.
        """
        try:
            yield message
        except BaseException:
            with contextlib.suppress(ServerError, OSError), anyio.move_on_after(self.timeout, shield=True):
                await self.release(message)
            raise
        await self.delete(message)

    # -- connections --------------------------------------------------------------------------------------------------

    async def _iterate(self, pages: Pages[T]) -> AsyncIterator[T]:
        with contextlib.suppress(StopIteration):
            call = next(pages)
            while True:
                page = await drive_async(call, self._exchange)
                for entry in page:
                    yield entry
                call = pages.send(page)

    async def _exchange(self, exchange: Exchange) -> Message:
        if exchange.patience:
            return await self._exchange_alone(exchange)
        connection = await self._opened()
        try:
            return await connection.exchange(exchange, self.timeout)
        except ServerUnavailable:
            await self._give_back(connection)
            raise

    async def _exchange_alone(self, exchange: Exchange) -> Message:
        """For what the server may take long to answer. When it is left early, the server is told to end the wait, and
        what it has handed out goes back."""
        connection = await self._spare_connection()
        self._waiting.add(connection)
        try:
            answer = await connection.exchange(exchange, self.timeout, alone=True)
        except BaseException:
            connection.close()
            await self._give_back(connection)
            raise
        finally:
            self._waiting.discard(connection)
        if connection.usable and len(self._spare) < _SPARE:
            self._spare.append(connection)
        else:
            connection.close()
        return answer

    async def _give_back(self, connection: AsyncConnection) -> None:
        """Gives back what came on a connection that cannot be used any more, as far as the server can be reached."""
        releases, connection.session.returns = connection.session.returns, []
        if not releases:
            return
        with anyio.move_on_after(LINGER, shield=True), contextlib.suppress(ServerError, OSError):
            other = await self._open()
            try:
                asked = [other.session.ask(release) for release in releases]
                for each in asked:
                    await other.answered(each, math.inf, None)
            finally:
                other.close()

    async def _spare_connection(self) -> AsyncConnection:
        while self._spare:
            connection = self._spare.pop()
            if connection.usable and not connection.is_stale():
                return connection
            connection.close()
        return await self._open()

    async def _opened(self, fresh: bool = True) -> AsyncConnection:
        """The connection, opened if need be; with fresh, also if the server has ended it since the last call."""
        connection = self._connection
        if connection is not None and connection.usable and not (fresh and connection.is_stale()):
            return connection
        async with self._opening:
            if self._connection is connection:
                if connection is not None:
                    connection.retire()
                self._connection = None
                self._connection = await self._open()
        return await self._opened(fresh=False)

    async def _open(self) -> AsyncConnection:
        """A new connection. An attempt that was cancelled is taken up again: polls shorter than connecting takes would
        else never connect."""
        place = self._place()
        attempt = Connecting(self.host, self.port, place, self.timeout)
        while self._attempts:
            begun = self._attempts.popleft()
            if begun.matches(place):
                attempt = begun
                break
            begun.close()
        try:
            sock = await attempt.connected()
        except OSError:
            raise
        except BaseException:
            self._attempts.append(attempt)
            raise
        return AsyncConnection(sock, place, replace(CLIENT_LIMITS, document=self.max_document))

    def _place(self) -> Place:
        return Place(endpoint(self.host, self.port), client="AsyncQueueClient")
