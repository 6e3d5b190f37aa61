"""What `handling` does with a message whose job raised: the reason that it sends, and what it does when the server does
not take it."""

import logging
from collections.abc import Callable

import pytest

from qs_client import (
    BadRequest,
    Conflict,
    Delivery,
    Full,
    Message,
    NotFound,
    NotImplementedByServer,
    Reject,
    RejectMessage,
    ReleaseMessage,
    Retry,
    ServerError,
    Stale,
    calls,
)
from qs_client.asking import Call, Exchange, drive
from qs_client.handling import acknowledge, is_outcome, negative_acknowledge, reason_of
from qs_schemas.limits import REASON

LETTER = Delivery(5, b"x", "q", 2)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (ValueError("no number"), "ValueError: no number"),
        (KeyError(), "KeyError"),
        (Reject("no such fruit"), "no such fruit"),
        (Reject(), None),
        (Retry("no quota", delay=60), "no quota"),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
        (ValueError("a\0b\x1b\udcffc\ufffe"), "ValueError: a\ufffdb\ufffd\ufffdc\ufffd"),
        (UnprintableError(), "UnprintableError: (its text cannot be had)"),
        (
            ExceptionGroup("two", [KeyError("a"), ExceptionGroup("", [Reject("b"), KeyError()])]),
            "KeyError: 'a'; b; KeyError",
        ),
        (ExceptionGroup("many", [KeyError() for _ in range(REASON)]), ("KeyError; " * REASON)[:REASON]),
        (Reject("ä" * REASON), "ä" * (REASON // 2)),
        (Reject("a" + "ä" * REASON), "a" + "ä" * (REASON // 2 - 1)),
    ],
)
def test_reason(raised: Exception, reason: str | None) -> None:
    """The reason is type and text of the exception, as far as XML can carry it and 1 KiB holds whole characters."""
    assert reason_of(raised) == reason


class Answering:
    """Answers requests as a list says, where None stands for success, and keeps them."""

    def __init__(self, *answers: ServerError | None) -> None:
        self._answers = list(answers)
        self.requests: list[Message] = []

    def __call__(self, exchange: Exchange) -> Message:
        self.requests.append(exchange.request)
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer
        return exchange.request


@pytest.mark.parametrize("refusal", [NotImplementedByServer(501, "not-implemented", ""), BadRequest(400, "bad", "")])
def test_reasons_that_are_not_kept(refusal: ServerError, caplog: pytest.LogCaptureFixture) -> None:
    """Where the storage keeps no reasons, or an older server knows none, the message is released without one; that
    queue is not asked again, another one is, and nothing is logged."""
    without: set[str] = set()
    answers = Answering(refusal, None, None, None)
    for message in (LETTER, LETTER, Delivery(6, b"x", "other", 1)):
        assert drive(negative_acknowledge(message, KeyError(), without), answers)
    assert answers.requests == [
        ReleaseMessage("q", 5, 2, reason="KeyError"),
        ReleaseMessage("q", 5, 2),
        ReleaseMessage("q", 5, 2),
        ReleaseMessage("other", 6, 1, reason="KeyError"),
    ]
    assert not caplog.records


def test_reject() -> None:
    """Reject makes the message a dead letter at once."""
    answers = Answering(None)
    assert drive(negative_acknowledge(LETTER, Reject("no such fruit"), set()), answers)
    assert answers.requests == [RejectMessage("q", 5, 2, "no such fruit")]


@pytest.mark.parametrize("delay", [None, 0, 60])
def test_retry(delay: float | None) -> None:
    """Retry releases the message with its delay, also of 0, and its text; None leaves it to the queue's back-off. The
    caller sees nothing of it."""
    answers = Answering(None)
    retry = Retry("no quota", delay=delay)
    assert drive(negative_acknowledge(LETTER, ExceptionGroup("tasks", [retry]), set()), answers)
    assert answers.requests == [ReleaseMessage("q", 5, 2, delay, reason="no quota")]
    assert is_outcome(retry)
    with pytest.raises(ValueError, match="delay"):
        Retry(delay=-1)


@pytest.mark.parametrize("settle", [calls.delete, calls.release, calls.reject])
def test_message_that_the_job_has_settled(settle: Callable[[Delivery], Call[None]]) -> None:
    """What the job itself has deleted, released or rejected is left alone, whether it then raises or not: a delete
    would lose a message that was to come again."""
    message = Delivery(5, b"x", "q", 2)
    answers = Answering(None)
    drive(settle(message), answers)
    assert drive(acknowledge(message, None), answers)
    assert drive(negative_acknowledge(message, KeyError(), set()), answers)
    assert len(answers.requests) == 1


@pytest.mark.parametrize(
    ("others", "alone"), [([], True), ([Reject("nor that")], True), ([ExceptionGroup("", [KeyError()])], False)]
)
def test_reject_in_a_group(others: list[Exception], alone: bool) -> None:
    """A Reject that a task group raises, in a group, is one; what else the group holds goes on to the caller."""
    group = ExceptionGroup("tasks", [Reject("no such fruit"), *others])
    answers = Answering(None)
    assert drive(negative_acknowledge(LETTER, group, set()), answers)
    [reject] = answers.requests
    assert isinstance(reject, RejectMessage)
    assert (reject.reason or "").startswith("no such fruit")
    assert is_outcome(group) == alone


@pytest.mark.parametrize(
    "refusal",
    [Conflict(409, "conflict", "no dead-letter queue"), NotImplementedByServer(501, "not-implemented", "no such")],
)
def test_reject_that_is_refused(refusal: ServerError, caplog: pytest.LogCaptureFixture) -> None:
    """A message that cannot become a dead letter is released with the reason, and the log says why it comes again."""
    caplog.set_level(logging.INFO, "qs_client")
    answers = Answering(refusal, None)
    assert drive(negative_acknowledge(LETTER, Reject("no such fruit"), set()), answers)
    assert answers.requests[1:] == [ReleaseMessage("q", 5, 2, reason="no such fruit")]
    assert [record.message for record in caplog.records] == [
        f"message 5 of 'q' could not be rejected, so it comes again: {refusal}"
    ]


@pytest.mark.parametrize("raised", [KeyError(), Reject("no such fruit")])
@pytest.mark.parametrize("error", [Stale(409, "stale", "late"), NotFound(404, "not-found", "gone")])
def test_message_of_somebody_else(raised: Exception, error: ServerError) -> None:
    """A message that somebody else has by then is left alone."""
    answers = Answering(error)
    assert not drive(negative_acknowledge(LETTER, raised, set()), answers)
    assert len(answers.requests) == 1


def test_other_errors_are_raised() -> None:
    """What no release without a reason would cure is raised, for `handling` to ignore beside what the job raised."""
    with pytest.raises(Full):
        drive(negative_acknowledge(LETTER, KeyError(), set()), Answering(Full(507, "full", "")))
