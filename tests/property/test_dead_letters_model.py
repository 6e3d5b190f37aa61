"""Dead letters, their way back, their reasons, back-off and retention against a model in memory, with policies that
change, starts and failed commits."""

import contextlib
import copy
import errno
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.examples import run_machine
from support.storage.contract import GatheringAsEngine
from support.storage.engines import LOTS, CompactingEngine, FaultyDisk, ManualClock
from support.storage.postgres import Postgres, engine_on, needs_postgres

from qs_storage.directories import DirectoriesEngine, FilesEngine
from qs_storage.engine import (
    Draft,
    Durability,
    Feature,
    NoDeadLetterQueueError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
)
from qs_storage.policy import backoff_of

QUEUES = ("q", "dead", "last")
"""Each is the dead-letter queue of the one before it."""
WINDOW = 1000
NAMES = st.sampled_from(["q", "q", *QUEUES])
PICKS = st.integers(0, 30)
REASONS = st.none() | st.sampled_from(["why", "é" * 300])


@dataclass
class Known:
    """A message. until: the end of its window or delay, 0: visible; origin: queue, receives and reason of a dead
    letter; held: by a subscriber; mid: its id, 0 until it is known; deaths: how many queues have given it up; reason:
    the last one; at: when it came into its queue."""

    payload: bytes
    receives: int = 0
    until: int = 0
    delayed: bool = False
    origin: tuple[str, int, str] | None = None
    held: bool = False
    mid: int = 0
    deaths: int = 0
    reason: str | None = None
    at: int = 0


