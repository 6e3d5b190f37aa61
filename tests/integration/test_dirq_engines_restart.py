"""Queues in dirq's layouts over restarts and crashes, and with several processes at once."""

import errno
import os
import select
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.storage.calls import next_due
from support.storage.directories import LAYOUTS, Foreign, PresentClock, Shared, sharing
from support.storage.engines import LOTS, Crash, FaultyDisk, WithoutAttributes, failed

from qs_storage.directories import DirectoriesEngine
from qs_storage.engine import SECOND, Draft, Durability, Receipt, State


@pytest.fixture(params=LAYOUTS)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    with sharing(request.param, tmp_path) as shared:
        yield shared


def listed(engine: DirectoriesEngine, state: State = State.ALL) -> list[int]:
    return engine.queue("q").list_mids(state, 100, -1)


@pytest.mark.parametrize("attributes", [True, False])
def test_restart_keeps_windows_of_dirq_queue(shared: Shared, attributes: bool) -> None:
    """After an end without notice windows, delays and counts are as they were, and locked for others meanwhile."""
    shared.engine.close()
    disk = None if attributes else WithoutAttributes()
    shared.engine = shared.open(disk)
    [flying] = shared.push(b"flying")
    for _ in range(2):
        shared.receive(visibility=0)
    [flight] = shared.receive(visibility=100 * SECOND)
    [delayed] = shared.push(b"delayed", delay=100 * SECOND)
    again = shared.open(disk)  # the first one does nothing more
    assert (listed(again, State.IN_FLIGHT), listed(again, State.DELAYED)) == ([flying], [delayed])
    assert (listed(again, State.NEW), listed(again, State.READY)) == ([delayed], [])
    found = again.queue("q").get(flying, peek=True, visibility=None)
    assert (found.receives, found.visible_at) == (3, flight.visible_at)
    assert next_due(again) == flight.visible_at
    assert shared.foreign.consume() == []
    shared.clock.ahead += 101 * SECOND
    assert [m.receives for m in again.receive(["q"], 10, 0, LOTS)] == [4, 1]
    again.expire(10)
    assert sorted(shared.foreign.consume()) == [b"delayed", b"flying"]
    again.close()


def test_a_shared_window(shared: Shared) -> None:
    """A second server sees what the first one holds, cannot receive it, and ends the window if it is over."""
    [mid] = shared.push(b"x")
    other = shared.open()
    [message] = shared.receive(visibility=10 * SECOND)
    other.refresh()
    assert other.receive(["q"], 1, None, LOTS) == []
    assert other.queue("q").get(mid, peek=True, visibility=None).visible_at == message.visible_at
    longer = shared.engine.queue("q").extend(Receipt(mid, 1), 50 * SECOND)
    shared.clock.ahead += 20 * SECOND
    assert other.receive(["q"], 1, None, LOTS) == []
    assert next_due(other) == longer
    shared.clock.ahead += 30 * SECOND
    [again] = other.receive(["q"], 1, None, LOTS)
    assert (again.mid, again.receives) == (mid, 2)
    assert shared.receive() == []
    other.close()


@pytest.mark.parametrize("attributes", [True, False])
def test_a_start_while_another_pushes(shared: Shared, attributes: bool) -> None:
    """A server that starts while another one is in the middle of a delayed push leaves it alone."""
    disk = None if attributes else WithoutAttributes()
    one = shared.open(disk)
    [mid] = one.queue("q").push([Draft(b"x", 10 * SECOND)])
    two = shared.open(disk)
    one.effects()
    assert not failed(one)
    two.close()
    two = shared.open(disk)
    assert listed(two, State.DELAYED) == [mid]
    one.close()
    two.close()


def crashes(shared: Shared, what: Callable[[DirectoriesEngine], object]) -> Iterator[str]:
    """The process ends at each operation of the disk in turn, until it gets through; the state is for the caller to
    look at, with an engine that it opens, and to set up again."""
    at = 0
    while True:
        at += 1
        disk = FaultyDisk()
        engine = shared.open(disk)
        disk.arm(at, Crash)
        try:
            what(engine)
        except Crash:
            disk.disarm()
            disk.crash()
            engine._watch.close()
            yield disk.failed[0]
            continue
        disk.disarm()
        engine.close()
        return


