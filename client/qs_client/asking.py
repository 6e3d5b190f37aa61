"""One question of a call, and its answer."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

from qs_schemas import Error, Message
from qs_schemas.checked import text

from .errors import InternalError, exception_for

TEXT = str | bytes | bytearray | memoryview
"""What a name may be given as. Bytes are UTF-8; the messages decode them, and refuse any other type."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request whose answer is wanted. patience: seconds that the server may take beyond the client's timeout."""

    request: Message
    patience: float = 0.0

    def within(self, timeout: float | None) -> float | None:
        """Seconds in which the answer has to come, for a client with that timeout; None for ever."""
        return None if timeout is None else timeout + self.patience


Call: TypeAlias = Generator[Exchange, Message, T]
"""Yields exchanges, is sent their answers, returns the value."""


def ask(request: M, patience: float = 0.0) -> Call[M]:
    answer = yield Exchange(request, patience)
    if isinstance(answer, Error):
        raise exception_for(answer)
    return cast(M, answer)  # the session has seen to it that an answer is its request's kind of message


def queue_names(queues: str | Iterable[str]) -> list[str]:
    """One name, or several, as a list. TypeError for anything that is no text."""
    return [text("a queue's name", queue) for queue in ([queues] if isinstance(queues, TEXT) else queues)]


def required(value: T | None, what: str) -> T:
    if value is None:
        raise InternalError(500, "internal", f"the server's answer has no {what}")
    return value
