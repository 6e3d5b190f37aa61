"""Queues of the server in dirq's layouts while the package dirq purges the same directory, between any two steps."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.storage.directories import (
    LAYOUTS,
    Foreign,
    PresentClock,
    PurgingDisk,
    Shared,
    SteppingDisk,
    mid_of,
    sharing,
)
from support.storage.engines import LOTS, Crash, WithoutAttributes, failed

from qs_storage.directories import DirectoriesEngine
from qs_storage.dirq import Queue
from qs_storage.dirq.elements import LOCKED_DIRECTORY
from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Draft, Durability, NoSuchMessageError, Options, Receipt, State


@pytest.fixture(params=LAYOUTS)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    with sharing(request.param, tmp_path) as shared:
        yield shared


def purge(foreign: Foreign) -> None:
    """Purges as the package does, and removes every empty directory, also the last one."""
    with contextlib.suppress(OSError):  # it gives up at the first element in `temporary` that has a file
        foreign.queue.purge()
    for above, _, _ in os.walk(foreign.path, topdown=False):
        if above != str(foreign.path) and os.path.basename(above) != LOCKED_DIRECTORY:
            with contextlib.suppress(OSError):
                os.rmdir(above)


Operation = Callable[[DirectoriesEngine, list[int]], object]
OPERATIONS: dict[str, Operation] = {
    "push": lambda engine, _: len(engine.queue("q").push([Draft(b"x")])),
    "push-list": lambda engine, _: len(engine.queue("q").push([Draft(b"x"), Draft(b"y"), Draft(b"z")])),
    "push-delayed": lambda engine, _: len(engine.queue("q").push([Draft(b"x", 100 * SECOND)])),
    "receive": lambda engine, _: [each.payload for each in engine.receive(["q"], 2, None, LOTS)],
    "get": lambda engine, mids: engine.queue("q").get(mids[1], peek=False, visibility=None).payload,
    "delete": lambda engine, mids: engine.queue("q").delete(Receipt(mids[1])),
    "delete-held": lambda engine, mids: engine.queue("q").delete(Receipt(mids[0], 1)),
    "release": lambda engine, mids: engine.queue("q").release(Receipt(mids[0], 1), 0),
    "release-delayed": lambda engine, mids: engine.queue("q").release(Receipt(mids[0], 1), SECOND) is not None,
    "extend": lambda engine, mids: engine.queue("q").extend(Receipt(mids[0], 1), SECOND) > 0,
    "copy": lambda engine, mids: engine.copy("q", mids[1], ["other"]),
    "stats": lambda engine, _: engine.queue("q").stats().ready,
    "purge": lambda engine, mids: engine.queue("q").purge(mids[-1], 10),
    "remove": lambda engine, mids: (engine.queue("q").purge(mids[-1], 10), engine.remove("q", force=False)),
}


def played(layout: str, root: Path, operation: str, at: int) -> tuple[object, int]:
    """Returns the result of an operation with a purge after one of its steps (0: before the first), and the number of
    steps."""
    disk = PurgingDisk()
    purged = [Foreign(layout, root / qid) for qid in ("q", "other")]
    engine = opened(layout, root, disk)
    mids = engine.queue("q").push([Draft(b"1"), Draft(b"2")]) if not operation.startswith("push") else []
    engine.receive(["q"], 1, None, LOTS)
    engine.commit()
    disk.steps, disk.at, disk.happen = 0, at, lambda: list(map(purge, purged))
    if at == 0:
        disk.happen()
    result = OPERATIONS[operation](engine, mids)
    engine.commit()
    steps, disk.at = disk.steps, -1
    failures = failed(engine)
    engine.close()
    engine = opened(layout, root, disk)
    left = {qid: figures(engine, qid) for qid in engine.queues()}
    engine.close()
    return (result, failures, left), steps


def opened(layout: str, root: Path, disk: Disk) -> DirectoriesEngine:
    return LAYOUTS[layout](str(root), clock=PresentClock(), durability=Durability.ALWAYS, disk=disk)


def figures(engine: DirectoriesEngine, qid: str) -> tuple[int, int, int]:
    found = engine.queue(qid).stats()
    return found.ready, found.in_flight, found.delayed


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_purge_at_each_step(tmp_path: Path, layout: str, operation: str) -> None:
    """A purge between any two steps of an operation changes neither its answer nor what is in the queues after it."""
    expected, steps = played(layout, tmp_path / "undisturbed", operation, -1)
    for at in range(steps + 1):
        found, _ = played(layout, tmp_path / str(at), operation, at)
        assert found == expected, at


def test_a_purge_that_never_rests(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push gives up when its directory was removed again and again; nothing is left, and the next one is taken."""
    monkeypatch.setattr("qs_storage.dirq.layouts.ATTEMPTS", 5)
    disk = SteppingDisk()
    engine = shared.open(disk)

    def again(path: str, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)
        disk.after["mkdir"] = again

    disk.after["mkdir"] = again
    with pytest.raises(FileNotFoundError, match="5 times"):
        engine.queue("q").push([Draft(b"x")])
    made = [arguments[0] for name, arguments in disk.calls if name == "mkdir"]
    assert len(made) == {"dirq-simple": 5, "dirq": 2 * 5}[shared.layout]
    disk.after.clear()
    assert len(engine.queue("q").push([Draft(b"y")])) == 1
    engine.commit()
    engine.close()
    assert shared.foreign.consume() == [b"y"]


