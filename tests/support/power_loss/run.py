"""A run of an engine that is recorded, operation by operation, in step with a model of what it must hold.

Operations come in groups of one to six with one commit, as the broker gives them to an engine: a power loss inside of
the commit finds several operations under way. The same seed gives the same run, so that a point that failed can be
played again.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Clock, Draft, Durability, Engine, Feature, Options, Receipt
from support.power_loss.disk import Entry, RecordingDisk, everything_recorded
from support.power_loss.model import KEY_WINDOW, Held, Keyed, Model, draft_for
from support.storage.calls import next_due
from support.storage.engines import LOTS, ManualClock, arrived, failed

Make = Callable[[Clock, Disk, str], Engine]
"""An engine with durability ALWAYS over a root directory."""
Background = Callable[[Engine], None]
"""Does the upkeep of an engine between two operations."""

_QIDS = ("a", "b/c", "d", "e")
_SIZES = (0, 5, 5, 40, 40, 511, 700, 5000, 20_000)
"""Bytes of payloads: none, some in one sector, one that crosses a sector with its head, and several pages."""
_CROWD = 14
"""Messages from which on more are consumed than pushed: at each point, all messages are looked at."""


@dataclass
class Recording:
    """log: with the markers `begin` and `answered`; operations: when each was, and in words; copied: bytes that
    compaction has copied."""

    log: list[Entry]
    operations: list[tuple[int, str]]
    model: Model
    copied: int = 0


def record(
    make: Make,
    root: str,
    seed: int,
    operations: int,
    background: Background | None = None,
    *,
    keys: bool = False,
    direct: bool = True,
    durability: Durability = Durability.ALWAYS,
) -> Recording:
    """Records a run on the empty directory root. The same seed gives the same operations.

    keys: pushes have keys too, and the engine is stopped and started now and then; direct: as for RecordingDisk;
    durability: the one that `make` gives the engine. With INTERVAL, an operation counts as answered when
    `background_sync` has made it durable; with NONE, none does.
    """
    disk = RecordingDisk(root, direct=direct)
    with everything_recorded(disk):
        return _Run(make, disk, seed, background, keys, durability).run(operations)


class _Run:
    def __init__(
        self,
        make: Make,
        disk: RecordingDisk,
        seed: int,
        background: Background | None,
        keys: bool,
        durability: Durability,
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.model = Model()
        self.operations: list[tuple[int, str]] = []
        self.disk = disk
        self.background = background
        self.keys = keys
        self.durability = durability
        self.held: set[tuple[str, int]] = set()
        """The messages that each queue has ever held: `files` gives a message that is copied there again its former
        count."""
        self.make = make
        self.copied = 0
        self.engine = make(self.clock, disk, disk.root)

    def run(self, operations: int) -> Recording:
        try:
            while len(self.operations) < operations:
                for _ in range(1 if self.rng.random() < 0.5 else self.rng.randint(2, 6)):
                    self._do()
                self.engine.commit()
                assert failed(self.engine) == {}
                if self._is_durable():
                    self.disk.mark("answered", self._number)
                arrived(self.engine)
                self.engine.refresh()
                if self.background is not None and self.rng.random() < 0.15:
                    self.background(self.engine)
                if self.keys and self.rng.random() < 0.02:
                    self._restart()
        finally:
            self._close()
        return Recording(self.disk.log, self.operations, self.model, self.copied)

    def _is_durable(self) -> bool:
        """Tells whether everything that was committed is durable. Now and then runs the background sync first."""
        if self.durability is not Durability.INTERVAL:
            return self.durability is Durability.ALWAYS
        if self.rng.random() > 0.2:  # several commits wait for one sync, as between two syncs of a server
            return False
        if (sync := self.engine.background_sync()) is not None:
            sync()
        return True

    def _close(self) -> None:
        self.copied += copied_by(self.engine)
        self.engine.close()

    @property
    def _orders(self) -> bool:
        """Tells whether messages have priorities and groups."""
        return Feature.GROUP not in self.engine.cannot

    def _restart(self) -> None:
        self._close()
        self.engine = self.make(self.clock, self.disk, self.disk.root)

    @property
    def _number(self) -> int:
        """Returns the number of the next operation."""
        return len(self.operations)

    def _do(self) -> None:
        self.clock.now += 1000 * self.rng.randint(1, 5)
        self.disk.mark("begin", self._number + 1)
        text = self._choose()()
        self.operations.append((self.clock.now, text))

    def _choose(self) -> Callable[[], str]:
        queues = len(self.model.present)
        crowd = sum(len(messages) for _, messages in self.model.present.values())
        # Two at least: a receive from several, and a copy, need another one.
        if queues < 2 or (queues < len(_QIDS) and self.rng.random() < 0.06):
            return self._create
        if not crowd:
            return self._push
        few = crowd < _CROWD
        weighted = {
            self._push: 5 if few else 1,
            self._push_list: 3 if few else 0.5,
            self._receive: 6,
            self._delete: 4 if few else 9,
            self._release: 3,
            self._extend: 3,
            self._get: 2,
            self._copy: 2 if few else 0.5,
            self._purge: 0.3 if few else 2,
            self._expire: 2,
            self._remove: 0.8,
            self._push_key: 4 * self.keys,
        }
        return self.rng.choices(list(weighted), list(weighted.values()))[0]

    # -- choices

    def _queue(self) -> str:
        return self.rng.choice(sorted(self.model.present))

    def _message(self, which: Callable[[Held], bool] = lambda held: True) -> tuple[str, int, Held] | None:
        found = [
            (qid, mid, held)
            for qid in sorted(self.model.present)
            for mid, held in self.model.now(qid, self.clock.now).items()
            if which(held)
        ]
        return self.rng.choice(found) if found else None

    def _window(self) -> int:
        """Returns the length of a window. Windows end at even times and delays at odd ones, because `files` takes one
        for the other when they are equal."""
        return self.rng.choice((2, 50, 1000)) * 10_000

    def _delay(self) -> int:
        return self.rng.choice((3, 40, 900)) * 10_000 + 1

    def _drafts(self, count: int) -> list[Draft]:
        delay = self._delay() if self.rng.random() < 0.25 else 0
        payloads = [
            b"%d-%d:" % (self._number, index) + self.rng.randbytes(self.rng.choice(_SIZES)) for index in range(count)
        ]
        return [draft_for(self.engine, payload, delay) for payload in payloads]

    # -- operations: each does it, says so to the model, and gives it in words

    def _create(self) -> str:
        qid = self.rng.choice([qid for qid in _QIDS if qid not in self.model.present])
        options = Options(visibility=self.rng.randint(1, 90) * SECOND, capacity=self.rng.choice((None, 10_000)))
        self.engine.create(qid, options)
        self.model.create(self._number, qid, shown(options))
        return f"create {qid}"

    def _remove(self) -> str:
        qid = self._queue()
        held = len(self.model.present[qid][1])
        self.engine.remove(qid, force=held > 0)  # both ways: an empty queue needs no force
        self.model.remove(self._number, qid)
        return f"remove {qid} with {held} messages"

    def _push(self, count: int = 1) -> str:
        qid, drafts = self._queue(), self._drafts(count)
        mids = self.engine.queue(qid).push(drafts)
        if self.rng.random() < 0.5:
            self.engine.effects()
        self.held.update((qid, mid) for mid in mids)
        for mid, draft in zip(mids, drafts, strict=True):
            until = self.clock.now + draft.delay if draft.delay else 0
            self.model.set(self._number, "push", qid, mid, Held(draft.payload, 0, until, bool(draft.delay)))
        self.model.keep_whole(self._number, "push", [(qid, mid) for mid in mids])
        return f"push {mids} to {qid}, delayed by {drafts[0].delay}"

    def _push_list(self) -> str:
        return self._push(self.rng.randint(2, 5))

    def _push_key(self) -> str:
        """Pushes with a key: a new one, or a known one once more."""
        known = [
            (key, keyed)
            for key, keyed in self.model.keys.items()
            if keyed.qid in self.model.present
            and keyed.made == self.model.present[keyed.qid][0]
            and self.clock.now - keyed.at < KEY_WINDOW
        ]
        if known and self.rng.random() < 0.3:
            key, keyed = self.rng.choice(known)
            assert self.engine.queue(keyed.qid).push([Draft(b"again", 0, key)]) == [keyed.mid]
            return f"push again to {keyed.qid} with {key}"
        qid, key = self._queue(), f"key-{self._number}"
        payload = self._drafts(1)[0].payload
        [mid] = self.engine.queue(qid).push([draft_for(self.engine, payload, 0, key)])
        self.held.add((qid, mid))
        self.model.set(self._number, "push", qid, mid, Held(payload))
        self.model.keys[key] = Keyed(self._number, qid, self.model.present[qid][0], mid, self.clock.now)
        return f"push {mid} to {qid} with {key}"

    def _receive(self) -> str:
        qids = self.rng.sample(sorted(self.model.present), self.rng.choice((1, 1, min(2, len(self.model.present)))))
        count, window = self.rng.randint(1, 4), self.rng.choice((None, self._window()))
        ready = [
            (mid, order, qid)
            for order, qid in enumerate(qids)
            for mid, held in self.model.now(qid, self.clock.now).items()
            if not held.until
        ]
        found = self.engine.receive(qids, count, window, LOTS)
        received = [(message.mid, message.qid) for message in found]
        expected = [(mid, qid) for mid, _, qid in sorted(ready)]
        # With priorities and groups, another test compares the order with a model.
        assert set(received) <= set(expected) if self._orders else received == expected[:count]
        for message in found:
            held = self.model.now(message.qid, self.clock.now)[message.mid]
            assert message.payload == held.payload
            self._taken(message.qid, message.mid, held, window)
        return f"receive {[(message.qid, message.mid) for message in found]}"

    def _taken(self, qid: str, mid: int, held: Held, window: int | None) -> None:
        until = self.clock.now + (self.engine.queue(qid).options.visibility if window is None else window)
        self.model.set(self._number, "receive", qid, mid, Held(held.payload, held.receives + 1, until))

    def _get(self) -> str:
        qid, mid, held = self._message() or (None, 0, Held(b""))
        assert qid is not None
        window = self._window()
        message = self.engine.queue(qid).get(mid, peek=False, visibility=window)
        assert (message.payload is None) == bool(held.until) or self._orders  # its group may keep it back
        if message.payload is not None:
            self._taken(qid, mid, held, window)
        return f"get {mid} from {qid}"

    def _delete(self) -> str:
        found = self._message(lambda held: held.receives > 0) or self._message()
        assert found is not None
        qid, mid, held = found
        self.engine.queue(qid).delete(Receipt(mid, self.rng.choice((None, held.receives))))
        self.model.set(self._number, "delete", qid, mid, None)
        return f"delete {mid} from {qid}"

    def _release(self) -> str:
        found = self._message(lambda held: held.until > 0)
        if found is None:
            return self._receive()
        qid, mid, held = found
        delay = self.rng.choice((0, self._delay()))
        self.engine.queue(qid).release(Receipt(mid, None if held.delayed else held.receives), delay)
        until = self.clock.now + delay if delay else 0
        self.model.set(self._number, "release", qid, mid, held._replace(until=until, delayed=bool(delay)))
        return f"release {mid} in {qid} after {delay}"

    def _extend(self) -> str:
        found = self._message(lambda held: held.until > 0 and not held.delayed)
        if found is None:
            return self._receive()
        qid, mid, held = found
        until = self.engine.queue(qid).extend(Receipt(mid, held.receives), self._window())
        self.model.set(self._number, "extend", qid, mid, held._replace(until=until))
        return f"extend {mid} in {qid}"

    def _copy(self) -> str:
        found = self._message()
        assert found is not None
        qid, mid, held = found
        targets = [target for target in sorted(self.model.present) if (target, mid) not in self.held]
        if not targets:
            return self._push()
        into = self.rng.sample(targets, self.rng.randint(1, len(targets)))
        self.engine.copy(qid, mid, into)
        self.held.update((target, mid) for target in into)
        for target in into:
            self.model.set(self._number, "copy", target, mid, Held(held.payload))
        self.model.keep_whole(self._number, "copy", [(target, mid) for target in into])
        return f"copy {mid} from {qid} to {into}"

    def _purge(self) -> str:
        qid, count = self._queue(), self.rng.randint(1, 4)
        mids = sorted(self.model.present[qid][1])[:count]
        upto = mids[-1] if mids else 1
        assert self.engine.queue(qid).purge(upto, count) == len(mids)
        for mid in mids:
            self.model.set(self._number, "purge", qid, mid, None)
        return f"purge {mids} from {qid}"

    def _expire(self) -> str:
        due = next_due(self.engine)
        if due is not None:
            # Not before the end of the window, and on whole milliseconds, as before every other operation.
            self.clock.now = max(self.clock.now, due + (due % 2) * 999)
            self.clock.now += -self.clock.now % 1000
        self.engine.expire(1000)
        return "expire"


def copied_by(engine: Engine) -> int:
    """Returns the bytes that compaction has copied, 0 for an engine without a journal."""
    journal = getattr(engine, "_journal", None)
    maintenance = None if journal is None else journal.maintenance
    return 0 if maintenance is None else int(maintenance.compaction.total)


def shown(options: Options) -> object:
    """Returns the options of a queue that are compared."""
    return options.visibility, options.capacity
