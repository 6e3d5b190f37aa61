"""Random damage to journals of random sizes around what a place can name: a repair keeps each message's own payload.

A round pushes, copies, claims, stages, deletes and restarts at random, damages the files, repairs, and works on with
the result. What was deleted stays so unless that was damaged. `small_places` says why the sizes are such.
"""

import os
import random
import shutil
import tempfile
import time
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from support.storage.broken_journals import Recovered, Session, recover, small_places, small_segments, start
from support.storage.engines import LOTS

from qs_storage.disk import Disk
from qs_storage.engine import (
    Draft,
    NoRoomError,
    Options,
    OtherMessageError,
    QueueFullError,
    Receipt,
    State,
    StorageError,
)
from qs_storage.journal.log import records
from qs_storage.journal.log.frames import BLOCK
from qs_storage.journal.log.places import segment_of, start_of
from qs_storage.journal.log.records import HEAD, Acked, Claim, Published, Retired, Staged, Transfer, Unclaimed
from qs_storage.journal.rescue.audit import verify
from qs_storage.journal.rescue.repair import Repaired, repair

QUEUES = ("orders", "mail", "copies", "failed", "claimed")
Message = tuple[str, int]


class Written(NamedTuple):
    """A record of the journal before the damage. path, start, end: the bytes of the file that it takes; frame: the
    first byte of its frame."""

    record: records.Record
    path: str
    start: int
    end: int
    frame: int
    place: int


