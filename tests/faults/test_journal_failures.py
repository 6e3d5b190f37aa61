"""What the journal engine does when it cannot go on: it says so, it stays within its bounds, and it comes to an end."""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from crashing import AT_ONCE, HOUR, LOTS, Place, segments_of
from engines import Crash
from qs_server.storage.journal.ledger import SpillLimits

from qs_server.storage import inotify
from qs_server.storage.engine import SECOND, Durability, NoSuchQueueError, Receipt

MEBIBYTE = 1 << 20
Make = Callable[..., Place]


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    segments_of(monkeypatch, 24576, 24576)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a place, which is left as after a crash."""
    made: list[Place] = []

    def make(durability: Durability = Durability.ALWAYS, limits: SpillLimits = AT_ONCE) -> Place:
        made.append(Place(tmp_path / "root", durability, limits))
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
    assert 1 < len(answered) < 40
    for _ in range(3):
        with pytest.raises(OSError, match="journal failed"):
            place.push("a", b"y")
    with pytest.raises(OSError, match="journal failed"):
        place.receive("a")
    assert place.mids("a") == answered
    place.crash()
    assert place.mids("a") == answered
    place.push("a", b"z")


def test_a_sync_in_the_background_that_fails_late(make: Make) -> None:
    """A sync that was begun before a segment was full, and fails after the next one was begun, counts as well: only one
    of two syncs is told of what the kernel has dropped."""
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


# -- bounds of memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "count"), [(1, 44), (3, 20)])
def test_memory_has_a_bound(make: Make, batches: int, count: int) -> None:
    """However much one batch pushes, not more than twice the limit stays in memory after it."""
    place = make(Durability.NONE, SpillLimits(memory=MEBIBYTE))
    place.queue("a")
    for _ in range(batches):
        for _ in range(count):
            place.ask_push("a", bytes(MEBIBYTE // 2))
        place.engine.commit()
        assert place.memory <= 2 * MEBIBYTE
    assert len(place.mids("a")) == batches * count


def test_memory_has_a_bound_within_a_batch(make: Make) -> None:
    """Nor while it is under way: what is more than a frame of the journal is written back in between."""
    place = make(Durability.NONE, SpillLimits(memory=MEBIBYTE))
    place.queue("a")
    most = 0
    for _ in range(48):
        place.ask_push("a", bytes(MEBIBYTE))
        most = max(most, place.memory)
    place.engine.commit()
    assert most < 36 * MEBIBYTE


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_memory_has_a_bound_when_files_cannot_be_written(make: Make, error: int) -> None:
    """Pushes are refused while what is in memory cannot be written, whatever the reason is; what was answered is there;
    once it can be, they are taken again."""
    place = make(Durability.NONE, SpillLimits(memory=MEBIBYTE))
    place.queue("a")
    place.disk.refuse("create", "*/a/*", error)
    answered: list[int] = []
    refused: list[int | None] = []
    for _ in range(100):
        try:
            answered += place.push("a", bytes(MEBIBYTE // 16))
        except OSError as failure:
            refused.append(failure.errno)
        place.clock.now += SECOND // 10
        place.spill()
    assert len(refused) > 50
    assert set(refused) == {error}
    assert place.memory <= 3 * MEBIBYTE
    assert place.mids("a") == answered
    place.disk.disarm()
    place.clock.now += 2 * SECOND
    place.spill_all()
    answered += place.push("a", b"again")
    place.crash()
    assert place.mids("a") == answered


# -- coming to an end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [False, True])
def test_a_stop_with_a_queue_whose_directory_is_gone(
    make: Make, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    """It ends, also where nothing reports that the directory has gone, and the other queues come to rest."""

    def refuse() -> None:
        raise OSError(errno.EMFILE, "no inotify")

    if not watched:
        monkeypatch.setattr(inotify, "Inotify", refuse)
    place = make()
    place.queue("a", "b")
    place.push("a", b"x")
    [mid] = place.push("b", b"y")
    shutil.rmtree(place.root / "a")
    place.disk.arm(1000, Crash, "open")  # were it to try again and again
    place.engine.close()
    place.disk.disarm()
    assert place.files("b") == [str(mid)]
    place.start()
    assert list(place.engine.queues()) == ["b"]
    assert place.payloads("b") == [b"y"]
    place.queue("a")
    assert place.mids("a") == []


# -- nothing to do -----------------------------------------------------------------------------------------------------


def test_nothing_to_do_with_a_small_journal(make: Make) -> None:
    """A journal that is larger than its limit at its smallest is no reason to look for work again and again."""
    place = make(Durability.ALWAYS, SpillLimits(age=0, journal=1))
    place.queue("a")
    place.push("a", b"x")
    place.spill_all()
    for _ in range(3):
        assert place.idles
        place.clock.now += 2 * SECOND
    [mid] = place.push("a", b"y")
    place.clock.now += 2 * SECOND
    place.spill_all()
    assert str(mid) in place.files("a")
    assert place.idles


def test_nothing_to_do_for_what_a_subscriber_holds(make: Make) -> None:
    """Nor are messages that have their files, and are held, though they are known in memory."""
    place = make(Durability.ALWAYS, SpillLimits(age=0, memory=1, journal=1))
    place.queue("a")
    place.push("a", b"x", b"y")
    assert len(place.engine.receive(["a"], 2, HOUR, LOTS, held=True)) == 2
    place.engine.commit()
    place.spill_all()
    assert place.idles


def test_nothing_to_do_while_a_batch_is_under_way(make: Make) -> None:
    """What the batch has changed can be written after it only: until then there is nothing to do."""
    place = make(Durability.ALWAYS, SpillLimits(age=0, memory=1, journal=1))
    place.queue("a")
    place.ask_push("a", b"x")
    assert place.idles
    place.engine.commit()
    place.clock.now += 2 * SECOND
    place.spill_all()
    assert len(place.files("a")) == 1


@pytest.mark.parametrize("limits", [SpillLimits(age=0), SpillLimits(age=0, memory=1, journal=1)])
def test_nothing_to_do_for_a_journal_that_has_failed(make: Make, limits: SpillLimits) -> None:
    """It takes nothing any more, and nothing of it is written back either: nobody asks for that all the time."""
    place = make(Durability.ALWAYS, limits)
    place.queue("a")
    [mid] = place.push("a", b"x")
    place.disk.refuse("_pwrite", "*.segment", errno.EIO, times=1)
    with pytest.raises(OSError, match="error"):
        place.push("a", b"y")
    with pytest.raises(OSError, match="journal failed"):
        place.engine.delete("a", Receipt(mid))
    assert place.idles


def test_nothing_to_do_without_room(make: Make) -> None:
    """What cannot be written is tried again after a second, and not before."""
    place = make(Durability.ALWAYS, SpillLimits(age=0, memory=1, journal=1))
    place.queue("a")
    place.push("a", b"x")
    place.disk.refuse("create", "*/a/*")
    place.spill()
    due = place.engine.next_spill()
    assert due == place.clock.now + SECOND


def test_the_root_vanishes_with_its_queues(make: Make) -> None:
    """That queues have gone cannot be made durable in a root that has gone too: nothing waits for that, and commits of
    nothing succeed."""
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
    """That it has gone is not known yet of a queue that is pushed to: that push is refused with the commit."""
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
    """What would be written to a file that nobody finds any more is refused: pushes fail until the next start."""
    place = make(durability)
    place.queue("a")
    place.push("a", b"x")
    shutil.rmtree(place.root / ".journal")
    for _ in range(2):
        with pytest.raises(OSError, match=r"removed|journal failed"):
            place.push("a", b"y")