class DeadLettersMachine(RuleBasedStateMachine):
    """The messages of each queue are in the order of their ids, which is that in which they came."""

    reached: ClassVar[Counter[str]] = Counter()
    """How often all machines have seen each thing happen."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="qs-dead-")
        self.clock = ManualClock()
        self.disk = FaultyDisk()
        self.pushed = 0
        self.model: dict[str, list[Known]] = {qid: [] for qid in QUEUES}
        self.policies: dict[str, int | None] = dict.fromkeys(QUEUES)
        self.ages: dict[str, int | None] = dict.fromkeys(QUEUES)
        self.backoffs = {qid: Options() for qid in QUEUES}
        self.engine = self.open()
        for qid in QUEUES:
            self.engine.create(qid, Options())
        for qid, most in zip(QUEUES, (2, 1), strict=False):
            self.configure(qid, most)
        for _ in range(8):
            self.push("q", 0)
        self.fail(2)
        for _ in range(4):
            self.push("q", 0)
        self.engine.commit()

    def open(self) -> DirectoriesEngine:
        return CompactingEngine(self.root, clock=self.clock, durability=Durability.NONE, disk=self.disk, cache=0)

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.root)

    # -- the model

    def is_exhausted(self, qid: str, receives: int) -> bool:
        most = self.policies[qid]
        return most is not None and receives >= most

    def die(self, qid: str, known: Known, receives: int, why: str = "receives") -> None:
        """receives: those that count."""
        self.model[qid].remove(known)
        target = QUEUES[QUEUES.index(qid) + 1]
        origin = qid, receives, why
        dead = Known(known.payload, origin=origin, deaths=known.deaths + 1, reason=known.reason, at=self.clock.now)
        self.model[target].append(dead)
        self.reached["death with a reason"] += known.reason is not None
        self.reached["death without the last receive"] += receives < known.receives
        self.reached["death" if not known.deaths else "death of a dead letter"] += 1

    def is_old(self, qid: str, known: Known) -> bool:
        age = self.ages[qid]
        return age is not None and 0 < self.age_from(known) <= self.clock.now - age

    def age_from(self, known: Known) -> int:
        """Returns the time from which a message's age counts, 0 if it is not known yet."""
        return known.mid

    def retire(self, qid: str, known: Known) -> None:
        self.model[qid].remove(known)
        self.reached["retired"] += 1

    def settle(self) -> None:
        """Ends what is due, in the engine and in the model."""
        self.clock.tick()
        self.engine.effects()  # as after each batch: what has changed is announced to the timer
        self.engine.expire(1000)
        for qid in QUEUES:
            due = [known for known in self.model[qid] if 0 < known.until <= self.clock.now]
            for known in sorted(due, key=lambda known: known.until):
                if self.is_exhausted(qid, known.receives):
                    self.die(qid, known, known.receives)
                    continue
                until = 0 if known.delayed else known.until + backoff_of(self.backoffs[qid], known.mid, known.receives)
                known.until, known.delayed, known.held = (
                    (until, True, False) if self.clock.now < until else (0, False, False)
                )
                self.reached["back-off after a window"] += known.until > 0
            for known in [known for known in self.model[qid] if not known.until or known.delayed]:
                if self.is_old(qid, known):
                    self.retire(qid, known)

    def mids(self, qid: str) -> list[int]:
        return self.engine.queue(qid).list_mids(State.ALL, 10**6, -1)

    @invariant()
    def is_as_the_model(self) -> None:
        self.settle()
        for qid in QUEUES:
            queue = self.engine.queue(qid)
            found = []
            mids = self.mids(qid)
            for mid in mids:
                message = queue.read(Receipt(mid))
                origin = message.origin
                died = None if origin is None else (origin.qid, origin.receives, origin.reason)
                until = message.visible_at or 0
                found.append((message.payload, message.receives, until, died, message.reason))
            assert found == [
                (known.payload, known.receives, known.until, known.origin, known.reason) for known in self.model[qid]
            ]
            for known, mid in zip(self.model[qid], mids, strict=True):
                known.mid = mid
            new = [known.payload for known in self.model[qid] if not known.receives]
            assert len(queue.list_mids(State.NEW, 10**6, -1)) == len(new)

    # -- operations

    @rule(qid=NAMES, delay=st.sampled_from([0, 0, WINDOW // 2]))
    def push(self, qid: str, delay: int) -> None:
        self.pushed += 1
        payload = b"%d" % self.pushed
        [mid] = self.engine.queue(qid).push([Draft(payload, delay)])
        until = self.clock.now + delay if delay else 0
        self.model[qid].append(Known(payload, 0, until, delayed=delay > 0, mid=mid, at=self.clock.now))

    @rule(qid=NAMES, count=st.integers(1, 4), later=st.sampled_from([0, 0, WINDOW]), held=st.booleans())
    def receive(self, qid: str, count: int, later: int, held: bool) -> None:
        """Receives a message; it may be left until its window has ended."""
        found = self.engine.receive([qid], count, WINDOW, LOTS, held=held)
        ready = [known for known in self.model[qid] if not known.until][:count]
        assert [message.payload for message in found] == [known.payload for known in ready]
        for known in ready:
            known.receives += 1
            known.until, known.delayed, known.held = self.clock.now + WINDOW, False, held
        self.clock.now += later

    @rule(times=st.integers(1, 3))
    def fail(self, times: int) -> None:
        """Consumers of all queues receive messages and handle none."""
        for _ in range(times):
            for qid in QUEUES:
                self.receive(qid, 8, 0, False)
            self.clock.now += WINDOW
            self.is_as_the_model()

    @rule(
        qid=NAMES, pick=PICKS, delay=st.sampled_from([None, None, 0, WINDOW // 3]), counts=st.booleans(), reason=REASONS
    )
    def release(self, qid: str, pick: int, delay: int | None, counts: bool, reason: str | None) -> None:
        if not self.model[qid]:
            return
        at = pick % len(self.model[qid])
        known = self.model[qid][at]
        reason = reason if self.has_reasons else None
        receipt = Receipt(self.mids(qid)[at], None if known.delayed else known.receives)
        if not known.until:
            with pytest.raises(StaleReceiptError):
                self.engine.queue(qid).release(receipt, delay, count=counts, reason=reason)
            return
        self.engine.queue(qid).release(receipt, delay, count=counts, reason=reason)
        if delay is None:
            in_flight = not known.delayed
            delay = backoff_of(self.backoffs[qid], receipt.mid, known.receives) if in_flight and counts else 0
            self.reached["back-off after a release"] += delay > 0
        known.reason = reason or known.reason
        counted = known.receives - (not known.delayed and not counts)
        if self.is_exhausted(qid, counted):
            self.die(qid, known, counted)
            return
        known.receives = counted
        if self.is_old(qid, known):
            self.retire(qid, known)
            return
        known.held = False
        known.until, known.delayed = (self.clock.now + delay if delay else 0), delay > 0

    @rule(qid=NAMES, pick=PICKS, reason=REASONS)
    def reject(self, qid: str, pick: int, reason: str | None) -> None:
        if not self.model[qid] or not self.has_reasons:
            return
        at = pick % len(self.model[qid])
        known = self.model[qid][at]
        receipt = Receipt(self.mids(qid)[at], known.receives)
        if self.policies[qid] is None:
            with pytest.raises(NoDeadLetterQueueError):
                self.engine.queue(qid).reject(receipt, reason)
            return
        self.engine.queue(qid).reject(receipt, reason)
        known.reason = reason or known.reason
        self.die(qid, known, known.receives, "rejected")
        self.reached["rejected"] += 1

    @property
    def has_reasons(self) -> bool:
        return Feature.REASON not in self.engine.cannot

    @rule(qid=NAMES, backoff=st.sampled_from([None, WINDOW // 2, 2 * WINDOW]), pick=PICKS)
    def back_off(self, qid: str, backoff: int | None, pick: int) -> None:
        """Changes the back-off, and has some messages fail under the new one. What was hidden for the earlier one stays
        so, also after a start."""
        if Feature.BACKOFF in self.engine.cannot:
            return
        longest = None if backoff is None else 4 * WINDOW
        options = replace(self.engine.queue(qid).options, backoff=backoff, backoff_max=longest)
        self.settle()
        self.engine.commit()
        self.engine.configure(qid, options)
        self.backoffs[qid] = options
        if self.policies[qid] is None or self.policies[qid] == 3:
            self.push(qid, 0)
            self.push(qid, 0)
            self.receive(qid, 8, 0, pick % 3 == 0)
            held = [at for at, known in enumerate(self.model[qid]) if known.until and not known.delayed]
            for at in held[-2:]:
                self.release(qid, at, None, True, "later")
            self.clock.now += pick % 2 * WINDOW

    @rule(qid=st.sampled_from(QUEUES[:2]))
    def release_without_counting(self, qid: str) -> None:
        """Releases without counting a message whose receives are too many even so, under a newer policy."""
        known = next((known for known in self.model[qid] if not known.until), None)
        if known is None or known.receives:
            return
        self.configure(qid, 3)
        self.receive(qid, 1, 0, False)
        self.release(qid, self.model[qid].index(known), 0, True, None)
        self.receive(qid, 1, 0, False)
        self.configure(qid, 1)
        self.release(qid, self.model[qid].index(known), 0, False, "not mine")

    @rule(qid=NAMES, pick=PICKS)
    def delete(self, qid: str, pick: int) -> None:
        if self.model[qid]:
            at = pick % len(self.model[qid])
            self.engine.queue(qid).delete(Receipt(self.mids(qid)[at]))
            del self.model[qid][at]

    @rule(qid=st.sampled_from(QUEUES[1:]), into=st.none() | NAMES, count=st.integers(1, 5))
    def redrive(self, qid: str, into: str | None, count: int) -> None:
        redrive = self.engine.queue(qid).redrive
        assert redrive is not None
        letters = redrive.letters((), count)
        chosen = [known for known in self.model[qid] if known.origin is not None][:count]
        moved = redrive.move([(mid, self.engine.queue(into or came_from)) for mid, came_from in letters])
        assert len(moved) == len(chosen)
        for known, (_, mid) in zip(chosen, moved, strict=True):
            assert known.origin is not None
            self.model[qid].remove(known)
            back = Known(known.payload, mid=mid, reason=known.reason, at=self.clock.now)
            self.model[into or known.origin[0]].append(back)
            self.reached["redriven"] += 1

    @rule(qid=st.sampled_from(QUEUES[:2]), most=st.none() | st.integers(1, 3))
    def configure(self, qid: str, most: int | None) -> None:
        """Durable at once, whatever becomes of the batch."""
        name = "" if most is None else QUEUES[QUEUES.index(qid) + 1]
        options = replace(self.engine.queue(qid).options, dead_letter=name, max_receives=most)
        self.engine.configure(qid, options)
        self.policies[qid] = most

    @rule(qid=st.sampled_from(QUEUES), age=st.none() | st.sampled_from([WINDOW // 3, WINDOW, 3 * WINDOW]))
    def keep(self, qid: str, age: int | None) -> None:
        self.engine.configure(qid, replace(self.engine.queue(qid).options, retention=age))
        self.ages[qid] = age

    @rule(later=st.sampled_from([1, WINDOW // 3, WINDOW, 3 * WINDOW]))
    def wait(self, later: int) -> None:
        self.clock.now += later

    # -- commits and starts

    @rule()
    def commit(self) -> None:
        self.engine.commit()

    @rule()
    def reopen(self) -> None:
        self.engine.commit()
        self.engine.close()
        self.engine = self.open()
        self.restart()

    def restart(self) -> None:
        """A start ends what is visible and was received too often, as a subscriber may have held it."""
        for qid in QUEUES:
            for known in list(self.model[qid]):
                if known.held:
                    known.until, known.held = 0, False
                if not known.until and self.is_exhausted(qid, known.receives):
                    known.until = 1

    @rule(pick=PICKS)
    def a_commit_that_fails(self, pick: int) -> None:
        """Messages that were moved in a failed batch are where they were."""
        self.settle()
        self.engine.commit()
        before = copy.deepcopy(self.model)
        self.engine.queue("q").push([Draft(b"undone")])
        self.release("q", pick, 0, True, "undone")
        self.reject("q", pick + 1, "undone")
        self.redrive("dead", None, 1 + pick % 3)
        self.clock.now += pick % 2 * WINDOW
        self.engine.effects()
        self.engine.expire(1000)
        self.disk.arm(1, errno.ENOSPC, "_pwrite")
        with pytest.raises(OSError, match="space"):
            self.engine.commit()
        self.disk.disarm()
        self.model = before


class FilesMachine(DeadLettersMachine):
    """In queues of files, of which no batch is undone, and where a start leaves visible what is visible."""

    def open(self) -> DirectoriesEngine:
        return FilesEngine(self.root, clock=self.clock, durability=Durability.ALWAYS, disk=self.disk)

    def restart(self) -> None:
        """Changes nothing: a start leaves visible messages visible."""

    @rule()
    def keep(self) -> None:
        """Does nothing: in this machine no message is removed for its age."""

    @rule(pick=PICKS)
    def a_commit_that_fails(self, pick: int) -> None:
        """The next commit covers what was done."""
        self.redrive("dead", None, 1 + pick % 3)
        self.disk.arm(1, errno.ENOSPC, "fsync")
        with contextlib.suppress(OSError):
            self.engine.commit()
        self.disk.disarm()


class PostgresMachine(DeadLettersMachine):
    """Queues of a database of PostgreSQL. A start leaves visible what is visible."""

    postgres: ClassVar[Postgres]

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()
        self.database = self.stack.enter_context(self.postgres.database())
        super().__init__()

    def open(self) -> Any:
        return GatheringAsEngine(engine_on(self.database, self.root, self.clock))

    def teardown(self) -> None:
        super().teardown()
        self.stack.close()

    def age_from(self, known: Known) -> int:
        return known.at

    def restart(self) -> None:
        """Ends the windows of what subscribers held."""
        for qid in QUEUES:
            for known in self.model[qid]:
                if known.held:
                    known.until, known.held = self.clock.now, False

    @rule()
    def a_commit_that_fails(self) -> None:
        """Does nothing: each operation is a transaction of its own. The tests of faults let those fail."""


@pytest.mark.parametrize("machine", [DeadLettersMachine, FilesMachine])
def test_dead_letters_are_as_their_model(machine: type[DeadLettersMachine]) -> None:
    """Any sequence of operations leaves the queues as the model has them; many messages die, some again and again."""
    machine.reached.clear()
    run_machine(machine, 80)
    least = {"death": 200, "death of a dead letter": 60, "redriven": 60, "death without the last receive": 8}
    if machine is DeadLettersMachine:
        least["retired"] = 20
        least |= {"rejected": 40, "death with a reason": 60, "back-off after a window": 60}
        least["back-off after a release"] = 20
    assert {name: machine.reached[name] for name, count in least.items() if machine.reached[name] < count} == {}


@needs_postgres
def test_dead_letters_over_postgres(postgres: Postgres) -> None:
    """The queues of a database are as their model, too."""
    PostgresMachine.postgres = postgres
    PostgresMachine.reached.clear()
    run_machine(PostgresMachine, 6, steps=30)
    assert PostgresMachine.reached["death"] > 20