class World:
    """A journal, and every message that was ever in it."""

    def __init__(self, root: Path, rng: random.Random, largest: int) -> None:
        """largest: bytes of the largest payload."""
        self.root = root
        self.rng = rng
        self.largest = largest
        self.ever: dict[Message, bytes] = {}
        self.counted: Counter[str] = Counter()
        self._number = self._batch = self._claim = 0
        root.mkdir()
        self.session = Session(root)
        for qid in QUEUES:
            self._create(qid)

    def _create(self, qid: str) -> None:
        letters = {"dead_letter": "failed", "max_receives": 1} if qid == "mail" else {}
        self.session.engine.create(qid, Options(storage="journal", **letters))  # type: ignore[arg-type]
        self.session.engine.commit()

    def payload(self) -> bytes:
        self._number += 1
        size = self.rng.choice((0, 20, 20, 100, 500, self.rng.randrange(self.largest)))
        return b"%d:" % self._number + self.rng.randbytes(size)

    def live(self, qid: str) -> list[int]:
        return list(self.session.engine.queue(qid).list_mids(State.ALL, 10**6, -1))

    def act(self) -> None:
        """Does one thing at random, and commits it."""
        try:
            self._act()
        except NoRoomError as error:  # there is room for the next one
            self.session.engine.commit()
            self.session.engine.secure(error)
        self.session.engine.commit()

    def _act(self) -> None:
        engine, session, rng = self.session.engine, self.session, self.rng
        session.clock.now += rng.randrange(1, 1000)
        qid = rng.choice(QUEUES)
        mids = self.live(qid)
        match rng.randrange(20):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                payloads = [self.payload() for _ in range(rng.choice((1, 1, 1, 3, 30)))]
                key = str(self._number) if len(payloads) == 1 and rng.random() < 0.2 else None
                with suppress(OSError):  # a list for which no segment is large enough
                    delay, attributed = rng.choice((0, 0, 0, 10**12)), rng.random() < 0.3
                    pushed = session.push(qid, *payloads, delay=delay, key=key, attributed=attributed)
                    self.ever.update(zip(((qid, mid) for mid in pushed), payloads, strict=True))
            case 7 | 8 if mids:
                for mid in rng.sample(mids, min(len(mids), rng.choice((1, 1, 5, 50)))):
                    with suppress(StorageError):  # one in a claim
                        engine.queue(qid).delete(Receipt(mid))
            case 9 if mids:
                mid = rng.choice(mids)
                with suppress(OtherMessageError, QueueFullError):
                    engine.copy(qid, mid, ["copies"])
                    self.ever.setdefault(("copies", mid), self.ever[qid, mid])
            case 10 if qid in engine.queues():
                for message in engine.receive([qid], rng.choice((1, 5)), 10**9, LOTS):
                    if rng.random() < 0.5:
                        engine.queue(qid).release(
                            Receipt(message.mid), 0, reason=rng.choice((None, "r" * rng.randrange(1, 900)))
                        )
                self._note_letters()
            case 11:
                self._batch += 1
                payloads = [self.payload() for _ in range(rng.randrange(4))]
                batches = engine.queue("claimed").batches
                staged = False
                with suppress(OSError):  # a list for which no segment is large enough
                    batches.stage("p", (self._batch, 0, 0), list(map(Draft, payloads)))
                    staged = True
                if staged and rng.random() < 0.7:
                    before = set(self.live("claimed"))
                    batches.publish("p", self._batch, [(self._batch and 0, 0)])
                    new = sorted(set(self.live("claimed")) - before)
                    self.ever.update(zip((("claimed", mid) for mid in new), payloads, strict=True))
            case 12:
                claims = engine.queue("claimed").claims
                seq = self._claim + 1
                with suppress(StorageError):
                    if claims.claim("c", seq, 3, None, None).count:
                        self._claim = seq
                        if rng.random() < 0.5:
                            claims.acknowledge("c", seq)
            case 13 if rng.random() < 0.3:
                engine.queue(qid).purge(LOTS**2, 1)
            case 14 if qid == "orders" and rng.random() < 0.5:
                engine.remove(qid, force=True)
                self._create(qid)
            case 15 | 16:
                self._keep_up()
            case 17:
                self.restart()
            case 18 if mids and qid == "mail":
                with suppress(StorageError):
                    engine.queue("mail").reject(Receipt(rng.choice(mids)), rng.choice((None, "because")))
                self._note_letters()
            case 19:
                self._redrive()

    def _redrive(self) -> None:
        """Moves dead letters to queues."""
        engine, qid = self.session.engine, self.rng.choice(("mail", "mail", "copies"))
        failed = engine.queue("failed").redrive
        letters = failed.letters([], self.rng.choice((1, 5)))
        for mid, new in failed.move([(mid, engine.queue(qid)) for mid, _ in letters]):
            self.ever[qid, new] = self.ever["failed", mid]

    def _keep_up(self) -> None:
        for _ in range(self.rng.randrange(10)):
            if (work := self.session.engine.begin_upkeep()) is not None:
                self.session.engine.commit()
                work.run()
                self.session.engine.finish_upkeep(work)
            self.session.engine.commit()

    def _note_letters(self) -> None:
        """Notes the messages that have come to the dead-letter queue, by their payloads."""
        queue = self.session.engine.queue("failed")
        self.session.engine.commit()
        for mid in self.live("failed"):
            if ("failed", mid) not in self.ever:
                self.ever["failed", mid] = queue.get(mid, peek=True, visibility=None).payload or b""

    def check_payloads(self, found: "dict[Message, bytes | None]") -> None:
        """Every message has its own payload. A dead letter may be new: then it is a message of `mail`."""
        letters = {payload for (qid, _), payload in self.ever.items() if qid == "mail"}
        for message, payload in found.items():
            if message in self.ever or message[0] != "failed":
                assert self.ever[message] == payload, message
            else:
                assert payload in letters, message

    def restart(self) -> None:
        """Ends the server, with a checkpoint or as a kill does, and starts it again."""
        if self.rng.random() < 0.5:
            self.session.engine.close()
        else:
            self.session.crash()
        now = self.session.clock.now
        self.session = Session(self.root)
        self.session.clock.now = now + 1

    # -- damage -------------------------------------------------------------------------------------------------------

    def written(self, found: Recovered) -> list[Written]:
        """Returns the records of the journal that a start applies."""
        paths = {segment.header.number: segment.path for segment in found.segments}
        frames = {segment.path: [frame.start for frame in segment.frames] for segment in found.segments}
        listed = []
        for place, record in found.placed:
            if (path := paths.get(segment_of(place))) is not None:
                start_ = start_of(place)
                end, frame = (
                    start_ + HEAD.size + len(records.pack(record)),
                    frames[path][bisect(frames[path], start_) - 1],
                )
                listed.append(Written(record, path, start_, end, frame, place))
        return listed

    def damage(self, found: Recovered) -> dict[str, list[range]]:
        """Damages files at random. Returns the bytes that are not what they were."""
        rng, done = self.rng, defaultdict[str, list[range]](list)
        ends = {segment.path: max(frame.end for frame in segment.frames) for segment in found.segments}
        for _ in range(rng.choice((1, 1, 2, 5))):
            path = rng.choice(list(ends))
            if not os.path.lexists(path):
                continue
            at = rng.randrange(ends[path])
            size = os.path.getsize(path)
            kind = rng.choice(("bit", "bit", "bit", "block", "blocks", "noise", "cut", "gone"))
            self.counted[kind] += 1
            if kind == "gone":
                os.unlink(path)
                done[path].append(range(size))
            elif kind == "cut":
                os.truncate(path, at)
                done[path].append(range(at, size))
            else:
                many = {"bit": 1, "block": BLOCK, "blocks": 4 * BLOCK, "noise": rng.randrange(1, 200)}[kind]
                at = at & -BLOCK if kind.startswith("block") else at
                with open(path, "r+b") as file:
                    file.seek(at)
                    old = file.read(many)
                    new = bytes(len(old)) if many >= BLOCK else bytes(byte ^ 1 << rng.randrange(8) for byte in old)
                    file.seek(at)
                    file.write(new)
                done[path].append(range(at, at + many))
        return done


