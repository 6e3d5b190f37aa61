"""A commit that fails takes back what was asked for since the last one, but no receive."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from support.crashing import segments_of
from support.engine_calls import next_due
from support.engines import Bench, FaultyDisk, always, journal_engine

from qs_storage.engine import Durability, Engine, NoSuchPartError, Receipt

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
    assert next_due(bench.engine) != message.visible_at
    disk.arm(1, errno.ENOSPC, "_pwrite")
    with pytest.raises(OSError, match="space"):
        bench.engine.commit()
    disk.disarm()
    assert next_due(bench.engine) == message.visible_at
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
