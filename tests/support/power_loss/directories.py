"""Records what happens in queues that are directories, and plays a power loss at each step.

The runs are additions and removals by the library of dirq, and files that an engine takes in from a queue's directory.
"""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qs_storage.dirq import Queue, QueueSimple
from qs_storage.engine import Durability
from qs_storage.metadata import HeaderStore
from support.power_loss.check import VARIANTS, fast_directory, nobody_else
from support.power_loss.disk import Entry, QuietDisk, RecordingDisk, everything_recorded
from support.power_loss.file_system import FileSystem, Image, lay_out, points, power_loss
from support.power_loss.model import headers_for
from support.power_loss.nodes import EVERYTHING, NOTHING
from support.storage.engines import JournalEngine, ManualClock
from support.storage.ingest import IngestCase

MIXED = [NOTHING, EVERYTHING, *(f"mixed-{seed}" for seed in range(8))]
COUNT = 4
BEFORE = int(time.time()) - 10_000
SCHEMA = {"number": "string", "data": "binary", "more": "table?"}
Elements = dict[str, object]


def simple(path: str, **named: Any) -> QueueSimple:
    return QueueSimple(path, granularity=1 << 40, **named)


def queue(path: str, **named: Any) -> Queue:
    return Queue(path, maxelts=2, schema=SCHEMA, **named)


def data(make: object, number: int) -> Any:
    if make is simple:
        return b"%d" % number * 999
    return {"number": str(number), "data": b"x" * 999, "more": {"a": str(number)}}


def elements(make: Callable[..., Any], path: str, names: list[str]) -> Elements:
    """Returns the elements that a program finds under these names after a purge. Each is whole, or reading it
    raises."""
    q = make(path, sync=False)
    q.purge()
    found = {}
    for name in set(q) & set(names):
        assert q.lock(name)
        found[name] = q.get(name)
        q.unlock(name)
    return found


def record_dirq(make: Callable[..., Any], directory: Path, existing: bool) -> tuple[list[Entry], list[str]]:
    """Records additions and a removal, with a mark after each. Returns the log and the names of the elements. existing:
    another program, which does not sync, has made the queue and its intermediate directory, so their names are not
    durable unless the first addition makes them so."""
    (directory / "recorded").mkdir()
    disk = RecordingDisk(directory / "recorded")
    path = f"{disk.root}/q" if existing else f"{disk.root}/above/q"
    if existing:
        other = make(path, disk=disk, sync=False)
        name = other.add(data(make, 0))
        other.lock(name)
        other.remove(name)
    q = make(path, disk=disk)
    names = []
    for number in range(COUNT):
        names.append(_add_file(q, disk, number) if make is simple and number == 2 else q.add(data(make, number)))
        disk.mark("answered", number + 1)
    q.lock(names[0])
    q.remove(names[0])
    disk.mark("answered", -1)
    return disk.log, names


def _add_file(q: QueueSimple, disk: RecordingDisk, number: int) -> str:
    """Moves a file into the queue that another program has written beside the queue without making it durable."""
    path = f"{disk.root}/file"
    fd = disk.open(path, os.O_CREAT | os.O_WRONLY)
    disk.write(fd, data(simple, number))
    disk.close(fd)
    return q.add_path(path)


def check_dirq(
    make: Callable[..., Any], log: Sequence[Entry], names: list[str], directory: Path, *, ordered: bool
) -> int:
    """Fails with the first step after which an element is lost, torn, or there again. Returns how many power losses
    there were."""
    file_system = FileSystem(ordered=ordered)
    answered, removed, looked = 0, False, 0
    for number, entry in enumerate(log):
        file_system.begin(entry)
        if entry.kind == "answered":
            answered, removed = (entry.args[0], removed) if entry.args[0] >= 0 else (answered, True)
        for how in MIXED if entry.changes else ():
            root = directory / f"{number}-{how}"
            root.mkdir()
            lay_out(power_loss(file_system, how if how in MIXED[:2] else f"{how}/{number}"), str(root), BEFORE)
            found = elements(make, f"{root}/above/q" if (root / "above").exists() else f"{root}/q", names)
            needed, possible = set(names[:answered]), set(names[: answered + 1])
            if answered == COUNT:
                needed.discard(names[0])
                possible -= {names[0]} if removed else set()
            assert needed <= found.keys() <= possible, (str(entry), how)
            assert all(one == data(make, names.index(name)) for name, one in found.items()), (str(entry), how)
            looked += 1
        file_system.complete(entry)
    assert removed
    return looked


class Run(NamedTuple):
    """A recorded run. log: what was done to the disk; begin: the first entry that is played; events: what was done to a
    message, and the length of the log then."""

    log: list[Entry]
    begin: int
    events: list[tuple[int, str, bytes]]


