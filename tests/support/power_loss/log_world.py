"""A journal that is used at random until its log has reused segments, and checks of what must hold after any start."""

import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from qs_storage.engine import SECOND, Draft, Durability, Options, Receipt, StorageError
from qs_storage.journal.log import pool
from qs_storage.journal.log.records import reason_size, record_size
from qs_storage.journal.queues.keys import KEY_SIZE, WINDOW
from qs_storage.journal.queues.queue import LogQueue
from qs_storage.journal.queues.store import PayloadStore
from qs_storage.journal.upkeep import maintenance, room
from qs_storage.journal.upkeep.checkpoint import NAME as CHECKPOINT
from support.power_loss.engines import small_journal
from support.storage.engines import FaultyDisk, JournalEngine, ManualClock, maintenance_of, upkeep

_QUEUES = ("cold", "hot", "copies", "others", "dead", "old")
_OPTIONS = {"cold": Options(visibility=1000, dead_letter="dead", max_receives=3), "old": Options(retention=3000)}
_LIFETIMES = (None, None, 3000, 10**6, 10**9)


class KeepingDisk(FaultyDisk):
    """A disk that keeps the content of segments that are renamed or removed."""

    def __init__(self, kept: dict[str, bytes]) -> None:
        super().__init__()
        self.kept = kept

    def _keep(self, path: str) -> None:
        if path.endswith(".segment"):
            self.kept[os.path.basename(path)] = Path(path).read_bytes()

    def unlink(self, path: str) -> None:
        self._keep(path)
        super().unlink(path)

    def rename(self, old: str, new: str) -> None:
        self._keep(old)
        super().rename(old, new)


