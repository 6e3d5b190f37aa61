"""A process that adds to, empties and purges a directory of dirq: `dirq_worker.py KIND LAYOUT NAME DIRECTORY SECONDS`.

KIND: `ours` or `original` (the package dirq 1.8). LAYOUT: `simple` or `schema`. The process stops after SECONDS and
prints JSON: `added` and `handled`, the payloads; `errors`, of the original package: it raises when another process
purges beside it. Our library may not.
"""

import itertools
import json
import random
import sys
import time
from typing import Any

DIRECTORIES = 4
"""Intermediate directories of the layout `simple`, of which one is in use at any time: so purges find empty ones all
the time."""
ELEMENTS = 6
"""Elements of an intermediate directory of the layout `schema`."""
SCHEMA = {"body": "string", "header": "table?"}


def any_directory(*_: object) -> str:
    return f"{random.randrange(DIRECTORIES):08x}"


def open_queue(kind: str, layout: str, directory: str, sync: bool) -> Any:
    if kind == "original":
        from dirq.queue import Queue as OriginalQueue  # type: ignore[import-untyped]
        from dirq.QueueSimple import QueueSimple as OriginalSimple  # type: ignore[import-untyped]

        OriginalSimple._add_dir = any_directory
        if layout == "simple":
            return OriginalSimple(directory)
        return OriginalQueue(directory, maxelts=ELEMENTS, schema=SCHEMA)
    from qs_storage.dirq import Queue, QueueSimple

    vars(sys.modules["qs_storage.dirq.QueueSimple"])["directory_of_now"] = any_directory
    if layout == "simple":
        return QueueSimple(directory, sync=sync)
    return Queue(directory, maxelts=ELEMENTS, schema=SCHEMA, sync=sync)


class Worker:
    def __init__(self, queue: Any, layout: str, name: str, tolerated: tuple[type[BaseException], ...]) -> None:
        self.queue, self.layout, self.name, self.tolerated = queue, layout, name, tolerated
        self.added: list[str] = []
        self.handled: list[str] = []
        self.errors: list[str] = []

    def tried(self, action: Any, *arguments: Any) -> Any:
        """Calls the action. Returns its result, None when it raised a tolerated error."""
        try:
            return action(*arguments)
        except self.tolerated as error:
            self.errors.append(f"{action.__name__}: {error}")
            return None

    def add(self, payload: str) -> None:
        data: Any = payload if self.layout == "simple" else {"body": payload, "header": {"from": self.name}}
        if self.tried(self.queue.add, data):
            self.added.append(payload)

    def handle(self, most: int) -> None:
        for name in itertools.islice(self.queue, most):
            if self.tried(self.queue.lock, name):
                found = self.queue.get(name)
                self.handled.append(found.decode() if self.layout == "simple" else found["body"])
                # When this fails, it does so after the element has gone.
                self.tried(self.queue.remove, name)

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        numbers = itertools.count()
        while time.monotonic() < end:
            for _ in range(random.randrange(4)):
                self.add(f"{self.name}-{next(numbers)}")
            self.tried(self.handle, random.randrange(6))
            if random.randrange(3) == 0:
                self.tried(self.queue.purge)
            self.tried(self.queue.count)


def main() -> None:
    kind, layout, name, directory, seconds = sys.argv[1:]
    queue = open_queue(kind, layout, directory, sync=name.endswith("0"))
    # Of two programs that choose a name in the same microsecond, the original takes the temporary file of the other one
    # for its own when it adds a string: it does not ask for a new file. So each has its own last digit.
    queue.rndhex = 2 * int(name[-1]) + (kind == "original")
    worker = Worker(queue, layout, name, (OSError, StopIteration) if kind == "original" else ())
    worker.run(float(seconds))
    print(json.dumps({"added": worker.added, "handled": worker.handled, "errors": worker.errors}))


if __name__ == "__main__":
    main()
