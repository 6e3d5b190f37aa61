"""The work of `handling` for a message: extends the window while the block runs, so that a slow job is not handed out
again, and acknowledges the message in the end.

A window is extended at its half: then one lost request leaves time for another. `visibility=` of the subscription or
the receive says how long a window is, but not when it began: the message may have waited in this process. That, and the
length of other windows, is computed from the end that the server named and this machine's clock; as the two clocks may
differ, a window of unknown length is extended at least every 15 seconds.

The end is two calls, for the sync and the async client: `acknowledge` after a block that returned, and
`negative_acknowledge` after one that raised. Neither puts its own trouble in place of what the block did.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType

from qs_schemas import DeleteMessage, Message, RejectMessage, ReleaseMessage
from qs_schemas.limits import REASON
from qs_schemas.text import replace_uncarriable

from .acknowledgements import log_taken_away
from .asking import Call, Exchange, ask, ask_until_answered, drive
from .calls import Received, lease_of, message_key
from .errors import (
    BadRequest,
    Conflict,
    NotFound,
    NotImplementedByServer,
    Reject,
    Retry,
    ServerError,
    ServerUnavailable,
    Stale,
    log,
    passes_by_itself,
)
from .lifetimes import call_after_fork

_UNKNOWN_WINDOW = 15.0
"""Seconds between two extensions of a window of unknown length: half of the server's default window."""
_SHORTEST = 0.05
"""Seconds between two extensions, at least: a window of less than a tenth of a second cannot be held by requests."""
_RETRY = 1.0
"""Seconds until the next attempt after a lost connection or an error."""
_IDLE = 10.0
"""Seconds after which a thread without messages ends: programs may make many clients."""