@dataclass
class World:
    """An engine that is used at random. removed: the removed segments, with their content."""

    root: Path
    random: random.Random
    clock: ManualClock = field(default_factory=ManualClock)
    removed: dict[str, bytes] = field(default_factory=dict)
    backlog: list[int] = field(default_factory=list)
    last: int = 0

    def open(self, root: Path | None = None) -> JournalEngine:
        disk = self.disk = KeepingDisk({} if root else self.removed)
        return JournalEngine(str(root or self.root), clock=self.clock, durability=Durability.ALWAYS, disk=disk)

    def begin(self) -> None:
        self.engine = self.open()
        for qid in _QUEUES:
            self.engine.create(qid, _OPTIONS.get(qid, Options()))
        for _ in range(12):
            self.queue("cold").push([Draft(self.random.randbytes(300)) for _ in range(100)])
            self.engine.commit()

    @property
    def rounds(self) -> int:
        """Returns how many segments have been removed."""
        return (store_of(self.engine).log.segments.oldest or 1) - 1

    def write_notes(self) -> None:
        assert self.engine._journal.room is not None
        self.engine._journal.room.commit()

    def queue(self, qid: str) -> Any:
        return self.engine.queue(qid)

    def some(self, qid: str) -> int:
        mids = self.queue(qid).index.messages.after(-1, 10_000)
        return self.random.choice(mids) if mids else 0

    # -- what happens

    def step(self, kinds: dict[str, float]) -> None:
        [kind] = self.random.choices(list(kinds), list(kinds.values()))
        with suppress(StorageError):  # it is in another state, or gone
            getattr(self, kind)()
        self.clock.now += self.random.randrange(50)
        self.engine.commit()
        upkeep(self.engine, self.clock.now)

    def push_cold(self) -> None:
        self.queue("cold").push([Draft(self.random.randbytes(self.random.randrange(300)), 0, None)])

    def push_keyed(self) -> None:
        """Pushes with keys, some of which were used before."""
        self.queue("cold").push([Draft(b"keyed", 0, str(self.random.randrange(100)))])

    def _attributed(self) -> Draft:
        chance = self.random
        headers = tuple((f"h{at}", chance.choice("xyzü") * chance.randrange(40)) for at in range(chance.randrange(3)))
        return Draft(
            chance.randbytes(chance.randrange(200)),
            priority=chance.choice((0, 0, 3, 9)),
            expires=chance.choice(_LIFETIMES),
            group=chance.choice(("", "a", "b", "größe")),
            headers=headers,
        )

    def push_attributed(self) -> None:
        """Pushes with all kinds of attributes, some of which have keys that count while their message is there."""
        drafts = [self._attributed() for _ in range(self.random.randrange(1, 4))]
        if self.random.random() < 0.3:
            drafts.append(self._attributed()._replace(key=str(self.random.randrange(5)), unique=True))
        self.queue(self.random.choice(("cold", "old"))).push(drafts)

    def stage_attributed(self) -> None:
        name = self.last + self.random.randrange(2), self.random.randrange(3), 0
        self.queue("cold").batches.stage("p", name, [self._attributed() for _ in range(self.random.randrange(3))])

    def set_limits(self) -> None:
        for qid in ("cold", "old", "copies"):
            options = replace(self.queue(qid).options, group_in_flight=self.random.choice((None, 2)))
            options.max_in_flight = self.random.choice((None, 3))
            options.fair = self.random.random() < 0.5
            self.engine.configure(qid, options)

    def push_hot(self) -> None:
        for mid in self.queue("hot").push([Draft(bytes(self.random.randrange(7000)))] * self.random.randrange(1, 4)):
            self.queue("hot").delete(Receipt(mid))

    def push_backlog(self) -> None:
        self.backlog += self.queue("hot").push([Draft(bytes(self.random.randrange(5000)))])
        while len(self.backlog) > 9 or (self.backlog and self.random.random() < 0.4):
            self.queue("hot").delete(Receipt(self.backlog.pop(0)))

    def receive(self) -> None:
        self.engine.receive(["cold"], self.random.randrange(1, 3), self.random.randrange(1, 5000), 1 << 20)
        self.engine.commit()
        self.write_notes()

    def release(self) -> None:
        reason = self.random.choice([None, "why", "r" * 200])
        self.queue("cold").release(Receipt(self.some("cold")), self.random.choice([0, 10, 10**9]), reason=reason)

    def extend(self) -> None:
        self.queue("cold").extend(Receipt(self.some("cold")), self.random.randrange(1, 10**6))

    def delete(self) -> None:
        qid = self.random.choice(_QUEUES)
        self.queue(qid).delete(Receipt(self.some(qid)))

    def purge(self) -> None:
        qid = self.random.choice(("cold", "copies", "dead", "old"))
        self.queue(qid).purge(self.some(qid), self.random.randrange(30))

    def copy(self) -> None:
        source, target = self.random.sample(("cold", "copies", "others", "dead"), 2)
        self.engine.copy(source, self.some(source), [target])

    def make_again(self) -> None:
        qid = self.random.choice(_QUEUES[2:])
        self.engine.remove(qid, force=True)
        if self.random.random() < 0.5:
            self.engine.commit()
        self.engine.create(qid, _OPTIONS.get(qid, Options()))

    def redrive(self) -> None:
        letters = self.queue("dead").redrive.letters([], 3)
        target = self.queue(self.random.choice(("cold", "old", "copies")))
        self.queue("dead").redrive.move([(mid, target) for mid, _ in letters])

    def push_old(self) -> None:
        self.queue("old").push([Draft(self.random.randbytes(100), self.random.choice((0, 5000))) for _ in range(3)])

    def retire(self) -> None:
        self.queue("old").retire(self.random.randrange(1, 10))

    def receive_others(self) -> None:
        qids = self.random.sample(("cold", "copies", "dead", "old"), 2)
        self.engine.receive(qids, self.random.randrange(1, 4), self.random.randrange(1, 3000), 1 << 20)
        self.queue("cold").take_first(2, 1000, 1 << 20, held=True)
        self.engine.commit()
        self.write_notes()

    def put_files(self) -> None:
        """Puts files into the queue's directory, some of them under the id of a message."""
        for mid in (self.clock.now - self.random.randrange(10**6), self.some("old") or 5):
            (self.root / "old" / str(mid)).write_bytes(self.random.randbytes(80))
        self.engine._journal._ingesters.of(self.queue("old")).rescan()

    def wait(self) -> None:
        self.clock.now += self.random.choice((1000, 200 * SECOND, 400 * SECOND))

    # -- claims and batches

    def _claims(self) -> tuple[str, Any]:
        name = self.random.choice("cd")
        return name, self.queue("cold").claims.consumers.get(name)

    def claim(self) -> None:
        name, known = self._claims()
        following = 1 if known is None else max((known.acked, *known.claims)) + 1
        self.queue("cold").claims.claim(name, following, self.random.randrange(1, 4), None, None)

    def acknowledge(self) -> None:
        name, known = self._claims()
        if known is not None and known.claims:
            self.queue("cold").claims.acknowledge(name, self.random.choice(list(known.claims)))

    def end_claim(self) -> None:
        name, known = self._claims()
        if known is not None and known.claims:
            self.queue("cold").claims.release(name, self.random.choice(list(known.claims)))

    def stage(self) -> None:
        """Stages a part of a batch, now and then without messages."""
        name = self.last + self.random.randrange(2), self.random.randrange(3), 0
        staged = [Draft(self.random.randbytes(100))] * self.random.randrange(3)
        self.queue("cold").batches.stage("p", name, staged)

    def publish(self) -> None:
        known = self.queue("cold").batches.producers.get("p")
        parts = [name[1:] for name in (known.staged if known else ()) if name[0] == self.last]
        self.last += 1
        self.queue("cold").batches.publish("p", self.last - 1, parts)

    # -- what has to hold

    def check(self) -> None:
        """Starts engines on copies of the directory, each with other files that may be there after a power loss.
        Messages that subscribers hold are released first, as a start releases them."""
        self.clock.now += 20_000
        for qid in _QUEUES:
            self.queue(qid).expire()
        self.engine.commit()
        self.write_notes()
        assert not maintenance_of(self.engine).compaction._damaged
        expected = state_of(self.engine, self.clock.now)
        for checkpoint, part in product((True, False), (0.0, 0.5)):
            copy = self.root.parent / "copy"
            shutil.copytree(self.root, copy)
            self._alter(copy, keep_checkpoint=checkpoint, part=part)
            other = self.open(copy)
            assert state_of(other, self.clock.now) == expected
            check_usage(other)
            other.close()
            shutil.rmtree(copy)
        check_usage(self.engine)

    def _alter(self, root: Path, *, keep_checkpoint: bool, part: float) -> None:
        """Puts some of the removed segments back, and removes the checkpoint."""
        if not keep_checkpoint:
            (root / ".journal" / CHECKPOINT).unlink(missing_ok=True)
        for name, data in self.removed.items():
            if self.random.random() < part and not (root / ".journal" / name).exists():
                (root / ".journal" / name).write_bytes(data)

    def reopen(self) -> None:
        """Starts the engine again, after a stop or after a power loss."""
        self.write_notes()
        if self.random.random() < 0.5:
            self.engine.close()
        else:
            self.engine._journal.close()
            self.engine._watch.close()
            self._alter(self.root, keep_checkpoint=self.random.random() < 0.5, part=0.4)
        self.removed.clear()
        self.engine = self.open()


