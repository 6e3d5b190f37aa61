"""When the window of a message that is being handled is extended, by whom, and what becomes of the message in the end.
With servers on real sockets: tests/integration/test_client_handling.py."""

import logging
import queue
import threading
from collections.abc import Callable

import pytest

from qs_client import (
    BadRequest,
    Conflict,
    Delivery,
    Forbidden,
    Full,
    GetMessage,
    Message,
    NotFound,
    NotImplementedByServer,
    NotKnown,
    Reject,
    RejectMessage,
    ReleaseMessage,
    Retry,
    ServerError,
    ServerUnavailable,
    ShuttingDown,
    Stale,
    Unavailable,
    calls,
)
from qs_client.asking import Call, Exchange, drive
from qs_client.handling import Extender, WindowExtension, acknowledge, is_outcome, negative_acknowledge, reason_of
from qs_client.waiting import Lease
from qs_schemas.limits import REASON

LONGEST = 10.0
"""Seconds after which a test gives up."""

WALL = 1_760_000_000.0


def extension_of(message: Delivery | GetMessage, now: list[float]) -> WindowExtension:
    return WindowExtension(message, clock=lambda: now[0], wall_clock=lambda: WALL + now[0])


def leased(visibility: float, visible_at: int | None = None) -> GetMessage:
    """A message as a subscription with this window delivers it."""
    message = GetMessage("q", 5, visible_at=visible_at)
    message.lease = Lease(visibility)
    return message


def micros(seconds: float) -> int:
    return round((WALL + seconds) * 1_000_000)


@pytest.mark.parametrize(
    ("left", "first"),
    [
        (10.0, 5.0),  # half
        (600.0, 15.0),  # the clocks may differ
        (0.04, 0.05),  # no more than 20 a second
        (-3600.0, 1.0),  # they do differ
    ],
)
def test_window_reckoned_from_its_end(left: float, first: float) -> None:
    """The first extension is at half of what is left of the window by this machine's clock, within bounds."""
    extension = extension_of(Delivery(5, b"x", "q", 1, visible_at=micros(left)), [0.0])
    assert extension.due == pytest.approx(first)


def test_window_without_end() -> None:
    """Without an end in the answer, the server's default window of 30 s is assumed."""
    assert extension_of(Delivery(5, b"x", "q", 1), [7.0]).due == pytest.approx(22.0)


def test_window_of_the_subscription() -> None:
    """A subscription or a receive with `visibility` says how long the window is, whatever the clocks say. Only when it
    began is not known: if it seems to be over, it is extended soon."""
    now = [0.0]
    for message in (GetMessage("q", 5), Delivery(5, b"x", "q")):
        message.visible_at, message.lease = micros(3600), Lease(600.0)
        extension = extension_of(message, now)
        assert (extension.visibility, extension.due) == (600.0, 300.0)
    message.visible_at = micros(-3600)
    assert extension_of(message, now).due == 1.0
    now[0] = 310.0
    extension.extended(micros(-1))
    assert extension.due == 610.0


def test_window_that_began_earlier() -> None:
    """A message that was sent ahead has waited in this process: half of what is left of its window counts."""
    extension = extension_of(leased(60.0, visible_at=micros(10)), [0.0])
    assert extension.due == pytest.approx(5.0)


def test_extension_that_fails() -> None:
    """A lost connection is followed by another attempt; a message of somebody else's by none."""
    now = [0.0]
    extension = extension_of(Delivery(5, b"x", "q", 1), now)
    now[0] = 15.0
    extension.failed(ServerUnavailable("gone"))
    assert (extension.taken, extension.due) == (False, 16.0)
    for error in (Stale(409, "stale", "late"), NotFound(404, "not-found", "deleted")):
        extension = extension_of(Delivery(5, b"x", "q", 1), now)
        extension.failed(error)
        assert extension.taken


def test_extension_that_will_not_succeed(caplog: pytest.LogCaptureFixture) -> None:
    """An error that no waiting cures is logged once for a message; an outage is not."""
    extension = extension_of(Delivery(5, b"x", "q", 1), [0.0])
    for error in (ServerUnavailable("gone"), ShuttingDown(503, "shutting-down", "bye")):
        extension.failed(error)
    assert not caplog.records
    for _ in range(2):
        extension.failed(Forbidden(403, "forbidden", "no right"))
    assert [record.message for record in caplog.records] == [
        "the window of a message of 'q' could not be extended: Forbidden(403, 'forbidden', 'no right', None)"
    ]


def test_extender_survives_any_error() -> None:
    """An error of whatever kind for one message leaves the thread to the others."""
    extended: queue.SimpleQueue[WindowExtension] = queue.SimpleQueue()

    def extend(extension: WindowExtension) -> int:
        if extension is bad:
            raise ValueError("never mind")
        extended.put(extension)
        return 1

    extender = Extender(extend, lambda: None)
    bad, good = (WindowExtension(leased(0.1)) for _ in range(2))
    extender.add(bad)
    extender.add(good)
    assert extended.get(timeout=LONGEST) is good
    for extension in (bad, good):
        extender.discard(extension)


