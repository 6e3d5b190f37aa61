"""A commit that fails takes back what was asked for since the last one, but no receive."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.storage.calls import next_due
from support.storage.crashing import segments_of
from support.storage.engines import Bench, FaultyDisk, always, journal_engine

from qs_storage.engine import SECOND, Draft, Durability, Engine, NoSuchPartError, Receipt, Stats
from qs_storage.journal.queues.queue import LogQueue

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


def counts(engine: Engine) -> Stats:
    """Returns a copy of what the queue has counted. Its `stats` would end windows first."""
    queue = engine.queue("q")
    assert isinstance(queue, LogQueue)
    return replace(queue.counts)


COUNTED: dict[str, Callable[[Engine, int], object]] = {
    "delete": lambda engine, mid: engine.queue("q").delete(Receipt(mid)),
    "release": lambda engine, mid: engine.queue("q").release(Receipt(mid), 0),
    "reject": lambda engine, mid: engine.queue("q").reject(Receipt(mid), None),
    "purge": lambda engine, mid: engine.queue("q").purge(1 << 62, 10),
    "claim": lambda engine, mid: engine.queue("q").claims.claim("other", 1, 10, None, None),
    "acknowledge": lambda engine, mid: engine.queue("q").claims.acknowledge("c", 1),
    "release claim": lambda engine, mid: engine.queue("q").claims.release("c", 1),
    "retire": lambda engine, mid: engine.queue("q").retire(10),
    "end window": lambda engine, mid: engine.expire(10),
}


@pytest.mark.parametrize("name", COUNTED)
def test_failed_commit_takes_back_counts(tmp_path: Path, name: str) -> None:
    """A batch that fails has deleted, released, moved and claimed nothing, and the figures of the queue say so. What
    its commit does count is there when the commit succeeds."""
    disk = FaultyDisk()
    bench = Bench(journal_engine(Durability.ALWAYS, always(disk))(tmp_path))
    options: dict[str, Any] = {}
    if name in {"reject", "end window"}:
        options = {"max_receives": 1, "dead_letter": "dead"}
    elif name == "retire":
        options = {"retention": SECOND // 2}
    bench.queue("q", **options)
    bench.queue("dead")
    bench.push(b"1")
    bench.engine.queue("q").claims.claim("c", 1, 10, None, None)
    [mid] = bench.push(b"2")
    bench.engine.receive(["q"], 1, 1000, 100)
    bench.push(b"3")
    bench.engine.commit()
    if name == "end window":
        bench.clock.now += 1000
    if name == "retire":
        bench.clock.now += SECOND

    before = counts(bench.engine)
    disk.arm(1, errno.ENOSPC, "_pwrite")
    COUNTED[name](bench.engine, mid)
    assert counts(bench.engine) != before
    with pytest.raises(OSError, match="space"):
        bench.engine.commit()
    disk.disarm()
    assert counts(bench.engine) == before
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
        bench.engine.queue("q").batches.stage("p", (1, 1, 1), list(map(Draft, [bytes(1 << 20)])))
    disk.disarm()
    bench.engine.commit()
    with pytest.raises(NoSuchPartError):
        bench.engine.queue("q").batches.publish("p", 1, [(1, 1)])
    bench.engine.close()
