"""The journal engine that cannot go on says so, stays within its bounds, and comes to an end."""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storage.crashing import Place, segments_of
from support.storage.engines import Crash, maintenance_of

from qs_storage.engine import SECOND, Draft, Durability, NoSuchQueueError, Receipt
from qs_storage.journal.queues.keys import WINDOW

MEBIBYTE = 1 << 20
Make = Callable[..., Place]


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    segments_of(monkeypatch, 24576, 24576)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a place, which is left as after a crash."""
    made: list[Place] = []

    def make(durability: Durability = Durability.ALWAYS) -> Place:
        made.append(Place(tmp_path / "root", durability))
        return made[0]

    yield make
    for place in made:
        place.leave()


# -- syncs that fail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_fails_when_a_segment_is_full(make: Make, error: int) -> None:
    """With `interval`, a segment is synced before the next one is begun. When that fails, what was written may be lost,
    though a second sync would say nothing: nothing is accepted any more, until a start has read what is there."""
    place = make(Durability.INTERVAL)
    place.queue("a")
    answered = place.push("a", b"x")
    place.disk.refuse("fdatasync", "*.segment", error, times=1)
    for _ in range(40):
        try:
            answered += place.push("a", bytes(2000))
        except OSError:
            break
    assert len(answered) < 40
    for _ in range(3):
        with pytest.raises(OSError, match="journal failed"):
            place.push("a", b"y")
    assert place.receive("a")  # of which nothing has to be durable
    assert place.mids("a") == answered
    place.crash()
    assert place.mids("a") == answered
    place.push("a", b"z")


def test_a_sync_in_the_background_that_fails_late(make: Make) -> None:
    """A background sync that was begun before a segment was full, and fails after the next one was begun, counts too:
    the kernel reports a lost write to only one of two syncs."""
    place = make(Durability.INTERVAL)
    place.queue("a")
    place.push("a", b"x")
    sync = place.engine.background_sync()
    assert sync is not None
    segments = place.segments()
    while place.segments() == segments:
        place.push("a", bytes(2000))
    place.disk.refuse("fdatasync", "*", errno.EIO, times=1)
    try:
        sync()
    except OSError:
        with pytest.raises(OSError, match="journal failed"):
            place.push("a", b"y")
    else:
        place.push("a", b"y")  # it had nothing left to do


# -- coming to an end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [False, True])
def test_a_stop_with_a_queue_whose_directory_is_gone(
    make: Make, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    """A stop ends although a queue's directory has gone without a report, and the other queues are as they were."""

    def refuse() -> None:
        raise OSError(errno.EMFILE, "no inotify")

    if not watched:
        monkeypatch.setattr("qs_storage.watch.Inotify", refuse)
    place = make()
    place.queue("a", "b")
    place.push("a", b"x")
    place.push("b", b"y")
    shutil.rmtree(place.root / "a")
    place.disk.arm(1000, Crash, "open")  # were it to try again and again
    place.engine.close()
    place.disk.disarm()
    place.start()
    assert list(place.engine.queues()) == ["b"]
    assert place.payloads("b") == [b"y"]
    place.queue("a")
    assert place.mids("a") == []


def test_a_stop_without_room_for_a_segment(make: Make) -> None:
    """A stop does not make a segment ready, for which it would have no use: where there is no room for one, it ends."""
    place = make()
    place.queue("a")
    [mid] = place.push("a", bytes(20_000))
    place.disk.refuse("create", "*/spare*")
    place.disk.arm(1000, Crash, "open")
    place.restart()
    assert place.mids("a") == [mid]


# -- nothing to do -----------------------------------------------------------------------------------------------------


