"""Queues in dirq's layouts, shared live with the real dirq: each side sees and respects what the other does."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.storage.calls import next_due
from support.storage.directories import LAYOUTS, Foreign, Shared, mid_of, original_dirq, sharing
from support.storage.engines import arrived

from qs_storage.dirq.elements import is_directory
from qs_storage.disk import Disk
from qs_storage.engine import (
    SECOND,
    Draft,
    NoSuchMessageError,
    Options,
    QueueNotEmptyError,
    Receipt,
    StaleReceiptError,
    State,
)
from qs_storage.watch import OVERFLOW


@pytest.fixture(params=LAYOUTS)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    with sharing(request.param, tmp_path) as shared:
        yield shared


def listed(shared: Shared, state: State = State.ALL) -> list[int]:
    return shared.engine.queue("q").list_mids(state, 100, -1)


# -- what they add, we hand out; and the other way round


def test_what_they_add(shared: Shared) -> None:
    """Foreign elements are messages at once, in their order; the id is the number of the name, the time that of it."""
    before = time.time_ns() // 1000
    names = [shared.foreign.add(payload) for payload in (b"1", b"\0\xff", b"")]
    shared.engine.refresh()
    assert arrived(shared.engine) == {"q": 3}
    assert listed(shared, State.NEW) == [mid_of(name) for name in names] == sorted(map(mid_of, names))
    found = shared.receive()
    assert [message.mid for message in found] == [mid_of(name) for name in names]
    assert [message.payload for message in found] == [b"1", b"\0\xff", b""]
    assert all(before <= message.pushed_at <= time.time_ns() // 1000 for message in found)


def test_what_was_there(shared: Shared) -> None:
    """Elements that were added before the start are found by it, locked ones as locked."""
    free, locked = shared.foreign.add(b"free"), shared.foreign.add(b"locked")
    assert shared.foreign.queue.lock(locked)
    shared.engine.close()
    shared.engine = shared.open()
    assert listed(shared, State.READY) == [mid_of(free)]
    assert listed(shared, State.IN_FLIGHT) == [mid_of(locked)]
    assert shared.engine.queue("q").last_mid == mid_of(locked)


def test_what_we_push(shared: Shared) -> None:
    """Messages are elements that a foreign consumer locks, reads and removes; then they are gone for us too."""
    mids = shared.push(b"1", b"2", b"3")
    assert [mid_of(name) for name in shared.foreign.names()] == mids
    assert shared.foreign.consume() == [b"1", b"2", b"3"]
    shared.engine.refresh()
    assert listed(shared) == []
    assert shared.engine.queue("q").stats().bytes == 0


def test_headers_are_the_table_of_dirq(tmp_path: Path) -> None:
    """Headers are what a program of dirq has in `header`, in both directions."""
    with sharing("dirq", tmp_path) as shared:
        theirs = {"b": "tab\t, line\n, \\", "a": "\u20ac", "no name": "x", "qs-x": "y"}
        original = original_dirq(tmp_path / "q", "dirq")
        original.add({"body": "x", "header": theirs})
        shared.engine.refresh()
        [message] = shared.receive()
        assert message.headers == (("a", "\u20ac"), ("b", "tab\t, line\n, \\"))
        shared.engine.queue("q").delete(Receipt(message.mid))
        [mid] = shared.engine.queue("q").push([Draft(b"y", headers=message.headers)])
        shared.engine.commit()
        [name] = shared.foreign.names()
        assert mid_of(name) == mid
        assert original.lock(name)
        assert original.get(name) == {"body": "y", "header": dict(message.headers)}


def test_ours_come_after_theirs(shared: Shared) -> None:
    """A new message has an id greater than any that is there, also when the other program's clock is ahead."""
    theirs = mid_of(shared.foreign.add(b"theirs"))
    shared.clock.ahead = -1000 * SECOND
    shared.engine.refresh()
    [ours] = shared.push(b"ours")
    assert ours > theirs
    assert shared.foreign.consume() == [b"theirs", b"ours"]


def test_a_new_directory(shared: Shared) -> None:
    """A queue that another program makes in the root while we run is a queue, with what it holds."""
    name = Foreign(shared.layout, shared.root / "made").add(b"x")
    shared.engine.refresh()
    assert shared.engine.queue("made").list_mids(State.ALL, 10, -1) == [mid_of(name)]


def test_many_intermediate_directories(shared: Shared) -> None:
    """Elements in directories that come and go are messages as long as they are there."""
    names = [shared.foreign.add(b"%d" % n) for n in range(3)]
    for name in names:
        other = f"{int(name[:8], 16) + 5:08x}"
        os.makedirs(shared.root / "q" / other, exist_ok=True)
        os.rename(shared.root / "q" / name, shared.root / "q" / other / name[9:])
    shared.engine.refresh()
    assert sorted(message.payload or b"" for message in shared.receive()) == [b"0", b"1", b"2"]
    assert shared.foreign.consume() == []


# -- locks


