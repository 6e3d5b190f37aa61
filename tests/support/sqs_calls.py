"""Calls of an SQS engine, as the tests of it make them."""

import threading
from collections.abc import Callable
from typing import Any

from qs_storage.engine import Draft, Message
from qs_storage.remote.sqs import SqsEngine
from qs_storage.vsqs import micros
from support.engines import LOTS
from support.sqs_serving import FaultySqs

LONG = 20
"""Seconds: only a failure waits that long."""


class LateClock:
    """The time, and so much more."""

    ahead = 0

    def __call__(self) -> int:
        return micros() + self.ahead


def url_of(engine: SqsEngine, qid: str = "q") -> str:
    return engine.queue(qid)._url or ""


def push(engine: SqsEngine, *payloads: bytes, qid: str = "q", delay: int = 0) -> list[int]:
    return engine.queue(qid).push([Draft(payload, delay) for payload in payloads])


def receive(
    engine: SqsEngine, *qids: str, count: int = 100, visibility: int | None = None, room: int = LOTS
) -> list[Message]:
    return engine.receive(qids or ["q"], count, visibility, room)


def wait(
    engine: SqsEngine, *qids: str, count: int = 100, seconds: float = LONG, stop: threading.Event | None = None
) -> list[Message]:
    return engine.receive(qids or ["q"], count, None, LOTS, wait=seconds, stop=stop)


def mids(messages: list[Message]) -> list[int]:
    return [message.mid for message in messages]


class Seen:
    """Tells when an operation reaches SQS."""

    def __init__(self, proxy: FaultySqs, wanted: str) -> None:
        self.polls = 0
        self.event = threading.Event()
        self._wanted = wanted
        proxy.before = self

    def __call__(self, operation: str, parameters: dict[str, Any]) -> None:
        self.polls += bool(parameters.get("WaitTimeSeconds"))
        if operation == self._wanted and (operation != "ReceiveMessage" or parameters.get("WaitTimeSeconds")):
            self.event.set()


def in_thread(call: Callable[[], list[Message]]) -> Callable[[], list[Message]]:
    """Starts it; gives what gives its result."""
    found: list[list[Message]] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()

    def result() -> list[Message]:
        thread.join(LONG)
        [messages] = found
        return messages

    return result
