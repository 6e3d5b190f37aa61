"""The calls of a pipeline, without I/O: which are open, how much may be open, and which error is still to be raised.

`pipeline` and `async_pipeline` drive it: they write the requests and wait for the answers.
"""

import weakref
from collections import deque
from collections.abc import Iterator
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
"""Failed calls that are kept before those are sorted out that need not be kept."""

LEFT = "the pipeline was left before the answer came, and it is not known whether the request was done"


_NONE = Exchange(Ping())
"""Stands for the exchange of a call that is done: its request may be large."""

_UNKNOWN = Pending(Ping())
"""Stands for the request of a call while that is written, and while the call takes an answer. A call that still has it
afterwards was interrupted: it is not known whether its request was written, or how far the call has come."""


class Failure:
    """The error of a call. seen: whether the program has asked for the result.

    The call belongs to its result, so it is gone when the program has let go of that: then nobody can ask any more.
    """

    __slots__ = ("_call", "error", "seen")

    def __init__(self, call: "PipelinedCall[Any]", error: Exception) -> None:
        self._call = weakref.ref(call)
        self.error = error
        self.seen = False

    @property
    def is_final(self) -> bool:
        """Tells whether nobody can ask any more."""
        return self._call() is None


class Failures:
    """The calls of a pipeline that have failed, oldest first, as far as the end of the block needs them.

    Ensures that the first one whose result nobody has asked for can be found, and how many there are, while the program
    may ask for any of them at any time.

    Never keeps more than the program does: of the calls whose results it has let go of, the first one and a number.
    """

    def __init__(self, failures: list[Failure] | None = None, more: int = 0) -> None:
        """failures: oldest first; more: how many final ones there are behind the first final one of the list."""
        self._failures = [] if failures is None else failures
        self._more = more
        self._most = max(_KEPT, 2 * len(self._failures))

    @property
    def last(self) -> Failure | None:
        return self._failures[-1] if self._failures else None

    @property
    def is_long(self) -> bool:
        """Tells whether it is time for `sorted_out`, whose cost is then that of a few calls for each failure."""
        return len(self._failures) >= self._most

    def add(self, failure: Failure) -> None:
        self._failures.append(failure)

    def sorted_out(self) -> "Failures":
        """Returns those that may be raised at the end, and counts the others."""
        kept: list[Failure] = []
        more, has_final = self._more, False
        for failure in self._failures:
            if failure.seen:
                continue
            if failure.is_final:
                if has_final:
                    more += 1
                    continue
                has_final = True
            kept.append(failure)
        return Failures(kept, more)

    def raise_unseen(self) -> None:
        """Raises the first error whose result nobody has asked for. A note tells how many more there are."""
        failures, self._failures = self._failures, []  # an error that is raised must not refer to itself
        unseen = [failure for failure in failures if not failure.seen]
        if unseen:
            more = len(unseen) - 1 + self._more
            if more > 0:
                unseen[0].error.add_note(
                    f"later calls of the pipeline that failed too, and whose result nobody asked for: {more}"
                )
            raise unseen[0].error