def store_of(engine: JournalEngine) -> PayloadStore:
    store = engine._journal.store
    assert store is not None
    return store


def state_of(engine: JournalEngine, now: int) -> dict[str, object]:
    """Returns everything of a queue that a start must restore."""
    found: dict[str, object] = {}
    for qid in engine._journal.queues:
        queue = engine.queue(qid)
        assert isinstance(queue, LogQueue)
        queue.expire()
        table = queue
        found[qid] = [
            (
                mid,
                queue.payload_of(mid),
                queue.headers_of(mid),
                table.state_of(mid),
                table.origins.get(mid),
                table.reasons.get(mid),
                table.attributes.get(mid),
            )
            for mid in table.index.messages.after(-1, 10_000)
        ]
        found[f"{qid} keys"] = sorted((e.key, e.mid) for e in queue.keys.entries.values() if e.at > now - WINDOW)
        found[f"{qid} claims"] = list(queue.claims.all())
        found[f"{qid} staged"] = {
            name: (producer.last, {n: sorted(part) for n, part in producer.staged.items()})
            for name, producer in queue.batches.producers.items()
            if producer.last >= 0 or producer.staged
        }
        found[f"{qid} order"] = order_of(queue)
        found[f"{qid} unique"] = queue.unique
        found[f"{qid} ends"] = {mid: queue.ends.get(mid) for mid in queue.ends.after(-1, 10_000)}
        found[f"{qid} last"] = queue.last_mid
        found[f"{qid} taken"] = sorted(queue.taken)
    return found


def order_of(queue: LogQueue) -> object:
    """Returns what an order knows, but for the turns of groups, which begin anew with each start."""
    order = queue.index.order
    if order is None:
        return None
    ranked = {mid: (each.priority, each.state, each.group and each.group.name) for mid, each in order._ranked.items()}
    groups = {name: (each.out, each.offered, each.ready.after(-1, 10_000)) for name, each in order._groups.items()}
    lanes = {priority: lane.free.after(-1, 10_000) for priority, lane in order._lanes.items() if lane.free.count}
    return ranked, groups, lanes, order.ready.after(-1, 10_000), order.count


def check_usage(engine: JournalEngine) -> None:
    """Asserts that the number of live bytes is right for the messages that are there."""
    live: Counter[int] = Counter()
    places: dict[int, int] = {}
    for queue in engine._journal.queues.values():
        table = queue
        for mid in table.index.messages.after(-1, 10_000):
            places[table.places.get(mid) or 0] = table.index.size(mid)
            if (reason := table.reasons.get(mid)) is not None:
                live[(table.places.get(mid) or 0) >> 32] += reason_size(reason)
            live[(table.places.get(mid) or 0) >> 32] += table.attributes_size((mid,))
        for producer in queue.batches.producers.values():
            places.update(place for part in producer.staged.values() for place in part.values())
        for entry in queue.keys.entries.values():
            live[entry.segment] += KEY_SIZE
    for place, size in places.items():
        live[place >> 32] += record_size(size)
    store = store_of(engine)
    assert {segment: size for segment, size in store.usage.live.items() if size} == live
    assert live.keys() <= store.log.segments.sizes.keys()


def small_segments(patch: pytest.MonkeyPatch) -> None:
    """Makes segments small enough that some hold only messages that stay, while a slice of compaction takes many
    messages."""
    small_journal(patch)
    for module, name in ((pool, "FIRST_SEGMENT"), (pool, "LARGEST_SEGMENT"), (maintenance, "_CHECKPOINT")):
        patch.setattr(module, name, 1 << 17)
    ticks = count()
    for module in (maintenance, room):
        patch.setattr(module, "perf_counter", lambda: next(ticks) / (1 << 16))
