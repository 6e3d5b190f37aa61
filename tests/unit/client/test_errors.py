"""The exceptions of the clients: which of them mean that a request may be repeated later."""

import pickle

import pytest

from qs_client import (
    Conflict,
    Full,
    InternalError,
    NotKnown,
    RequestTimeout,
    ServerError,
    ServerUnavailable,
    ShuttingDown,
    TooMany,
    Unavailable,
)
from qs_client.errors import closes, exception_for, passes_by_itself
from qs_schemas import Error

LATER = {408: RequestTimeout, 429: TooMany, 503: ShuttingDown}


@pytest.mark.parametrize(("code", "kind"), LATER.items())
def test_answers_that_mean_not_now_are_unavailable(code: int, kind: type[ServerError]) -> None:
    """An answer that asks to come back later is a ServerUnavailable too, with the code, the text, and the same copy."""
    error = exception_for(Error(code, "later", "in a moment", resp="ab"))
    assert type(error) is kind
    assert isinstance(error, ServerUnavailable)
    copy = pickle.loads(pickle.dumps(error))
    for each in (error, copy):
        assert (each.code, each.type, each.text, each.resp) == (code, "later", "in a moment", "ab")
        assert str(each) == f"{code} later: in a moment"


@pytest.mark.parametrize(("type_", "kind"), [("unavailable", Unavailable), ("not-known", NotKnown)])
def test_answers_of_another_server_that_is_away(type_: str, kind: type[ServerError]) -> None:
    """The two answers about another server are errors that pass by themselves, and leave the connection open."""
    answer = Error(503, type_, "in a moment", req="a")
    error = exception_for(answer)
    assert type(error) is kind
    assert isinstance(error, ServerUnavailable)
    assert passes_by_itself(error)
    assert not closes(answer)
    assert closes(Error(503, "shutting-down", "bye", req="a"))
    assert closes(Error(503, type_, "for nobody"))


def test_exception_groups_split_by_unavailable() -> None:
    """`except* ServerUnavailable` takes exactly the errors that waiting cures from a group."""
    refused = [
        Conflict(409, "conflict", "it is there"),
        Full(507, "full", "no room"),
        InternalError(500, "internal", ""),
    ]
    later = [ShuttingDown(503, "shutting-down", "bye"), ServerUnavailable("gone")]
    taken, rest = ExceptionGroup("both", [*refused, *later]).split(ServerUnavailable)
    assert taken is not None
    assert rest is not None
    assert list(taken.exceptions) == later
    assert list(rest.exceptions) == refused
