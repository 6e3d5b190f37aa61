"""A root with queues and no server on it, for tests that change the storage of one."""

from pathlib import Path

from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Options, Receipt, State, StorageError
from qs_storage.settings import read_options
from qs_storage.tools.convert import Conversion
from support.engines import FaultyDisk, JournalEngine, ManualClock

LATER = 10**9
Seen = list[tuple[int, str, int, int | None, bytes | None, str | None]]


class Root:
    """A root with queues, no server on it."""

    def __init__(self, root: Path, storage: str | None, disk: Disk | None = None) -> None:
        """storage: of the queues, which are made; None: they are there."""
        self.root = root
        self.disk = FaultyDisk()
        self.used = disk or self.disk
        """The disk that the engine and the conversion work on."""
        self.clock = ManualClock()
        if storage is not None:
            root.mkdir(exist_ok=True)
            self._make(storage)

    def _make(self, storage: str) -> None:
        engine = self.open()
        for qid in ("q", "other"):
            engine.create(qid, Options(storage=storage, visibility=LATER))
            engine.queue(qid).push([Draft(b"one"), Draft(b"two"), Draft(b"three"), Draft(b"later", LATER + 1)])
        engine.commit()
        first, _ = engine.receive(["q"], 2, None, 1 << 20)
        engine.queue("q").release(Receipt(first.mid), 0, reason="why\nand where")
        engine.close()

    def open(self) -> JournalEngine:
        return JournalEngine(str(self.root), clock=self.clock, durability=Durability.ALWAYS, disk=self.used)

    def convert(self, storage: str) -> int:
        return Conversion(str(self.root), "q", self.used, self.clock, lambda count: None).run(storage)

    def crash(self) -> None:
        self.disk.crash()
        self.disk.disarm()

    def storage(self) -> str:
        return read_options(str(self.root / "q"), "?").storage

    def seen(self, qid: str = "q") -> Seen:
        """Returns what a server shows of its messages, now and when all are visible."""
        engine = self.open()
        try:
            for _ in engine.ingest_files(qid):
                pass
            found: Seen = []
            for mid in engine.queue(qid).list_mids(State.ALL, 100, -1):
                message = engine.queue(qid).get(mid, peek=True, visibility=None)
                shown = message.status, message.receives, message.visible_at, message.payload, message.reason
                found.append((mid, *shown))
            return found
        finally:
            engine.close()

    def seen_by_a_start(self) -> Seen | str:
        """Returns what `seen` returns, or "refused" if the start is refused with a hint at the command."""
        try:
            return self.seen()
        except StorageError as error:
            return "refused" if "queue-journal.py convert" in str(error) else str(error)
