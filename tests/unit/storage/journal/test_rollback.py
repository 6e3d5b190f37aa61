"""A commit that fails takes back what was asked for since the last one, but no receive."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from support.crashing import segments_of
from support.engines import Bench, FaultyDisk, always, journal_engine

from qs_storage.directories import DirectoriesEngine
from qs_storage.engine import Draft, Durability, Engine, NoSuchPartError, Receipt, State
from qs_storage.journal.log.records import PUSH_SIZE, SMALL
from qs_storage.journal.queues.store import Store

CHANGES: dict[str, Callable[[Engine, Receipt], object]] = {
    "delete": lambda engine, receipt: engine.queue("q").delete(receipt),
    "release": lambda engine, receipt: engine.queue("q").release(receipt, 0),
    "delay": lambda engine, receipt: engine.queue("q").release(receipt, 5_000_000),
    "extend": lambda engine, receipt: engine.queue("q").extend(receipt, 50_000_000),
}


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> Callable[[Engine, Receipt], object]:
    """A change that the holder of a message asks for."""
    return CHANGES[request.param]


@pytest.mark.parametrize("held", [False, True])
def test_receive_stays(tmp_path: Path, change: Callable[[Engine, Receipt], object], held: bool) -> None:
    """A message whose holder's next request fails with the commit is in flight as before, and the end of the process
    makes visible what a subscriber held."""
    disk = FaultyDisk()
    bench = Bench(journal_engine(Durability.ALWAYS, always(disk))(tmp_path))
    bench.queue()
    [mid] = bench.push(b"1")
    [message] = bench.engine.receive(["q"], 1, 20_000_000, 100, held=held)
    change(bench.engine, Receipt(mid, 1))
    assert bench.engine.effects().next_expiry != message.visible_at
    disk.arm(1, errno.ENOSPC, "_pwrite")
    with pytest.raises(OSError, match="space"):
        bench.engine.commit()
    disk.disarm()
    assert bench.engine.effects().next_expiry == message.visible_at
    found = bench.engine.queue("q").get(mid, peek=True, visibility=None)
    assert (found.status, found.receives, found.visible_at) == ("in-flight", 1, message.visible_at)
    found = bench.reopen().queue("q").get(mid, peek=True, visibility=None)
    assert (found.status, found.receives) == ("ready" if held else "in-flight", 1)
    bench.engine.close()


@pytest.fixture(name="disk")
def _disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> Bench:
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    bench = Bench(journal_engine(Durability.ALWAYS, always(disk))(tmp_path))
    bench.queue()
    bench.push(b"0")
    return bench


def _store(bench: Bench) -> Store:
    assert isinstance(bench.engine, DirectoriesEngine)
    return bench.engine._journal.open()


def test_a_batch_of_which_a_part_failed_fails(bench: Bench, disk: FaultyDisk) -> None:
    """A batch of which a part failed is refused whole, whatever commits in between with nothing to take back, as a
    slice of upkeep does."""
    [mid] = bench.engine.queue("q").push([Draft(b"taken back")])
    disk.arm(1, errno.ENOSPC, "_pwrite")
    for _ in range(2):
        with pytest.raises(OSError, match="space"):
            _store(bench).commit_early()
        disk.disarm()
    with pytest.raises(OSError, match="space"):
        bench.engine.commit()
    assert mid not in bench.engine.queue("q").list_mids(State.ALL, 10, -1)
    assert len(bench.push(b"later")) == 1
    bench.engine.close()


@pytest.mark.parametrize("count", [1, 100])
def test_what_was_taken_back_is_not_received(bench: Bench, disk: FaultyDisk, count: int) -> None:
    """Rolled-back messages are not received, not even when the rollback makes room for the record of their receive."""
    while _store(bench).log.left_to_pushes >= SMALL + 1000:
        bench.engine.queue("q").push([Draft(bytes(1000))])
    bench.engine.queue("q").push([Draft(bytes(_store(bench).log.left_to_pushes - PUSH_SIZE))])
    disk.arm(1, errno.ENOSPC, "_pwrite")
    with pytest.raises(OSError, match="space"):
        bench.engine.receive(["q"], count, 1_000_000, 1 << 30)
    disk.disarm()
    with pytest.raises(OSError, match="space"):
        bench.engine.commit()
    bench.clock.now += 2_000_000
    stats = bench.engine.queue("q").stats()
    assert (stats.ready, stats.in_flight) == (1, 0)
    assert [message.payload for message in bench.engine.receive(["q"], 100, None, 1 << 30)] == [b"0"]
    bench.engine.close()


def test_a_part_that_is_refused_is_not_staged(bench: Bench, disk: FaultyDisk) -> None:
    """There is no room for its messages: a batch that wants them is not published without them."""
    disk.arm(1, errno.ENOSPC, "_pwrite", lasting=True)
    with pytest.raises(OSError, match="space"):
        bench.engine.queue("q").batches.stage("p", (1, 1, 1), [bytes(1 << 20)])
    disk.disarm()
    bench.engine.commit()
    with pytest.raises(NoSuchPartError):
        bench.engine.queue("q").batches.publish("p", 1, [(1, 1)])
    bench.engine.close()
