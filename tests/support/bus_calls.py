"""Requests to a bus and its server, and what is left in a queue, for tests of the real bus process."""

from collections.abc import Callable

from support.documents import mids, push, request
from support.serving import Wire

Connect = Callable[..., Wire]
"""Documents, each to be answered without an error -> a connection to the bus."""


def push_one(producer: Wire, qid: str, payload: str = "x") -> int:
    return mids(producer.ask(push(qid, payload)))[0]


def stored(producer: Wire, qid: str, state: str = "all") -> list[int]:
    return mids(producer.ask(request("list-messages", f"<qid>{qid}</qid>", state=state)))


def gone(producer: Wire, qid: str) -> bool:
    """Waits until the queue is empty."""
    producer.server.until(lambda: stored(producer, qid) == [])
    return True
