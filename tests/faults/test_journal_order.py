"""Tests what has to be durable before what else is done, and what a start makes of records that it does not know."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.crashing import Place, segments_of

from qs_storage.engine import Durability, Receipt
from qs_storage.journal.log.opening import JournalDamagedError

SEGMENT = 1 << 16


@pytest.fixture(name="place", params=[Durability.INTERVAL, Durability.NONE])
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Place]:
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    place = Place(tmp_path / "root", request.param)
    yield place
    place.leave()


def test_copies_are_durable_before_their_segment_goes(place: Place) -> None:
    """While copies cannot be synced, no segment that they were copied from is removed or used again: a power loss could
    take both."""
    place.queue("q")
    [kept] = place.push("q", b"kept" * 1000)
    while len(place.segments()) < 5:
        for mid in place.push("q", bytes(1 << 13)):
            place.engine.queue("q").delete(Receipt(mid))
    place.engine.commit()
    before = place.segments()
    for _ in range(100):
        work = place.engine.begin_upkeep()
        place.engine.commit()
        if work is None:
            continue
        if place.engine._journal.open().log.segments.sizes.keys() >= {int(name[:16]) for name in before}:
            work.run()
            place.engine.finish_upkeep(work)
            continue
        place.disk.refuse("fdatasync", "*.segment", errno.EIO)
        work.run()
        break
    else:
        pytest.fail("no segment is given up")
    assert set(place.segments()) >= set(before)
    place.engine.finish_upkeep(work)
    place.crash()
    assert place.mids("q") == [kept]


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"\x63unknown", "kind 99 is not known"), (b"\x05short", "a record of kind 5 cannot be read")],
)
def test_a_record_that_no_start_understands(place: Place, body: bytes, why: str) -> None:
    """A frame that is whole and holds something else than records of this version stops the start, which says where,
    and changes nothing."""
    place.queue("q")
    place.push("q", b"x")
    place.engine.secure()
    place.engine._journal.open().transaction.append(body)
    place.engine.commit()
    place.leave()
    before = {path: path.read_bytes() for path in (place.root / ".journal").iterdir()}
    with pytest.raises(JournalDamagedError, match=rf"frame 4 at byte \d+: {why}"):
        place.start()
    assert {path: path.read_bytes() for path in (place.root / ".journal").iterdir()} == before
