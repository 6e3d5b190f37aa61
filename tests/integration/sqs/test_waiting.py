"""Waiting for messages at SQS, with long polls."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.storage.sqs import (
    HASTY,
    LONG,
    FaultySqs,
    Seen,
    SqsServer,
    in_thread,
    mids,
    push,
    receive,
    sqs_engine,
    url_of,
    wait,
)

from qs_storage.engine import Options, Receipt
from qs_storage.remote.sqs import SqsEngine


@pytest.mark.parametrize("qids", [["q"], ["r", "q"]])
def test_wait(engine: SqsEngine, proxy: FaultySqs, qids: list[str]) -> None:
    """A waiting receive gets the message when it comes, from any of the queues."""
    engine.create("r", Options())
    seen = Seen(proxy, "ReceiveMessage")
    waiting = in_thread(lambda: wait(engine, *qids))
    assert seen.event.wait(LONG)
    [mid] = push(engine, b"x")
    assert mids(waiting()) == [mid]
    engine.queue("q").delete(Receipt(mid, 1))


def test_wait_for_what_is_there(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A receive does not wait for messages that are there, even if one call does not return all of them."""
    pushed = push(engine, *[b"x"] * 25)
    assert mids(wait(engine, count=20)) == pushed[:20]
    assert mids(wait(engine, count=20)) == pushed[20:]
    assert wait(engine, seconds=0) == []


def test_wait_in_vain(engine: SqsEngine, proxy: FaultySqs) -> None:
    """Without a message it ends when its time is over, not before, and has asked once."""
    seen = Seen(proxy, "ReceiveMessage")
    start = time.monotonic()
    assert wait(engine, seconds=0.2) == []
    assert time.monotonic() - start >= 0.2
    assert seen.polls == 1


def test_wait_in_vain_beside_a_poll(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A receive that joins a running poll of 20 s makes no call, and does not wait for its end."""
    seen, stop = Seen(proxy, "ReceiveMessage"), threading.Event()
    waiting = in_thread(lambda: wait(engine, stop=stop))
    assert seen.event.wait(LONG)
    stop.set()
    assert waiting() == []
    start = time.monotonic()
    assert wait(engine, seconds=0.2) == wait(engine, seconds=0.2) == []
    assert 0.4 <= time.monotonic() - start < LONG / 2
    assert seen.polls == 1
    pushed = push(engine, b"x")  # ends it
    assert mids(wait(engine)) == pushed


def test_wait_goes_on_with_the_poll_that_was_left(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A message that comes to the poll of an earlier receive goes to the one that waits now."""
    seen = Seen(proxy, "ReceiveMessage")
    assert wait(engine, seconds=0.05) == []
    assert seen.event.wait(LONG)
    [mid] = push(engine, b"x")
    found = wait(engine)
    assert [(message.mid, message.payload) for message in found] == [(mid, b"x")]


def test_stop(engine: SqsEngine, proxy: FaultySqs) -> None:
    """A stopped receive ends at once; a message that comes to its poll is given back."""
    polling, stop = Seen(proxy, "ReceiveMessage"), threading.Event()
    waiting = in_thread(lambda: wait(engine, stop=stop))
    assert polling.event.wait(LONG)
    start = time.monotonic()
    stop.set()
    assert waiting() == []
    assert time.monotonic() - start < LONG / 2
    given_back = threading.Event()
    proxy.after = lambda operation, _: given_back.set() if operation == "ChangeMessageVisibilityBatch" else None
    [mid] = push(engine, b"x")
    assert given_back.wait(LONG)
    [message] = receive(engine)
    assert (message.mid, message.receives) == (mid, 2)


def test_stopped_before(engine: SqsEngine) -> None:
    """A receive that is stopped before it begins takes no message."""
    [mid] = push(engine, b"x")
    stop = threading.Event()
    stop.set()
    assert wait(engine, seconds=5, stop=stop) == []
    assert mids(wait(engine, seconds=5)) == [mid]


def test_close_with_a_poll_that_gets_a_message(engine: SqsEngine, proxy: FaultySqs, other: Any) -> None:
    """Closing waits for a poll that was left and may be getting a message which was just released: it is given back,
    and not hidden for the length of its window."""
    seen, ended = Seen(proxy, "ReceiveMessage"), threading.Event()
    [mid] = push(engine, b"x")
    [message] = receive(engine)
    assert wait(engine, seconds=0.05) == []
    assert seen.event.wait(LONG)
    proxy.after = lambda operation, _: ended.wait(1) if operation == "ReceiveMessage" else None
    engine.queue("q").release(Receipt(mid, message.receives), 0)
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "sqs poll q"]
    ended.set()
    [again] = other.receive_message(QueueUrl=url_of(engine), WaitTimeSeconds=LONG)["Messages"]
    assert again["Body"] == "x"


def test_close_with_a_poll_that_was_left(tmp_path: Path, server: SqsServer) -> None:
    """Closing waits for polls that nobody waits for, for a moment."""
    engine = sqs_engine(tmp_path, server.url, policy=replace(HASTY, leave=LONG))
    engine.create("left", Options())
    assert wait(engine, "left", seconds=0.05) == []
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "sqs poll left"]
