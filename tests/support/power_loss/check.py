"""Plays a power loss at any point of a recorded run, opens a new engine on what is left, compares with the model.

Three things can come after a power loss, and each is played: a start (`trouble`); a second power loss during that start
(`during_recovery`); and before it, a kill and another process that relies on what the first one left in the page cache
(`after_a_kill`).
"""

import contextlib
import logging
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from traceback import extract_tb
from typing import Any, TypeVar
from unittest import mock

from qs_storage.engine import SECOND, Draft, Engine, Receipt, State
from qs_storage.headers import pack_headers
from support.power_loss.disk import Entry, QuietDisk, RecordingDisk, everything_recorded
from support.power_loss.file_system import FileSystem, Image, lay_out, pick_up, points, power_loss, without_checkpoint
from support.power_loss.model import STRICT, Held, Leniency, Seen, SeenQueue, draft_for, headers_for
from support.power_loss.nodes import EVERYTHING, NOTHING
from support.power_loss.run import Make, Recording, shown
from support.storage.calls import next_due
from support.storage.engines import ManualClock, failed

VARIANTS = ("nothing", "everything", "mixed-1", "mixed-2")
"""How much of what is not durable a power loss leaves: nothing, everything, or what a seed draws."""
_LOTS = 10**6
T = TypeVar("T")
When = tuple[int, int, int]
"""The number of operations that were answered, and that were begun, and the time."""
Alter = Callable[[list[Entry]], list[Entry]]
"""Changes a log into one in which something was not done."""


@contextlib.contextmanager
def fast_directory(fallback: Path) -> Iterator[Path]:
    """Makes an empty directory for a with block: in memory if that has extended attributes, else in fallback. Engines
    are started in it thousands of times."""
    made = Path(tempfile.mkdtemp(prefix="qs-power-loss-", dir="/dev/shm" if _has_attributes("/dev/shm") else fallback))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def _has_attributes(directory: str) -> bool:
    try:
        with tempfile.TemporaryDirectory(prefix="qs-power-loss-", dir=directory) as probe:
            os.setxattr(probe, "user.qs.probe", b"1")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def nobody_else() -> Iterator[None]:
    """Keeps engines from asking for the changes of other programs: closing an inotify descriptor takes several times as
    long as everything else that is done with an image. Warnings of what was found damaged are not logged."""
    # A function, because making a MagicMock took 6 % of a run.
    with mock.patch("qs_storage.watch.Inotify", _not_wanted):
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def _not_wanted() -> None:
    raise OSError("not wanted here")


