"""Counts the Python calls that requests of the sync client take."""

import sys
from collections.abc import Callable
from types import FrameType

from qs_client import QueueClient

_TIMES = 20
"""Rounds of which the cheapest counts: an answer that comes late costs a further read."""


def calls_of(work: Callable[[], object]) -> int:
    """Returns how many Python functions are called, at least."""
    counts: list[int] = []

    def seen(_frame: FrameType, event: str, _argument: object) -> None:
        counts[-1] += event == "call"

    for _ in range(_TIMES):
        counts.append(-1)  # that of `work` itself
        sys.setprofile(seen)
        try:
            work()
        finally:
            sys.setprofile(None)
    return min(counts)


def test_a_push(client: QueueClient, qid: str) -> None:
    """A push and its answer are at most 27 calls."""
    assert calls_of(lambda: client.push(qid, "x")) <= 27


def test_pushes_together(client: QueueClient, qid: str) -> None:
    """A push in a pipeline is at most 32 calls, and one in a list at most 4."""

    def pipelined() -> None:
        with client.pipeline() as batch:
            for _ in range(500):
                batch.push(qid, "x")

    assert calls_of(pipelined) <= 32 * 500
    assert calls_of(lambda: client.push_many(qid, ["x"] * 500)) <= 4 * 500


def test_a_receive(client: QueueClient, qid: str) -> None:
    """A receive that finds nothing is at most 45 calls, of several queues 107; one of a message and its delete 79."""
    assert calls_of(lambda: client.receive(qid)) <= 45
    assert calls_of(lambda: client.receive([qid])) <= 107
    client.push_many(qid, ["x"] * _TIMES)

    def receive_and_delete() -> None:
        [message] = client.receive(qid)
        client.delete(message)

    assert calls_of(receive_and_delete) <= 79
