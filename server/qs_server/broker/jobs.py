"""Defines the work that the broker runs, and how it waits.

`Work` is what a batch consists of: the requests of a connection (`session.requests.RequestBatch`), or a function of the
server itself (`Job`). Work that cannot go on has a `Pause`: for messages, while the `Waiters` hold the work; for a
`Call`, which runs in a thread of its own; for a time; or for the next batch.

Work knows nothing of sockets. The broker knows requests only as work; the one operation that it looks at is a push of
one message, because pushes can be merged.
"""

import logging
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

import trio

from qs_schemas import PushMessage
from qs_storage.engine import NoRoomError, RemoteError

_logger = logging.getLogger(__name__)
T = TypeVar("T")
_order = itemgetter(0)
_STOP_TIMEOUT = 10
"""Seconds that a call has to end after it was told to stop. Without a bound, another server that hangs would keep this
one from stopping."""


class Call(Generic[T]):
    """Holds a function that may take long and so runs in a thread, and the function's result.

    Ensures that `result` either returns the function's result or raises. It raises also while the function still runs:
    the thread of a call that was given up cannot be killed and goes on alone. Assumes that a function that may wait
    long checks its event now and then.

    The function must never touch the engine of the root, which only batches may use."""

    def __init__(self, function: Callable[[threading.Event], T], *, waits: bool = False) -> None:
        """Takes the function to run. function: called with an event, which is set when the function should stop; waits:
        True if the function waits for messages."""
        self.stop = threading.Event()
        self.waits = waits
        self._function = function
        self._result: list[T] = []  # a list, because None may be a result
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result.append(self._function(self.stop))
        except Exception as error:  # `result` raises the error in the handler
            self._error = error

    def found(self) -> list[Any]:
        """Returns the messages that the call has received, so that they can be given back if nobody waits for the call
        any more."""
        return list(self._result[0]) if self._result and isinstance(self._result[0], list) else []

    def result(self) -> T:
        """Returns the function's result, or raises its error. Raises RemoteError if the function has not ended."""
        if self._error is not None:
            raise self._error
        if not self._result:
            raise RemoteError("the call was given up, as the server stops or the client has gone; it may still be done")
        return self._result[0]


async def run_call(call: Call[Any], limiter: trio.CapacityLimiter) -> None:
    """Runs a call in a thread. If the task is cancelled, tells the call to stop and waits `_STOP_TIMEOUT` for its end.
    After that time the call continues alone, and `result` raises an error."""
    done = trio.Event()
    running = trio.CancelScope(shield=True)  # the thread is left alone only when its time is over
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run, call, limiter, running, done)
        try:
            await done.wait()
        except trio.Cancelled:
            call.stop.set()
            raise
        finally:
            with trio.move_on_after(_STOP_TIMEOUT, shield=True):
                await done.wait()
            running.cancel()


async def _run(call: Call[Any], limiter: trio.CapacityLimiter, running: trio.CancelScope, done: trio.Event) -> None:
    with running:
        await trio.to_thread.run_sync(call.run, limiter=limiter, abandon_on_cancel=True)
    done.set()


@dataclass(frozen=True, slots=True)
class Pause:
    """Tells why a handler cannot answer yet. With `call`, the handler waits for the end of the call. With `qids`, it
    waits for a message in one of these queues, at most `wait` seconds from its first pause. With neither, it waits for
    `wait` seconds; 0 means until the requests of other clients have run. lacks: the error of a step that lacked room in
    this batch, None for any other reason."""

    qids: tuple[str, ...] = ()
    wait: float = 0
    call: Call[Any] | None = None
    lacks: NoRoomError | None = None
    order: int = field(default_factory=count(1).__next__)
    """Increases from pause to pause: who began to wait earlier comes first."""

    @property
    def is_asked_for(self) -> bool:
        """True for a wait for messages, and for the delay after a wrong token: such waits do not count as time that the
        request took."""
        return bool(self.qids or self.wait)


class Work(Protocol):
    """Describes the part of a request batch or a job that the committer uses.

    Ensures that `advance` returns within some milliseconds, that it raises nothing for the fault of one request, and
    that a request which lacked room has changed nothing. Assumes that `advance`, `pushes`, `pushed` and the two `fail`
    are called inside a batch, by one thread at a time. Work must never send an answer itself: the batch may fail."""

    unanswered: int
    """The number of requests without an answer; for a job, 1 until it has run."""
    pause: Pause | None
    """The reason why the work waits, None if it does not."""
    is_first: bool
    """True if the work has to be the first of its batch."""
    lacked: NoRoomError | None
    """The error with which its next request was refused in an earlier batch, None without one. The committer secures
    the room that it lacked."""
    on_batch_end: Callable[[], None] | None
    """Called by the committer, in the loop, after the work's batch. The committer sets it to None first."""

    weight: int
    """The amount of work, in messages."""
    may_push: bool
    """True if there is a push among the requests."""

    @property
    def runnable(self) -> bool:
        """True if the work can go on now."""

    @property
    def peer(self) -> str:
        """The address of the client, empty for the server itself."""

    def pushes(self) -> list[PushMessage]:
        """Returns the next requests, as far as they are pushes to the same queue, each of one message with a payload of
        bytes, without headers and without any attribute."""

    def pushed(self, requests: Sequence[PushMessage], mids: Iterable[int]) -> None:
        """Answers the requests that `pushes` returned. mids: the ids of their messages."""

    def advance(self, pushing: bool | None) -> None:
        """Runs the next requests, up to one that has to wait or lacks room. pushing: True to stop before the first
        request that is not a push, False to stop before the first push, None to run all."""

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        """Answers pushes that failed in the commit with their errors, by (queue, id)."""

    def fail(self, error: Exception) -> None:
        """Answers all requests with the error of a failed commit."""