def test_the_next_segment_is_there_early(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the next segment is made in the background, beside the two that are kept, so that nobody waits."""
    segments_of(monkeypatch, 1 << 20, 64 << 20)
    place = make()
    place.queue("a")
    place.push("a", bytes(1 << 18))  # of a fresh segment, little is taken so far
    place.upkeep_all()
    spares = [path.stat().st_size for path in (place.root / ".journal").glob("spare-*")]
    assert len(spares) >= 3
    assert max(spares) == 4 << 20
    place.disk.refuse("create", "*")
    for _ in range(40):
        place.push("a", bytes(1 << 17))


def test_nothing_to_do_with_a_compact_journal(make: Make) -> None:
    """A queue that is filled and emptied leaves the upkeep nothing to do."""
    place = make()
    place.queue("a")
    for _ in range(30):
        place.push("a", bytes(3000))
        place.upkeep_all()
        place.engine.queue("a").purge(place.mids("a")[-1], 1)
        place.engine.commit()
    place.upkeep_all()
    assert place.idles
    assert len(place.segments()) <= 3


def test_nothing_to_do_for_a_journal_that_has_failed(make: Make) -> None:
    """A journal that has failed takes no changes, does no upkeep, and is not asked for any."""
    place = make()
    place.queue("a")
    [mid] = place.push("a", b"x")
    place.disk.refuse("_pwrite", "*.segment", errno.EIO, times=1)
    with pytest.raises(OSError, match="error"):
        place.push("a", b"y")
    with pytest.raises(OSError, match="journal failed"):
        place.engine.queue("a").delete(Receipt(mid))
    assert place.idles


def test_nothing_to_do_without_room(make: Make) -> None:
    """Upkeep that fails is tried again after a second, not before, and then succeeds."""
    place = make()
    place.queue("a")
    place.disk.refuse("create", "*/spare*")
    for _ in range(30):
        place.push("a", bytes(3000))
        place.engine.queue("a").purge(place.mids("a")[-1], 1)
        place.engine.commit()
        place.upkeep()
    place.upkeep_all()
    due = place.engine.effects().next_upkeep
    assert due is not None
    assert place.clock.now < due <= place.clock.now + SECOND
    place.disk.disarm()
    place.clock.now += SECOND
    place.upkeep_all()
    assert len(place.segments()) <= 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_compaction_that_fails(make: Make, error: int) -> None:
    """When what it copies cannot be written, it has not happened, nor has what the batch changed beside it; after a
    crash everything is there, and with room again it goes on."""
    place = make()
    place.queue("a")
    kept = [place.push("a", b"%d" % number * 300)[0] for number in range(8)]
    for _ in range(20):
        [mid] = place.push("a", bytes(3000))
        place.engine.queue("a").delete(Receipt(mid))
    place.engine.commit()
    refused = 0
    for _ in range(12):
        place.disk.refuse("_pwrite", "*.segment", error, times=1)
        try:
            place.upkeep()
            place.ask_push("a", b"refused")
            place.engine.commit()
        except OSError:
            refused += 1
        else:
            place.engine.queue("a").delete(Receipt(place.mids("a")[-1]))
        place.disk.disarm()
        if error == errno.EIO:
            place.crash()
        assert place.mids("a") == kept
        place.clock.now += SECOND
        place.upkeep_all()
        assert place.mids("a") == kept
    assert refused
    assert len(place.segments()) <= 3
    place.crash()
    assert place.payloads("a") == [b"%d" % number * 300 for number in range(8)]


def test_the_root_vanishes_with_its_queues(make: Make) -> None:
    """When the root has vanished with its queues, nothing waits for syncing that, and empty commits succeed."""
    place = make(Durability.ALWAYS)
    place.queue("a")
    place.push("a", b"x")
    shutil.rmtree(place.root / "a")
    place.disk.refuse("open", str(place.root), errno.ENOENT)  # it goes in this moment
    place.engine.refresh()
    with pytest.raises(NoSuchQueueError):
        place.push("a", b"y")
    for _ in range(2):
        place.engine.commit()


def test_the_root_vanishes_before_another_queue_is_missed(make: Make) -> None:
    """When the root vanishes before its queue is missed, the next push is refused with the commit."""
    place = make(Durability.ALWAYS)
    place.queue("a")
    place.queue("b")
    shutil.rmtree(place.root / "a")
    place.disk.refuse("open", str(place.root), errno.ENOENT)
    place.engine.refresh()
    place.ask_push("b", b"x")
    with pytest.raises(FileNotFoundError):
        place.engine.commit()
    assert place.mids("b") == []


@pytest.mark.parametrize("durability", Durability)
def test_the_journal_is_removed(make: Make, durability: Durability) -> None:
    """When the journal's file has been removed, pushes fail until the next start."""
    place = make(durability)
    place.queue("a")
    place.push("a", b"x")
    shutil.rmtree(place.root / ".journal")
    for _ in range(2):
        with pytest.raises(OSError, match=r"removed|journal failed"):
            place.push("a", b"y")


def test_compaction_that_needs_a_segment_on_a_full_disk(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys have to be said again, for which there is no room: it waits, says so, and goes on when there is room."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    place = make()
    place.queue("a")
    number = 0
    while len(place.segments()) < 4:
        number += 1
        place.engine.queue("a").push([Draft(b"x", key=str(number))])
    place.engine.commit()
    for mid in place.mids("a")[:-1]:
        place.engine.queue("a").delete(Receipt(mid))
    place.engine.commit()
    place.disk.refuse("create", "*/next")
    place.disk.refuse("create", "*/spare*")
    place.disk.refuse("rename", "*/spare*", errno.EIO)
    for _ in range(50):
        place.upkeep()
        place.clock.now += 2 * SECOND
    assert len(place.mids("a")) == 1
    place.disk.disarm()
    for _ in range(200):  # until no key is needed any more
        place.upkeep()
        place.clock.now += 2 * SECOND
    assert len(place.segments()) <= 3
    assert len(place.push("a", b"y")) == 1


@pytest.fixture(name="due")
def _due(make: Make, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A place whose journal wants a checkpoint."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    monkeypatch.setattr("qs_storage.journal.upkeep.maintenance._CHECKPOINT", 1 << 16)
    place = make()
    place.queue("a")
    while len(place.segments()) < 4:
        place.push("a", *[bytes(2000)] * 20)
    return place


def upkeep_for_seconds(place: Place, count: int) -> None:
    for _ in range(count):
        place.clock.now += 2 * SECOND
        for _ in range(3):
            place.upkeep()


def test_a_checkpoint_that_cannot_be_begun(due: Place) -> None:
    """Each attempt on a full disk closes its file and removes it; with room again there is a checkpoint."""
    due.disk.refuse("_write", "*/checkpoint.tmp")
    upkeep_for_seconds(due, 2)
    opened = len(due.disk.descriptors)
    upkeep_for_seconds(due, 20)
    assert len(due.disk.descriptors) == opened
    assert not list((due.root / ".journal").glob("checkpoint*"))
    due.disk.disarm()
    upkeep_for_seconds(due, 5)
    assert (due.root / ".journal" / "checkpoint").exists()


def test_a_checkpoint_that_cannot_be_completed(due: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The log gives the reason, and no other one when it is tried again; nothing of the checkpoint stays."""

    def refuse_the_next() -> None:
        due.disk.before("_write", "*/checkpoint.tmp", lambda: due.disk.refuse("_write", "*/checkpoint.tmp"))

    due.disk.before("_write", "*/checkpoint.tmp", refuse_the_next)
    upkeep_for_seconds(due, 5)
    assert not due.disk.waiting
    [message] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "there is no room for more of the journal" in message
    assert not list((due.root / ".journal").glob("checkpoint*"))


def test_a_long_log_and_nothing_written_since_the_start(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was killed has much to write a checkpoint of: it does that when it has written anything."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    monkeypatch.setattr("qs_storage.journal.upkeep.maintenance._CHECKPOINT", 1 << 16)
    place = make()
    place.queue("a")
    place.push("a", b"x")
    while len(place.segments()) < 8:
        place.push("a", *[bytes(2000)] * 20)
    place.crash()
    assert not (place.root / ".journal" / "checkpoint").exists()
    place.push("a", b"x")
    place.upkeep_all()
    assert (place.root / ".journal" / "checkpoint").exists()


def test_notes_wait_with_what_is_put_off(make: Make) -> None:
    """Nobody wakes up again and again for notes while nothing is done."""
    place = make()
    place.queue("a")
    place.push("a", b"x")
    place.upkeep_all()
    place.receive("a")
    maintenance_of(place.engine)._put_off(OSError(errno.ENOSPC, "No space left on device"))
    due = place.engine.effects().next_upkeep
    assert due is not None
    place.clock.now = due
    assert place.upkeep()
    assert place.engine.effects().next_upkeep is None


def test_a_key_is_pushed_anew_while_it_is_copied(make: Make) -> None:
    """A key that is over when compaction goes on, and with which somebody has pushed anew, is the new push's."""
    place = make()
    place.queue("a")
    place.engine.queue("a").push([Draft(b"old", key="k")])
    place.engine.commit()
    while len(place.segments()) < 4:
        place.push("a", bytes(3000))
    room = place.engine._journal.room
    assert room is not None
    [key] = place.engine._journal.queues["a"].keys.entries.values()
    while (maintenance_of(place.engine).compaction.oldest or 0) < key.segment:
        room.compact(float("inf"), 1 << 20)
        room.commit()
    room.compact(0.0, 1)  # until it says what room it needs for the key
    place.clock.now += WINDOW
    [mid] = place.engine.queue("a").push([Draft(b"new", key="k")])
    for _ in range(100):
        room.compact(0.0, 1)
    place.engine.commit()
    assert place.engine.queue("a").push([Draft(b"again", key="k")]) == [mid]
    place.crash()
    assert place.engine.queue("a").push([Draft(b"again", key="k")]) == [mid]
