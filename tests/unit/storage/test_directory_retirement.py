"""Old messages in queues of directories: what only these have to deal with."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storage.calls import next_due
from support.storage.engines import LOTS, Bench, FaultyDisk, always, arrived, files_engine

from qs_storage.directories import DirectoriesEngine, DirqEngine, DirqSimpleEngine, FilesEngine
from qs_storage.engine import SECOND, Durability, Receipt, State

KINDS: dict[str, type[DirectoriesEngine]] = {"files": FilesEngine, "dirq-simple": DirqSimpleEngine, "dirq": DirqEngine}
AGE = 60_000_000
Make = Callable[[], Bench]


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, disk: FaultyDisk) -> Iterator[Make]:
    """Makes servers on one root."""
    made: list[Bench] = []

    def another() -> Bench:
        made.append(Bench(files_engine(Durability.ALWAYS, always(disk), kind=KINDS[request.param])(tmp_path)))
        return made[-1]

    yield another
    for bench in made:
        bench.engine.close()


def held(bench: Bench) -> list[int]:
    return bench.engine.queue("q").list_mids(State.ALL, 1000, -1)


def test_delayed_ones_after_a_start(make: Make) -> None:
    """After a start, delayed messages are removed at their time, though only the disk knew that they are delayed; one
    in flight stays."""
    bench = make()
    bench.queue(retention=AGE)
    start = bench.clock.now
    [_] = bench.push(b"delayed", delay=9 * AGE)
    [received] = bench.push(b"received")
    bench.engine.receive(["q"], 1, 9 * AGE, LOTS)
    bench.engine.commit()
    bench.reopen()
    assert next_due(bench.engine) == start + AGE
    bench.clock.now = start + 2 * AGE
    bench.engine.expire(100)
    assert held(bench) == [received]
    assert next_due(bench.engine) == start + 2 + 9 * AGE


def test_two_servers(make: Make) -> None:
    """Each message is removed by one of them, and the other one knows."""
    one, other = make(), None
    one.queue(retention=AGE)
    other = make()
    mids = one.push(*[b"x"] * 10)
    other.engine.refresh()
    assert arrived(other.engine) == {"q": 10}
    assert next_due(other.engine) == next_due(one.engine)
    one.clock.now = other.clock.now = one.clock.now + AGE
    assert one.engine.expire(4) == 4
    other.engine.expire(100)
    one.engine.expire(100)
    for each in (one, other):
        each.engine.refresh()
    assert [held(each) for each in (one, other)] == [[], []]
    assert sum(each.engine.queue("q").stats().retired for each in (one, other)) == len(mids)


def test_what_cannot_be_removed(make: Make, disk: FaultyDisk) -> None:
    """Holds up no other; alone it is an error, and is tried again."""
    bench = make()
    bench.queue(retention=AGE)
    bench.push(b"1", b"2", b"3")
    bench.clock.now += AGE
    operation = "rename" if bench.engine.name == "dirq" else "unlink"
    disk.arm(1, errno.EACCES, operation)
    assert bench.engine.queue("q").retire(100) == 2  # type: ignore[attr-defined] # see EngineQueue
    [left] = held(bench)
    bench.clock.now += SECOND  # an element of dirq has been locked for so long
    disk.arm(1, errno.EACCES, operation)
    with pytest.raises(PermissionError):
        bench.engine.expire(100)
    disk.disarm()
    assert held(bench) == [left]
    while (due := next_due(bench.engine)) is not None:
        bench.clock.now = max(due, bench.clock.now)
        bench.engine.expire(100)
    assert held(bench) == []


def test_gone_meanwhile(make: Make, tmp_path: Path) -> None:
    """Files that another program has removed, without a report yet, are no error."""
    bench = make()
    bench.queue(retention=AGE)
    mids = bench.push(b"1", b"2")
    bench.clock.now += AGE
    path = bench.engine.queue("q").store.path_of(mids[0])  # type: ignore[attr-defined]
    os.rename(path, tmp_path / "elsewhere")
    bench.engine.expire(100)
    bench.engine.commit()
    assert (held(bench), bench.engine.queue("q").stats().retired) == ([], 1)


def test_a_release_that_is_too_late(make: Make) -> None:
    """Removes the message, also with a dead-letter queue that it is not yet due for."""
    bench = make()
    bench.queue(retention=AGE)
    [mid] = bench.push(b"x")
    [message] = bench.engine.receive(["q"], 1, 9 * AGE, LOTS)
    bench.clock.now += AGE
    assert bench.engine.queue("q").release(Receipt(mid, message.receives), 5) is None
    bench.engine.commit()
    bench.reopen()
    assert held(bench) == []
