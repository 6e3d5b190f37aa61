"""One question of a call, and its answer."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

from qs_schemas import Error, Message

from .errors import InternalError, exception_for

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


def given(value: T | None, what: str) -> T:
    if value is None:
        raise InternalError(500, "internal", f"the server's answer has no {what}")
    return value