def test_what_we_hold(shared: Shared) -> None:
    """A message in flight is locked for others, and free again when it is released, or when its window is over."""
    [mid] = shared.push(b"x")
    for end in ("release", "expiry"):
        shared.receive(visibility=100 * SECOND)
        assert shared.foreign.consume() == []
        if end == "release":
            shared.engine.queue("q").release(Receipt(mid), 0)
        else:
            shared.clock.ahead += 100 * SECOND
            shared.engine.expire(10)
        [name] = shared.foreign.names()
        assert shared.foreign.queue.lock(name)
        shared.foreign.queue.unlock(name)
        shared.clock.ahead += SECOND
        shared.engine.refresh()
        shared.engine.expire(10)
    assert shared.foreign.consume() == [b"x"]


def test_what_they_hold(shared: Shared) -> None:
    """An element that another program has locked is in flight, cannot be received or changed, and is ready when
    unlocked."""
    name = shared.foreign.add(b"x")
    mid = mid_of(name)
    shared.engine.refresh()
    assert shared.foreign.queue.lock(name)
    assert shared.receive() == []
    assert listed(shared, State.IN_FLIGHT) == [mid]
    looked = shared.engine.queue("q").get(mid, peek=False, visibility=None)
    assert (looked.status, looked.payload, looked.visible_at) == ("in-flight", None, None)
    calls: list[Any] = [
        lambda: shared.engine.queue("q").delete(Receipt(mid)),
        lambda: shared.engine.queue("q").release(Receipt(mid), 0),
        lambda: shared.engine.queue("q").release(Receipt(mid), 5),
        lambda: shared.engine.queue("q").extend(Receipt(mid), 5),
    ]
    for call in calls:
        with pytest.raises(StaleReceiptError, match="locked by another program"):
            call()
    assert shared.engine.queue("q").purge(mid, 10) == 0
    assert shared.engine.queue("q").read(Receipt(mid)).payload == b"x"
    assert shared.foreign.payload(name) == b"x"
    arrived(shared.engine)
    shared.foreign.queue.unlock(name)
    due = next_due(shared.engine)
    assert due is not None
    assert due <= shared.clock() + SECOND
    shared.clock.ahead += SECOND
    shared.engine.expire(10)
    assert arrived(shared.engine) == {"q": 1}
    assert next_due(shared.engine) is None
    assert [message.mid for message in shared.receive()] == [mid]


def test_locks_of_simple_are_reported(tmp_path: Path) -> None:
    """In the simple layout a foreign lock and its end are noticed when they happen."""
    with sharing("dirq-simple", tmp_path) as shared:
        [mid] = shared.push(b"x")
        [name] = shared.foreign.names()
        shared.foreign.queue.lock(name)
        shared.engine.refresh()
        assert listed(shared, State.IN_FLIGHT) == [mid]
        shared.foreign.queue.unlock(name)
        shared.engine.refresh()
        assert listed(shared, State.READY) == [mid]


@pytest.mark.parametrize("what", ["lock", "remove"])
def test_lost_races(shared: Shared, what: str) -> None:
    """An element that another program takes or removes at that moment is not handed out, and is not an error."""
    first, second = shared.push(b"1", b"2")
    name = shared.foreign.names()[0]
    assert shared.foreign.queue.lock(name)
    if what == "remove":
        shared.foreign.queue.remove(name)
    assert [message.mid for message in shared.receive()] == [second]
    if what == "remove":
        with pytest.raises(NoSuchMessageError):
            shared.engine.queue("q").delete(Receipt(first))
        assert listed(shared) == [second]


def test_a_lock_that_is_lost_at_the_last_moment(shared: Shared) -> None:
    """If another program locks the element just before us, it is theirs, and its count of receives is as it was."""
    name = shared.foreign.add(b"x")
    shared.engine.refresh()
    queue: Any = shared.engine._queues["q"]
    lock = queue.store.layout.lock

    def too_late(place: str) -> bool:
        assert shared.foreign.queue.lock(name)
        return bool(lock(place))

    queue.store.layout.lock = too_late
    assert shared.receive() == []
    queue.store.layout.lock = lock
    again = shared.open()
    assert again.queue("q").list_mids(State.IN_FLIGHT, 10, -1) == [mid_of(name)]
    assert again.queue("q").get(mid_of(name), peek=True, visibility=None).receives == 0
    again.close()
    shared.foreign.queue.remove(name)


class Watching(Disk):
    """After each step that could make an element visible, tries to lock all there are."""

    def __init__(self, foreign: Foreign) -> None:
        self.foreign = foreign
        self.steps = 0
        self.got: list[str] = []

    def _try(self) -> None:
        self.steps += 1
        self.got += [name for name in self.foreign.names() if self.foreign.queue.lock(name)]

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        os.rename(old, new)
        self._try()

    def link(self, old: str, new: str) -> None:  # type: ignore[override]
        os.link(old, new)
        self._try()


