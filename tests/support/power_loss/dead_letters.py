"""Records a run in which messages die, are rejected, moved back or get too old, and plays a power loss at any point.

Each message has a payload of its own. After a power loss each is in exactly one queue, where it was before the
operation under way or after it, with the last reason, and no more receives than that. One that was removed for its age
stays removed.
"""

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from qs_storage.engine import Draft, Engine, Feature, Options, Receipt, StaleReceiptError, State
from support.power_loss.check import PowerLosses, When, fast_directory, nobody_else
from support.power_loss.disk import Entry, RecordingDisk, everything_recorded
from support.power_loss.engines import ENGINES
from support.power_loss.file_system import Image
from support.power_loss.model import headers_for
from support.power_loss.run import copied_by
from support.storage.calls import next_due
from support.storage.engines import LOTS, ManualClock, upkeep

WINDOW = 1_000_000
QUEUES = ("q", "dead", "last")
"""Queues of the run, which makes the first one at its start and the others when they are first needed."""


class Placed(NamedTuple):
    """The state of a message: its queue, the queue from which it came and why if it is a dead letter, the reason of its
    last release, and its count of receives."""

    qid: str
    came_from: str | None
    died_of: str | None
    reason: str | None
    receives: int


Shown = dict[bytes, Placed]
"""The state of each message, by payload."""


@dataclass
class Recorded:
    """log: with the markers `begin` and `answered`; operations: when each was, what it was in words, and what is shown
    after it; copied: bytes that compaction has copied; retired, rejected: messages that were removed for their age, and
    that were rejected."""

    log: list[Entry]
    operations: list[tuple[int, str, Shown]] = field(default_factory=list)
    copied: int = 0
    retired: int = 0
    rejected: int = 0


def show(engine: Engine) -> Shown:
    """Returns the state of each message. None may be there twice."""
    shown: Shown = {}
    for qid in QUEUES:
        if qid not in engine.queues():
            continue
        queue = engine.queue(qid)
        for mid in queue.list_mids(State.ALL, 10**6, -1):
            message = queue.read(Receipt(mid))
            payload = message.payload or b""
            assert payload not in shown, f"{payload[:8]!r} is in {qid} and in {shown[payload][0]}"
            assert message.headers == headers_for(payload), f"{payload[:8]!r} has the headers {message.headers}"
            origin = message.origin
            came_from, died_of = (None, None) if origin is None else (origin.qid, origin.reason)
            shown[payload] = Placed(qid, came_from, died_of, message.reason, message.receives)
    return shown