class Job:
    """Runs a function on the engine, as part of a batch.

    Ensures that the function runs to its end once, or fails once: if it lacked room, or its batch failed before it ran,
    a later batch runs it. Assumes that the function is short, because it is not divided into slices, and that it has
    changed nothing when it raises NoRoomError. An error must never end the loop that runs the batch: the error is
    logged, and `failed` is set."""

    pause: Pause | None = None
    peer = ""
    may_push = False

    def __init__(
        self, function: Callable[[], object] = lambda: None, weight: int = 1, *, is_first: bool = False
    ) -> None:
        """Takes the function to run. weight: the amount of work, in messages; is_first: True if the job has to run
        first in its batch."""
        self._function = function
        self.weight = weight
        self.is_first = is_first
        self.unanswered = 1
        self.failed = False
        self.lacked: NoRoomError | None = None
        self.on_batch_end: Callable[[], None] | None = None

    @property
    def runnable(self) -> bool:
        return self.unanswered > 0

    def pushes(self) -> list[PushMessage]:
        return []

    def pushed(self, requests: Sequence[PushMessage], mids: Iterable[int]) -> None:
        """Does nothing: `pushes` returns nothing."""

    def advance(self, pushing: bool | None) -> None:
        if pushing:
            return
        self.unanswered = 0  # before it runs: a function that raises is not run again
        try:
            self._function()
        except OSError as error:
            lacks = error.unmet(self.lacked) if isinstance(error, NoRoomError) else None
            if lacks is not None:
                # It runs first in the next batch, which has room.
                self.unanswered, self.lacked, self.is_first = 1, lacks, True
            else:
                self.fail(error)  # the rest of the batch does not fail

    def fail_pushes(self, failures: dict[tuple[str, int], OSError]) -> None:
        """Does nothing: a job pushes nothing."""

    def fail(self, error: Exception) -> None:
        if self.unanswered and isinstance(error, OSError):
            return  # it was not run in that batch, and a later one runs it
        self.unanswered, self.failed = 0, True
        _logger.error("background work of the server failed: %s", error)


class _Place:
    """Holds the state of a waiting work. wake: called when the work is woken, None until its session listens; woken:
    True if the work has been woken, also before the session listens."""

    __slots__ = ("pause", "wake", "woken")

    def __init__(self, pause: Pause) -> None:
        self.pause = pause
        self.wake: Callable[[], None] | None = None
        self.woken = False


class Waiters:
    """Holds the works that wait for messages of queues.

    Ensures:
    1. Works are woken in the order in which they began to wait, one for each message that has become visible. No work
       polls.
    2. Work that was woken and found no message, because another receive was faster, gets its old position in the line
       again: it brings the same `Pause`.
    3. Work that was woken and is given up wakes the next work, so that no message stays visible while work waits for
       it.
    4. Work that waits for several queues is woken once, whichever of them has a message first.

    Assumes the loop's thread, except for `count`, and that woken work runs in a later batch: `wake` receives nothing.

    The waiters must never run or end work. What a wait means to a client is the session's business."""

    def __init__(self) -> None:
        self._lines: dict[str, list[tuple[int, Work]]] = {}  # queue -> works not woken yet, sorted by `Pause.order`
        self._places: dict[Work, _Place] = {}  # also of woken works that have not run since
        self.any = False
        """True if any work waits that was not woken yet. An attribute, as each batch reads it."""

    def add(self, work: Work, pause: Pause) -> None:
        """Adds a work to the line of each queue, before the works that began to wait later."""
        self._places[work] = _Place(pause)
        self.any = True
        for qid in pause.qids:
            insort(self._lines.setdefault(qid, []), (pause.order, work), key=_order)

    def count(self, qid: str) -> int:
        """Returns how many works wait for a queue. May be called in any thread, because batches ask for this figure."""
        return len(self._lines.get(qid, ()))

    @property
    def total(self) -> int:
        """The number of works that wait, each for one queue or several."""
        return len(self._places)

    def listen(self, work: Work, wake: Callable[[], None]) -> bool:
        """Returns True if a waiting work has been woken already. If not, calls `wake` when the work is woken."""
        place = self._places[work]
        place.wake = wake
        return place.woken

    def wake_all(self, arrived: Mapping[str, int]) -> None:
        """Wakes works that wait for queues. arrived: queue -> number of messages that have become visible."""
        for qid, messages in arrived.items():
            if qid in self._lines:
                self.wake(qid, messages)

    def wake(self, qid: str, count: int) -> None:
        """Wakes the first works that wait for a queue. count: the number of messages that have become visible."""
        for _ in range(count):
            line = self._lines.get(qid)
            if line is None:
                return
            # Asked again each time: a work that is woken may give up at once, and wake the next.
            place = self._places[line[0][1]]
            self._remove(place.pause)
            place.woken = True
            if place.wake is not None:
                place.wake()

    def resume(self, work: Work) -> None:
        """Removes a work that goes on, because it was woken or for another reason."""
        self._remove(self._places.pop(work).pause)

    def leave(self, work: Work) -> None:
        """Removes a work that is given up, if it waits. If the work had been woken, wakes the next one in line."""
        place = self._places.pop(work, None)
        if place is None:
            return
        self._remove(place.pause)
        if place.woken:  # its message is still visible, and nothing else would wake the next work
            for qid in place.pause.qids:
                self.wake(qid, 1)

    def _remove(self, pause: Pause) -> None:
        for qid in pause.qids:
            line = self._lines.get(qid, [])
            at = bisect_left(line, pause.order, key=_order)  # thousands may wait for one queue
            if at < len(line) and line[at][0] == pause.order:
                del line[at]
                if not line:
                    del self._lines[qid]
        self.any = bool(self._lines)
