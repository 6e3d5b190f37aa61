"""When the window of a message that is being handled is extended, by whom, and what its end means. With servers on real
sockets: tests/integration/test_client_handling.py."""

import logging
import queue
import threading

import pytest

from qs_client import (
    Delivery,
    Forbidden,
    GetMessage,
    NotFound,
    ServerError,
    ServerUnavailable,
    ShuttingDown,
    Stale,
)
from qs_client.handling import Extender, WindowExtension, acknowledge
from qs_client.waiting import Lease

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
        ([ServerUnavailable("closed the connection")], NotFound(404, "not-found", "no such message"), ""),
        ([ServerUnavailable("closed the connection")], Stale(409, "stale", "late"), "it is delivered again"),
    ],
)
def test_end_of_a_message(
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
