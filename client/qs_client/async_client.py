"""AsyncQueueClient: QueueClient's methods as coroutines, for trio and asyncio.

`calls` has the logic of the methods, `async_connection` moves the bytes. This module decides which connection a call
uses: a `receive` that waits has one of its own, as the server answers each connection in order.
"""

import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from qs_schemas import CLIENT_LIMITS, Message
from qs_schemas.serializing import check_lengths

from . import calls, claim_calls, policy_calls
from .acknowledgements import Acknowledgements
from .asking import Call, Exchange, copy_signature, drive_async
from .async_connection import AsyncConnection
from .async_deliveries import AsyncDeliveries
from .async_opening import Opening
from .async_pipeline import AsyncPipeline
from .bounds import seconds as checked_seconds
from .calls import Pages, Received, Subscribing
from .errors import ServerError, ServerUnavailable
from .handling import WindowExtension, acknowledge, is_outcome, is_settled, negative_acknowledge
from .lifetimes import call_after_fork
from .place import Place, endpoint
from .security import Tls, Token
from .settings import Settings
from .waiting import LINGER, Lease

P = ParamSpec("P")
T = TypeVar("T")

_SPARE = 8
"""Idle connections that are kept, so that the next receives that wait need not connect. The others are closed."""


def _method(call: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncQueueClient, P], Coroutine[Any, Any, T]]":
    """Makes a coroutine method of a call. It returns what the call returns."""

    async def method(self: "AsyncQueueClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await drive_async(call(*args, **kwargs), self._exchange)

    copy_signature(method, call, "AsyncQueueClient")
    return method


def _iterator(call: Callable[P, Pages[T]]) -> "Callable[Concatenate[AsyncQueueClient, P], AsyncIterator[T]]":
    """Makes a method of a paged call. It iterates over the entries of all pages."""

    def method(self: "AsyncQueueClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._iterate(call(*args, **kwargs))

    copy_signature(method, call, "AsyncQueueClient", iterator=AsyncIterator)
    return method


def _subscription(call: Callable[P, Subscribing]) -> "Callable[Concatenate[AsyncQueueClient, P], AsyncDeliveries]":
    """Makes a method of a subscription. It iterates over the deliveries."""

    def method(self: "AsyncQueueClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncDeliveries:
        return AsyncDeliveries(
            self._opened,
            lambda: self.timeout,
            *call(*args, **kwargs),
            confirm=self._confirm_acknowledgements,
            disconnects=lambda: self._disconnects,
        )

    copy_signature(method, call, "AsyncQueueClient", returns=AsyncDeliveries)
    return method


class AsyncQueueClient(Settings):
    """A client of a queue server for any number of tasks of one event loop. It connects when needed.

    Arguments, methods and errors are those of QueueClient. Calls of several tasks share one connection; a `receive`
    that waits has its own. A call may be cancelled at any moment: others go on, and messages that it received go back
    to their queues, but whether its request was carried out is not known. After NoAnswer the connection stays open for
    other calls, unless no whole answer came from the server at all.
    """

    # Ensures
    # 1. A task that is cancelled harms no other one: calls that share the connection go on, and a connection of its own
    #    is closed, so that the server stops waiting.
    # 2. Messages that a call has received and does not return go back to their queues, within LINGER.
    # 3. At most one connection is opened at a time for the shared one; an attempt that was cancelled is resumed.
    # 4. `disconnect` ends every call, subscription and attempt, without waiting for a lock.
    #
    # Assumes one event loop. Never uses the shared connection for a request that may wait long at the server
    # (`Exchange.patience`): the server answers each connection in order, so every other call would wait behind it.

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        timeout: float | None = 30.0,
        max_document: int = CLIENT_LIMITS.document,
        tls: Tls = None,
        token: str | Token | None = None,
    ) -> None:
        super().__init__(host, port, 9876, timeout, max_document, tls=tls, token=token)
        self._disconnects = 0  # calls of disconnect(): each ends the subscriptions that have begun
        self._without_reasons: set[str] = set()  # queues, see `negative_acknowledge`
        self.after_fork()
        call_after_fork(self)

    def after_fork(self) -> None:
        """Starts without connections and with new locks: in a child process those of the parent must not be used."""
        self._connection: AsyncConnection | None = None
        self._waiting: set[AsyncConnection] = set()
        self._spare: list[AsyncConnection] = []
        self._attempts: deque[Opening] = deque()  # cancelled attempts to resume
        self._opening = anyio.Lock()
        self._receiving = anyio.Lock()
        self._confirming = anyio.Lock()

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
        """Tells whether a connection is open, as far as the client knows: the server may have ended it since."""
        return self._connection is not None and self._connection.usable

    async def connect(self) -> None:
        """Connects, unless connected. See `QueueClient.connect`."""
        (await self._opened(fresh=False)).flush()

    async def disconnect(self) -> None:
        """Closes all connections. Acknowledgements that are written and not confirmed get a second for that first.
        Calls that wait in other tasks raise ServerUnavailable, and so do subscriptions, also those that wait for a
        server to come back."""
        self._disconnects += 1
        if (shared := self._connection) is not None and shared.session.unconfirmed:
            with anyio.CancelScope(shield=True):
                async with self._confirming:
                    for acknowledgements in shared.session.unconfirmed:
                        await self._await_last(shared, acknowledgements)
        connections: list[AsyncConnection | Opening] = [*self._waiting, *self._spare, *self._attempts]
        if self._connection is not None:
            connections.append(self._connection)
        self._connection = None
        self._spare.clear()
        self._attempts.clear()
        for connection in connections:
            connection.close()

    async def send(self, message: Message) -> None:
        """Sends a message unchanged, without waiting for its answer. See `QueueClient.send`; in contrast to that
        method, only NoAnswer closes the connection."""
        connection = await self._opened(fresh=False)
        connection.post(message)
        try:
            await connection.sent(self.timeout)
        except TimeoutError:
            connection.close(broken=True)
            raise self._place().no_answer(self.timeout) from None

    async def recv(self, timeout: float | None = None) -> Message:  # noqa: ASYNC109
        """Returns the next message that does not belong to another call or subscription. See `QueueClient.recv`."""
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
    server_stats = _method(calls.server_stats)
    set_queue = _method(policy_calls.set_queue)
    queue_options = _method(policy_calls.queue_options)
    pause = _method(policy_calls.pause)
    resume = _method(policy_calls.resume)
    redrive = _method(policy_calls.redrive)
    ping = _method(calls.ping)

    # -- messages -----------------------------------------------------------------------------------------------------

    push = _method(calls.push)
    push_many = _method(calls.push_many)
    receive = _method(calls.receive)
    receive_one = _method(calls.receive_one)
    get = _method(calls.get)
    peek = _method(calls.peek)
    peek_many = _method(calls.peek_many)
    list_messages = _iterator(calls.list_messages)
    subscribe = _subscription(calls.subscribe)
    copy = _method(calls.copy)
    delete = _method(calls.delete)
    delete_many = _method(calls.delete_many)
    release = _method(calls.release)
    reject = _method(calls.reject)
    extend = _method(calls.extend)

    # -- claims and batches -------------------------------------------------------------------------------------------

    claim_messages = _method(claim_calls.claim_messages)
    get_claim = _method(claim_calls.get_claim)
    ack_claim = _method(claim_calls.ack_claim)
    release_claim = _method(claim_calls.release_claim)
    list_claims = _method(claim_calls.list_claims)
    stage_messages = _method(claim_calls.stage_messages)
    publish_staged = _method(claim_calls.publish_staged)

    def pipeline(self) -> AsyncPipeline:
        """`async with client.pipeline() as batch:` writes requests together, without waiting for each answer: `await
        batch.push(…)` and the other methods return an AsyncResult. A pipeline belongs to one task. See
        `QueueClient.pipeline`."""
        return AsyncPipeline(self._opened, lambda: self.timeout)

    @contextlib.asynccontextmanager
    async def handling(self, message: Received) -> AsyncIterator[Received]:
        """`async with client.handling(delivery):` deletes the message when the block ends without an exception, and
        releases it when the block raises or is cancelled; Reject makes it a dead letter, and Retry says when it comes
        again. Meanwhile a task extends its window. See `QueueClient.handling`."""
        extension = WindowExtension(message, anyio.current_time)
        raised: BaseException | None = None
        try:
            async with anyio.create_task_group() as extending:
                extending.start_soon(self._extend, extension)
                try:
                    yield message
                except BaseException as error:
                    raised = error  # raised below: the task group would wrap it in a group
                extending.cancel_scope.cancel()  # first: an extension after the end would be a request about no message
                if raised is not None:
                    # Shielded: a cancelled block has to release its message, or nobody has it until the window ends.
                    with contextlib.suppress(ServerError, OSError), anyio.move_on_after(self.timeout, shield=True):
                        await drive_async(negative_acknowledge(message, raised, self._without_reasons), self._exchange)
            if raised is None:
                await drive_async(acknowledge(message, self.timeout), self._exchange)
        except anyio.get_cancelled_exc_class():
            if raised is None and not is_settled(message):  # the block is done, and should not be done again
                with contextlib.suppress(ServerError, OSError), anyio.move_on_after(LINGER, shield=True):
                    await self.delete(message)
            if raised is None or is_outcome(raised):  # any other exception goes on in place of the cancellation
                raise
        if raised is not None and not is_outcome(raised):
            try:
                raise raised
            finally:
                del raised  # it refers to this frame

    async def _extend(self, extension: WindowExtension) -> None:
        """Extends a message whenever half of its window has passed, until the extension is taken away."""
        while not extension.taken:
            await anyio.sleep_until(extension.due)
            try:
                extension.extended(await self.extend(extension.message, visibility=extension.visibility))
            except Exception as error:  # whatever it is, the block goes on
                extension.failed(error)

    # -- connections --------------------------------------------------------------------------------------------------

    async def _iterate(self, pages: Pages[T]) -> AsyncIterator[T]:
        with contextlib.suppress(StopIteration):  # of `pages`, after the last page
            call = next(pages)
            while True:
                page = await drive_async(call, self._exchange)
                for entry in page:
                    yield entry
                call = pages.send(page)

    async def _exchange(self, exchange: Exchange) -> Message:
        if self._connection is None:  # see `QueueClient._exchange`
            check_lengths(exchange.request)
        if exchange.pause:
            await anyio.sleep(exchange.pause)
        if exchange.lease is not None and await self._acknowledge_behind(exchange.lease, exchange.request):
            return exchange.request
        if exchange.patience:
            return await self._exchange_alone(exchange)
        connection = await self._opened()
        try:
            return await connection.exchange(exchange, self.timeout)
        except ServerUnavailable:
            await self._release_unseen(connection)
            raise

    async def _exchange_alone(self, exchange: Exchange) -> Message:
        """Makes an exchange that may take the server long, on a connection of its own. If the exchange is left early,
        tells the server to stop waiting, and releases messages that it has handed out."""
        connection = await self._connection_alone()
        self._waiting.add(connection)
        try:
            answer = await connection.exchange(exchange, self.timeout, alone=True)
        except BaseException:
            connection.close()
            await self._release_unseen(connection)
            raise
        finally:
            self._waiting.discard(connection)
        if connection.usable and len(self._spare) < _SPARE:
            self._spare.append(connection)
        else:
            connection.close()
        return answer

    async def _release_unseen(self, connection: AsyncConnection) -> None:
        """Releases the messages of a connection that can no longer be used, if the server can be reached."""
        releases, connection.session.releases = connection.session.releases, []
        if not releases:
            return
        with anyio.move_on_after(LINGER, shield=True), contextlib.suppress(ServerError, OSError):
            async with self._connection_for_the_rest() as other:
                asked = [other.session.ask(release) for release in releases]
                for each in asked:
                    await other.answered(each, math.inf, None)

    @contextlib.asynccontextmanager
    async def _connection_for_the_rest(self) -> AsyncIterator[AsyncConnection]:
        """Yields a new connection for what a lost one has left to do."""
        other = await self._open()
        try:
            yield other
        finally:
            other.close()

    async def _acknowledge_behind(self, lease: Lease, request: Message) -> bool:
        """Writes the acknowledgement of a message if nobody has to wait for its answer. Returns False if somebody has
        to."""
        connection = self._connection
        if connection is None or not connection.usable:
            return False
        await checkpoint_if_cancelled()
        if not connection.session.acknowledge(lease, request):
            return False
        connection.flush()
        return True

    async def _confirm_acknowledgements(self, acknowledgements: Acknowledgements) -> None:
        """Waits until the acknowledgements of a subscription that has ended are confirmed: on its connection, or on a
        new one if that is lost. Logs what is not known in the end."""
        # Shielded: a task that is cancelled would otherwise leave it unknown what is done. Each wait ends after LINGER.
        with anyio.CancelScope(shield=True):
            async with self._confirming:  # one task at a time can wait for the same answer
                connection = self._connection
                if connection is not None and acknowledgements in connection.session.unconfirmed:
                    await self._await_last(connection, acknowledgements)
                if acknowledgements.last is not None:
                    with anyio.move_on_after(LINGER), contextlib.suppress(ServerError, OSError):
                        async with self._connection_for_the_rest() as other:
                            other.session.acknowledge_again(acknowledgements)
                            await self._await_last(other, acknowledgements)
                acknowledgements.finish()

    async def _await_last(self, connection: AsyncConnection, acknowledgements: Acknowledgements) -> None:
        """Waits until all acknowledgements are answered, if the server does that within LINGER."""
        if (last := acknowledgements.last) is not None:
            with anyio.move_on_after(LINGER), contextlib.suppress(ServerError, OSError):
                await connection.answered(last, math.inf, None)

    async def _connection_alone(self) -> AsyncConnection:
        """Returns a connection that no other call uses: an idle connection, or a new one."""
        while self._spare:
            connection = self._spare.pop()
            if connection.usable and not connection.is_stale():
                return connection
            connection.close()
        return await self._open()

    async def _opened(self, fresh: bool = True) -> AsyncConnection:
        """Returns the connection, opened if needed. fresh: replace a connection that the server has ended since the
        last call."""
        connection = self._connection
        if connection is not None and connection.usable and not (fresh and connection.is_stale()):
            return connection
        async with self._opening:
            if self._connection is connection:  # else another task has replaced it meanwhile
                if connection is not None:
                    connection.retire()  # tasks that wait on it get their answers, if they still come
                self._connection = None
                self._connection = await self._open()
        return await self._opened(fresh=False)

    async def _open(self) -> AsyncConnection:
        """Returns a new connection. Resumes an attempt that was cancelled: polls shorter than the time to connect would
        otherwise never connect."""
        place = self._place()
        limits = replace(CLIENT_LIMITS, document=self.max_document)
        attempt = Opening(self.host, self.port, place, self.timeout, limits, security=self.security)
        while self._attempts:
            begun = self._attempts.popleft()
            if begun.matches(place, self.security):
                attempt = begun
                break
            begun.close()
        try:
            return await attempt.opened()
        except (ServerError, OSError):
            raise
        except BaseException:  # cancelled
            self._attempts.append(attempt)
            raise

    def _place(self) -> Place:
        return Place(endpoint(self.host, self.port), client="AsyncQueueClient")
