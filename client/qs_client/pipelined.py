"""The calls of a pipeline, without I/O: which are open, how much may be open, and which error is still to be raised.

`pipeline` and `async_pipeline` drive it: they write the requests and wait for the answers.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from qs_schemas import Error, Message, Ping

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
"""Requests that are sent together. More would save little, and the server would begin later."""

SOON = 0.01
"""Seconds after which a request that waits for others to be sent with it is sent with the next call."""

_KEPT = 256
"""Calls with an error that are kept until the end, to see whether the program asks for their results."""

LEFT = "the pipeline was left before the answer came, and it is not known whether the request was done"


_NONE = Exchange(Ping())
"""Stands for the exchange of a call that is done: its request may be large."""


class PipelinedCall(Generic[T]):
    """A call whose request is written, or is to be written when the call is the oldest.

    pending: the request that waits for its answer, None while one is to be written; connection: where it was written;
    sent_at, due: times on the driver's clock; error: of a call that is done. Only `value` counts as a look at it.
    """

    __slots__ = ("_call", "_value", "connection", "done", "due", "error", "exchange", "pending", "seen", "sent_at")

    def __init__(self, call: Call[T]) -> None:
        """Takes the first request from the call, which is done at once if it has none."""
        self._call = call
        self.error: Exception | None = None
        self._value: T | None = None
        self.done = self.seen = False
        self.connection: Any = None
        self.pending: Pending | None = None
        self.sent_at = self.due = 0.0
        self.exchange = _NONE
        self._resume(call.send, None, 0.0)

    def answered(self, answer: Message, now: float) -> None:
        """Gives the call its answer."""
        self._resume(self._call.send, answer, now)

    def failed(self, error: Exception, now: float) -> None:
        """Gives the call an error of the connection. A call that is safe to repeat then has a request to write."""
        self._resume(self._call.throw, error, now)

    def _resume(self, resume: Callable[[Any], Exchange], what: Message | Exception | None, now: float) -> None:
        try:
            self.connection = self.pending = None
            self.exchange = resume(what)
            self.due = now + self.exchange.pause
        except StopIteration as end:
            self._end(end.value, None)
        except Exception as error:
            self._end(None, error.with_traceback(None))  # whose frames would keep the request in memory
        except BaseException:  # an interrupt: the old request must not be taken for one that is to be written
            self._end(None, ServerUnavailable(LEFT))
            raise

    def _end(self, value: T | None, error: Exception | None) -> None:
        self.exchange = _NONE
        self._value, self.error, self.done = value, error, True

    def abandon(self) -> None:
        """Ends a call that nobody waits for any more."""
        if not self.done:
            self._call.close()
            self.connection = self.pending = None
            self._end(None, ServerUnavailable(LEFT))

    def value(self) -> T:
        """Returns the value of a call that is done, or raises its error."""
        self.seen = True
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value] # it is done


class OpenCalls:
    """The calls of one pipeline that are not done, oldest first, and behind a lost connection some that are.

    Ensures
    1. A call is here from its first request until `settle` has taken it as done: no interrupt makes it vanish.
    2. `is_full` tells when the oldest has to be waited for: no more than MOST_OPEN requests and MOST_BYTES are without
       an answer. A single request may be larger. Beyond that, only the oldest writes a further request.
    3. The first error that the program has not looked at can be found at the end, in the order of the calls.

    Never keeps more than the last of many calls that have failed: a pipeline may have any number of calls.
    """

    def __init__(self) -> None:
        self._calls: deque[PipelinedCall[Any]] = deque()
        self._failed: list[PipelinedCall[Any]] = []
        self._last: PipelinedCall[Any] | None = None  # of the calls that failed beyond _KEPT
        self._more = 0  # how many these are
        self._bytes = 0
        self._unsent = 0  # requests of the youngest calls that the driver has not sent yet
        self._unsent_since = 0.0
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
        """Adds a call: its request is written now, or when the call is the oldest."""
        self._calls.append(call)

    def written(self, call: PipelinedCall[Any], connection: Any, pending: Pending, now: float) -> None:
        """Notes that the request of a call was written."""
        self._bytes += pending.size
        call.connection, call.pending, call.sent_at = connection, pending, now
        if not self._unsent:
            self._unsent_since = now
        self._unsent += 1

    def should_send(self, now: float) -> bool:
        """Tells whether what is written should be sent."""
        return self._unsent >= TOGETHER or (self._unsent > 0 and now - self._unsent_since >= SOON)

    def sent(self, now: float) -> None:
        """Notes that all that is written is sent now: the server has the time of the client from here on."""
        for call in islice(reversed(self._calls), self._unsent):
            call.sent_at = now
        self._unsent = 0

    def answered(self, call: PipelinedCall[Any], answer: Message | Exception, now: float) -> None:
        """Gives a call its answer, or the error in its place."""
        if call.pending is not None:
            self._bytes -= call.pending.size
        if isinstance(answer, Exception):
            call.failed(answer, now)
        else:
            call.answered(answer, now)

    def settle(self) -> bool:
        """Takes out the oldest calls as far as their answers have come. Returns whether an older one than before is
        now the oldest: then nothing need be waited for yet. An answer that is an error is left to the driver, as it may
        concern the connection."""
        calls, before = self._calls, len(self._calls)
        while calls:
            oldest = calls[0]
            if not oldest.done and (pending := oldest.pending) is not None:
                if pending.answer is None or isinstance(pending.answer, Error):
                    break
                self.answered(oldest, pending.answer, 0.0)
            if not oldest.done:
                break
            self._keep(oldest)
            calls.popleft()
        return len(calls) < before

    def _keep(self, call: PipelinedCall[Any]) -> None:
        """Notes a call that is done, for its error."""
        if call.error is None:
            return
        if len(self._failed) >= _KEPT:
            self._failed = [each for each in self._failed if not each.seen]
        if len(self._failed) < _KEPT:
            self._failed.append(call)
        else:
            self._last = call
            self._more += 1

    def abandon(self) -> None:
        """Ends all calls: the block was interrupted or cancelled."""
        self.ended = True
        while self._calls:
            self._calls[0].abandon()
            self._keep(self._calls[0])  # if the program catches the interrupt, the end of the block raises
            self._calls.popleft()

    def raise_unseen(self) -> None:
        """Raises the first error whose result nobody has asked for. A note tells how many more there are."""
        unseen = [call for call in self._failed if not call.seen]
        more = len(unseen) - 1 + self._more
        if not unseen and self._last is not None and not self._last.seen:
            unseen = [self._last]
        self._failed.clear()
        self._last = None
        if unseen:
            error = unseen[0].error
            assert error is not None  # noqa: S101 - it has failed
            if more > 0:
                error.add_note(
                    f"later calls of the pipeline that failed too, and whose result nobody asked for: {more}"
                )
            raise error
