"""Building blocks of calls: one request and its answer."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

from qs_schemas import Error, Message
from qs_schemas.checked import text

from .errors import InternalError, exception_for

TEXT = str | bytes | bytearray | memoryview
"""The types of a name. Bytes are UTF-8; the messages decode them and refuse any other type."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request whose answer is awaited. patience: seconds that the server may take beyond the client's timeout."""

    request: Message
    patience: float = 0.0

    def within(self, timeout: float | None) -> float | None:
        """Returns the seconds in which the answer has to come for a client with that timeout; None: no limit."""
        return None if timeout is None else timeout + self.patience


Call: TypeAlias = Generator[Exchange, Message, T]
"""A generator that yields exchanges, is sent their answers, and returns the call's value."""


def ask(request: M, patience: float = 0.0) -> Call[M]:
    """Sends a request and returns its answer. Raises the exception for an `Error`."""
    answer = yield Exchange(request, patience)
    if isinstance(answer, Error):
        raise exception_for(answer)
    return cast(M, answer)  # checked by the session


def queue_names(queues: str | Iterable[str]) -> list[str]:
    """Returns one name or several as a list. TypeError for anything that is not text."""
    return [text("a queue's name", queue) for queue in ([queues] if isinstance(queues, TEXT) else queues)]


def required(value: T | None, what: str) -> T:
    """Returns the value, or raises InternalError if the server's answer lacks it. what: the missing field's name."""
    if value is None:
        raise InternalError(500, "internal", f"the server's answer has no {what}")
    return value
