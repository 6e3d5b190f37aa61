"""An engine and the real package dirq on the same directory, and a clock that both could go by."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dirq.queue import Queue
from dirq.QueueSimple import QueueSimple

from qs_storage.directories import DirectoriesEngine, DirqEngine, DirqSimpleEngine
from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Message
from support.engines import LOTS

LAYOUTS: dict[str, type[DirectoriesEngine]] = {"dirq-simple": DirqSimpleEngine, "dirq": DirqEngine}
SCHEMA = {"body": "binary", "header": "table?"}


class PresentClock:
    """The time, and what the test has moved it on by: microseconds."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return time.time_ns() // 1000 + self.ahead


class Foreign:
    """Another program, with one interface to both of dirq's queues."""

    def __init__(self, layout: str, path: Path) -> None:
        self.layout = layout
        self.path = path
        self.queue: Any = QueueSimple(str(path)) if layout == "dirq-simple" else Queue(str(path), schema=SCHEMA)

    def add(self, payload: bytes, **others: Any) -> str:
        return str(self.queue.add(payload if self.layout == "dirq-simple" else {"body": payload, **others}))

    def payload(self, name: str) -> bytes:
        found = self.queue.get(name)
        return bytes(found if self.layout == "dirq-simple" else found["body"])

    def names(self) -> list[str]:
        return list(self.queue.names())

    def consume(self) -> list[bytes]:
        """Everything that can be locked, removed."""
        found = []
        for name in self.names():
            if self.queue.lock(name):
                found.append(self.payload(name))
                self.queue.remove(name)
        return found


def mid_of(name: str) -> int:
    return int(name.partition("/")[2], 16)


@dataclass
class Shared:
    """A root with the queue `q`, an engine over it, and another program at that queue."""

    layout: str
    root: Path
    clock: PresentClock
    engine: DirectoriesEngine
    foreign: Foreign

    def open(self, disk: Disk | None = None, clock: Callable[[], int] | None = None) -> DirectoriesEngine:
        """One more engine."""
        return LAYOUTS[self.layout](
            str(self.root), clock=clock or self.clock, durability=Durability.ALWAYS, disk=disk or Disk()
        )

    def push(self, *payloads: bytes, delay: int = 0) -> list[int]:
        mids = self.engine.queue("q").push([Draft(payload, delay) for payload in payloads])
        self.engine.commit()
        return mids

    def receive(self, count: int = 100, visibility: int | None = None) -> list[Message]:
        found = self.engine.receive(["q"], count, visibility, LOTS)
        self.engine.commit()
        return found


@contextmanager
def sharing(layout: str, root: Path) -> Iterator[Shared]:
    clock = PresentClock()
    foreign = Foreign(layout, root / "q")  # a directory of dirq, taken up in place
    shared = Shared(layout, root, clock, LAYOUTS[layout](str(root), clock=clock, durability=Durability.ALWAYS), foreign)
    yield shared
    shared.engine.close()
