"""A journal engine for tests of files in its queues' directories: driven by hand, on a disk that fails when told to."""

from pathlib import Path

from qs_storage.engine import Draft, Durability, Options, Receipt, State
from support.storage.engines import FaultyDisk, JournalEngine, ManualClock


class IngestCase:
    """A root directory with a queue `q`, and the engine on it."""

    def __init__(
        self, root: Path, durability: Durability = Durability.ALWAYS, *, new: bool = True, **options: int
    ) -> None:
        """new: whether the queue is to be made; options: the queue's."""
        root.mkdir(exist_ok=True)
        self.root = root
        self.path = root / "q"
        self.durability = durability
        self.clock = ManualClock()
        self.disk = FaultyDisk()
        self.unsure: list[bytes] = []
        """Payloads of messages whose deletion may be durable, because the commit ended in a crash."""
        self.start()
        if new:
            self.engine.create("q", Options(**options))
            self.engine.commit()

    def start(self) -> None:
        self.disk.disarm()
        self.engine = JournalEngine(str(self.root), clock=self.clock, durability=self.durability, disk=self.disk)

    def crash(self) -> None:
        """Ends the process without a stop, and starts another one."""
        self.disk.crash()
        self.engine._watch.close()
        self.start()

    def put(self, name: str | int, payload: bytes) -> None:
        """Publishes a file as a publisher does: writes it in another directory, then moves it."""
        made = self.root / ".made"
        made.write_bytes(payload)
        made.rename(self.path / str(name))

    def step(self) -> bool:
        """Does a piece of the engine's upkeep. Tells whether there was work to do now."""
        due = self.engine.effects().next_upkeep
        if due is None or due > self.clock():
            return False
        work = self.engine.begin_upkeep()
        self.engine.commit()
        if work is not None:
            work.run()
            self.engine.finish_upkeep(work)
            self.engine.commit()
        return True

    def settle(self) -> int:
        """Runs the upkeep until there is no work to do now, and returns the number of pieces."""
        self.engine.refresh()
        for count in range(10_000):
            if not self.step():
                return count
            self.engine.refresh()
        raise AssertionError("it never ends")

    def push(self, *payloads: bytes) -> list[int]:
        mids = self.engine.queue("q").push([Draft(payload) for payload in payloads])
        self.engine.commit()
        return mids

    def consume(self) -> list[bytes]:
        """Receives and deletes all messages that are ready. Returns their payloads."""
        found = self.engine.receive(["q"], 10**6, None, 1 << 40)
        for message in found:
            self.engine.queue("q").delete(Receipt(message.mid))
        payloads = self.unsure = [message.payload or b"" for message in found]
        self.engine.commit()
        self.unsure = []
        return payloads

    def consume_but(self, kept: int) -> None:
        """Deletes all messages but one."""
        for mid in self.mids():
            if mid != kept:
                self.engine.queue("q").delete(Receipt(mid))
        self.engine.commit()

    @property
    def failed(self) -> bool:
        """Tells whether the journal refuses all writes."""
        store = self.engine._journal.store
        return store is not None and store.log.failed

    def mids(self) -> list[int]:
        return self.engine.queue("q").list_mids(State.ALL, 10**6, -1)

    def payload(self, mid: int) -> bytes | None:
        return self.engine.queue("q").get(mid, peek=True, visibility=None).payload

    def files(self) -> list[str]:
        """Returns the files of the directory, except the one with the options."""
        return sorted(path.name for path in self.path.iterdir() if path.name != ".queue.toml")