def play(root: Path, seed: int, counted: Counter[str]) -> None:
    """Plays one round. AssertionError."""
    rng = random.Random(seed)
    world = World(root, rng, largest=rng.choice((200, 3000, 20_000)))
    world.counted = counted
    for _ in range(rng.choice((20, 60, 150))):
        world.act()
    world.session.crash()
    right = _all(start(root))
    directory = f"{root}/.journal"
    found = recover(directory)
    written = world.written(found)
    counted["bytes before"] += sum(each.end - each.start for each in written)
    damaged = world.damage(found)
    lost = {each.place for each in written if _touches(each, damaged)}
    done = repair(directory, Disk())
    counted["repaired" if done else "nothing to repair"] += 1
    verify(directory, Disk())
    _check_segments(directory, done)
    files = _files(directory)
    assert repair(directory, Disk()) is None
    assert _files(directory) == files
    now = _all(start(root))
    world.check_payloads(now)
    counted["messages kept"] += len(now)
    if done is not None:
        _check_losses(world, written, lost, right, now, done)
    _work_on(world)


def _all(picture: dict[str, dict[int, tuple[bytes | None, int]]]) -> dict[Message, bytes | None]:
    return {(qid, mid): payload for qid, found in picture.items() for mid, (payload, _) in found.items()}


def _touches(each: Written, damaged: dict[str, list[range]]) -> bool:
    """Tells whether a record was damaged, or its frame begins with a block of zeros: that looks like the end of the
    log, behind which records of a write that failed may stand."""
    parts = damaged.get(each.path, ())
    return any(part.start < each.end and each.start < part.stop for part in parts) or any(
        len(part) >= BLOCK and each.frame in part for part in parts
    )


def _files(directory: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(directory).iterdir() if path.is_file()}


def _check_segments(directory: str, done: Repaired | None) -> None:
    """No segment has bytes without a place."""
    if done is not None:
        assert sorted(str(path) for path in Path(directory).glob("*.segment")) == done.segments
    for path in Path(directory).glob("*.segment"):
        assert path.stat().st_size <= 1 << 16