def test_extender_without_a_thread(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where no thread can be started, as at the interpreter's end, messages are handled and not extended."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    extender = Extender(lambda _: 1, lambda: None)
    extension = WindowExtension(Delivery(5, b"x", "q", 1))
    extender.add(extension)
    extender.discard(extension)
    assert "can't start new thread" in caplog.text


def test_extender_after_a_fork() -> None:
    """A child can end a block that began before the fork, though a thread of the parent held the lock."""
    extender = Extender(lambda _: 1, lambda: None)
    extender._thread = threading.current_thread()  # a child has none that runs
    extension = WindowExtension(Delivery(5, b"x", "q", 1))
    extender.add(extension)
    taken, let_go = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with extender._changed:
            taken.set()
            let_go.wait(LONGEST)

    thread = threading.Thread(target=hold_lock)
    thread.start()
    assert taken.wait(LONGEST)
    extender.after_fork()
    extender.discard(extension)
    assert thread.is_alive()
    let_go.set()
    thread.join()


@pytest.mark.parametrize(
    ("earlier", "error", "said"),
    [
        ([], NotFound(404, "not-found", "no such message"), "somebody else has deleted it"),
        ([], Stale(409, "stale", "late"), "it is delivered again"),
        ([ShuttingDown(503, "shutting-down", "bye")], NotFound(404, "not-found", ""), "somebody else has deleted it"),
        ([Unavailable(503, "unavailable", "away")], NotFound(404, "not-found", ""), "somebody else has deleted it"),
        ([NotKnown(503, "not-known", "maybe")], NotFound(404, "not-found", "no such message"), ""),
        ([ServerUnavailable("closed the connection")], NotFound(404, "not-found", "no such message"), ""),
        ([ServerUnavailable("closed the connection")], Stale(409, "stale", "late"), "it is delivered again"),
    ],
)
def test_acknowledge_outcomes(
    earlier: list[Exception], error: ServerError, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that is gone when it is deleted was taken away, unless an earlier request may have deleted it."""
    caplog.set_level(logging.INFO, "qs_client")
    call = acknowledge(Delivery(5, b"x", "q", 1), None)
    next(call)
    for each in earlier:
        call.throw(each)
    with pytest.raises(StopIteration):
        call.throw(error)
    assert len(caplog.records) == bool(said)
    assert said in caplog.text


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
def test_reason_of_exceptions(raised: Exception, reason: str | None) -> None:
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
def test_negative_acknowledge_where_no_reasons_are_kept(refusal: ServerError, caplog: pytest.LogCaptureFixture) -> None:
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


def test_negative_acknowledge_after_reject() -> None:
    """Reject makes the message a dead letter at once."""
    answers = Answering(None)
    assert drive(negative_acknowledge(LETTER, Reject("no such fruit"), set()), answers)
    assert answers.requests == [RejectMessage("q", 5, 2, "no such fruit")]


@pytest.mark.parametrize("delay", [None, 0, 60])
def test_negative_acknowledge_after_retry(delay: float | None) -> None:
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
def test_settled_message_is_left_alone(settle: Callable[[Delivery], Call[None]]) -> None:
    """A message that the job itself has deleted, released or rejected is left alone, whether it then raises or not: a
    delete would lose a message that was to come again."""
    message = Delivery(5, b"x", "q", 2)
    answers = Answering(None)
    drive(settle(message), answers)
    assert drive(acknowledge(message, None), answers)
    assert drive(negative_acknowledge(message, KeyError(), set()), answers)
    assert len(answers.requests) == 1


@pytest.mark.parametrize(
    ("others", "alone"), [([], True), ([Reject("nor that")], True), ([ExceptionGroup("", [KeyError()])], False)]
)
def test_negative_acknowledge_after_reject_in_a_group(others: list[Exception], alone: bool) -> None:
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
def test_negative_acknowledge_with_reject_refused(refusal: ServerError, caplog: pytest.LogCaptureFixture) -> None:
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
def test_negative_acknowledge_of_somebody_elses_message(raised: Exception, error: ServerError) -> None:
    """A message that somebody else has by then is left alone."""
    answers = Answering(error)
    assert not drive(negative_acknowledge(LETTER, raised, set()), answers)
    assert len(answers.requests) == 1


def test_negative_acknowledge_raises_other_errors() -> None:
    """An error that no release without a reason would cure is raised: `handling` ignores it beside that of the job."""
    with pytest.raises(Full):
        drive(negative_acknowledge(LETTER, KeyError(), set()), Answering(Full(507, "full", "")))
