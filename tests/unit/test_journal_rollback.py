"""A commit that fails takes back what was asked for since the last one, but no receive."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import Bench, FaultyDisk, always, journal_engine

from qs_server.storage.engine import Durability, Engine, Receipt

CHANGES: dict[str, Callable[[Engine, Receipt], object]] = {
    "delete": lambda engine, receipt: engine.queue("q").delete(receipt),
    "release": lambda engine, receipt: engine.queue("q").release(receipt, 0),
    "delay": lambda engine, receipt: engine.queue("q").release(receipt, 5_000_000),
    "extend": lambda engine, receipt: engine.queue("q").extend(receipt, 50_000_000),
}


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> Callable[[Engine, Receipt], object]:
    """What the holder of a message asks for."""
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
