"""A disk that fails: an error means that nothing has changed, and the engine goes on."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faults import small_disk
from support.storage.engines import LOTS, OPERATIONS, Bench, FaultyDisk, always, arrived, failed, files_engine

from qs_storage.engine import (
    Draft,
    Durability,
    Engine,
    NoSuchMessageError,
    Options,
    Receipt,
    State,
    StorageError,
)

ERRORS = [errno.EIO, errno.ENOSPC]
Picture = tuple[dict[str, bytes], dict[str, list[int]]]


class Case:
    """A queue `q` with a ready, an in-flight, a delayed and an expired message, on a disk that can fail."""

    def __init__(self, root: Path, attributes: bool) -> None:
        self.root = root
        self.disk = FaultyDisk(attributes=attributes)
        self.bench = Bench(files_engine(Durability.ALWAYS, always(self.disk))(root))
        bench = self.bench
        bench.queue()
        self.expired, self.flying = bench.push(b"expired", b"flying")
        bench.engine.receive(["q"], 1, 10, LOTS)
        bench.engine.receive(["q"], 1, 10**9, LOTS)
        self.ready, self.more = bench.push(b"ready", b"more")
        [self.delayed] = bench.push(b"delayed", delay=10**9)
        bench.engine.commit()
        arrived(bench.engine)

    @property
    def engine(self) -> Engine:
        return self.bench.engine

    def picture(self, engine: Engine | None = None) -> Picture:
        """The files with what is in them, and the index."""
        engine = engine or self.engine
        files = {
            f"{path.parent.name}/{path.name}": path.read_bytes()
            for path in self.root.glob("**/*")
            if path.is_file() and not path.name.endswith(".attributes")
        }
        states = {state.value: engine.queue("q").list_mids(state, 100, -1) for state in State}
        return files, states


def push(case: Case) -> object:
    return case.engine.queue("q").push([Draft(b"new")])


def push_delayed(case: Case) -> object:
    return case.engine.queue("q").push([Draft(b"new", 10**8)])


def push_list(case: Case) -> object:
    return case.engine.queue("q").push([Draft(b"1"), Draft(b"2", 10**8), Draft(b"3")])


OPERATION_OF_CASE: dict[str, Callable[[Case], object]] = {
    "push": push,
    "push delayed": push_delayed,
    "push list": push_list,
    "receive": lambda case: case.engine.receive(["q"], 1, 10**9, LOTS),
    "get": lambda case: case.engine.queue("q").get(case.ready, peek=False, visibility=10**9),
    "delete ready": lambda case: case.engine.queue("q").delete(Receipt(case.ready, 0)),
    "delete in flight": lambda case: case.engine.queue("q").delete(Receipt(case.flying, 1)),
    "delete delayed": lambda case: case.engine.queue("q").delete(Receipt(case.delayed)),
    "release": lambda case: case.engine.queue("q").release(Receipt(case.flying, 1), 0),
    "release later": lambda case: case.engine.queue("q").release(Receipt(case.flying, 1), 10**8),
    "release delayed": lambda case: case.engine.queue("q").release(Receipt(case.delayed), 0),
    "extend": lambda case: case.engine.queue("q").extend(Receipt(case.flying, 1), 10**8),
    "create": lambda case: case.engine.create("r", Options(capacity=3)),
    "remove": lambda case: case.engine.remove("q", force=True),
}


@pytest.fixture(params=[True, False], ids=["attributes", "sidecar"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path, request.param)
    yield made
    made.disk.disarm()
    made.engine.close()


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("only", OPERATIONS)
@pytest.mark.parametrize("name", OPERATION_OF_CASE)
def test_nothing_has_changed(case: Case, name: str, only: str, code: int) -> None:
    """Whichever call of whichever kind fails in an operation: it raises and nothing changed, or it was done whole."""
    operation = OPERATION_OF_CASE[name]
    case.bench.clock.now += 10
    case.engine.expire(100)  # else that is done on the way, and may be
    for at in range(1, 30):
        before, last = case.picture(), case.engine.queue("q").last_mid
        case.disk.arm(at, code, only)
        try:
            result = operation(case)
            case.engine.effects()
        except OSError as error:
            case.disk.disarm()
            found = error.errno, case.picture()
            assert found == (code, before)
            continue
        case.disk.disarm()
        failures = failed(case.engine)
        if not failures:
            break
        assert list(failures) == [("q", result[0])]  # type: ignore[index]
        assert {error.errno for error in failures.values()} == {code}
        assert case.picture() == before
        assert case.engine.queue("q").last_mid >= last
    else:
        pytest.fail("it was never done")
    case.engine.commit()
    if name != "remove":
        after = case.picture()
        case.bench.reopen()
        files, states = case.picture()
        assert files == after[0]
        if not (name == "release later" and code == errno.ENOSPC):  # whose delay is lost with the process
            assert states == after[1]
        assert case.bench.push(b"and on")


@pytest.mark.parametrize("code", ERRORS)
def test_commit_again(case: Case, code: int) -> None:
    """A commit that fails raises, has done all the rest, and the next one does what is left."""
    case.engine.create("r", Options())
    case.engine.queue("r").push([Draft(b"x")])
    case.engine.queue("q").push([Draft(b"x", 5)])
    case.engine.receive(["q"], 3, 100, LOTS)
    case.engine.effects()
    for at in range(1, 30):
        case.disk.arm(at, code, "fsync")
        try:
            case.engine.commit()
        except OSError:
            continue
        break
    assert at > 1
    case.disk.arm(1, code, "fsync")
    case.engine.commit()  # nothing is left to sync
    assert not case.disk.failed


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("only", ["rename", "setxattr", "_write", "open"])
def test_receive_of_several(case: Case, only: str, code: int) -> None:
    """When a later message fails the earlier ones are handed out: nothing is in flight that nobody got."""
    case.bench.clock.now += 10
    case.engine.expire(100)
    for at in range(1, 30):
        before = case.picture()[1]
        case.disk.arm(at, code, only)
        try:
            found = case.engine.receive(["q"], 3, 10**9, LOTS)
        except OSError:
            found = []
        case.disk.disarm()
        got = [message.mid for message in found]
        assert case.picture()[1]["in-flight"] == sorted(before["in-flight"] + got)
        for message in found:
            case.engine.queue("q").release(Receipt(message.mid, message.receives), 0)
        if not case.disk.failed:
            break
    assert len(got) == 3


@pytest.mark.parametrize("code", ERRORS)
def test_purge(case: Case, code: int) -> None:
    """A purge that fails has removed some messages, which are counted, and can be repeated."""
    case.disk.arm(5, code, "unlink")  # of a second message, also if the first had three files beside it
    with pytest.raises(OSError, match="\\["):
        case.engine.queue("q").purge(10**18 - 1, 100)
    case.disk.disarm()
    left = case.picture()[1]["all"]
    assert 0 < len(left) < 5
    assert case.engine.queue("q").stats().deleted == 5 - len(left)
    assert case.engine.queue("q").purge(10**18 - 1, 100) == len(left)


@pytest.mark.parametrize("code", ERRORS)
def test_expiry(case: Case, code: int) -> None:
    """A message that cannot be renamed back stays in flight until it can."""
    case.bench.clock.now += 10
    case.disk.arm(1, code, "rename")
    with pytest.raises(OSError, match="\\["):
        case.engine.expire(100)
    case.disk.disarm()
    assert case.engine.effects().next_expiry is not None
    case.engine.expire(100)
    assert case.expired in case.engine.queue("q").list_mids(State.READY, 9, -1)


@pytest.mark.parametrize("code", ERRORS)
def test_failures_of_some(case: Case, code: int) -> None:
    """When several pushes are flushed together, only the one that fails is refused, under its own name."""
    case.engine.create("r", Options())
    pushed = [(qid, case.engine.queue(qid).push([Draft(b"x")])[0]) for qid in ("q", "r", "q", "r")]
    case.disk.arm(2, code, "rename")
    case.engine.effects()
    case.disk.disarm()
    failures = failed(case.engine)
    assert len(failures) == 1
    assert set(failures) < set(pushed)
    assert failed(case.engine) == {}
    there = {(qid, mid) for qid in "qr" for mid in case.engine.queue(qid).list_mids(State.ALL, 100, -1)}
    assert there & set(pushed) == set(pushed) - set(failures)


@pytest.mark.parametrize("code", ERRORS)
def test_opening(tmp_path: Path, code: int) -> None:
    """An engine that cannot be opened raises, leaves nothing behind, and can be opened when the disk is well."""
    case = Case(tmp_path, attributes=False)
    case.engine.close()
    for at in range(1, 10):
        case.disk.arm(at, code)
        try:
            case.bench.engine = case.bench.make(case.bench.clock)
        except OSError:
            continue
        break
    case.disk.disarm()
    assert len(case.picture()[1]["all"]) == 5
    case.engine.close()


# -- a scripted run


SCRIPT: list[tuple[str, Any]] = [
    ("push", (b"a",)), ("push", (b"b", b"c")), ("receive", 1), ("push", (b"d",)), ("release", 0), ("receive", 2),
    ("delete", 1), ("time", 20), ("receive", 3), ("extend", 0), ("push", (b"e", b"f", b"g")), ("delay", 2),
    ("delete", 0), ("delete", 2), ("time", 20), ("receive", 2), ("release", 1), ("push", (b"h",)), ("receive", 9),
    ("delete", 3), ("delete", 2), ("time", 40), ("receive", 1), ("delete", 0), ("push", (b"i", b"j")), ("receive", 4),
    ("delay", 1), ("extend", 0), ("delete", 1), ("release", 0),
]  # fmt: skip


def run_script(bench: Bench, disk: FaultyDisk) -> dict[int, bytes]:
    """Returns what there has to be afterwards. An operation that raises counts as not done."""
    model: dict[int, bytes] = {}
    engine = bench.engine
    for name, argument in SCRIPT:
        bench.clock.now += 1
        mids = sorted(model)
        mid = mids[argument % len(mids)] if mids and isinstance(argument, int) else 0
        try:
            if name == "push":
                pushed = engine.queue("q").push([Draft(payload) for payload in argument])
                engine.effects()
                if not failed(engine):
                    model.update(zip(pushed, argument, strict=True))
            elif name == "receive":
                engine.receive(["q"], argument, 15, LOTS)
            elif name == "delete":
                engine.queue("q").delete(Receipt(mid))
                del model[mid]
            elif name == "release":
                engine.queue("q").release(Receipt(mid), 0)
            elif name == "delay":
                engine.queue("q").release(Receipt(mid), 12)
            elif name == "extend":
                engine.queue("q").extend(Receipt(mid), 15)
            else:
                bench.clock.now += argument
            engine.commit()
        except (OSError, StorageError):
            pass
    return model


@pytest.mark.parametrize(("code", "lasting"), [(errno.EIO, False), (errno.ENOSPC, True)], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "attributes", [pytest.param(True, id="attributes"), pytest.param(False, id="sidecar", marks=pytest.mark.long)]
)
def test_every_call_of_a_run(tmp_path: Path, attributes: bool, code: int, lasting: bool) -> None:
    """Whichever call of a run fails, once or from then on: what is there after a start is what was answered for."""
    for at in range(1, 1000):
        root = tmp_path / str(at)
        root.mkdir()
        disk = FaultyDisk(attributes=attributes)
        bench = Bench(files_engine(Durability.ALWAYS, always(disk))(root))
        bench.queue()
        disk.arm(at, code, lasting=lasting)
        model = run_script(bench, disk)
        reached = bool(disk.failed)
        disk.disarm()
        live = bench.engine.queue("q").list_mids(State.ALL, 100, -1)
        assert live == sorted(model), f"call {at}: {disk.failed}"
        bench.reopen()
        assert bench.engine.queue("q").list_mids(State.ALL, 100, -1) == live
        bench.clock.now += 10**9
        found = bench.engine.receive(["q"], 100, 10, LOTS)
        assert {message.mid: message.payload for message in found} == model
        assert not lasting or not disk.descriptors
        bench.engine.close()
        assert not disk.descriptors
        if not reached:
            break
    else:
        pytest.fail("the run never ends")
    assert at > 60


# -- a disk that is really full


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "256k") as mounted:
        yield mounted


@pytest.mark.parametrize("durability", [Durability.ALWAYS, Durability.NONE])
def test_push_on_full_disk_is_refused(small_disk: Path, durability: Durability) -> None:
    """On a full disk a push is refused, nothing is lost, messages are received and deleted, and then there is room."""
    bench = Bench(files_engine(durability)(small_disk))
    bench.queue()
    pushed: list[int] = []

    def fill() -> None:
        while True:
            mids = bench.push(b"x" * 5000)
            for failure in failed(bench.engine).values():
                raise failure
            pushed.extend(mids)

    with pytest.raises(OSError, match="No space left"):
        fill()
    with pytest.raises(OSError, match="No space left"):
        bench.engine.queue("q").push([Draft(b"y" * 5000)] * 3)
    assert pushed
    assert sorted(os.listdir(small_disk / "q")) == sorted([".queue.toml", *map(str, pushed)])
    bench.reopen()
    found = bench.engine.receive(["q"], 1000, 100, LOTS)
    assert [message.mid for message in found] == pushed
    assert all(message.payload == b"x" * 5000 for message in found)
    for message in found[:5]:
        bench.engine.queue("q").delete(Receipt(message.mid, message.receives))
    bench.engine.commit()
    bench.push(b"x" * 5000)
    assert failed(bench.engine) == {}
    with pytest.raises(NoSuchMessageError):
        bench.engine.queue("q").delete(Receipt(found[0].mid))
    bench.engine.close()
