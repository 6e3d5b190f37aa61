"""The pipeline of the sync client: calls whose requests are written without waiting for the answers before them."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from qs_schemas import Message

from . import calls
from .asking import Call, copy_signature
from .connection import Connection
from .pipelined import OpenCalls, PipelinedCall
from .waiting import Pending

P = ParamSpec("P")
T = TypeVar("T")


class Result(Generic[T]):
    """The result of a call in a pipeline."""

    __slots__ = ("_call", "_pipeline")

    def __init__(self, pipeline: "Pipeline", call: PipelinedCall[T]) -> None:
        self._pipeline = pipeline
        self._call = call

    @property
    def done(self) -> bool:
        """Tells whether `result` returns at once."""
        return self._call.done

    def result(self) -> T:
        """Returns what the client's method returns, or raises what that raises. Waits for the answer if needed."""
        self._pipeline.wait_for(self._call)
        return self._call.value()


def _method(call: Callable[P, Call[T]]) -> "Callable[Concatenate[Pipeline, P], Result[T]]":
    """Makes a method of a call. It returns the result to come."""

    def method(self: "Pipeline", /, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        return self._begin(call(*args, **kwargs))

    copy_signature(method, call, "Pipeline", returns=Result)
    method.__doc__ = f"Writes the request of `QueueClient.{call.__name__}`, and returns its Result."
    return method


class Pipeline:
    """`with client.pipeline() as batch:` makes calls whose requests are written together, and answered meanwhile.

    Ensures
    1. When the block has ended, each call has its answer or its error. The requests were carried out in their order,
       except those that were repeated, and the later requests of a call that needs several (more than 1000 messages):
       each of these is written when the call is the oldest.
    2. The calls that are open, and their bytes, are bounded (`pipelined`): a further call waits for the oldest.
    3. An error belongs to its call alone. The end of the block raises the first one whose result nobody has asked for,
       unless the block itself raises.
    4. A request is repeated only where a single call would repeat it: a push with a key.

    Assumes that one thread uses it. Other threads may use the client meanwhile.
    Never holds the lock of the client between its own steps.
    """

    def __init__(
        self,
        *,
        write: Callable[[Message], tuple[Connection, Pending]],
        answer: Callable[[Connection, Pending, float | None, float], Message],
        send: Callable[[Connection], None],
        drop: Callable[[Connection], None],
        timeout: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """The steps of the client. write: asks the session of the connection; answer: waits, until these seconds after
        a time; send: sends what was written; drop: closes the connection."""
        self._write = write
        self._answer = answer
        self._send = send
        self._drop = drop
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._open = OpenCalls()

    def __enter__(self) -> Self:
        self._open.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):  # an interrupt waits for nothing
            self._abandon()
            return
        try:
            while self._open:
                self._settle_oldest()
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

    def wait_for(self, call: PipelinedCall[Any]) -> None:
        """Waits until a call is done."""
        while not call.done:
            self._settle_oldest()

    # -- one call -----------------------------------------------------------------------------------------------------

    def _begin(self, call: Call[T]) -> Result[T]:
        """Writes the first request of a call. Raises what is wrong before that: with an argument, or the way to the
        server."""
        self._open.check()
        begun = PipelinedCall(call)
        while not begun.done and self._open.is_full:
            self._settle_oldest()
        if not begun.done:
            connection = self._write_request(begun)
            if connection is not None and self._open.should_send(now := self._clock()):
                self._open.sent(now)
                self._send(connection)
        if begun.done:  # nothing was written
            begun.value()
        return Result(self, begun)

    def _write_request(self, call: PipelinedCall[Any]) -> Connection | None:
        """Writes the next request of a call. Returns where. Returns None if that was not possible: then the call is
        done, or has a request to write later."""
        self._open.begin(call)  # an interrupt from here on leaves it unknown whether the request was written
        try:
            connection, pending = self._write(call.exchange.request)
        except Exception as error:  # no connection, or a field that XML cannot carry
            call.answered(error, self._clock())
            return None
        self._open.written(call, connection, pending, self._clock())
        return connection

    def _settle_oldest(self) -> None:
        """Waits for the oldest call, and takes the answers that have come with its answer. If the call has a further
        request, writes that."""
        if self._open.settle():
            return
        oldest = self._open.oldest
        if oldest.pending is None:
            self._sleep(max(oldest.due - self._clock(), 0))
            self._write_request(oldest)
            return
        connection, pending = oldest.connection, oldest.pending
        self._open.sent(self._clock())  # waiting sends them
        try:
            answer = self._answer(connection, pending, oldest.exchange.within(self._timeout()), oldest.sent_at)
        except Exception as error:
            self._lose(connection, error)
        except BaseException:
            self._abandon()
            raise
        else:
            oldest.answered(answer, self._clock())
        self._open.settle()

    def _lose(self, connection: Connection, error: Exception) -> None:
        """Gives the error of a connection to each call that waits for an answer there."""
        now = self._clock()
        for call in self._open:
            if call.connection is connection and call.pending is not None:
                call.answered(call.pending.answer or _another(error), now)

    def _abandon(self) -> None:
        """Closes the connections on which answers are outstanding, as an interrupted single call does."""
        for connection in {call.connection for call in self._open if call.connection is not None}:
            self._drop(connection)
        self._open.abandon()


def _another(error: Exception) -> Exception:
    """Makes an error of the same kind for another call: a traceback and notes belong to one."""
    another = type(error)(*error.args)
    another.__cause__ = error.__cause__
    return another
