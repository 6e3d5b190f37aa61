"""Claims and batches of the journal on a disk that fails: what is refused has not happened, then nor later."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.power_loss.claims import acknowledge, claim, release, show
from support.storage.crashing import Place, segments_of
from support.storage.engines import maintenance_of

from qs_storage.engine import Draft

OPERATIONS: dict[str, Callable[[Place], object]] = {
    "claim": lambda place: claim(place.engine, "c", 2, 2),
    "acknowledge": lambda place: acknowledge(place.engine, "c", 1),
    "release": lambda place: release(place.engine, "c", 1),
    "stage": lambda place: place.engine.queue("q").batches.stage("p", (0, 1, 0), list(map(Draft, [b"more"] * 2))),
    "publish": lambda place: place.engine.queue("q").batches.publish("p", 0, [(0, 0)]),
    "purge": lambda place: place.engine.queue("q").purge(place.mids("q")[1], 2),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Six messages, of which two are in a claim, and a batch that is staged."""
    segments_of(monkeypatch, 1 << 15, 1 << 15)
    place = Place(tmp_path / "root")
    place.queue("q")
    place.push("q", *(b"%d" % number for number in range(6)))
    claim(place.engine, "c", 1, 2)
    place.engine.queue("q").batches.stage("p", (0, 0, 0), list(map(Draft, [b"staged", b"too"])))
    place.engine.commit()
    yield place
    place.leave()


def all_of(place: Place) -> object:
    store = place.engine._journal.store
    assert store is not None
    batches = place.engine.queue("q").batches.producers["p"]
    staged = {name: sorted(part) for name, part in batches.staged.items()}
    return show(place.engine, place.clock.now), staged, store.usage.total, place.engine.queue("q").stats().new


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_commit_that_fails(place: Place, operation: str, error: int) -> None:
    """All is as before, also after a crash; once more, with a sound disk, it is done, and is after a crash."""
    before = all_of(place)
    place.disk.refuse("_pwrite", "*.segment", error, times=1)
    OPERATIONS[operation](place)
    with pytest.raises(OSError, match=r"space|error"):
        place.engine.commit()
    assert all_of(place) == before
    place.crash()
    assert all_of(place) == before
    OPERATIONS[operation](place)
    place.engine.commit()
    after = all_of(place)
    assert after != before
    place.crash()
    assert all_of(place) == after
    place.restart()
    assert all_of(place) == after


def test_a_queue_that_is_removed_with_what_is_staged(place: Place) -> None:
    """When a queue with staged messages is removed, their segments go, and the next queue of its name has none of
    them."""
    place.queue("other")
    place.engine.remove("q", force=True)
    place.queue("q")
    place.crash()
    store = place.engine._journal.store
    assert store is not None
    assert store.usage.total == 0
    for _ in range(30):
        place.push("other", bytes(5000))
        place.engine.queue("other").purge(place.mids("other")[-1], 1)
        place.engine.commit()
        place.upkeep_all()
    assert len(place.segments()) <= 3
    assert claim(place.engine, "c", 1, 2) == []
    assert list(place.engine.queue("q").claims.all()) == []


def test_what_is_staged_is_compacted(place: Place) -> None:
    """A staged batch and a claim are copied to the end of the log as often as it takes, and stay as they are."""
    place.queue("other")
    before = all_of(place)
    for _ in range(40):
        place.push("other", bytes(5000))
        place.engine.queue("other").purge(place.mids("other")[-1], 1)
        place.engine.commit()
        place.upkeep_all()
    assert all_of(place) == before
    assert len(place.segments()) <= 3
    place.crash()
    assert all_of(place) == before
    place.engine.queue("q").batches.publish("p", 0, [(0, 0)])
    place.engine.commit()
    place.crash()
    assert place.payloads("q")[-2:] == [b"staged", b"too"]


MEANWHILE: dict[str, Callable[[Place], object]] = {
    "acknowledge": lambda place: acknowledge(place.engine, "c", 1),
    "release": lambda place: release(place.engine, "c", 1),
    "delete": lambda place: place.engine.queue("q").purge(place.mids("q")[0], 1),
    "publish": lambda place: place.engine.queue("q").batches.publish("p", 1, [(0, 0)]),
    "acknowledge another": lambda place: acknowledge(place.engine, "d", 2),
}


@pytest.mark.parametrize("operation", MEANWHILE)
def test_a_claim_ends_while_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Requests run between any two steps of compaction: whatever they say of claims and batches holds after the old
    segments are gone, and after a crash."""
    segments_of(monkeypatch, 1 << 15, 1 << 15)
    for at in range(14):  # the others copy messages
        place = Place(tmp_path / f"{at}")
        last = prepare_to_copy(place)
        assert compact(place, last, most=at) == at
        MEANWHILE[operation](place)
        place.engine.commit()
        last = int(place.segments()[-1][:16])
        while int(place.segments()[-1][:16]) == last:
            place.push("other", bytes(2000))
        compact(place, last, most=1000)
        place.engine.commit()
        before = show(place.engine, place.clock.now)
        place.crash()
        assert show(place.engine, place.clock.now) == before, at
        place.leave()


def prepare_to_copy(place: Place) -> int:
    """Makes claims that are open and acknowledged, and batches that are staged and published. Returns the last segment
    that has them."""
    place.queue("q", "other")
    place.push("q", *(b"%d" % number for number in range(6)))
    claim(place.engine, "c", 1, 2)
    claim(place.engine, "d", 1, 1)
    acknowledge(place.engine, "d", 1)
    claim(place.engine, "d", 2, 1)
    for batch in (0, 1):
        place.engine.queue("q").batches.stage("p", (batch, 0, 0), list(map(Draft, [b"staged %d" % batch])))
    place.engine.queue("q").batches.publish("p", 0, [(0, 0)])
    place.engine.commit()
    last = place.segments()[-1]
    while place.segments()[-1] == last:
        place.push("other", bytes(2000))
    return int(last[:16])


def compact(place: Place, last: int, most: int) -> int:
    """Does steps of compaction until all segments up to this one are gone, at most so many. Returns how many."""
    room, compaction = place.engine._journal.room, maintenance_of(place.engine).compaction
    assert room is not None
    for steps in range(most):
        if (compaction.oldest or last + 1) > last:
            return steps
        room.compact(0.0, 1)
        if compaction._work is None:
            room.commit()
    return most
