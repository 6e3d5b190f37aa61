"""Directory queues and a power loss at each step: what was added is there, and nothing half is."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from power_loss import lay_out, power_loss
from power_loss_check import fast_directory
from power_loss_disk import RecordingDisk
from power_loss_nodes import EVERYTHING, NOTHING
from power_loss_world import World

from qs_server.storage.dirq import Queue, QueueSimple

MIXED = [NOTHING, EVERYTHING, *(f"mixed-{seed}" for seed in range(8))]
COUNT = 4
BEFORE = int(time.time()) - 10_000
SCHEMA = {"number": "string", "data": "binary", "more": "table?"}
Elements = dict[str, object]


def simple(path: str, **named: Any) -> QueueSimple:
    return QueueSimple(path, granularity=1 << 40, **named)


def queue(path: str, **named: Any) -> Queue:
    return Queue(path, maxelts=2, schema=SCHEMA, **named)


def data(make: object, number: int) -> Any:
    if make is simple:
        return b"%d" % number * 999
    return {"number": str(number), "data": b"x" * 999, "more": {"a": str(number)}}


def elements(make: Callable[..., Any], path: str, names: list[str]) -> Elements:
    """Those of the names that a program finds there after a purge. Each is whole, or reading it raises."""
    q = make(path, sync=False)
    q.purge()
    found = {}
    for name in set(q) & set(names):
        assert q.lock(name)
        found[name] = q.get(name)
        q.unlock(name)
    return found


@pytest.fixture
def fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(time, "sleep", lambda _: None)  # a purge waits for others, and here are none
    with fast_directory(tmp_path) as made:
        yield made


def recorded(make: Callable[..., Any], directory: Path, existing: bool) -> tuple[RecordingDisk, list[str]]:
    """The operations of additions, of a removal after them, and with a mark after each. existing: a program that does
    not sync has made the queue and its intermediate directory."""
    (directory / "recorded").mkdir()
    disk = RecordingDisk(directory / "recorded")
    path = f"{disk.root}/q"
    if existing:
        other = make(path, disk=disk, sync=False)
        name = other.add(data(make, 0))
        other.lock(name)
        other.remove(name)
    q = make(path, disk=disk)
    names = []
    for number in range(COUNT):
        names.append(q.add(data(make, number)))
        disk.mark("answered", number + 1)
    q.lock(names[0])
    q.remove(names[0])
    disk.mark("answered", -1)
    return disk, names


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
@pytest.mark.parametrize("make", [simple, queue])
def test_added_elements_are_there(fast: Path, make: Callable[..., Any], ordered: bool, existing: bool) -> None:
    """Whatever the step: all that was added until then, maybe what is just being added, and nothing else; once the
    first was removed, it does not come back."""
    disk, names = recorded(make, fast, existing)
    world = World(ordered=ordered)
    answered, removed, looked = 0, False, 0
    for number, entry in enumerate(disk.log):
        world.begin(entry)
        if entry.kind == "answered":
            answered, removed = (entry.args[0], removed) if entry.args[0] >= 0 else (answered, True)
        for how in MIXED if entry.changes else ():
            root = fast / f"{number}-{how}"
            root.mkdir()
            lay_out(power_loss(world, how if how in MIXED[:2] else f"{how}/{number}"), str(root), BEFORE)
            found = elements(make, f"{root}/q", names)
            needed, possible = set(names[:answered]), set(names[: answered + 1])
            if answered == COUNT:
                needed.discard(names[0])
                possible -= {names[0]} if removed else set()
            assert needed <= found.keys() <= possible, (str(entry), how)
            assert all(one == data(make, names.index(name)) for name, one in found.items())
            looked += 1
        world.complete(entry)
    assert removed
    assert looked > 200


@pytest.mark.parametrize("make", [simple, queue])
def test_without_sync_they_may_be_lost(fast: Path, make: Callable[..., Any]) -> None:
    """The same check tells when nothing is synced: nothing of it is durable."""
    (fast / "recorded").mkdir()
    disk = RecordingDisk(fast / "recorded")
    make(f"{disk.root}/q", disk=disk, sync=False).add(data(make, 0))
    world = World()
    for entry in disk.log:
        world.play(entry)
    (fast / "after").mkdir()
    lay_out(power_loss(world, NOTHING), str(fast / "after"))
    assert os.listdir(fast / "after") == []
