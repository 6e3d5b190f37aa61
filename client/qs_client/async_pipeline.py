"""The pipeline of the async client, for trio and asyncio. `pipeline` is its sync twin, and describes it."""

import math
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from . import calls
from .asking import Call, copy_signature
from .async_connection import AsyncConnection
from .pipelined import OpenCalls, PipelinedCall

P = ParamSpec("P")
T = TypeVar("T")


class AsyncResult(Generic[T]):
    """The result of a call in a pipeline."""

    __slots__ = ("_call", "_pipeline")

    def __init__(self, pipeline: "AsyncPipeline", call: PipelinedCall[T]) -> None:
        self._pipeline = pipeline
        self._call = call

    @property
    def done(self) -> bool:
        """Tells whether `result` returns at once."""
        return self._call.done

    async def result(self) -> T:
        """Returns what the client's method returns, or raises what that raises. Waits for the answer if needed."""
        await self._pipeline.wait_for(self._call)
        return self._call.value()


def _method(
    call: Callable[P, Call[T]],
) -> "Callable[Concatenate[AsyncPipeline, P], Coroutine[Any, Any, AsyncResult[T]]]":
    """Makes a coroutine method of a call. It returns the result to come."""

    async def method(self: "AsyncPipeline", /, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[T]:
        return await self._begin(call(*args, **kwargs))

    copy_signature(method, call, "AsyncPipeline", returns=AsyncResult)
    method.__doc__ = f"Writes the request of `AsyncQueueClient.{call.__name__}`, and returns its AsyncResult."
    return method


class AsyncPipeline:
    """`async with client.pipeline() as batch:` makes calls whose requests are written together. See `Pipeline`.

    Ensures what `Pipeline` does. A method that is cancelled while it waits for the oldest call has written nothing;
    a cancelled block waits for nothing, and its open calls may have been carried out.

    Assumes that one task uses it. Other tasks may use the client meanwhile.
    Never closes the connection: other tasks use it, and late answers are recognized.
    """

    def __init__(self, opened: Callable[[], Awaitable[AsyncConnection]], timeout: Callable[[], float | None]) -> None:
        """opened: returns the connection of the client, opened if needed; timeout: returns that of the client."""
        self._opened = opened
        self._timeout = timeout
        self._open = OpenCalls()

    async def __aenter__(self) -> Self:
        self._open.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):  # a cancelled block waits for nothing
            self._abandon()
            return
        try:
            while self._open:
                await self._settle_oldest()
        except BaseException:
            self._abandon()
            raise
        self._open.ended = True
        if error is None:
            self._open.failures.raise_unseen()

    push = _method(calls.push)
    push_many = _method(calls.push_many)
    copy = _method(calls.copy)
    delete = _method(calls.delete)
    delete_many = _method(calls.delete_many)
    release = _method(calls.release)
    reject = _method(calls.reject)
    extend = _method(calls.extend)

    async def wait_for(self, call: PipelinedCall[Any]) -> None:
        """Waits until a call is done."""
        while not call.done:
            await self._settle_oldest()

    # -- one call -----------------------------------------------------------------------------------------------------

    async def _begin(self, call: Call[T]) -> AsyncResult[T]:
        """Writes the first request of a call. See `Pipeline._begin`."""
        self._open.check()
        await checkpoint_if_cancelled()
        begun = PipelinedCall(call)
        while not begun.done and self._open.is_full:
            await self._settle_oldest()
        if not begun.done:
            connection = await self._write_request(begun)
            if connection is not None and self._open.should_send(now := anyio.current_time()):
                self._open.sent(now)
                connection.flush()
        if begun.done:  # nothing was written
            begun.value()
        return AsyncResult(self, begun)

    async def _write_request(self, call: PipelinedCall[Any]) -> AsyncConnection | None:
        """Writes the next request of a call. See `Pipeline._write_request`."""
        try:
            connection = await self._opened()  # may be cancelled: then the request is not begun
            self._open.begin(call)
            pending = connection.session.ask(call.exchange.request)
        except Exception as error:  # no connection, or a field that XML cannot carry
            self._open.begin(call)
            call.answered(error, anyio.current_time())
            return None
        self._open.written(call, connection, pending, anyio.current_time())
        return connection

    async def _settle_oldest(self) -> None:
        """Waits for the oldest call. See `Pipeline._settle_oldest`."""
        if self._open.settle():
            return
        oldest = self._open.oldest
        if oldest.pending is None:
            await anyio.sleep_until(oldest.due)
            await self._write_request(oldest)
            return
        self._open.sent(anyio.current_time())  # waiting sends them
        seconds = oldest.exchange.within(self._timeout())
        deadline = math.inf if seconds is None else oldest.sent_at + seconds
        try:
            answer = await oldest.connection.answered(oldest.pending, deadline, seconds)
        except Exception as error:  # only about this call: the others that the connection has lost raise it, too
            oldest.answered(error, anyio.current_time())
        else:
            oldest.answered(answer, anyio.current_time())
        self._open.settle()

    def _abandon(self) -> None:
        """Sends what was written, and leaves the answers to the session."""
        for connection in {call.connection for call in self._open if call.connection is not None}:
            connection.flush()
        self._open.abandon()
