"""Dead letters and their way back against a model in memory, with policies that change, starts and failed commits."""

import contextlib
import copy
import errno
import shutil
import tempfile
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.engines import CompactingEngine, FaultyDisk, ManualClock
from support.examples import run_machine

from qs_server.storage.directories import DirectoriesEngine, FilesEngine
from qs_server.storage.engine import Draft, Durability, Options, Receipt, State

QUEUES = ("q", "dead", "last")
"""Each is the dead-letter queue of the one before it."""
WINDOW = 1000
LOTS = 1 << 40
NAMES = st.sampled_from(["q", "q", *QUEUES])
PICKS = st.integers(0, 30)


@dataclass
class Known:
    """A message. until: the end of its window or delay, 0: visible; origin: queue and receives of a dead letter."""

    payload: bytes
    receives: int = 0
    until: int = 0
    delayed: bool = False
    origin: tuple[str, int] | None = None


class DeadLettersMachine(RuleBasedStateMachine):
    """The messages of each queue are in the order of their ids, which is that in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="qs-dead-")
        self.clock = ManualClock()
        self.disk = FaultyDisk()
        self.pushed = 0
        self.model: dict[str, list[Known]] = {qid: [] for qid in QUEUES}
        self.policies: dict[str, int | None] = dict.fromkeys(QUEUES)
        self.engine = self.open()
        for qid in QUEUES:
            self.engine.create(qid, Options())
        for qid, most in zip(QUEUES, (2, 1), strict=False):
            self.configure(qid, most)
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

    def die(self, qid: str, known: Known) -> None:
        self.model[qid].remove(known)
        target = QUEUES[QUEUES.index(qid) + 1]
        self.model[target].append(Known(known.payload, origin=(qid, known.receives)))

    def settle(self) -> None:
        """Ends what is due, in the engine and in the model."""
        self.clock.tick()
        self.engine.expire(1000)
        for qid in QUEUES:
            due = [known for known in self.model[qid] if 0 < known.until <= self.clock.now]
            for known in sorted(due, key=lambda known: known.until):
                known.until, known.delayed = 0, False
                if self.is_exhausted(qid, known.receives):
                    self.die(qid, known)

    def mids(self, qid: str) -> list[int]:
        return self.engine.queue(qid).list_mids(State.ALL, 10**6, -1)

    @invariant()
    def is_as_the_model(self) -> None:
        self.settle()
        for qid in QUEUES:
            queue = self.engine.queue(qid)
            found = []
            for mid in self.mids(qid):
                message = queue.read(Receipt(mid))
                origin = None if message.origin is None else (message.origin.qid, message.origin.receives)
                until = message.visible_at or 0
                found.append((message.payload, message.receives, until, origin))
            assert found == [(known.payload, known.receives, known.until, known.origin) for known in self.model[qid]]
            new = [known.payload for known in self.model[qid] if not known.receives]
            assert len(queue.list_mids(State.NEW, 10**6, -1)) == len(new)

    # -- operations

    @rule(qid=NAMES, delay=st.sampled_from([0, 0, WINDOW // 2]))
    def push(self, qid: str, delay: int) -> None:
        self.pushed += 1
        payload = b"%d" % self.pushed
        self.engine.queue(qid).push([Draft(payload, delay)])
        self.model[qid].append(Known(payload, 0, self.clock.now + delay if delay else 0, delayed=delay > 0))

    @rule(qid=NAMES, count=st.integers(1, 4), later=st.sampled_from([0, 0, WINDOW]))
    def receive(self, qid: str, count: int, later: int) -> None:
        """And what it has received may be left until its window has ended."""
        found = self.engine.receive([qid], count, WINDOW, LOTS)
        ready = [known for known in self.model[qid] if not known.until][:count]
        assert [message.payload for message in found] == [known.payload for known in ready]
        for known in ready:
            known.receives += 1
            known.until, known.delayed = self.clock.now + WINDOW, False
        self.clock.now += later

    @rule(qid=NAMES, pick=PICKS, delay=st.sampled_from([0, WINDOW // 3]), counts=st.booleans())
    def release(self, qid: str, pick: int, delay: int, counts: bool) -> None:
        if not self.model[qid]:
            return
        at = pick % len(self.model[qid])
        known = self.model[qid][at]
        self.engine.queue(qid).release(Receipt(self.mids(qid)[at], known.receives), delay, count=counts)
        if not known.until and not delay:
            return
        if known.until and not known.delayed and not counts:
            known.receives -= 1
        if known.until and self.is_exhausted(qid, known.receives):
            self.die(qid, known)
            return
        known.until, known.delayed = (self.clock.now + delay if delay else 0), delay > 0

    @rule(qid=NAMES, pick=PICKS)
    def delete(self, qid: str, pick: int) -> None:
        if self.model[qid]:
            at = pick % len(self.model[qid])
            self.engine.queue(qid).delete(Receipt(self.mids(qid)[at]))
            del self.model[qid][at]

    @rule(qid=NAMES, into=st.none() | NAMES, count=st.integers(1, 5))
    def redrive(self, qid: str, into: str | None, count: int) -> None:
        redrive = self.engine.queue(qid).redrive
        assert redrive is not None
        letters = redrive.letters((), count)
        chosen = [known for known in self.model[qid] if known.origin is not None][:count]
        moved = redrive.move([(mid, self.engine.queue(into or came_from)) for mid, came_from in letters])
        assert len(moved) == len(chosen)
        for known in chosen:
            assert known.origin is not None
            self.model[qid].remove(known)
            self.model[into or known.origin[0]].append(Known(known.payload))

    @rule(qid=st.sampled_from(QUEUES[:2]), most=st.none() | st.integers(1, 3))
    def configure(self, qid: str, most: int | None) -> None:
        """Durable at once, whatever becomes of the batch."""
        name = "" if most is None else QUEUES[QUEUES.index(qid) + 1]
        options = replace(self.engine.queue(qid).options, dead_letter=name, max_receives=most)
        self.engine.configure(qid, options)
        self.policies[qid] = most

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
                if not known.until and self.is_exhausted(qid, known.receives):
                    known.until = 1

    @rule(pick=PICKS)
    def a_commit_that_fails(self, pick: int) -> None:
        """What is moved in its batch is where it was."""
        self.settle()
        self.engine.commit()
        before = copy.deepcopy(self.model)
        self.engine.queue("q").push([Draft(b"undone")])
        self.redrive("dead", None, 1 + pick % 3)
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
        """Changes nothing."""

    @rule(pick=PICKS)
    def a_commit_that_fails(self, pick: int) -> None:
        """The next one covers what was done."""
        self.redrive("dead", None, 1 + pick % 3)
        self.disk.arm(1, errno.ENOSPC, "fsync")
        with contextlib.suppress(OSError):
            self.engine.commit()
        self.disk.disarm()


@pytest.mark.parametrize("machine", [DeadLettersMachine, FilesMachine])
def test_dead_letters_are_as_their_model(machine: type[DeadLettersMachine]) -> None:
    """Any sequence of operations leaves the queues as the model has them."""
    run_machine(machine, 60)
