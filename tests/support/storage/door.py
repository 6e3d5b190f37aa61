"""Engines with a queue whose schema refuses payloads, and the programs that put messages into its directory."""

import os
from collections.abc import Callable
from pathlib import Path

import dirq.queue as original_queue  # type: ignore[import-untyped]
from dirq.QueueSimple import QueueSimple  # type: ignore[import-untyped]

from qs_storage.directories import DirectoriesEngine, DirqEngine, DirqSimpleEngine, FilesEngine, JournalEngine
from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Draft, Durability, Options, State, StorageError
from support.storage.engines import ManualClock

KINDS: dict[str, type[DirectoriesEngine]] = {
    "journal": JournalEngine,
    "files": FilesEngine,
    "dirq-simple": DirqSimpleEngine,
    "dirq": DirqEngine,
}


class Checks:
    """A checker of payloads: the schema `NAME` refuses those that contain NAME. Records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.missing = False
        """Whether there are no schemas."""
        self.before: Callable[[], object] = lambda: None
        """Called before each check."""

    def __call__(self, qid: str, options: Options, payload: bytes) -> str | None:
        assert options.schema
        self.asked.append(payload)
        self.before()
        if self.missing:
            raise StorageError(f"there is no schema {options.schema!r}")
        refused = options.schema.encode() in payload
        return f"the schema {options.schema!r} refuses it: line 3, element 'a':\nno" if refused else None


class DoorCase:
    """A root with a queue `q`, whose schema refuses what contains `bad`, and the engine on it."""

    def __init__(self, root: Path, kind: str, disk: Disk | None = None) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.path, self.kind = root, root / "q", kind
        self.clock = ManualClock()
        self.checks = Checks()
        self.disk = disk or Disk()
        self.last = self.clock()
        self.start()
        self.engine.create("q", Options(schema="bad"))
        self.engine.commit()
        self.settle()

    def start(self) -> None:
        self.engine = KINDS[self.kind](
            str(self.root), clock=self.clock, durability=Durability.ALWAYS, disk=self.disk, refusal=self.checks
        )

    def restart(self) -> None:
        self.engine.close()
        self.start()
        self.settle()

    def configure(self, schema: str) -> None:
        self.engine.configure("q", Options(storage=self.kind, schema=schema))
        self.settle()

    def put(self, payload: bytes) -> Path:
        """Puts a message into the directory, as other programs do. Returns its path."""
        if self.kind == "dirq":
            queue = original_queue.Queue(str(self.path), schema={"body": "binary"})
            return self.path / str(queue.add({"body": payload}))
        if self.kind == "dirq-simple":
            return self.path / str(QueueSimple(str(self.path)).add(payload))
        self.last += 1
        return self.write(str(self.last), payload)

    def write(self, name: str, payload: bytes) -> Path:
        made = self.root / ".made"
        made.write_bytes(payload)
        made.rename(self.path / name)
        return self.path / name

    def settle(self) -> None:
        """Does all work that is due, and reads the reports of changes, which the work of the other thread makes too."""
        for _ in range(5):
            self.engine.refresh()
            while (due := self.engine.effects().next_upkeep) is not None and due <= self.clock():
                work = self.engine.begin_upkeep()
                failure: OSError | None = None
                try:
                    self.engine.commit()
                except OSError as error:  # the server finishes the work too after a batch that has failed
                    failure = error
                if work is not None:
                    work.run()
                    self.engine.finish_upkeep(work)
                if failure is not None:
                    raise failure
            self.engine.commit()

    def wait(self) -> None:
        """Lets the second go by after which waiting files are looked at again."""
        self.clock.now += SECOND
        self.settle()

    def push(self, payload: bytes) -> int:
        [mid] = self.engine.queue("q").push([Draft(payload)])
        self.engine.commit()
        return mid

    def payloads(self) -> list[bytes | None]:
        """Returns the payloads of the visible messages, oldest first."""
        queue = self.engine.queue("q")
        return [queue.get(mid, peek=True, visibility=None).payload for mid in queue.list_mids(State.READY, 1000, -1)]

    def invalid(self) -> list[str]:
        """Returns the paths of what was refused, below the queue's directory."""
        return sorted(os.path.relpath(path, self.path) for path in self.path.rglob("*.invalid"))
