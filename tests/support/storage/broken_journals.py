"""A journal in small segments that a crash has left, for tests that damage it; and readers of what an engine finds
there."""

import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar
from zlib import crc32

import pytest

from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, NoRoomError, Options, Receipt, State
from qs_storage.journal.log import pool, reader
from qs_storage.journal.log.frames import BLOCK, FRAME_HEAD, Frame, Gap, Header, frame_at
from qs_storage.journal.log.opening import OpenedLog, Scan, find_segments, numbers_in, open_segment, read_log
from qs_storage.journal.log.places import place_of, segment_name
from qs_storage.journal.log.records import HEAD, Push, Queue, Record, pack, parse
from qs_storage.journal.upkeep import maintenance, room
from support.storage.engines import EPOCH, LOTS, FaultyDisk, JournalEngine, ManualClock, upkeep

Asked = TypeVar("Asked")
Picture = dict[str, dict[int, tuple[bytes | None, int]]]
"""The messages of each queue, by id: payload, and count of receives."""


def small_segments(monkeypatch: pytest.MonkeyPatch, size: int = 24 * 1024) -> None:
    """Makes segments of that many bytes, except where a frame needs more."""
    for name, value in (("FIRST_SEGMENT", size), ("LARGEST_SEGMENT", size), ("SMALLEST", 0), ("SMALL_LOG", 0)):
        monkeypatch.setattr(pool, name, value)
    ticks = count()
    for module in (maintenance, room):  # else slices are as the machine is
        monkeypatch.setattr(module, "perf_counter", lambda: next(ticks) / 10_000)


def small_places(monkeypatch: pytest.MonkeyPatch, bits: int = 16) -> None:
    """Makes places with that many bits for the byte, so that a few KiB stand for GiB."""
    for name, module in list(sys.modules.items()):
        if name.startswith("qs_storage.journal.") and hasattr(module, "SHIFT"):
            monkeypatch.setattr(module, "SHIFT", bits)
        if name.startswith(("qs_storage.", "support.")) and hasattr(module, "LEFT"):
            monkeypatch.setattr(module, "LEFT", 1 << bits - 4)  # else no segment could have so much room
    monkeypatch.setattr(reader, "_SLICE", bits - 4)


class Segment(NamedTuple):
    """A file of the journal, its frames and their ends."""

    path: str
    header: Header
    data: memoryview
    frames: list[Frame]
    gap: Gap


class Recovered:
    """Reads the records that a start reads from the segments, each with its place in the log, and changes nothing."""

    def __init__(self, directory: str) -> None:
        """Reads the log of a journal. Raises JournalDamagedError if it is damaged."""
        self.placed: list[tuple[int, Record]] = []
        found = find_segments(directory, Disk())
        self.opened: OpenedLog = read_log(directory, Disk(), found, self)
        self.segments = [segment_of(scan) for scan in found.needed]

    def apply(self, segment: int, start: int, bodies: list[memoryview]) -> None:
        for body in bodies:
            self.placed.append((place_of(segment, start), parse(body)))
            start += HEAD.size + len(body)

    @property
    def torn(self) -> Scan | None:
        return self.opened.torn

    @property
    def number(self) -> int:
        return self.opened.number

    @property
    def sequence(self) -> int:
        return self.opened.sequence

    def records(self) -> list[Record]:
        return [record for _, record in self.placed]


def segment_of(scan: Scan) -> Segment:
    """Scans a segment again, and returns it with its frames."""
    starts = [start for start, _ in scan.frames(BLOCK, scan.header.first, None)]
    found = (frame_at(scan.data, start - FRAME_HEAD, scan.header.salt) for start in starts)
    return Segment(scan.path, scan.header, scan.data, [frame for frame in found if frame is not None], scan.gap)


def recover(directory: str) -> Recovered:
    """Reads the log as a start does. Raises JournalDamagedError if it is damaged."""
    return Recovered(directory)


