"""A journal in small segments, left behind by a crash, for tests that damage it; and what an engine finds in one."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from engines import EPOCH, FaultyDisk, ManualClock
from qs_server.storage.journal.ledger import SpillLimits

from qs_server.storage.disk import Disk
from qs_server.storage.engine import Draft, Durability, Options, Receipt, State
from qs_server.storage.journal import journal, supply
from qs_server.storage.journal.engine import JournalEngine
from qs_server.storage.journal.frames import FRAME_HEAD
from qs_server.storage.journal.records import Record
from qs_server.storage.journal.recovery import Recovered, numbers_in, read_segment, recover

LOTS = 1 << 40
NEVER = SpillLimits(age=LOTS)
Picture = dict[str, dict[int, tuple[bytes | None, int]]]
"""Of each queue, by id: payload, and how often it was received."""


def small_segments(monkeypatch: pytest.MonkeyPatch, size: int = 24 * 1024) -> None:
    """Segments of that many bytes, as far as a frame does not need more."""
    for name, value in (("FIRST_SEGMENT", size), ("LARGEST_SEGMENT", size), ("SMALLEST", 0)):
        monkeypatch.setattr(supply, name, value)
    monkeypatch.setattr(journal, "_RESERVE", 0)


class Session:
    """An engine that can end as a process does that is killed."""

    def __init__(self, root: Path, durability: Durability = Durability.ALWAYS) -> None:
        self.disk = FaultyDisk()
        self.clock = ManualClock(EPOCH + 10**9)
        try:
            self.engine = JournalEngine(
                str(root), clock=self.clock, durability=durability, disk=self.disk, limits=NEVER
            )
        except BaseException:
            self.disk.crash()
            raise

    def push(self, qid: str, *payloads: bytes, delay: int = 0, key: str | None = None) -> list[int]:
        """One request, committed."""
        self.clock.now += 1
        mids = self.engine.push(qid, [Draft(payload, delay, key) for payload in payloads])
        self.engine.commit()
        return mids

    def receive(self, qid: str) -> int:
        """The id of what was received for a long time."""
        [message] = self.engine.receive([qid], 1, 10**12, LOTS)
        self.engine.commit()
        return message.mid

    def spill(self) -> None:
        """Everything is in the directories, and old segments are given up."""
        while (spill := self.engine._journal.begin_spill(everything=True)) is not None:
            spill.run()
            self.engine.finish_spill(spill)
            self.engine.commit()

    def picture(self) -> Picture:
        """When all delays and windows are over."""
        engine = self.engine
        self.clock.now += 10**13
        engine.expire(10**6)
        found: Picture = {}
        for qid in engine.queues():
            mids = {mid for state in State for mid in engine.list_mids(qid, state, 10**6, -1)}
            messages = {mid: engine.get(qid, mid, peek=True, visibility=None) for mid in sorted(mids)}
            found[qid] = {mid: (message.payload, message.receives) for mid, message in messages.items()}
        return found

    def crash(self) -> None:
        self.disk.crash()
        self.engine._watch.close()


def build(root: Path, durability: Durability = Durability.ALWAYS) -> None:
    """Some segments with a bit of everything."""
    root.mkdir()
    session = Session(root, durability)
    engine = session.engine
    for qid in ("orders", "mail", "again"):
        engine.create(qid, Options(storage="journal"))
    engine.commit()
    for number in range(4):
        session.push("orders", b"early %d" % number)
    session.push("mail", b"with a key", key="k")
    engine.delete("orders", Receipt(session.receive("orders")))
    engine.commit()
    session.spill()
    for number in range(3):
        session.push("orders", *(b"of list %d: %d" % (number, at) * 20 for at in range(3)))
        session.push("mail", b"late %d" % number, delay=10**12)
        held = session.receive("orders")
        if number:
            engine.release("orders", Receipt(held), 0)
        engine.commit()
        session.push("again", b"goes with its queue")
    engine.remove("again", force=True)
    engine.create("again", Options(storage="journal"))
    engine.commit()
    session.push("again", b"", b"made again")
    session.push("mail", b"large " * 1000)
    engine.delete("orders", Receipt(session.receive("orders")))
    engine.commit()
    session.push("orders", b"the end")
    session.crash()


def start(root: Path) -> Picture:
    """What a server finds there. It is killed then. JournalDamagedError."""
    session = Session(root)
    try:
        return session.picture()
    finally:
        session.crash()


class Journal(NamedTuple):
    """The files of a journal that can be damaged and healed in place, and what is right."""

    root: Path
    picture: Picture
    recovered: Recovered
    right: list[tuple[int, Record]]

    @property
    def directory(self) -> str:
        return f"{self.root}/.journal"

    def recover(self) -> Recovered:
        return recover(self.directory, Disk())

    def paths(self) -> list[Path]:
        return [Path(segment.path) for segment in self.recovered.segments]

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.root, to)
        return to

    def written(self) -> Iterator[tuple[Path, range]]:
        """Where the bytes of headers, frames' heads and records are."""
        for segment in self.recovered.segments:
            path = Path(segment.path)
            yield path, range(64)
            for frame in segment.frames:
                yield path, range(frame.start, frame.start + FRAME_HEAD + frame.length)


def made(root: Path, durability: Durability = Durability.ALWAYS) -> Journal:
    """See `build`."""
    build(root, durability)
    shutil.copytree(root, f"{root}.copy")
    picture = start(Path(f"{root}.copy"))
    assert all(payload is not None for messages in picture.values() for payload, _ in messages.values())
    found = recover(f"{root}/.journal", Disk())
    assert len(found.segments) >= 3
    return Journal(root, picture, found, list(found.records()))


def flip(path: Path, at: int, bit: int) -> None:
    """Another bit at that place; the same again heals it."""
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, at)[0]
        os.pwrite(fd, bytes([byte ^ 1 << bit]), at)
    finally:
        os.close(fd)


def middle_of(root: Path) -> tuple[Path, int]:
    """A file, and a place in the payload of the last message of its first frame that is followed by others."""
    directory = f"{root}/.journal"
    segment = read_segment(directory, numbers_in(directory, Disk())[0])
    frame = segment.frames[len(segment.frames) // 2]
    return Path(segment.path), frame.start + FRAME_HEAD + frame.length - 1