def _check_losses(
    world: World,
    written: list[Written],
    lost: set[int],
    right: dict[Message, bytes | None],
    now: dict[Message, bytes | None],
    done: Repaired,
) -> None:
    """Messages are missing only if a record of theirs was damaged, and are back only if that of their end was."""
    names: dict[int, str] = {}
    kept: set[Message] = set()
    ended: set[Message] = set()
    claims: set[tuple[int, str, int]] = set()
    staged: dict[tuple[int, int, int, int], int] = {}
    payloads: set[int] = set()
    headless = {each.path for each in written} - {part.path for part in done.found.parts if not part.faults}
    for each in written:
        record, whole = each.record, each.place not in lost
        if isinstance(record, records.Queue):
            names[record.number] = record.qid
            continue
        qid = names.get(getattr(record, "number", -1), "")
        whole = whole and each.path not in headless
        if whole and record.KIND in records.WITH_PAYLOAD:
            payloads.add(each.place)
        match record:
            case (
                records.Push()
                | records.Attributed()
                | records.Moved()
                | records.Letter()
                | records.Shared()
                | Transfer()
            ):
                ended.discard((qid, record.mid))
                if whole and getattr(record, "place", each.place) in payloads:
                    kept.add((qid, record.mid))
            case Staged() if whole:
                staged[record.batch, record.part, record.attempt, record.position] = each.place
            case Published() if whole:
                mid = record.first
                for part, attempt, count in record.parts:
                    for position in range(count):
                        place = staged.get((record.batch, part, attempt, position))
                        if place is not None and all(
                            (record.batch, part, attempt, before) in staged for before in range(position)
                        ):
                            kept.add((qid, mid + position))
                    mid += count
        match record:
            case records.Delete() if whole:
                ended.add((qid, record.mid))
            case Retired() if whole:
                ended.update((qid, mid) for mid in record.mids)
            case records.Remove() if whole:
                ended.update(message for message in world.ever if message[0] == qid and message not in right)
            case Claim() if whole:
                claims.update((record.number, record.consumer, mid) for mid in record.mids)
            case Acked() if whole and not isinstance(record, Unclaimed):
                named = {mid for mid in record.mids if (record.number, record.consumer, mid) in claims}
                ended.update((qid, mid) for mid in named)
            case Transfer() if whole and record.place in payloads:
                ended.add((names.get(record.source, ""), record.replaced))
    aside = {(path.parent.name, int(path.name)) for path in Path(done.aside).glob("queue-number-*/*")}
    if not aside:
        back = now.keys() - right.keys()
        world.counted["back"] += len(back)
        assert not back & ended, (sorted(back & ended), "are back")
        there = set(now.values())  # a message of `mail` may have become a dead letter
        missing = {
            each for each in kept & right.keys() if each not in now and (each[0] != "mail" or right[each] not in there)
        }
        assert not missing, (sorted(missing), "are missing")
    else:
        world.counted["with unplaced"] += 1
    world.counted["lost"] += len(right.keys() - now.keys())


def _work_on(world: World) -> None:
    """Works on with the repaired journal: what is pushed, copied and compacted then is right too."""
    now = world.session.clock.now
    world.session = Session(world.root)
    world.session.clock.now = now + 1
    world._batch += 1000  # the repair may have kept a later one
    for qid in QUEUES:
        if qid not in world.session.engine.queues():
            world._create(qid)
    for _ in range(40):
        with suppress(StorageError):  # the claims may be other ones
            world.act()
        world.session.engine.commit()
    world.session.engine.close()
    found = _all(start(world.root))
    world.check_payloads(found)
    verify(f"{world.root}/.journal", Disk())
    _check_segments(f"{world.root}/.journal", None)


SEED = 20261127


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


def rounds(root: Path, seeds: Iterator[int], until: float, most: int) -> Counter[str]:
    """Plays rounds until a time or a number of them. Returns what was counted."""
    counted: Counter[str] = Counter()
    for seed in seeds:
        if counted["rounds"] >= most or time.monotonic() >= until:
            break
        with pytest.MonkeyPatch.context() as patch:
            small_places(patch)
            small_segments(patch, (8 << 10, 24 << 10, 60 << 10)[seed % 3])
            try:
                play(root / str(seed), seed, counted)
            except BaseException as error:
                error.add_note(f"QS_DAMAGE_SEED={seed} plays this round")
                raise
        shutil.rmtree(root / str(seed))
        counted["rounds"] += 1
    return counted


def test_random_damage(root: Path) -> None:
    """A few rounds: after a repair every message has its own payload, queue and id, nothing is missing whose records
    are whole, and a second repair changes nothing."""
    first = int(os.environ.get("QS_DAMAGE_SEED", SEED))
    counted = rounds(root, count(first), time.monotonic() + 600, 1 if "QS_DAMAGE_SEED" in os.environ else 12)
    assert counted["messages kept"]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_much_random_damage(root: Path) -> None:
    """Repairs of random damage keep what is whole for QS_DAMAGE_MINUTES (5)."""
    minutes = float(os.environ.get("QS_DAMAGE_MINUTES", "5"))
    counted = rounds(root, count(SEED + 1000), time.monotonic() + 60 * minutes, 10**9)
    print(dict(counted))
    assert counted["repaired"] > counted["rounds"] // 3
