"""Reasons in queues of files: each step of giving one, what fails on the way, and what others see of it."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.storage.engines import LOTS, Bench, Crash, FaultyDisk, FileServers

from qs_storage.engine import (
    SECOND,
    Engine,
    Message,
    NoSuchMessageError,
    Queue,
    QueueFullError,
    Receipt,
    StaleReceiptError,
    State,
)

WINDOW = 5 * SECOND


class Way(NamedTuple):
    """A way to give a message back: the options of its queue, the call, and where the message is then."""

    options: dict[str, Any]
    give: Callable[[Queue, int], object]
    then: tuple[str, str]


DYING = {"dead_letter": "dead", "max_receives": 2}
WAYS = {
    "release": Way({}, lambda queue, mid: queue.release(Receipt(mid), 0, reason="new"), ("q", "ready")),
    "uncounted": Way({}, lambda queue, mid: queue.release(Receipt(mid), 0, count=False, reason="new"), ("q", "ready")),
    "later": Way({}, lambda queue, mid: queue.release(Receipt(mid), SECOND, reason="new"), ("q", "delayed")),
    "back-off": Way(
        {"backoff": SECOND}, lambda queue, mid: queue.release(Receipt(mid), None, reason="new"), ("q", "delayed")
    ),
    "death": Way(DYING, lambda queue, mid: queue.release(Receipt(mid), 0, reason="new"), ("dead", "ready")),
    "reject": Way(
        {**DYING, "max_receives": 9}, lambda queue, mid: queue.reject(Receipt(mid), "new"), ("dead", "ready")
    ),
}


def receive(bench: Bench, qid: str = "q") -> list[Message]:
    found = bench.engine.receive([qid], 10, WINDOW, LOTS)
    bench.engine.commit()
    return found


def in_flight(bench: Bench, options: dict[str, Any]) -> Bench:
    """A message of `q` in its second window, which was given back once because it was `old`."""
    bench.queue(**options)
    bench.queue("dead")
    [mid] = bench.push(b"x")
    receive(bench)
    bench.engine.queue("q").release(Receipt(mid), 0, reason="old")
    [message] = receive(bench)
    assert (message.reason, message.receives) == ("old", 2)
    return bench


def seen(engine: Engine) -> tuple[str, str, str | None]:
    """The queue that has the message, its status and its reason."""
    [(qid, mid)] = [(qid, mid) for qid in ("q", "dead") for mid in engine.queue(qid).list_mids(State.ALL, 10, -1)]
    assert engine.queue(qid).read(Receipt(mid)).payload == b"x"
    message = engine.queue(qid).get(mid, peek=True, visibility=None)
    return qid, message.status, message.reason


def give(bench: Bench, way: Way) -> None:
    queue = bench.engine.queue("q")
    [mid] = queue.list_mids(State.ALL, 10, -1)
    way.give(queue, mid)
    bench.engine.commit()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_reason_with_crash_at_each_step(tmp_path: Path, servers: FileServers, disk: FaultyDisk, way: Way) -> None:
    """The message is where it was or where it should be, with its new reason if it is there, for servers that run and
    for the next one."""
    places = set()
    for at in range(1, 100):
        root = tmp_path / f"root-{at}"
        here = in_flight(servers.start(root, disk), way.options)
        other = servers.start(root, disk)
        crashed = False
        disk.arm(at, Crash)
        try:
            give(here, way)
        except Crash:
            crashed = True
        disk.disarm()
        other.engine.refresh()
        for engine in (other.engine, servers.start(root, disk).engine):
            *place, reason = seen(engine)
            assert reason == "new" if tuple(place) == way.then else reason in ("old", "new")
        places.add(tuple(place))
        servers.kill()
        if not crashed:
            break
    assert places == {("q", "in-flight"), way.then}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_fails_changes_nothing(
    tmp_path: Path, servers: FileServers, disk: FaultyDisk, way: Way, code: int
) -> None:
    """Whichever call fails: it raises and the message is as it was, or the message is given back with its reason. One
    that should have died may also be visible, as its log says."""
    bench = in_flight(servers.start(tmp_path / "root", disk), way.options)
    for at in range(1, 100):
        disk.arm(at, code)
        try:
            give(bench, way)
        except OSError:
            disk.disarm()
            if (found := seen(bench.engine)) != ("q", "in-flight", "old"):
                assert found == (*way.then, "new")  # the commit failed: it is repeated
                break
            continue
        break
    disk.disarm()
    bench.engine.commit()
    found = seen(bench.engine)
    assert found == (*way.then, "new") or (found[1:] == ("ready", "new") and way.then[0] == "dead" and disk.failed)
    if code == errno.EIO:
        bench.reopen()
        assert seen(bench.engine) == found


def test_a_full_dead_letter_queue(tmp_path: Path, servers: FileServers, disk: FaultyDisk) -> None:
    """A reject that finds it full is refused, and the message keeps its window and its reason."""
    way = WAYS["reject"]
    bench = in_flight(servers.start(tmp_path / "root", disk), way.options)
    bench.engine.configure("dead", replace(bench.engine.queue("dead").options, capacity=1))
    bench.push(b"other", qid="dead")
    with pytest.raises(QueueFullError):
        give(bench, way)
    queue = bench.engine.queue("q")
    for _ in range(2):
        [mid] = queue.list_mids(State.IN_FLIGHT, 10, -1)
        assert queue.read(Receipt(mid, 2)).reason == "old"
        queue = bench.reopen().queue("q")


def test_another_server(tmp_path: Path, servers: FileServers, disk: FaultyDisk) -> None:
    """Another server shows the reason with the next receive, and replaces it."""
    bench = in_flight(servers.start(tmp_path / "root", disk), {})
    other = servers.start(tmp_path / "root", disk)
    give(bench, WAYS["release"])
    other.engine.refresh()
    [message] = receive(other)
    assert message.reason == "new"
    other.engine.queue("q").release(Receipt(message.mid), 0, reason="newer")
    bench.engine.refresh()
    assert seen(bench.engine) == ("q", "ready", "newer")
    with pytest.raises(StaleReceiptError):
        give(bench, WAYS["release"])  # nobody holds it
    assert seen(bench.engine) == ("q", "ready", "newer")


def test_a_program_that_knows_no_reasons(tmp_path: Path, servers: FileServers, disk: FaultyDisk) -> None:
    """A vsqs program takes the message and leaves its reason; one that deletes it at the same time is not undone."""
    bench = in_flight(servers.start(tmp_path / "root", disk), {})
    give(bench, WAYS["release"])
    directory = tmp_path / "root" / "q"
    [mid] = bench.engine.queue("q").list_mids(State.ALL, 10, -1)
    os.rename(directory / str(mid), directory / f"{mid}.{bench.clock.now + WINDOW}")
    bench.engine.refresh()
    assert seen(bench.engine) == ("q", "in-flight", "new")
    [file] = directory.glob("*.*[0-9]")
    file.unlink()
    with pytest.raises(NoSuchMessageError):
        bench.engine.queue("q").release(Receipt(mid), 0, reason="newer")
    assert os.listdir(directory) == [".queue.toml"] or not disk.attributes
    bench.reopen()
    assert os.listdir(directory) == [".queue.toml"]


def test_the_reason_goes_with_the_message(tmp_path: Path, servers: FileServers, disk: FaultyDisk) -> None:
    """Also to the dead-letter queue and back; deleted with the message, it leaves nothing."""
    bench = in_flight(servers.start(tmp_path / "root", disk), DYING)
    give(bench, WAYS["death"])
    for place in ("dead", "q"):
        for _ in range(2):
            assert seen(bench.engine) == (place, "ready", "new")
            bench.reopen()
        redrive = bench.engine.queue("dead").redrive
        assert redrive is not None
        redrive.move([(mid, bench.engine.queue("q")) for mid, _ in redrive.letters((), 10)])
        bench.engine.commit()
    [mid] = bench.engine.queue("q").list_mids(State.ALL, 10, -1)
    bench.engine.queue("q").delete(Receipt(mid))
    assert [os.listdir(tmp_path / "root" / qid) for qid in ("q", "dead")] == [[".queue.toml"]] * 2