def test_a_purge_removes_what_a_delayed_push_left(tmp_path: Path) -> None:
    """Our purge and a start remove the old remains of a delayed push of a killed server."""
    for name, clean in (("start", lambda shared: shared.open().close()), ("purge", our_purge)):
        with sharing("dirq", tmp_path / name) as shared:
            disk = SteppingDisk()
            disk.before["rename"] = crash
            engine = shared.open(disk)
            engine.queue("q").push([Draft(b"x", SECOND)])
            with pytest.raises(Crash):
                engine.effects()
            [left] = (shared.foreign.path / "temporary").iterdir()
            clean(shared)
            assert left.exists()
            os.utime(left, (0, 0))
            clean(shared)
            assert not left.exists()


def crash(*_: object) -> None:
    raise Crash


def our_purge(shared: Shared) -> None:
    Queue(str(shared.foreign.path), sync=False).purge()


# -- directories that are made again -----------------------------------------------------------------------------------


def test_a_directory_that_is_made_again_before_that_is_noticed(shared: Shared) -> None:
    """A delayed message stays delayed, and comes in time, when its directory was purged and made again just before;
    also where its marks are a file."""
    engine = shared.open(WithoutAttributes())
    engine.queue("q").push([Draft(b"1")])
    engine.commit()
    shared.foreign.consume()
    purge(shared.foreign)
    [mid] = engine.queue("q").push([Draft(b"2", 100 * SECOND)])
    engine.commit()
    engine.refresh()
    assert engine.queue("q").list_mids(State.ALL, 10, -1) == engine.queue("q").list_mids(State.DELAYED, 10, -1) == [mid]
    shared.clock.ahead += 100 * SECOND
    engine.expire(10)
    assert [message.payload for message in engine.receive(["q"], 10, None, LOTS)] == [b"2"]
    engine.close()


@pytest.mark.parametrize("watched", [True, False])
def test_a_directory_that_goes_before_it_is_listed(
    shared: Shared, watched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory that is purged while we take it up, and made again, is taken up then; nothing is logged."""
    name = shared.foreign.add(b"x")
    folder = shared.foreign.path / "7fffffff"
    queue: Any = shared.engine._queues["q"]
    listed = queue.store.layout.listed

    def gone(name: str) -> Any:
        queue.store.layout.listed = listed
        folder.rmdir()
        return listed(name)

    if watched:
        queue.store.layout.listed = gone
        folder.mkdir()
    queue.store.folder_made(folder.name)
    folder.mkdir()
    shared.engine.refresh()
    os.rename(shared.foreign.path / name, folder / name[9:])
    shared.engine.refresh()
    assert shared.engine.queue("q").list_mids(State.ALL, 10, -1) == [mid_of(name)]
    assert caplog.text == ""


@pytest.mark.timeout(20)
def test_an_element_that_has_lost_its_body(tmp_path: Path) -> None:
    """An element whose file is removed is not a message, and a copy of it is refused, without retries."""
    with sharing("dirq", tmp_path) as shared:
        shared.engine.create("other", Options())
        [mid] = shared.push(b"x")
        shared.engine.queue("q").stats()
        os.unlink(shared.foreign.path / shared.foreign.names()[0] / "body")
        with pytest.raises(NoSuchMessageError):
            shared.engine.copy("q", mid, ["other"])