class PipelinedCall(Generic[T]):
    """A call whose request is written, or is to be written when the call is the oldest.

    pending: the request that waits for its answer, `_UNKNOWN` while the call is worked on, None while its request is to
    be written; connection: where it was written; sent_at, due: times on the driver's clock; failure: of a call
    that is done; position: bytes of the first requests in the pipeline up to the end of this one, -1 for a call that is
    not in it yet. Only `value` counts as asking for the result.

    An interrupt may come between any two steps. So the attribute that makes the others valid is set last: `pending`
    after the request was written or may be, `done` after the value.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_value",
        "connection",
        "done",
        "due",
        "exchange",
        "failure",
        "pending",
        "position",
        "sent_at",
    )

    def __init__(self, call: Call[T]) -> None:
        """Takes the first request from the call, which is done at once if it has none."""
        self._call = call
        self.failure: Failure | None = None
        self._value: T | None = None
        self.done = False
        self.connection: Any = None
        self.pending: Pending | None = None
        self.position = -1
        self.sent_at = self.due = 0.0
        self.exchange = _NONE
        self.answered(None, 0.0)

    def answered(self, answer: Message | Exception | None, now: float) -> None:
        """Gives the call its answer, or an error of the connection: a call that is safe to repeat then has a request
        to write again. answer: None to begin."""
        self.pending = _UNKNOWN
        self.connection = None
        try:
            self.exchange = self._call.throw(answer) if isinstance(answer, Exception) else self._call.send(answer)  # type: ignore[arg-type] # None to begin
        except StopIteration as end:
            self._end(end.value, None)
        except Exception as error:
            self._end(None, error.with_traceback(None))  # whose frames would keep the request in memory
        else:
            self.due = now + self.exchange.pause
            self.pending = None

    def _end(self, value: T | None, error: Exception | None) -> None:
        self.exchange = _NONE
        self._value = value
        self.failure = None if error is None else Failure(self, error)
        self.done = True

    def abandon(self) -> None:
        """Ends a call that nobody waits for any more."""
        if not self.done:
            self.pending = _UNKNOWN
            self._call.close()
            self.connection = None
            self._end(None, ServerUnavailable(LEFT))

    def value(self) -> T:
        """Returns the value of a call that is done, or raises its error."""
        failure = self.failure
        if failure is not None:
            failure.seen = True
            raise failure.error
        return self._value  # type: ignore[return-value] # it is done


class OpenCalls:
    """The calls of one pipeline that are not done, oldest first, and behind a lost connection some that are.

    Ensures
    1. A call is here from its first request until `settle` has taken it as done: no interrupt makes it vanish.
    2. `is_full` tells when the oldest has to be waited for: no more than MOST_OPEN requests and MOST_BYTES are without
       an answer. A single request may be larger. Beyond that, only the oldest writes a further request.
    3. The first error that the program has not looked at can be found at the end, in the order of the calls.
    4. What is open is read off the calls themselves. No number is kept beside them that an interrupt could leave wrong.
    """

    def __init__(self) -> None:
        self._calls: deque[PipelinedCall[Any]] = deque()
        self._unsent: list[PipelinedCall[Any]] = []  # written, and not sent yet
        self.failures = Failures()
        self.ended = False

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[PipelinedCall[Any]]:
        return iter(self._calls)

    @property
    def is_full(self) -> bool:
        calls = self._calls
        if not calls:
            return False
        if len(calls) >= MOST_OPEN:
            return True
        # The oldest may have written a further request. Those behind it count as they were first written, also one that
        # has lost its connection.
        oldest = calls[0]
        size = calls[-1].position - oldest.position
        return (size if oldest.pending is None else size + oldest.pending.size) >= MOST_BYTES

    @property
    def oldest(self) -> PipelinedCall[Any]:
        return self._calls[0]

    def check(self) -> None:
        """Raises RuntimeError after the end of the block."""
        if self.ended:
            raise RuntimeError("the block of the pipeline has ended: make the call on the client, or in a new pipeline")

    def begin(self, call: PipelinedCall[Any]) -> None:
        """Notes that the request of a call is about to be written. The call is open from here on."""
        call.pending = _UNKNOWN
        if call.position < 0:
            calls = self._calls
            call.position = calls[-1].position if calls else 0
            calls.append(call)

    def written(self, call: PipelinedCall[Any], connection: Any, pending: Pending, now: float) -> None:
        """Notes that the request of a call was written."""
        if call is self._calls[-1]:
            call.position += pending.size
        call.connection, call.sent_at = connection, now
        self._unsent.append(call)
        call.pending = pending

    def should_send(self, now: float) -> bool:
        """Tells whether what is written should be sent."""
        unsent = self._unsent
        return len(unsent) >= TOGETHER or (len(unsent) > 0 and now - unsent[0].sent_at >= SOON)

    def sent(self, now: float) -> None:
        """Notes that all that is written is sent now: the server has the time of the client from here on."""
        for call in self._unsent:
            call.sent_at = now
        self._unsent.clear()

    def settle(self) -> bool:
        """Takes out the oldest calls as far as their answers have come. Returns whether an older one than before is
        now the oldest: then nothing need be waited for yet. An answer that is an error is left to the driver, as it may
        concern the connection."""
        calls, before = self._calls, len(self._calls)
        while calls:
            oldest = calls[0]
            if not oldest.done:
                pending = oldest.pending
                if pending is None:
                    break
                if pending is _UNKNOWN:
                    oldest.abandon()
                elif pending.answer is None or isinstance(pending.answer, Error):
                    break
                else:
                    oldest.answered(pending.answer, 0.0)
                    if not oldest.done:
                        break
            if oldest.failure is not None:
                self._keep(oldest.failure)
            calls.popleft()
        return len(calls) < before

    def _keep(self, failure: Failure) -> None:
        """Notes the error of the oldest call, once: an interrupt may come before the call is taken out."""
        if failure is self.failures.last:
            return
        if self.failures.is_long:
            self.failures = self.failures.sorted_out()
        self.failures.add(failure)

    def abandon(self) -> None:
        """Ends all calls: the block was interrupted or cancelled."""
        self.ended = True
        while self._calls:
            oldest = self._calls[0]
            oldest.abandon()
            if oldest.failure is not None:
                self._keep(oldest.failure)  # if the program catches the interrupt, the end of the block raises
            self._calls.popleft()