class RecordedRoot(IngestCase):
    """A root on a RecordingDisk. The queue's directory is durable before the journal is there."""

    def __init__(self, root: Path, durability: Durability) -> None:
        self.recording = RecordingDisk(str(root))
        self.events: list[tuple[int, str, bytes]] = []
        self.recording.mkdir(str(root / "q"))
        self.recording.sync_file_system(str(root))
        self.begin = len(self.recording.log)
        super().__init__(root, durability, new=False)

    def start(self) -> None:
        self.engine = JournalEngine(str(self.root), clock=self.clock, durability=self.durability, disk=self.recording)

    def be_killed(self) -> None:
        """Ends the process without a stop, and starts another one."""
        self.recording.end()
        self.engine._watch.close()
        self.start()

    def happens(self, event: str, *payloads: bytes) -> None:
        self.events += [(len(self.recording.log), event, payload) for payload in payloads]

    def publish(self, mid: int) -> None:
        """Publishes as the library of vsqs does: the file is durable before it has its name, and the name when this
        returns. A program that syncs less may lose messages, and no engine can help that."""
        payload = b"%d." % mid * 300
        self.happens("begun", payload)
        fd = self.recording.open(f"{self.path}/{mid}.new", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        self.recording.write(fd, payload)
        if headers := headers_for(payload, mid):
            store = HeaderStore(str(self.path), self.recording, beside=False, sync=True)
            store.write(f"{self.path}/{mid}.new", mid, headers)
        self.recording.fsync(fd)
        self.recording.close(fd)
        self.recording.rename(f"{self.path}/{mid}.new", f"{self.path}/{mid}")
        self.recording.sync_directory(str(self.path))
        self.happens("published", payload)

    def consume(self) -> list[bytes]:
        here = [self.payload(mid) or b"" for mid in self.mids()]
        self.happens("deleting", *here)
        consumed = super().consume()
        self.happens("deleted", *consumed)
        return consumed


def record_ingest(durability: Durability) -> Run:
    """Records a run in which files come, are taken in and are consumed, each at different moments of the other
    steps."""
    with fast_directory(Path.cwd()) as root:
        place = RecordedRoot(root, durability)
        with everything_recorded(place.recording):
            for mid in range(1, 7):
                place.publish(mid)
                place.engine.refresh()
                for _ in range(mid % 4):
                    place.step()
                if mid % 3 == 2:
                    place.consume()
                if mid == 3:
                    place.be_killed()
            place.settle()
            place.consume()
            place.publish(9)
            place.settle()
            place.engine.close()
        return Run(place.recording.log, place.begin, place.events)


def left(image: Image, directory: Path, durability: Durability) -> Counter[bytes]:
    """Returns how often each message is there after a start on an image."""
    root = tempfile.mkdtemp(dir=directory)
    disk = QuietDisk()
    try:
        lay_out(image, root)
        with nobody_else():
            place = IngestCase.__new__(IngestCase)  # without its __init__, which would make the queue
            place.root, place.path, place.clock, place.durability = (
                Path(root),
                Path(root) / "q",
                ManualClock(),
                durability,
            )
            place.engine = JournalEngine(root, clock=place.clock, durability=durability, disk=disk)
            place.settle()
            if not place.path.is_dir():
                return Counter()
            messages = [place.engine.queue("q").get(mid, peek=True, visibility=None) for mid in place.mids()]
            for message in messages:
                assert message.headers == headers_for(message.payload or b"", int((message.payload or b"")[:1]))
            # A hidden file of headers may stay without its message: it takes room, and nothing else.
            assert [name for name in place.files() if not name.endswith((".new", ".headers"))] == []
            return Counter(message.payload or b"" for message in messages)
    finally:
        disk.end()
        shutil.rmtree(root)


def sweep(run: Run, wanted: set[int], *, ordered: bool) -> Iterator[tuple[int, FileSystem]]:
    file_system = FileSystem(ordered=ordered)
    for number, entry in enumerate(run.log):
        file_system.begin(entry)
        if number in wanted:
            yield number, file_system
        file_system.complete(entry)


def check_ingest(run: Run, durability: Durability, directory: Path, *, ordered: bool) -> int:
    """Fails with the first point at which a message is lost or there twice. Returns how many power losses were
    played."""
    wanted = {number for number in points(run.log) if number >= run.begin}
    known: dict[object, Counter[bytes]] = {}
    """The messages that were found, by the key of the image: equal images are looked at once."""
    for number, file_system in sweep(run, wanted, ordered=ordered):
        begun, published, deleting, deleted = (
            {payload for at, event, payload in run.events if event == wanted_event and at <= number}
            for wanted_event in ("begun", "published", "deleting", "deleted")
        )
        for variant in VARIANTS:
            how = variant if variant in (NOTHING, EVERYTHING) else f"{variant}/{number}"
            image = power_loss(file_system, how)
            if image.key not in known:
                known[image.key] = left(image, directory, durability)
            found = known[image.key]
            where = f"{variant} at {number}: {run.log[number]}"
            assert set(found) <= begun, where
            assert not [payload for payload, times in found.items() if times > 1], where
            assert published - deleting <= set(found), where
            if durability is Durability.ALWAYS:
                assert not deleted & set(found), where
    return len(wanted) * len(VARIANTS)