class Session:
    """An engine that can end like a killed process."""

    def __init__(self, root: Path, durability: Durability = Durability.ALWAYS, disk: FaultyDisk | None = None) -> None:
        self.disk = disk or FaultyDisk()
        self.clock = ManualClock(EPOCH + 10**9)
        try:
            self.engine = JournalEngine(str(root), clock=self.clock, durability=durability, disk=self.disk, cache=0)
        except BaseException:
            self.disk.crash()
            raise

    def push(
        self, qid: str, *payloads: bytes, delay: int = 0, key: str | None = None, attributed: bool = False
    ) -> list[int]:
        """Pushes in one request, and commits. attributed: True for messages with a priority, a group and a header."""
        self.clock.now += 1
        drafts = [Draft(payload, delay, key) for payload in payloads]
        if attributed:
            drafts = [draft._replace(priority=5, group="g", headers=(("name", "text"),)) for draft in drafts]
        mids = self.ask(lambda: self.engine.queue(qid).push(drafts))
        self.engine.commit()
        return mids

    def ask(self, request: Callable[[], Asked]) -> Asked:
        """Runs a request, in a batch of its own if the present batch lacks the bytes for it. Raises OSError."""
        try:
            return request()
        except NoRoomError as error:
            self.engine.secure(error)
            return request()

    def receive(self, qid: str) -> int:
        """Receives one message for a long time, and returns its id."""
        [message] = self.engine.receive([qid], 1, 10**12, LOTS)
        self.engine.commit()
        return message.mid

    def make_dead_letter(self, mid: int, *, and_back: bool = False) -> None:
        """Makes a message of `jobs` a dead letter. and_back: moves it back, too."""
        jobs = self.engine.queue("jobs")
        jobs.reject(Receipt(mid), "because")
        if and_back:
            letters = self.engine.queue("failed")
            letters.redrive.move([(letters.last_mid, jobs)])
        self.engine.commit()

    def upkeep(self) -> None:
        """Does all upkeep of this journal."""
        upkeep(self.engine, self.clock.now)

    def picture(self) -> Picture:
        """Returns the messages of all queues when all delays and windows are over."""
        engine = self.engine
        self.clock.now += 10**13
        engine.expire(10**6)
        found: Picture = {}
        for qid in engine.queues():
            mids = {mid for state in State for mid in engine.queue(qid).list_mids(state, 10**6, -1)}
            messages = {mid: engine.queue(qid).get(mid, peek=True, visibility=None) for mid in sorted(mids)}
            found[qid] = {mid: (message.payload, message.receives) for mid, message in messages.items()}
            for claim in engine.queue(qid).claims.all():
                part = engine.queue(qid).claims.part(claim.consumer, claim.seq, (0, 1), LOTS, LOTS) or []
                found[qid] |= {message.mid: (message.payload, -claim.seq) for message in part}
        return found

    def crash(self) -> None:
        self.disk.crash()
        self.engine._watch.close()


def build(root: Path, durability: Durability = Durability.ALWAYS) -> None:
    """Makes some segments with every kind of record, of which compaction has removed some."""
    root.mkdir()
    session = Session(root, durability)
    engine = session.engine
    for qid in ("orders", "mail", "again", "copies", "claimed"):
        engine.create(qid, Options(storage="journal"))
    engine.create("jobs", Options(storage="journal", dead_letter="failed", max_receives=9))
    engine.commit()
    jobs = session.push("jobs", b"fails early", b"fails late", b"fails and is moved back")
    session.make_dead_letter(jobs[0])
    session.make_dead_letter(jobs[2], and_back=True)
    early = [session.push("orders", b"early %d" % number)[0] for number in range(4)]
    session.push("mail", b"with a key", key="k")
    engine.copy("orders", early[1], ["copies"])
    for number in range(4):
        session.push("claimed", b"to claim %d" % number)
    engine.queue("claimed").claims.claim("c", 1, 1, None, None)
    engine.queue("claimed").claims.claim("c", 2, 1, None, None)
    engine.queue("claimed").claims.claim("d", 1, 1, None, None)
    engine.queue("claimed").batches.stage("p", (0, 0, 0), list(map(Draft, [b"published early"])))
    engine.queue("claimed").batches.publish("p", 0, [(0, 0)])
    engine.queue("claimed").batches.stage("p", (1, 0, 0), list(map(Draft, [b"published late", b"", b"published last"])))
    engine.queue("orders").delete(Receipt(session.receive("orders")))
    engine.commit()
    for _ in range(12):  # what is written and gone again is compacted
        session.push("again", bytes(9000))
        engine.queue("again").purge(LOTS**2, 1)
        engine.commit()
        session.upkeep()
    session.make_dead_letter(jobs[1])
    engine.queue("claimed").claims.acknowledge("c", 1)
    engine.queue("claimed").claims.release("d", 1)
    engine.queue("claimed").batches.publish("p", 1, [(0, 0)])
    engine.commit()
    for number in range(3):
        session.push("orders", *(b"of list %d: %d" % (number, at) * 20 for at in range(3)))
        session.push("mail", b"late %d" % number, delay=10**12)
        held = session.receive("orders")
        if number:
            engine.queue("orders").release(Receipt(held), 0)
        engine.commit()
        session.push("again", b"goes with its queue")
    engine.remove("again", force=True)
    engine.create("again", Options(storage="journal"))
    engine.commit()
    session.push("again", b"", b"made again")
    session.push("mail", b"large " * 1000)
    engine.queue("orders").delete(Receipt(session.receive("orders")))
    engine.commit()
    log = engine._journal.open().log
    while log.writer is None or log.sequence != log.writer.header.first + 1:  # so that its last frame may be torn
        session.push("orders", b"almost the end")
    session.push("orders", b"the end")
    session.crash()