class PowerLosses(ABC):
    """Plays power losses at points of one recorded run, and compares what is left. whole: as for FileSystem.

    Ensures:
    1. Each wanted point is played once, in the order of the log, which is played only once.
    2. What a power loss leaves depends on the log, the point and the variant alone, so a printed point plays again.
    3. Whatever an engine raises at the start on an image, or while it is looked at, is a finding and ends nothing.
    4. Each finding begins with where the power loss was.
    A class for each kind of run says what has to hold (`compare`).
    """

    whole = False

    def __init__(
        self, log: list[Entry], make: Make, directory: Path, *, ordered: bool = False, alter: Alter = list
    ) -> None:
        """make: opens the engine again; directory: where images are laid out, one after the other; ordered: as for
        FileSystem; alter: what is done to what is recorded of a start."""
        self.log = log
        self._make = make
        self._directory = directory
        self._ordered = ordered
        self._alter = alter
        self.checked = 0
        self._seen: dict[object, Any] = {}
        """What was seen in images of the file system that is played: equal images are looked at once."""

    @abstractmethod
    def now(self, begun: int) -> int:
        """Returns the time of the last of the first `begun` operations."""

    @abstractmethod
    def where(self, number: int, variant: str, when: When) -> str:
        """Says where a power loss was."""

    @abstractmethod
    def compare(self, image: Image, when: When, *, long_ago: bool) -> list[str]:
        """Returns what is wrong with an image."""

    def seconds(self, step: int) -> Sequence[str]:
        """Returns the variants of a second power loss at a step of a start."""
        return VARIANTS

    def sweep(self, wanted: Sequence[int]) -> Iterator[tuple[int, FileSystem, When]]:
        """Yields, for each wanted point, its number, the file system at that point, and the operations and time of the
        point."""
        left = set(wanted)
        file_system = FileSystem(ordered=self._ordered, whole=self.whole)
        answered = begun = 0
        for number, entry in enumerate(self.log[: max(left, default=-1) + 1]):
            if entry.kind == "begin":
                begun = entry.args[0]
            elif entry.kind == "answered":
                answered = entry.args[0]
            file_system.begin(entry)
            if number in left:
                yield number, file_system, (answered, begun, self.now(begun))
            file_system.complete(entry)

    def trouble(self, number: int, file_system: FileSystem, when: When, variant: str) -> list[str]:
        """Returns what is wrong after a power loss at a point; the first line names the point."""
        # Some images are old: a start takes their unfinished files for abandoned. Half have no checkpoint, which is a
        # cache, so a start must find the same. The number decides, so that a printed point is the same again.
        long_ago = variant == EVERYTHING or (variant != NOTHING and number % 2 == 0)
        image = power_loss(file_system, _how(variant, number))
        found = self.compare(without_checkpoint(image) if number % 2 else image, when, long_ago=long_ago)
        return [self.where(number, variant, when), *found] if found else []

    def opened(self, image: Image, now: int, see: Callable[[Engine], T], *, long_ago: bool = False) -> T | str:
        """Opens a new engine on an image. Returns what is seen in the engine, or why it cannot be opened or read."""
        root = tempfile.mkdtemp(dir=self._directory)
        disk = QuietDisk()
        try:
            # Files that are being written are left behind by a crash when nobody has written to them for long.
            lay_out(image, root, now // SECOND - 10_000 if long_ago else None)
            with nobody_else():
                return see(self._make(ManualClock(now), disk, root))
        except Exception as error:  # whatever it is, a power loss must not lead to it
            steps = [
                f"{step.name} ({Path(step.filename).name}:{step.lineno})" for step in extract_tb(error.__traceback__)
            ]
            return f"the engine cannot be opened and looked at: {error!r} in {' > '.join(steps[1:])}"
        finally:
            disk.end()
            shutil.rmtree(root)

    def during_recovery(self, number: int, file_system: FileSystem, when: When, variant: str) -> Iterator[list[str]]:
        """Yields what is wrong after a second power loss, for each step of the start and first commit that follow a
        power loss at that point."""
        root = tempfile.mkdtemp(dir=self._directory)
        try:
            lay_out(power_loss(file_system, _how(variant, number)), root, when[2] // SECOND - 10_000)
            again = pick_up(root, ordered=self._ordered, whole=self.whole)
            disk = RecordingDisk(root)
            with everything_recorded(disk), nobody_else():
                engine = self._make(ManualClock(when[2]), disk, root)
                engine.commit()
                engine.close()
        finally:
            shutil.rmtree(root)
        # The keys of images tell those of one file system apart, and `again` is another one: its images would be taken
        # for those of the first that have the same numbers.
        self._seen.clear()
        log = self._alter(disk.log)
        wanted = set(points(log))
        for step, entry in enumerate(log):
            again.begin(entry)
            for second in self.seconds(step) if step in wanted else ():
                if found := self.compare(power_loss(again, second), when, long_ago=bool(step % 2)):
                    at = f"and another one while it was opened again, at step {step}, {entry}, with {second}"
                    yield [self.where(number, variant, when), at, *found]
            again.complete(entry)
        self._seen.clear()


def _how(variant: str, number: int) -> str:
    return variant if variant in (NOTHING, EVERYTHING) else f"{variant}/{number}"


class PowerLossCheck(PowerLosses):
    """Compares images of a run of an engine with the run's model."""

    def __init__(
        self,
        recording: Recording,
        make: Make,
        directory: Path,
        leniency: Leniency = STRICT,
        *,
        ordered: bool = False,
        direct: bool = True,
        alter: Alter = list,
        promises: bool = True,
    ) -> None:
        """make, directory, ordered, alter: as for PowerLosses; direct: as for RecordingDisk; promises: whether what was
        answered has to be there: if not, an engine has to start, and to be whole in itself."""
        super().__init__(recording.log, make, directory, ordered=ordered, alter=alter)
        self.recording = recording
        self._leniency = leniency
        self._direct = direct
        self._promises = promises
        self._keys: dict[str, list[str]] = {}
        for key, keyed in recording.model.keys.items():
            self._keys.setdefault(keyed.qid, []).append(key)

    def now(self, begun: int) -> int:
        return self.recording.operations[max(begun - 1, 0)][0]

    def compare(self, image: Image, when: When, *, long_ago: bool) -> list[str]:
        answered, begun, now = when
        self.checked += 1
        key = image.key, now, long_ago
        if key not in self._seen:
            self._seen[key] = self.opened(image, now, self._look, long_ago=long_ago)
        seen = self._seen[key]
        if isinstance(seen, str):
            return [seen]
        if not self._promises:
            return []
        return self.recording.model.trouble(seen, answered, begun, now, self._leniency)

    def _look(self, engine: Engine) -> Seen:
        return look(engine, self._keys)

    def where(self, number: int, variant: str, when: When) -> str:
        answered, begun, _ = when
        group = [f"    {n}: {self.recording.operations[n][1]}" for n in range(answered, begun)]
        return "\n".join(
            [
                f"QS_POWER_LOSS={number}/{variant} plays this one alone, if the run is the same: fix PYTHONHASHSEED",
                f"power loss at point {number} of {len(self.log)}, {self.log[number]}",
                f"with {variant} of what was not synced; {answered} operations were answered, and on the way were",
                *(group or ["    none"]),
            ]
        )

    def after_a_kill(self, number: int, file_system: FileSystem, when: When) -> list[str]:
        """Returns the faults when the process is killed there, another one starts and answers a push and a delete, and
        then the power fails: what the first one left in the page cache is lost unless the second one syncs it."""
        file_system = deepcopy(file_system)
        root = tempfile.mkdtemp(dir=self._directory)
        # Descriptors far above those of the first process: the log of the second is played into the same file system.
        disk = RecordingDisk(root, direct=self._direct, first=10**6)
        try:
            lay_out(power_loss(file_system, EVERYTHING), root)
            with everything_recorded(disk), nobody_else():
                engine = self._make(ManualClock(when[2]), disk, root)
                for qid in engine.queues():
                    [mid] = engine.queue(qid).push([Draft(b"after the kill")])
                    engine.queue(qid).delete(Receipt(mid))
                engine.commit()
                answered = len(disk.log)  # with `interval`, answers come before the sync
                if (sync := engine.background_sync()) is not None:
                    sync()
                # A kill, and no stop, which would write a checkpoint.
                engine._watch.close()
                disk.end()
                engine = self._make(ManualClock(when[2]), QuietDisk(), root)
                right = self._look(engine)
                engine.close()
        finally:
            shutil.rmtree(root)
        for at, entry in enumerate(self._alter(disk.log)):
            # At the answer, a start has to succeed; after the sync, it has to find the same.
            if at == answered and isinstance(
                found := self.opened(power_loss(file_system, NOTHING), when[2], self._look), str
            ):
                return [self.where(number, "after a kill", when), found]
            file_system.play(entry)
        self.checked += 1
        found = self.opened(power_loss(file_system, NOTHING), when[2], self._look)
        if found == right or (not self._promises and not isinstance(found, str)):
            return []
        return [
            self.where(number, "after a kill", when),
            f"found {found}" if isinstance(found, str) else "not the same",
        ]


def look(engine: Engine, keys: dict[str, list[str]] | None = None) -> Seen:
    """Returns everything in an engine, and the id that one more push to each queue is given. keys: for each queue, the
    keys that are pushed with once more.

    Must never trust one way of looking: lists, figures, single messages and the next expiry have to say the same.
    """
    seen: Seen = {}
    expected: set[int] = set()
    for qid in list(engine.queues()):
        messages: dict[int, Held] = {}
        mids = engine.queue(qid).list_mids(State.ALL, _LOTS, -1)
        assert mids == sorted(set(mids)), mids
        for mid in mids:
            messages[mid] = _message(engine, qid, mid)
        _states_agree(engine, qid, messages)
        expected |= {held.until for held in messages.values() if held.until}
        options = engine.queue(qid).options
        [mid] = engine.queue(qid).push([Draft(b"one more")])  # what is left can be worked with, and gives a new id
        engine.effects()
        assert engine.queue(qid).get(mid, peek=True, visibility=None).payload == b"one more"
        known = {key: engine.queue(qid).push([Draft(b"once more", 0, key)])[0] for key in (keys or {}).get(qid, ())}
        seen[qid] = SeenQueue(shown(options), messages, mid, known)
    due, first = next_due(engine), min(expected, default=None)
    assert due == first, f"the next expiry is {due}, that of the messages {first}"
    engine.commit()
    assert failed(engine) == {}
    return seen


def _message(engine: Engine, qid: str, mid: int) -> Held:
    shown = engine.queue(qid).get(mid, peek=True, visibility=None)
    read = engine.queue(qid).read(Receipt(mid))
    payload = read.payload
    assert payload is not None
    assert read.headers == headers_for(payload), f"message {mid} has the headers {read.headers}"
    pushed = draft_for(engine, payload)
    assert (read.priority, read.group) == (pushed.priority, pushed.group)
    assert (shown.payload, shown.headers) in ((None, ()), (payload, read.headers))
    assert (shown.payload is None) == (shown.status != "ready")  # a peek shows no payload of what is hidden
    return Held(payload, shown.receives, shown.visible_at or 0, shown.status == "delayed")


def _states_agree(engine: Engine, qid: str, messages: dict[int, Held]) -> None:
    """Compares lists and figures with the messages."""
    expected = {
        State.READY: [mid for mid, held in messages.items() if not held.until],
        State.DELAYED: [mid for mid, held in messages.items() if held.delayed],
        State.IN_FLIGHT: [mid for mid, held in messages.items() if held.until and not held.delayed],
        State.NEW: [mid for mid, held in messages.items() if not held.receives],
    }
    found = {state: engine.queue(qid).list_mids(state, _LOTS, -1) for state in expected}
    assert found == expected, f"the lists are {found}, the messages {expected}"
    stats = engine.queue(qid).stats()
    counts = (stats.ready, stats.delayed, stats.in_flight, stats.new)
    lengths = tuple(len(mids) for mids in expected.values())
    assert counts == lengths, f"the figures are {counts}, the messages {lengths}"
    size = sum(len(held.payload) + len(pack_headers(headers_for(held.payload))) for held in messages.values())
    assert stats.bytes == size, f"the figures say {stats.bytes} bytes, the messages have {size}"