class WindowExtension:
    """Says when the window of a message that is being handled has to be extended next.

    due: the time of the next extension, on the clock; taken: the server has given the message to somebody else, or it
    is gone, so there is nothing to extend. Does no I/O: a thread or a task makes the requests, and reports each.
    """

    def __init__(
        self,
        message: Received,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.message = message
        self.taken = False
        lease = lease_of(message)
        self.visibility = None if lease is None else lease.visibility
        self._clock = clock
        self._wall_clock = wall_clock
        self._reported = False  # else an error that does not pass would be logged at each attempt
        self.due = clock() + min(self._half_of_length(), self._half_of_rest(message.visible_at))

    def _half_of_length(self) -> float:
        return _UNKNOWN_WINDOW if self.visibility is None else max(self.visibility / 2, _SHORTEST)

    def _half_of_rest(self, visible_at: int | None) -> float:
        """Returns half of the seconds that are left of the window that ends at this time (microseconds)."""
        if visible_at is None:
            return self._half_of_length()
        left = visible_at / 1_000_000 - self._wall_clock()
        # A window that seems to be over most likely is not: the clocks differ. An extension tells, so it comes soon.
        return _RETRY if left <= 0 else max(left / 2, _SHORTEST)

    def extended(self, visible_at: int) -> None:
        """Notes that the server has extended the window to this time (microseconds)."""
        half = self._half_of_length()
        self.due = self._clock() + (half if self.visibility is not None else min(half, self._half_of_rest(visible_at)))

    def failed(self, error: Exception) -> None:
        """Notes that an extension failed. Logs, once, an error that another attempt will hardly cure."""
        if isinstance(error, Stale | NotFound):
            self.taken = True
        elif not (self._reported or passes_by_itself(error)):
            self._reported = True
            log("warning", f"the window of a message of {self.message.qid!r} could not be extended: {error!r}")
        self.due = self._clock() + _RETRY


def acknowledge(message: Received, patience: float | None) -> Call[bool]:
    """Deletes a message that was handled, unless the job itself has deleted, released or rejected it. Returns True, or
    False when it comes again: that is logged, not raised, as the job is done and its program can do nothing about it.

    patience: about how many seconds to go on trying when the server cannot be reached, None for `REPEAT_FOR`.
    """
    if is_settled(message):
        return True
    qid, number, receives = message_key(message, None)
    unanswered: list[ServerUnavailable] = []
    try:
        yield from ask_until_answered(DeleteMessage(qid, number, receives), patience, unanswered, lease_of(message))
        return True
    except (Stale, NotFound) as error:
        if unanswered and isinstance(error, NotFound):  # one of those requests has deleted it: only its answer was lost
            return True
        log_taken_away(qid, number, error)
    except ServerUnavailable as error:
        log("warning", f"message {number} of {qid!r} was handled, but could not be deleted, so it comes again: {error}")
    return False


def is_settled(message: Received) -> bool:
    """Tells whether a client of this process has deleted, released or rejected this very message.

    A job may release its message itself, for another try. A delete after that would not be refused but lose it: until
    the message is received again, its count of receives is the same.
    """
    return getattr(message, "settled", False)


def text_of(raised: BaseException) -> str:
    """Returns the text of an exception, also of one whose class fails at that."""
    try:
        return str(raised)
    except Exception:  # somebody else's class
        return "(its text cannot be had)"


def errors_in(raised: BaseException) -> Iterator[BaseException]:
    """Yields an exception, or those that a group holds, as task groups raise them."""
    if isinstance(raised, BaseExceptionGroup):
        for each in raised.exceptions:
            yield from errors_in(each)
    else:
        yield raised


def is_outcome(raised: BaseException) -> bool:
    """Tells whether a job raised Reject or Retry and nothing else, alone or in groups: it has said what becomes of its
    message, and nothing is wrong with the program."""
    return all(isinstance(each, Reject | Retry) for each in errors_in(raised))


def reason_of(raised: BaseException) -> str | None:
    """Returns the reason that is kept with a message whose job raised this: type and text, for Reject and Retry the
    text alone, and for a group the reasons of all that it holds. At most `REASON` bytes, without characters that XML
    cannot carry; None if there is no text."""
    said = "; ".join(filter(None, map(_said, islice(errors_in(raised), REASON))))[:REASON]
    return replace_uncarriable(said).encode()[:REASON].decode(errors="ignore") or None


def _said(raised: BaseException) -> str:
    said = text_of(raised)
    if isinstance(raised, Reject | Retry):
        return said
    return f"{type(raised).__name__}: {said}" if said else type(raised).__name__


def negative_acknowledge(message: Received, raised: BaseException, without_reasons: set[str]) -> Call[bool]:
    """Rejects a message whose job raised Reject, also in a group, and releases it after any other exception, with the
    reason, after the delay of a Retry. Does nothing if the job itself has deleted, released or rejected the message.
    Returns False when it was somebody else's by then.

    without_reasons: the queues whose storage, or server, keeps no reasons: there the message is released without one,
    so each is asked only once. A message that cannot be rejected is released, and that is logged: one that nobody
    settles would be hidden until its window ends.
    """
    if is_settled(message):
        return True
    qid, number, receives = message_key(message, None)
    reason = reason_of(raised)
    delays = (each.delay for each in errors_in(raised) if isinstance(each, Retry))
    delay = max((each for each in delays if each is not None), default=None)  # several in a group: the longest
    try:
        if any(isinstance(each, Reject) for each in errors_in(raised)):
            try:
                yield from ask(RejectMessage(qid, number, receives, reason))
                return True
            except Stale:
                raise
            except (Conflict, NotImplementedByServer, BadRequest) as refused:
                log("warning", f"message {number} of {qid!r} could not be rejected, so it comes again: {refused}")
        if qid not in without_reasons:
            try:
                yield from ask(ReleaseMessage(qid, number, receives, delay, reason=reason))
                return True
            except (NotImplementedByServer, BadRequest):  # BadRequest: of a server that knows no reasons
                without_reasons.add(qid)
        yield from ask(ReleaseMessage(qid, number, receives, delay))
    except (Stale, NotFound):
        return False
    return True


class Extender:
    """Extends windows from a daemon thread, which starts when a message is added, and ends when there has been none for
    ten seconds, or with the process.

    Ensures: no error of one message ends the thread, as the others need it; a message that is discarded is extended at
    most once more; a child of a fork extends nothing of its parent's.
    Assumes that few messages are handled at a time, one for each thread that handles messages.
    Never uses the program's own client: that may wait for its next message with the lock of its connection, and could
    not be collected while a thread referred to it.
    """

    def __init__(
        self,
        extend: Callable[[WindowExtension], int],
        disconnect: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """extend: makes the request and returns the new end in microseconds; disconnect: is called when the thread
        ends. Both use a client of the thread's own."""
        self._extend = extend
        self._disconnect = disconnect
        self._clock = clock
        self.after_fork()
        call_after_fork(self)

    def after_fork(self) -> None:
        """Holds nothing in a child process, see `lifetimes`: the thread is the parent's, and maybe the lock."""
        self._changed = threading.Condition()
        self._extensions: set[WindowExtension] = set()
        self._wakes_at = 0.0  # when the thread looks again without being notified
        self._thread: threading.Thread | None = None

    def add(self, extension: WindowExtension) -> None:
        """Extends the message until `discard`. Logs if there can be no thread for that, as at the interpreter's end."""
        with self._changed:
            self._extensions.add(extension)
            if self._thread is None:
                self._start()
            elif extension.due < self._wakes_at:  # most messages are done long before they are due, and wake nobody
                self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="qs-extending", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._extensions.clear()
            log("warning", f"the windows of messages are not extended while they are handled: {error}")
        else:
            self._thread = thread

    def discard(self, extension: WindowExtension) -> None:
        """Stops extending. A request that is under way goes on."""
        with self._changed:
            self._extensions.discard(extension)

    def _run(self) -> None:
        while (extension := self._next()) is not None:
            try:
                extension.extended(self._extend(extension))
            except Exception as error:  # whatever it is, other messages need the thread
                extension.failed(error)
            if extension.taken:
                self.discard(extension)

    def _next(self) -> WindowExtension | None:
        """Waits until a message is due, and returns it. Returns None when the thread has nothing to do any more."""
        changed = self._changed
        with changed:
            while True:
                now = self._clock()
                first = min(self._extensions, key=lambda extension: extension.due, default=None)
                if first is not None and first.due <= now:
                    return first
                self._wakes_at = now + _IDLE if first is None else first.due
                if not changed.wait(self._wakes_at - now) and first is None and not self._extensions:
                    self._disconnect()
                    self._thread = None
                    return None


class Handling:
    """The context manager of `QueueClient.handling`. taken_away: at the end another client had the message, or it could
    not be deleted: it is delivered again."""

    def __init__(
        self,
        message: Received,
        extender: Extender,
        exchange: Callable[[Exchange], Message],
        patience: float | None,
        without_reasons: set[str],
    ) -> None:
        """exchange: sends a request, and returns its answer; patience: as in `acknowledge`; without_reasons: as in
        `negative_acknowledge`."""
        self.taken_away = False
        self._message = message
        self._extension = WindowExtension(message)
        self._extender = extender
        self._exchange = exchange
        self._patience = patience
        self._without_reasons = without_reasons

    def __enter__(self) -> Received:
        self._extender.add(self._extension)
        return self._message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Settles the message. Swallows Reject and Retry alone: with one of these a job has said what becomes of its
        message, and nothing is wrong with the program."""
        self._extender.discard(self._extension)
        if error is None:
            self.taken_away = not drive(acknowledge(self._message, self._patience), self._exchange)
            return False
        # The caller has to see what the block has raised, not that the server is away as well.
        with contextlib.suppress(ServerError, OSError):
            self.taken_away = not drive(
                negative_acknowledge(self._message, error, self._without_reasons), self._exchange
            )
        return is_outcome(error)
