"""The calls of a pipeline, without I/O: which are open, how much may be open, and which error is still to be raised.

`pipeline` and `async_pipeline` drive it: they write the requests and wait for the answers.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from qs_schemas import Error, Message

from .asking import Call, Exchange
from .errors import ServerUnavailable
from .waiting import Pending

T = TypeVar("T")

MOST_OPEN = 256
"""Requests without an answer: a quarter of what a server reads ahead with its default limits."""

MOST_BYTES = 1024 * 1024
"""Bytes of these requests. The answers of pipelined calls are about as long at most, which is far less than what a
server keeps for a client that does not read: so it goes on reading while the client writes."""

TOGETHER = 32
"""Requests that are written together. More would save little, and the server would begin later."""

LEFT = "the pipeline was left before the answer came, and it is not known whether the request was done"


class PipelinedCall(Generic[T]):
    """A call whose request is written, or is to be written again after a pause.

    pending: the request that waits for its answer, None while one is to be written; connection: where it was written;
    written_at, due: times on the driver's clock; error: of a call that is done. Only `value` counts as a look at it.
    """

    __slots__ = ("_call", "_value", "connection", "done", "due", "error", "exchange", "pending", "seen", "written_at")

    def __init__(self, call: Call[T]) -> None:
        """Takes the first request from the call, which is done at once if it has none."""
        self._call = call
        self.error: Exception | None = None
        self._value: T | None = None
        self.done = self.seen = False
        self.connection: Any = None
        self.pending: Pending | None = None
        self.written_at = self.due = 0.0
        self.exchange: Exchange
        self._resume(call.send, None, 0.0)

    def written(self, connection: Any, pending: Pending, now: float) -> None:
        """Notes that the request was written."""
        self.connection, self.pending, self.written_at = connection, pending, now

    def answered(self, answer: Message, now: float) -> None:
        """Gives the call its answer."""
        self._resume(self._call.send, answer, now)

    def failed(self, error: Exception, now: float) -> None:
        """Gives the call an error of the connection. A call that is safe to repeat then has a request to write."""
        self._resume(self._call.throw, error, now)

    def _resume(self, resume: Callable[[Any], Exchange], what: Message | Exception | None, now: float) -> None:
        self.connection = self.pending = None
        try:
            self.exchange = resume(what)
            self.due = now + self.exchange.pause
        except StopIteration as end:
            self._value, self.done = end.value, True
        except Exception as error:
            self.error, self.done = error, True

    def abandon(self) -> None:
        """Ends a call that nobody waits for any more."""
        self._call.close()
        self.connection = self.pending = None
        self.error, self.done = ServerUnavailable(LEFT), True

    def value(self) -> T:
        """Returns the value of a call that is done, or raises its error."""
        self.seen = True
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value] # it is done


class OpenCalls:
    """The calls of one pipeline that are not done, oldest first.

    Ensures
    1. `is_full` tells when the oldest has to be waited for: no more than MOST_OPEN requests and MOST_BYTES are without
       an answer. A single request may be larger, and is then alone.
    2. The first error that the program has not looked at can be found at the end, in the order of the calls.

    Never keeps a call that is done without an error: a pipeline may have any number of calls.
    """

    def __init__(self) -> None:
        self._calls: deque[PipelinedCall[Any]] = deque()
        self._failed: list[PipelinedCall[Any]] = []
        self._bytes = 0
        self.unsent = 0  # requests that the driver has not sent yet
        self.ended = False

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[PipelinedCall[Any]]:
        return iter(self._calls)

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= MOST_OPEN or self._bytes >= MOST_BYTES

    @property
    def oldest(self) -> PipelinedCall[Any]:
        return self._calls[0]

    def check(self) -> None:
        """Raises RuntimeError after the end of the block."""
        if self.ended:
            raise RuntimeError("the block of the pipeline has ended: make the call on the client, or in a new pipeline")

    def add(self, call: PipelinedCall[Any]) -> None:
        """Adds a call whose request was written, or is to be written when it is the oldest."""
        self._calls.append(call)
        if call.pending is not None:
            self._bytes += call.pending.size
            self.unsent += 1

    def take_oldest(self) -> PipelinedCall[Any]:
        """Takes the oldest call out, to be answered."""
        call = self._calls.popleft()
        if call.pending is not None:
            self._bytes -= call.pending.size
        return call

    def take_answered(self) -> PipelinedCall[Any] | None:
        """Takes the oldest call out if its answer has come already, and is no error: an error may concern the
        connection, which is the driver's."""
        pending = self._calls[0].pending if self._calls else None
        if pending is None or pending.answer is None or isinstance(pending.answer, Error):
            return None
        self._bytes -= pending.size
        return self._calls.popleft()

    def keep(self, call: PipelinedCall[Any]) -> None:
        """Notes a call that is done, for its error."""
        if call.error is not None:
            self._failed.append(call)

    def abandon(self) -> None:
        """Ends all calls: the block was interrupted or cancelled."""
        self.ended = True
        while self._calls:
            call = self.take_oldest()
            call.abandon()

    def raise_unseen(self) -> None:
        """Raises the first error whose result nobody has asked for. A note tells how many more there are."""
        unseen = [call for call in self._failed if not call.seen]
        self._failed.clear()
        if unseen:
            error = unseen[0].error
            assert error is not None  # noqa: S101 - it has failed
            if more := len(unseen) - 1:
                error.add_note(
                    f"later calls of the pipeline that failed too, and whose result nobody asked for: {more}"
                )
            raise error
