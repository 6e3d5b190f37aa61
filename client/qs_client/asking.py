"""The building blocks of calls: a request and its answer, the driver of a call, and the method that is made of it."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, get_args, get_origin

from qs_schemas import Error, Message
from qs_schemas.checked import text
from qs_schemas.limits import REASON

from .backoff import delays
from .errors import InternalError, NoAnswer, NotKnown, ServerError, ServerUnavailable, exception_for, passes_by_itself
from .waiting import Lease

TEXT = str | bytes | bytearray | memoryview
"""The types of a name. Bytes are UTF-8; the messages decode them and refuse any other type."""
T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(slots=True)  # not frozen: that would double the time of making one, and each request has one
class Exchange:
    """A request whose answer is awaited. patience: seconds that the server may take beyond the client's timeout,
    because the request asks it to wait; pause: seconds to wait before sending the request; lease: of the message that
    the request acknowledges. If that is of a subscription whose acknowledgements go behind, the request is only
    written, and takes the place of its answer."""

    request: Message
    patience: float = 0.0
    pause: float = 0.0
    lease: Lease | None = None

    def within(self, timeout: float | None) -> float | None:
        """Returns the seconds in which the answer has to come for a client with that timeout; None: no limit."""
        return None if timeout is None else timeout + self.patience


Call: TypeAlias = Generator[Exchange, Message, T]
"""A generator that yields exchanges, is sent their answers, and returns the call's value."""


def ask(request: M, patience: float = 0.0, lease: Lease | None = None) -> Call[M]:
    """Sends a request and returns its answer. Raises the exception for an `Error`."""
    answer = yield Exchange(request, patience, lease=lease)
    if isinstance(answer, Error):
        raise exception_for(answer)
    return answer  # type: ignore[return-value] # the session has checked that it is of the request's kind


REPEAT_FOR = 20.0
"""Seconds of pauses between the attempts of a request that repeats itself: a restart of the server takes less. With the
timeouts of its attempts it stays far below the 5 minutes for which the server remembers a key."""

_MOST_ATTEMPTS = 5
"""Attempts that may end without an answer in time: each takes the client's timeout, of 30 seconds by default."""


def ask_until_answered(
    request: M,
    patience: float | None = None,
    unanswered: list[ServerUnavailable] | None = None,
    lease: Lease | None = None,
) -> Call[M]:
    """Sends a request that is safe to repeat, again after each error that passes by itself, and returns its answer.
    Raises the last error when the pauses took `patience` seconds in all (None: `REPEAT_FOR`).

    Safe are a push with a key, which the server stores once, and a delete with the count of receives, which removes no
    message that has been received again since.

    unanswered: gets the errors after which it is not known whether the server has carried out the request; lease: as
    in `Exchange`.
    """
    pauses, pause, timeouts = delays(), 0.0, 0
    left = REPEAT_FOR if patience is None else patience
    while True:
        try:
            answer = yield Exchange(request, pause=pause, lease=lease)
            if isinstance(answer, Error):
                raise exception_for(answer)
            return answer  # type: ignore[return-value] # see `ask`
        except ServerUnavailable as error:
            timeouts += isinstance(error, NoAnswer)
            if not passes_by_itself(error) or left <= 0 or timeouts == _MOST_ATTEMPTS:
                raise
            # An answer of the server, such as `Unavailable`, says that the request has changed nothing. No answer says
            # nothing, nor does `NotKnown`.
            if unanswered is not None and (isinstance(error, NotKnown) or not isinstance(error, ServerError)):
                unanswered.append(error)
            pause = next(pauses)
            left -= pause


def queue_names(queues: str | Iterable[str]) -> list[str]:
    """Returns one name or several as a list. Raises TypeError for a value that is not text."""
    return [text("a queue's name", queue) for queue in ([queues] if isinstance(queues, TEXT) else queues)]


def required(value: T | None, what: str) -> T:
    """Returns the value, or raises InternalError if the server's answer lacks it. what: the missing field's name."""
    if value is None:
        raise InternalError(500, "internal", f"the server's answer has no {what}")
    return value


def checked_reason(reason: str | None) -> str | None:
    """Checks the reason of a release or a reject and returns it; None stays None. Raises ValueError, TypeError."""
    if reason is not None and (size := len(text("reason", reason).encode())) > REASON:
        raise ValueError(f"reason has {size} bytes of UTF-8; at most {REASON} are kept with a message")
    return reason


# -- drivers ----------------------------------------------------------------------------------------------------------


# Only Exception is thrown into a call: an interrupt or a cancellation is no answer, and ends the call where it waits.


def drive(call: Call[T], exchange: Callable[[Exchange], Message]) -> T:
    """Runs the call and returns its value."""
    try:
        wanted = next(call)
        while True:
            try:
                answer = exchange(wanted)
            except Exception as error:
                wanted = call.throw(error)
            else:
                wanted = call.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


async def drive_async(call: Call[T], exchange: Callable[[Exchange], Awaitable[Message]]) -> T:
    """Runs the call with an async exchange and returns its value."""
    try:
        wanted = next(call)
        while True:
            try:
                answer = await exchange(wanted)
            except Exception as error:
                wanted = call.throw(error)
            else:
                wanted = call.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


# -- methods ----------------------------------------------------------------------------------------------------------


def copy_signature(
    method: Callable[..., Any],
    call: Callable[..., Any],
    owner: str,
    *,
    iterator: Any = Iterator,
    returns: Any = None,
) -> None:
    """Gives a method the name, docstring, parameters and return type of its call.

    owner: the name of the method's class; iterator: replaces the return type of a paged call; returns: the return type,
    where the call does not tell. The call's annotations must be objects, not strings.
    """
    # For help() and for tools that look at the running program. Type checkers read the annotations of `_method`.
    functools.update_wrapper(method, call)
    signature = inspect.signature(call)
    if returns is None:
        given = get_args(signature.return_annotation)  # Generator[yield, send, return]
        returns = given[2] if given[2] is not type(None) else None
        if get_origin(given[1]) is list:  # a paged call: the method iterates over the entries
            returns = iterator[get_args(given[1])[0]]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[this, *signature.parameters.values()], return_annotation=returns
    )
    method.__qualname__ = f"{owner}.{call.__name__}"
    method.__annotations__ = {**call.__annotations__, "return": returns}
