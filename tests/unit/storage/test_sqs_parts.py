"""The parts of the storage `sqs` that need no endpoint: names, arguments, receipts, and the end of a long poll."""

import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.storage.engines import ManualClock
from support.storage.sqs import HASTY, LONG, sqs_engine

from qs_storage.engine import (
    SECOND,
    NoSuchMessageError,
    Receipt,
    RemoteError,
    StaleReceiptError,
    StorageError,
)
from qs_storage.remote.sqs import LongPolls
from qs_storage.remote.sqs_calls import Received, name_at_sqs, qid_of
from qs_storage.remote.sqs_queue import InFlight, Receipts, SqsQueue


@pytest.mark.parametrize(
    ("qid", "name"),
    [
        ("orders", "orders"),
        ("my_queue-1", "my_queue-1"),
        ("a/b", "a_x2Fb"),
        ("a.fifo", "a_x2Efifo"),
        ("ü", "_xC3_xBC"),
        ("a_x2Fb", "a_x5Fx2Fb"),
        ("_x", "_x"),
        ("_x2f", "_x2f"),
    ],
)
def test_name_at_sqs(qid: str, name: str) -> None:
    """A name is taken as it is where SQS allows it, and is escaped where not, or where it looks like an escaped one."""
    assert name_at_sqs(qid, "") == name
    assert name_at_sqs(qid, "p-") == f"p-{name}"


@given(st.text(alphabet="_x2F5CA/ü\U0001f41f-", min_size=1, max_size=5))
def test_names_at_sqs_are_different(qid: str) -> None:
    """SQS allows every name, and it can be read back: no two queues have the same."""
    name = name_at_sqs(qid, "")
    assert re.fullmatch("[A-Za-z0-9_-]{1,80}", name)
    groups = re.sub(b"_x([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), name.encode())
    assert groups.decode() == qid
    assert (qid_of(name, ""), qid_of(name_at_sqs(qid, "p_"), "p_")) == (qid, qid)


@pytest.mark.parametrize("name", ["orders", "p-", "p-_x41", "p-_xFF", "p-_x0A", "p-_xC2_x80"])
def test_names_of_others(name: str) -> None:
    """Names that this server would not have given are those of no queue here."""
    assert qid_of(name, "p-") is None


@pytest.mark.parametrize("prefix", ["a/", "x" * 80, "a.b", "a\n"])
def test_bad_prefix(tmp_path: Path, prefix: str) -> None:
    """A prefix that no name can begin with is refused."""
    with pytest.raises(StorageError, match="the prefix of names at SQS is"):
        sqs_engine(tmp_path, None, prefix=prefix)


@pytest.mark.parametrize("endpoint", ["localhost:9324", "ftp://a", "http://", "http://a:b", "http://[::1", ""])
def test_bad_endpoint(tmp_path: Path, endpoint: str) -> None:
    """An endpoint that is not a URL is refused."""
    with pytest.raises(StorageError, match="the endpoint of SQS is a URL like"):
        sqs_engine(tmp_path, endpoint)


# -- receipts


def test_receipts_are_bounded() -> None:
    """A bounded number of messages is remembered; those whose window ended long ago make room."""
    clock = ManualClock()
    receipts = Receipts(clock, most=2)
    for number in (1, 2):
        receipts.add("q", number, InFlight(f"m{number}", "handle", 1, clock.now + 10 * SECOND))
    with pytest.raises(RemoteError, match="2 messages of SQS are in flight through this server"):
        receipts.room()
    clock.now += 69 * SECOND
    with pytest.raises(StaleReceiptError):
        receipts.find("q", Receipt(1))
    clock.now += 2 * SECOND
    assert receipts.room() == 2
    assert receipts.expired("q") == 2
    with pytest.raises(NoSuchMessageError):
        receipts.find("q", Receipt(1))


def test_receipts_with_the_same_id() -> None:
    """Two messages of one id are told apart while they are in flight, and keep what they have."""
    clock = ManualClock()
    receipts = Receipts(clock)
    held = [InFlight(name, f"handle {name}", 1, clock.now + SECOND) for name in "abc"]
    assert [receipts.add("q", 7, each) for each in held] == [7, 8, 9]
    again = InFlight("b", "new handle", 1, clock.now + SECOND)
    assert receipts.add("q", 7, again) == 8
    assert receipts.find("q", Receipt(8, 2)) is again
    assert not receipts.drop("q", 8, held[1])
    assert receipts.drop("q", 8, again)
    assert receipts.find("q", Receipt(9, 1)) is held[2]


# -- long polls


class Stopping:
    """A queue at SQS that gets a message just when the receiver is told to stop."""

    qid = "q"
    shown = 0.0

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.given_back: list[Received] = []

    def receive(self, window: int, count: int, wait: int) -> list[Received]:
        self.stop.set()
        return [MESSAGE]

    def give_back(self, messages: Sequence[Received]) -> None:
        self.given_back += messages


MESSAGE = Received("q", "id", "handle", 1, 1, 0, b"x", 0)


def test_stop_just_when_a_message_comes() -> None:
    """A message that comes at the moment of the stop is given back."""
    queue, polls = Stopping(), LongPolls(HASTY)
    assert polls.wait({cast(SqsQueue, queue): 30}, 10, time.monotonic() + LONG, queue.stop) == []
    polls.close()
    assert queue.given_back == [MESSAGE]