def test_a_delayed_push_is_never_unlocked(shared: Shared) -> None:
    """At no step of a delayed push could another program take it; when its time has come it can."""
    disk = Watching(shared.foreign)
    engine = shared.open(disk)
    [mid] = engine.queue("q").push([Draft(b"x", 100 * SECOND)])
    engine.commit()
    assert disk.steps
    assert disk.got == []
    assert [mid_of(name) for name in shared.foreign.names()] == [mid]
    shared.clock.ahead += 100 * SECOND
    engine.expire(10)
    engine.close()
    assert shared.foreign.consume() == [b"x"]


def purge_later(shared: Shared, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other program's purge, as it will do it then."""
    with monkeypatch.context() as patch:
        now = time.time()
        patch.setattr(time, "time", lambda: now + seconds)
        shared.foreign.queue.purge()


def test_their_purge(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dirq`'s purge leaves our locks until 600 seconds after the end of the window, however long that is."""
    [mid] = shared.push(b"x")
    shared.receive(visibility=3600 * SECOND)
    shared.engine.queue("q").extend(Receipt(mid), 7200 * SECOND)
    purge_later(shared, 7200 + 590, monkeypatch)
    assert shared.foreign.consume() == []
    purge_later(shared, 7200 + 620, monkeypatch)
    [name] = shared.foreign.names()
    assert shared.foreign.queue.lock(name)


def test_after_their_purge(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that takes a message over after a purge has it: its former holder cannot delete it, and we do not
    unlock it."""
    [mid] = shared.push(b"x")
    shared.receive(visibility=SECOND)
    purge_later(shared, 700, monkeypatch)
    shared.clock.ahead += 700 * SECOND
    [name] = shared.foreign.names()
    assert shared.foreign.queue.lock(name)
    os.utime(shared.root / "q" / name, (time.time() + 700, time.time() + 700))  # when it would have done so
    with pytest.raises(StaleReceiptError):
        shared.engine.queue("q").delete(Receipt(mid, 1))
    shared.engine.expire(10)
    assert shared.receive() == []
    shared.foreign.queue.remove(name)


def test_what_we_do_is_not_taken_for_theirs(shared: Shared) -> None:
    """None of our own changes is looked at again when it is reported, and no report of theirs is lost among ours."""
    shared.push(b"1")
    shared.engine.refresh()
    seen: list[str] = []
    queue: Any = shared.engine._queues["q"]
    changed = queue.store.element_changed
    queue.store.element_changed = lambda folder, name: (seen.append(name), changed(folder, name))
    first, second = shared.push(b"1", b"2")
    shared.push(b"3", delay=SECOND)
    theirs = shared.foreign.add(b"4")
    for message in shared.receive():
        shared.engine.queue("q").delete(Receipt(message.mid))
    shared.engine.refresh()
    assert {name for name in seen if not name.endswith(".tmp")} == {theirs[9:]}
    assert len(listed(shared)) == 2
    assert {first, second}.isdisjoint(listed(shared))


# -- directories


def test_their_purge_of_directories(shared: Shared) -> None:
    """Pushes go on when another program removes directories that are empty."""
    shared.push(b"1")
    shared.foreign.consume()
    for folder in (path for path in (shared.root / "q").iterdir() if is_directory(path.name)):
        folder.rmdir()
    shared.push(b"2")
    shared.engine.refresh()
    assert [message.payload for message in shared.receive()] == [b"2"]


def test_lost_reports(shared: Shared) -> None:
    """When the kernel has dropped reports everything is listed again, and goes on."""
    first, second = shared.push(b"1", b"2")
    [held] = shared.receive(1)
    shared.foreign.consume()
    third = mid_of(shared.foreign.add(b"3"))
    shared.engine._watch._inotify.events()  # type: ignore[union-attr]
    shared.engine._watch._foreign(-1, OVERFLOW, b"")
    assert (listed(shared, State.IN_FLIGHT), listed(shared, State.READY)) == ([held.mid], [third])
    fourth = mid_of(shared.foreign.add(b"4"))
    shared.engine.refresh()
    assert listed(shared) == [first, third, fourth]
    assert second not in listed(shared)


@pytest.mark.parametrize("noticed", [True, False])
def test_remove_with_their_element(shared: Shared, noticed: bool) -> None:
    """A queue in which another program has just put something is not removed without force, and nothing is lost."""
    shared.push(b"x")
    shared.foreign.consume()
    name = shared.foreign.add(b"y")
    if noticed:
        shared.engine.refresh()
    else:
        shared.engine.refresh = lambda: None  # type: ignore[method-assign]
    with pytest.raises(QueueNotEmptyError):
        shared.engine.remove("q", force=False)
    assert shared.foreign.names() == [name]


def test_remove_what_others_made(shared: Shared) -> None:
    """An empty queue of another program is removed with the directories that dirq keeps in it."""
    shared.foreign.add(b"x")
    shared.foreign.consume()
    shared.engine.refresh()
    shared.engine.remove("q", force=False)
    assert not (shared.root / "q").exists()
    shared.engine.create("q", Options())
    assert listed(shared) == []
