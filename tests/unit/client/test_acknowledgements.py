"""Acknowledgements that go behind: which are open, and what becomes of each answer."""

import logging

import pytest

from qs_client import DeleteMessage, Error, Forbidden, Message
from qs_client.acknowledgements import Acknowledgements
from qs_client.waiting import Pending

STALE = (409, "stale")
NOT_FOUND = (404, "not-found")


def added(open_ones: Acknowledgements, mid: int, *, repeated: bool = False) -> Pending:
    pending = Pending(DeleteMessage("q", mid, 1))
    open_ones.add(pending, repeated=repeated)
    return pending


def answer(pending: Pending, *error: object) -> None:
    """Answers a request: with this code and kind, or as done."""
    reply: Message = DeleteMessage() if not error else Error(error[0], error[1], "so it is", req="qs-1")  # type: ignore[arg-type]
    pending.settle(reply)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_no_more_are_open_than_allowed() -> None:
    """There is room for as many as may be open, again when the oldest are answered, and none after the end."""
    behind = Acknowledgements(2)
    first, second = added(behind, 1), added(behind, 2)
    assert not behind.has_room
    answer(first)
    assert behind.has_room
    assert behind.last is second
    answer(second)
    assert behind.last is None
    behind.ended = True
    assert not behind.has_room


def test_none_may_be_open() -> None:
    """A subscription whose program waits for each has room for none."""
    behind = Acknowledgements(0)
    assert not behind.has_room
    assert behind.done


def test_taken_away(caplog: pytest.LogCaptureFixture) -> None:
    """A message that somebody else has, or that is gone, is counted and logged; the next ones are confirmed."""
    behind = Acknowledgements(10)
    for mid, error in ((1, STALE), (2, NOT_FOUND), (3, ())):
        answer(added(behind, mid), *error)
    behind.confirm()
    assert behind.taken_away == 2
    assert behind.done
    stale, gone = warnings(caplog)
    assert "message 1 of 'q' was taken away" in stale
    assert "message 2 of 'q' was taken away" in gone


def test_first_request_had_deleted_it(caplog: pytest.LogCaptureFixture) -> None:
    """A message that is gone when its acknowledgement is repeated was deleted by the first one; one that somebody has
    received again was taken away."""
    behind = Acknowledgements(10)
    answer(added(behind, 1, repeated=True), *NOT_FOUND)
    answer(added(behind, 2, repeated=True), *STALE)
    behind.confirm()
    assert behind.taken_away == 1
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("code", [503, 408])
def test_answer_that_ends_the_connection(code: int) -> None:
    """An answer with which the connection ends leaves an acknowledgement open, to be written again, in order."""
    behind = Acknowledgements(10)
    first = added(behind, 1)
    added(behind, 2)
    answer(first, code, "shutting-down")
    behind.confirm()
    assert not behind.done
    assert [(request.qid, request.mid, request.receives) for request in behind.take()] == [("q", 1, 1), ("q", 2, 1)]
    assert behind.done


@pytest.mark.parametrize("kind", ["unavailable", "not-known"])
def test_answer_that_another_server_is_away(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """An acknowledgement that the queue's own server could not take is kept, takes room, and is written again once; a
    message that is gone then was deleted by the first request."""
    behind = Acknowledgements(1)
    answer(added(behind, 1), 503, kind)
    behind.confirm()
    assert not behind.done
    assert not behind.has_room
    assert [request.mid for request in behind.take_refused()] == [1]
    assert behind.take_refused() == []
    answer(added(behind, 1, repeated=True), *NOT_FOUND)
    assert behind.done
    assert not warnings(caplog)


def test_other_errors_are_raised_once() -> None:
    """An answer of any other kind is raised, and the next ones are looked at afterwards."""
    behind = Acknowledgements(10)
    answer(added(behind, 1), 403, "forbidden")
    answer(added(behind, 2), *STALE)
    with pytest.raises(Forbidden):
        behind.confirm()
    behind.confirm()
    assert behind.taken_away == 1


def test_finish_says_what_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    """At the end, errors that nobody was told and the number of open ones are logged, once."""
    behind = Acknowledgements(10)
    answer(added(behind, 1), 403, "forbidden")
    added(behind, 2)
    added(behind, 3)
    behind.finish()
    behind.finish()
    refused, unknown = warnings(caplog)
    assert "403 forbidden" in refused
    assert "2 messages were handled" in unknown
    assert behind.done


def test_forgotten_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """In a child process nothing is open, and nothing is said."""
    behind = Acknowledgements(10)
    added(behind, 1)
    behind.forget()
    behind.finish()
    assert behind.take() == []
    assert not warnings(caplog)