def test_a_crash_while_receiving(shared: Shared) -> None:
    """Wherever a receive is cut off, the message is there once its window would be over, and not later."""
    shared.push(b"x")
    seen = 0
    for _ in crashes(shared, lambda engine: engine.receive(["q"], 1, 30 * SECOND, LOTS)):
        shared.clock.ahead += 31 * SECOND
        again = shared.open()
        again.expire(10)
        assert len(listed(again, State.READY)) == 1
        again.close()
        seen += 1
    assert seen >= 3


def test_a_crash_while_releasing(shared: Shared) -> None:
    """Wherever a release is cut off, the message is ready, or becomes so when its window is over."""
    shared.push(b"x")
    seen = 0

    def release(engine: DirectoriesEngine) -> None:
        [message] = engine.receive(["q"], 1, 30 * SECOND, LOTS)
        engine.queue("q").release(Receipt(message.mid, message.receives), 0)
        engine.commit()

    for _ in crashes(shared, release):
        shared.clock.ahead += 31 * SECOND
        again = shared.open()
        again.expire(10)
        assert len(listed(again, State.READY)) == 1
        again.close()
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("window", [5 * SECOND, 90 * SECOND])
def test_a_crash_while_extending(shared: Shared, window: int) -> None:
    """Wherever a window is being moved, to an earlier or a later end, it ends at one of the two."""
    shared.push(b"x")
    seen = 0

    def extend(engine: DirectoriesEngine) -> None:
        [message] = engine.receive(["q"], 1, 30 * SECOND, LOTS)
        engine.queue("q").extend(Receipt(message.mid, message.receives), window)

    for _ in crashes(shared, extend):
        again = shared.open()
        due = next_due(again)
        if due is not None:
            assert min(abs(due - shared.clock() - each) for each in (30 * SECOND, window)) < SECOND
        shared.clock.ahead += 91 * SECOND
        again.expire(10)
        assert len(listed(again, State.READY)) == 1
        again.close()
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("window", [None, 5 * SECOND, 90 * SECOND])
def test_a_crash_before_the_time_is_set(shared: Shared, monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    """Cut off before the element gets the time of its window's end, which tells that the lock is ours, it is ours too.
    window: that of an extension, None: of the receive."""
    [mid] = shared.push(b"x")
    if window is not None:
        shared.receive(visibility=30 * SECOND)

    def crash(path: str, **named: object) -> None:
        if "ns" in named:
            raise Crash
        set_time(path)

    set_time = os.utime
    receive = partial(shared.engine.receive, ["q"], 1, 30 * SECOND, LOTS)
    change = receive if window is None else partial(shared.engine.queue("q").extend, Receipt(mid), window)
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", crash)
        with pytest.raises(Crash):
            change()
    again = shared.open()
    due = next_due(again)
    assert due is not None
    assert due - shared.clock() > 20 * SECOND
    shared.clock.ahead += 91 * SECOND
    again.expire(10)
    assert listed(again, State.READY) == [mid]
    again.close()


def test_a_crash_while_deleting(shared: Shared) -> None:
    """Wherever a delete is cut off, the message is gone, or becomes ready."""
    shared.push(b"x")
    seen = 0
    for _ in crashes(shared, lambda engine: engine.queue("q").delete(Receipt(listed(engine)[0]))):
        shared.clock.ahead += 2 * SECOND
        again = shared.open()
        again.expire(10)
        assert listed(again) == listed(again, State.READY)
        if not listed(again):
            again.queue("q").push([Draft(b"x")])
            again.commit()
        again.close()
        seen += 1
    assert seen >= 2


@pytest.mark.parametrize("delay", [0, 50 * SECOND])
def test_a_crash_while_pushing(shared: Shared, delay: int) -> None:
    """Wherever a list is cut off, what is there of it is its beginning, whole; delayed messages are there when due."""
    payloads = [b"1" * 1000, b"2" * 1000, b"3" * 1000]
    counts: Counter[int] = Counter()

    def push(engine: DirectoriesEngine) -> None:
        engine.queue("q").push([Draft(payload, delay) for payload in payloads])
        engine.commit()

    for _ in crashes(shared, push):
        if delay:
            assert shared.foreign.consume() == []
            shared.clock.ahead += delay
        again = shared.open()
        again.expire(10)
        found = [m.payload for m in again.receive(["q"], 10, None, LOTS)]
        assert found == payloads[: len(found)]
        counts[len(found)] += 1
        again.queue("q").purge(again.queue("q").last_mid, 10)
        again.close()
    assert set(counts) == {0, 1, 2, 3}


@pytest.mark.parametrize("operation", ["link", "rename", "mkdir", "_write", "fsync", "setxattr"])
def test_list_on_full_disk_changes_nothing(shared: Shared, operation: str) -> None:
    """A list for which there is no room changes nothing, whatever it failed in; then pushes go on."""
    shared.engine.close()
    disk = FaultyDisk()
    shared.engine = shared.open(disk)
    at = 0
    while True:
        at += 1
        disk.arm(at, errno.ENOSPC, operation)
        try:
            shared.engine.queue("q").push([Draft(b"1"), Draft(b"2", 5), Draft(b"3")])
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
            disk.disarm()
        else:
            shared.engine.effects()
            faulty = bool(disk.failed)
            disk.disarm()
            assert len(failed(shared.engine)) == faulty
            if not faulty:
                break
        assert listed(shared.engine) == []
        assert shared.foreign.names() == []
    assert len(listed(shared.engine)) == 3


class Crowd:
    """Consumers of several kinds, each in a thread with an engine or a queue of its own, until all is consumed."""

    def __init__(self, layout: str, root: Path, total: int) -> None:
        self.layout = layout
        self.root = root
        self.total = total
        self.found: list[bytes] = []
        self.errors: list[BaseException] = []

    @property
    def over(self) -> bool:
        return len(self.found) >= self.total or bool(self.errors)

    def server(self) -> None:
        clock = PresentClock()
        engine = LAYOUTS[self.layout](str(self.root), clock=clock, durability=Durability.NONE)
        while not self.over:
            engine.refresh()
            engine.expire(100)
            for message in engine.receive(["q"], 3, 100 * SECOND, LOTS):
                assert message.payload is not None
                self.found.append(message.payload)
                engine.queue("q").delete(Receipt(message.mid, message.receives))
            select.select([engine.fileno()], [], [], 0.01)
        engine.close()

    def other(self) -> None:
        queue = Foreign(self.layout, self.root / "q")
        while not self.over:
            for name in queue.names():
                if queue.queue.lock(name):
                    self.found.append(queue.payload(name))
                    queue.queue.remove(name)

    def producer(self, first: int, count: int) -> None:
        queue = Foreign(self.layout, self.root / "q")
        for number in range(first, first + count):
            queue.add(b"%d" % number)

    def publisher(self, first: int, count: int) -> None:
        engine = LAYOUTS[self.layout](str(self.root), clock=PresentClock(), durability=Durability.NONE)
        for number in range(first, first + count):
            engine.queue("q").push([Draft(b"%d" % number, number % 2 * 1000)])
            engine.effects()
            assert not failed(engine)
        engine.close()

    def guarded(self, what: Callable[..., None], *args: int) -> threading.Thread:
        def run() -> None:
            try:
                what(*args)
            except BaseException as error:
                self.errors.append(error)

        return threading.Thread(target=run)


def test_a_crowd(shared: Shared) -> None:
    """Two servers and a foreign consumer, a server and a foreign producer: everything is handed out exactly once."""
    each = 150
    crowd = Crowd(shared.layout, shared.root, 2 * each)
    threads = [
        crowd.guarded(crowd.server),
        crowd.guarded(crowd.server),
        crowd.guarded(crowd.other),
        crowd.guarded(crowd.producer, 0, each),
        crowd.guarded(crowd.publisher, each, each),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crowd.errors == []
    assert sorted(crowd.found) == sorted(b"%d" % number for number in range(2 * each))
    shared.engine.refresh()
    assert listed(shared.engine) == []