def start(root: Path) -> Picture:
    """Starts a server, kills it, and returns the messages that it found. Raises JournalDamagedError."""
    session = Session(root)
    try:
        return session.picture()
    finally:
        session.crash()


class Journal(NamedTuple):
    """The files of a journal that can be damaged and restored in place, and the messages that an undamaged one
    holds."""

    root: Path
    picture: Picture
    recovered: Recovered
    right: list[Record]

    @property
    def directory(self) -> str:
        return f"{self.root}/.journal"

    def recover(self) -> Recovered:
        return recover(self.directory)

    def paths(self) -> list[Path]:
        return [Path(segment.path) for segment in self.recovered.segments]

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.root, to)
        return to

    def written(self) -> Iterator[tuple[Path, range]]:
        """Returns the offsets of the bytes of headers, frames' heads and records."""
        for segment in self.recovered.segments:
            path = Path(segment.path)
            yield path, range(56)
            for frame in segment.frames:
                yield path, range(frame.start, frame.start + FRAME_HEAD + frame.length)


def made(root: Path, durability: Durability = Durability.ALWAYS) -> Journal:
    """Makes a journal with `build`."""
    build(root, durability)
    journal = journal_at(root)
    assert len(journal.recovered.segments) >= 3
    return journal


def build_recycled(root: Path) -> bytes:
    """Builds a journal whose last segment has reused an older one, whose bytes stand behind the last frame. Returns the
    bytes of the last segment from before its last frame was written, which is one message in three blocks."""
    root.mkdir()
    session = Session(root)
    session.engine.create("orders", Options(storage="journal"))
    session.push("orders", b"stays")
    store = session.engine._journal.store
    assert store is not None
    for number in range(200):
        session.push("orders", b"%4d" % number * 2250)
        writer = store.log.writer
        if writer is not None and writer.header.recycled and writer.end <= 5 * BLOCK:
            break
        session.engine.queue("orders").delete(Receipt(session.engine.queue("orders").last_mid))
        session.engine.commit()
        if len(store.log.segments.sizes) > 3:  # the pool has no file left, and takes old ones
            session.upkeep()
    else:
        raise AssertionError("no segment was recycled")
    session.push("orders", b"in between")
    before = Path(store.log.segments.path_of(store.log.number)).read_bytes()
    session.push("orders", b"the end".ljust(9000))
    session.crash()
    return before


def journal_at(root: Path) -> Journal:
    """Takes the journal that a crash has left there as undamaged."""
    shutil.copytree(root, f"{root}.copy")
    picture = start(Path(f"{root}.copy"))
    assert all(payload is not None for messages in picture.values() for payload, _ in messages.values())
    found = recover(f"{root}/.journal")
    return Journal(root, picture, found, found.records())


def with_old_format(root: Path) -> None:
    """Makes a root with a journal of an earlier version, whose queue `q` has a message."""
    directory, salt, parts = root / ".journal", b"saltsalt", b""
    directory.mkdir(parents=True)
    (root / "q").mkdir()
    (root / "q" / ".queue.toml").write_text('storage = "journal"\n')
    for body in (Queue(1, -1, "q").write(), pack(Push(1, 2, 0, None, 3, b"payload"))):
        place = BLOCK + 32 + len(parts)
        parts += HEAD.pack(len(body), crc32(body, crc32(salt) ^ place)) + body
    frame = struct.pack("<4sIQQI", b"qsF\x01", len(parts), 1, 0, 2)
    frame += struct.pack("<I", crc32(frame, crc32(salt))) + parts
    header = struct.pack("<16sQQQQ8sI", b"qs-journal 2\n", 1, 16 * BLOCK, 1, 1, salt, 0)
    header += struct.pack("<I", crc32(header))
    data = header.ljust(BLOCK, b"\0") + frame
    (directory / "lock").touch()
    (directory / segment_name(1)).write_bytes(data.ljust(16 * BLOCK, b"\0"))


def flip(path: Path, at: int, bit: int) -> None:
    """Flips a bit at an offset of the file; a second call restores it."""
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, at)[0]
        os.pwrite(fd, bytes([byte ^ 1 << bit]), at)
    finally:
        os.close(fd)


def middle_of(root: Path) -> tuple[Path, int]:
    """Returns a file, and the offset of a payload's last byte in the frame in the middle of the file."""
    directory = f"{root}/.journal"
    segment = segment_of(open_segment(directory, numbers_in(directory, Disk())[0]))
    frame = segment.frames[len(segment.frames) // 2]
    return Path(segment.path), frame.start + FRAME_HEAD + frame.length - 1
