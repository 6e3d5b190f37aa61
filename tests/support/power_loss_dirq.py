"""Additions to directory queues and removals, recorded; and a power loss at each of their steps."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qs_storage.dirq import Queue, QueueSimple
from support.power_loss import lay_out, power_loss
from support.power_loss_disk import Entry, RecordingDisk
from support.power_loss_nodes import EVERYTHING, NOTHING
from support.power_loss_world import World

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
    """Returns the elements that a program finds under these names after a purge. Each is whole, or reading it
    raises."""
    q = make(path, sync=False)
    q.purge()
    found = {}
    for name in set(q) & set(names):
        assert q.lock(name)
        found[name] = q.get(name)
        q.unlock(name)
    return found


def recorded(make: Callable[..., Any], directory: Path, existing: bool) -> tuple[list[Entry], list[str]]:
    """The operations of additions, of a removal after them, and with a mark after each. existing: a program that does
    not sync has made the queue and its intermediate directory."""
    (directory / "recorded").mkdir()
    disk = RecordingDisk(directory / "recorded")
    path = f"{disk.root}/q" if existing else f"{disk.root}/above/q"
    if existing:
        other = make(path, disk=disk, sync=False)
        name = other.add(data(make, 0))
        other.lock(name)
        other.remove(name)
    q = make(path, disk=disk)
    names = []
    for number in range(COUNT):
        names.append(_add_file(q, disk, number) if make is simple and number == 2 else q.add(data(make, number)))
        disk.mark("answered", number + 1)
    q.lock(names[0])
    q.remove(names[0])
    disk.mark("answered", -1)
    return disk.log, names


def _add_file(q: QueueSimple, disk: RecordingDisk, number: int) -> str:
    """A file that somebody has written beside the queue, and that nothing has made durable, is moved into it."""
    path = f"{disk.root}/file"
    fd = disk.open(path, os.O_CREAT | os.O_WRONLY)
    disk.write(fd, data(simple, number))
    disk.close(fd)
    return q.add_path(path)


def check(make: Callable[..., Any], log: Sequence[Entry], names: list[str], directory: Path, *, ordered: bool) -> int:
    """Fails with the first step after which something is lost, torn, or there again; how many power losses there
    were."""
    world = World(ordered=ordered)
    answered, removed, looked = 0, False, 0
    for number, entry in enumerate(log):
        world.begin(entry)
        if entry.kind == "answered":
            answered, removed = (entry.args[0], removed) if entry.args[0] >= 0 else (answered, True)
        for how in MIXED if entry.changes else ():
            root = directory / f"{number}-{how}"
            root.mkdir()
            lay_out(power_loss(world, how if how in MIXED[:2] else f"{how}/{number}"), str(root), BEFORE)
            found = elements(make, f"{root}/above/q" if (root / "above").exists() else f"{root}/q", names)
            needed, possible = set(names[:answered]), set(names[: answered + 1])
            if answered == COUNT:
                needed.discard(names[0])
                possible -= {names[0]} if removed else set()
            assert needed <= found.keys() <= possible, (str(entry), how)
            assert all(one == data(make, names.index(name)) for name, one in found.items()), (str(entry), how)
            looked += 1
        world.complete(entry)
    assert removed
    return looked