class _Run:
    def __init__(self, name: str, disk: RecordingDisk, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = disk
        self.make = ENGINES[name].make
        self.engine = self.make(self.clock, disk, disk.root)
        self.recorded = Recorded(disk.log)
        self.pushed = 0

    def run(self, operations: int) -> Recorded:
        self._do(self._create)
        while len(self.recorded.operations) < operations:
            due = next_due(self.engine)
            soon = due is not None and due <= self.clock.now + 10
            self._do(self._expire if soon else self._choose())
            if self.rng.random() < 0.2:
                upkeep(self.engine)
            if self.rng.random() < 0.03:
                self._stop()
                self.engine = self.make(self.clock, self.disk, self.disk.root)
        self._stop()
        return self.recorded

    def _stop(self) -> None:
        self.recorded.copied += copied_by(self.engine)
        self.engine.close()

    def _choose(self) -> Callable[[], str]:
        weighted = {
            self._push: 3, self._receive: 6, self._release: 2, self._expire: 3, self._delete: 1.5, self._redrive: 2,
            self._age: 1, self._reject: 1,
        }  # fmt: skip
        return self.rng.choices(list(weighted), list(weighted.values()))[0]

    def _do(self, operation: Callable[[], str]) -> None:
        self.disk.mark("begin", len(self.recorded.operations) + 1)
        self.clock.tick()
        text = operation()
        self.engine.commit()
        self.disk.mark("answered", len(self.recorded.operations) + 1)
        self.recorded.operations.append((self.clock.now, text, show(self.engine)))

    def _create(self) -> str:
        self.engine.create("q", Options(dead_letter="dead", max_receives=2))
        return "create"

    def _push(self) -> str:
        count = self.rng.randint(1, 3)
        sizes = [self.rng.choice((0, 40, 700, 5000)) for _ in range(count)]
        payloads = [b"%06d" % (self.pushed + at) + bytes(size) for at, size in enumerate(sizes)]
        drafts = [Draft(payload, headers=headers_for(payload)) for payload in payloads]
        self.pushed += count
        self.engine.queue("q").push(drafts)
        return f"push {count}"

    def _receive(self) -> str:
        qid = self.rng.choice(self._there())
        found = self.engine.receive([qid], self.rng.randint(1, 3), WINDOW, LOTS)
        if qid == "dead" and not self.engine.queue("dead").options.dead_letter:
            options = replace(self.engine.queue("dead").options, dead_letter="last", max_receives=1)
            self.engine.configure("dead", options)
        return f"receive {len(found)} from {qid}"

    def _some(self) -> tuple[str, Receipt] | None:
        found = [
            (qid, Receipt(mid))
            for qid in self._there()
            for mid in self.engine.queue(qid).list_mids(State.ALL, 10**6, -1)
        ]
        return self.rng.choice(found) if found else None

    def _release(self) -> str:
        some = self._some()
        if some is not None:
            count, delay = self.rng.random() < 0.8, self.rng.choice((0, None))
            with contextlib.suppress(StaleReceiptError):  # nobody holds it
                self.engine.queue(some[0]).release(some[1], delay, count=count, reason=self._reason())
        return f"release {some}"

    def _reason(self) -> str | None:
        """Returns a reason for half of the messages."""
        if Feature.REASON in self.engine.cannot or self.rng.random() < 0.5:
            return None
        return f"because {self.rng.random()}".ljust(self.rng.choice((0, 1000)))

    def _reject(self) -> str:
        some = self._some()
        if some is None or Feature.REASON in self.engine.cannot:
            return "reject nothing"
        queue = self.engine.queue(some[0])
        if queue.options.dead_letter:
            queue.reject(some[1], self._reason())
            self.recorded.rejected += 1
        return f"reject {some}"

    def _delete(self) -> str:
        some = self._some()
        if some is not None:
            self.engine.queue(some[0]).delete(some[1])
        return f"delete {some}"

    def _expire(self) -> str:
        due = next_due(self.engine)
        self.clock.now = max(self.clock.now, due or 0)
        before, old = show(self.engine), self._too_old()
        self.engine.expire(1000)
        gone = before.keys() - show(self.engine).keys()
        assert gone <= old, f"not due: {sorted(gone - old)}"
        self.recorded.retired += len(gone)
        return "expire"

    def _too_old(self) -> set[bytes]:
        """Returns the payloads of all messages that are older than the retention of their queue."""
        found: set[bytes] = set()
        for qid in self._there():
            queue = self.engine.queue(qid)
            age = queue.options.retention
            for mid in queue.list_mids(State.ALL, 10**6, -1) if age is not None else ():
                if mid + (age or 0) <= self.clock.now:
                    found.add(queue.read(Receipt(mid)).payload or b"")
        return found

    def _age(self) -> str:
        """Changes the retention. Most messages are still in flight or young when it is changed again."""
        if Feature.RETENTION in self.engine.cannot:
            return "age"
        qid = self.rng.choice(self._there())
        age = self.rng.choice((None, None, 4 * WINDOW, 8 * WINDOW))
        backoff = None if Feature.BACKOFF in self.engine.cannot else self.rng.choice((None, WINDOW // 2))
        self.engine.configure(qid, replace(self.engine.queue(qid).options, retention=age, backoff=backoff))
        return f"age {age}, back-off {backoff}"

    def _there(self) -> list[str]:
        return [qid for qid in QUEUES if qid in self.engine.queues()]

    def _redrive(self) -> str:
        qid = self.rng.choice(self._there())
        redrive = self.engine.queue(qid).redrive
        assert redrive is not None
        letters = redrive.letters((), self.rng.choice((1, 3, 1000)))
        into = self.rng.choice((None, "q"))
        moved = redrive.move([(mid, self.engine.queue(into or came_from)) for mid, came_from in letters])
        return f"redrive {len(moved)} from {qid}"


def run_of(name: str, seed: int, operations: int) -> Recorded:
    """Records a run of an engine. The same seed gives the same run."""
    with fast_directory(Path.cwd()) as root, nobody_else():
        disk = RecordingDisk(str(root), direct=ENGINES[name].direct)
        with everything_recorded(disk):
            return _Run(name, disk, seed).run(operations)


class Check(PowerLosses):
    """Compares what is left of a run with what was answered and begun."""

    whole = True

    def __init__(self, name: str, recorded: Recorded, directory: Path, *, ordered: bool = False) -> None:
        """directory, ordered: as for PowerLosses."""
        super().__init__(recorded.log, ENGINES[name].make, directory, ordered=ordered)
        self._operations = recorded.operations
        self._one_by_one = {"expire", "redrive"} if name.startswith("files") else {"expire"}
        """Operations whose messages move one after the other."""
        self._reasons_apart = name.startswith("files")
        """Whether a reason is written before its message is released: then a message with the new reason may be
        otherwise as before."""

    def now(self, begun: int) -> int:
        return self._operations[max(begun - 1, 0)][0]

    def where(self, number: int, variant: str, when: When) -> str:
        answered, begun, _ = when
        going = [text for _, text, _ in self._operations[answered:begun]]
        return f"power loss at {number}/{variant}, {self.log[number]}; answered {answered}, under way {going}"

    def compare(self, image: Image, when: When, *, long_ago: bool) -> list[str]:
        self.checked += 1
        answered, begun, now = when
        allowed = [{} if not number else self._operations[number - 1][2] for number in range(answered, begun + 1)]
        key = image.key, now
        if key not in self._seen:
            self._seen[key] = self.opened(image, now, show)
        found = self._seen[key]
        if isinstance(found, str):
            return [found]
        if self._reasons_apart:
            if not all(_has_reason_of_one(placed, payload, allowed) for payload, placed in found.items()):
                return [difference(found, each) for each in allowed]
            found, allowed = _without_reasons(found), list(map(_without_reasons, allowed))
        going = {text.split()[0] for _, text, _ in self._operations[answered:begun]}
        if any(_agree(found, each) for each in allowed) or (going & self._one_by_one and _is_each_in(found, allowed)):
            return []
        return [difference(found, each) for each in allowed]


def _may_be(found: Placed | None, expected: Placed | None) -> bool:
    """Tells whether a message is in an allowed state (None: gone). The last receive may not have been counted
    durably."""
    if found is None or expected is None:
        return found is expected
    return found[:4] == expected[:4] and found.receives <= expected.receives


def _has_reason_of_one(found: Placed, payload: bytes, allowed: Sequence[Shown]) -> bool:
    """Tells whether a message that should be there has the reason of one of the allowed states."""
    reasons = {each[payload].reason for each in allowed if payload in each}
    return not reasons or found.reason in reasons


def _without_reasons(shown: Shown) -> Shown:
    return {payload: placed._replace(reason=None) for payload, placed in shown.items()}


def _agree(found: Shown, expected: Shown) -> bool:
    return found.keys() == expected.keys() and all(_may_be(placed, expected[key]) for key, placed in found.items())


def _is_each_in(found: Shown, allowed: Sequence[Shown]) -> bool:
    """Tells whether each message is in an allowed state, or gone if that is allowed. Messages that die at the end of
    their windows move one by one, and do not move if their last receive was not durable."""
    known = {payload for each in (found, *allowed) for payload in each}
    return all(any(_may_be(found.get(payload), each.get(payload)) for each in allowed) for payload in known)


def difference(found: Shown, expected: Shown) -> str:
    names = {payload[:6]: (found.get(payload), expected.get(payload)) for payload in {*found, *expected}}
    return f"found, not expected: { {name: both for name, both in sorted(names.items()) if both[0] != both[1]} }"


def first_trouble(check: Check, numbers: Sequence[int], variants: Sequence[str]) -> list[str]:
    """Returns the first finding at these points, with the variants in turn."""
    for index, (number, file_system, when) in enumerate(check.sweep(numbers)):
        variant = variants[(index + index // len(variants)) % len(variants)]
        if trouble := check.trouble(number, file_system, when, variant):
            return trouble
    return []
