"""Claims and batches on disks that fail: an error changes nothing that lasts, and asking again does it once."""

import errno
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storage.calls import acknowledge, claim, payloads, receive_and_commit, release
from support.storage.engines import LOTS, FaultyDisk, ManualClock, always, journal_engine

from qs_storage.engine import Draft, Durability, Engine, NoSuchClaimError, Options, State

Shown = dict[str, object]


class Prepared:
    """Claims 1 and 2 of c with two messages each, three that are visible, a batch that is staged."""

    def __init__(self, root: Path) -> None:
        self.disk = FaultyDisk()
        self.make = journal_engine(Durability.ALWAYS, always(self.disk))(root)
        self.clock = ManualClock()
        self.engine = self.make(self.clock)
        self.engine.create("q", Options())
        for number in range(7):
            self.engine.queue("q").push([Draft(b"%d" % number)])
            self.clock.tick()
        claim(self.engine, 1, count=2)
        claim(self.engine, 2, count=2)
        self.engine.queue("q").batches.stage("p", (0, 0, 0), list(map(Draft, [b"staged 0", b"staged 1"])))
        self.engine.queue("q").batches.stage("p", (0, 1, 0), list(map(Draft, [b"staged 2"])))
        self.engine.commit()

    def crash(self) -> None:
        """Opens another engine on the same disk, as after a crash."""
        self.disk.disarm()
        self.disk.crash()
        self.engine._watch.close()  # type: ignore[attr-defined]
        self.engine = self.make(self.clock)

    def shown(self) -> Shown:
        """Returns what there is to be seen: messages by state, and what is in each claim."""
        claims = self.engine.queue("q").claims
        found: Shown = {
            f"{each.consumer} {each.seq}": payloads(claims.part(each.consumer, each.seq, (0, 1), LOTS, LOTS) or [])
            for each in claims.all()
        }
        for state in (State.READY, State.IN_FLIGHT):
            mids = self.engine.queue("q").list_mids(state, 100, -1)
            found[state.value] = [self.engine.queue("q").get(mid, peek=True, visibility=None).payload for mid in mids]
        return found


def _release(engine: Engine) -> None:
    try:
        release(engine, 1)
    except NoSuchClaimError:
        assert [each.seq for each in engine.queue("q").claims.all()] == [2]


def _publish(engine: Engine) -> None:
    engine.queue("q").batches.publish("p", 0, [(0, 0), (1, 0)])
    engine.commit()


def _stage(engine: Engine) -> None:
    engine.queue("q").batches.stage("other", (0, 2, 0), list(map(Draft, [b"other"])))
    engine.commit()


OPERATIONS: dict[str, Callable[[Engine], object]] = {
    "claim": lambda engine: claim(engine, 3, count=2),
    "first claim": lambda engine: claim(engine, 1, "d", count=2),
    "acknowledge": lambda engine: acknowledge(engine, 2),
    "release": _release,
    "stage": _stage,
    "publish": _publish,
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def reference(root: Path, operation: str) -> tuple[Shown, Shown]:
    root.mkdir()
    case = Prepared(root)
    before = case.shown()
    OPERATIONS[operation](case.engine)
    after = case.shown()
    case.engine.close()
    return before, after


@pytest.mark.parametrize("crash", [False, True], ids=["goes on", "crashes"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_claims_on_full_disk(operation: str, lasting: bool, crash: bool, tmp_path: Path) -> None:
    """At each file operation: an error, and all is as before, or done; with room again it is done once, and stays
    done."""
    before, after = reference(tmp_path / "reference", operation)
    failures = 0
    for at in itertools.count(1):
        (root := tmp_path / f"{at}").mkdir()
        case = Prepared(root)
        case.disk.arm(at, errno.ENOSPC, lasting=lasting)
        try:
            OPERATIONS[operation](case.engine)
            failed = False
        except OSError:
            failed = True
            failures += 1
        reached = bool(case.disk.failed)
        case.disk.disarm()
        if crash:
            case.crash()
        assert case.shown() == (before if failed else after)
        if failed or operation != "stage":
            OPERATIONS[operation](case.engine)
        for _ in range(2):
            assert case.shown() == after
            case.crash()
        if operation == "stage":
            case.engine.queue("q").batches.publish("other", 0, [(2, 0)])
            assert payloads(receive_and_commit(case.engine))[3:] == [b"other"]
        case.engine.close()
        if not reached:
            assert failures
            return
