"""Tests what a backup copies while the server changes it just then."""

import errno
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.storage.ingest import IngestCase

from qs_storage.engine import Durability, NoRoomError, StorageError
from qs_storage.journal.log.frames import BLOCK, FRAME_HEAD
from qs_storage.journal.log.opening import Scan, map_file
from qs_storage.tools import journal_backup as backup


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IngestCase]:
    for name, size in (("FIRST_SEGMENT", 1 << 16), ("LARGEST_SEGMENT", 1 << 16), ("SMALLEST", 4096), ("SMALL_LOG", 0)):
        monkeypatch.setattr(f"qs_storage.journal.log.pool.{name}", size)
    made = IngestCase(tmp_path / "root")
    yield made
    made.disk.crash()
    made.engine._watch.close()


def push(place: IngestCase, *payloads: bytes) -> None:
    """Pushes messages, in a segment of their own if need be."""
    try:
        place.push(*payloads)
    except NoRoomError as error:
        place.engine.secure(error)
        place.push(*payloads)


def back_up(place: IngestCase) -> Path:
    target = place.root.parent / "backup"
    backup.backup(str(place.root), str(target), lambda count: None)
    return target


def restored(target: Path) -> list[bytes | None]:
    """The payloads that a start on a backup finds."""
    made = IngestCase(target, Durability.NONE, new=False)
    try:
        assert not list((target / ".journal").glob("cut-*"))
        return [made.payload(mid) for mid in made.mids()]
    finally:
        made.engine.close()


def frames_of(place: IngestCase) -> tuple[Path, list[int]]:
    """The last segment, and where its frames begin."""
    path = max((place.root / ".journal").glob("*.segment"))
    scan = Scan(str(path), map_file(str(path)))
    return path, [start - FRAME_HEAD for start, _ in scan.frames(BLOCK, scan.header.first, None)]


def test_a_frame_that_is_just_being_written_is_left_out(place: IngestCase) -> None:
    """The copy ends with the frame before it, and a start has nothing to cut off."""
    place.push(b"one")
    place.push(b"two")
    path, frames = frames_of(place)
    with path.open("r+b") as file:
        file.seek(frames[-1] + 60)
        file.write(bytes(40))
    assert restored(back_up(place)) == [b"one"]


def test_a_frame_that_is_durable_and_cannot_be_read_is_no_backup(
    place: IngestCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A durable frame that cannot be read is read again, as it may have been written meanwhile; then the error says
    what to do."""
    monkeypatch.setattr(backup, "_TRIES", 3)
    for payload in (b"one", b"two", b"three"):
        place.push(payload)
    path, frames = frames_of(place)
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(frames[-2])
        file.write(bytes(4096))
    with pytest.raises(StorageError, match=r"queue-journal.py check"):
        back_up(place)
    assert [each.name for each in place.root.parent.iterdir()] == ["root"]
    tried = backup._copy_frames

    def mended(source: str, target: str) -> int:
        try:
            return tried(source, target)
        finally:
            path.write_bytes(whole)

    monkeypatch.setattr(backup, "_copy_frames", mended)
    assert restored(back_up(place)) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("links_are_possible", [True, False])
def test_segments_that_are_compacted_meanwhile(
    place: IngestCase, monkeypatch: pytest.MonkeyPatch, links_are_possible: bool
) -> None:
    """The backup is whole, whatever segments go between the listing and the link or copy. Linked segments stay as they
    are."""
    if not links_are_possible:
        monkeypatch.setattr("os.link", Mock(side_effect=OSError(errno.EXDEV, "")))
    [kept] = place.push(b"kept")
    linked, links = backup._link, 0

    def work() -> None:
        for _ in range(30):
            push(place, *[b"x" * 5000] * 4)
            place.consume_but(kept)
            place.settle()

    def busy(source: str, target: str) -> bool:
        nonlocal links
        links += 1
        if links == 2:
            work()
        return linked(source, target)

    for _ in range(5):
        push(place, *[b"x" * 9000] * 8)
        place.consume_but(kept)
    monkeypatch.setattr(backup, "_link", busy)
    target = back_up(place)
    assert links >= 2
    monkeypatch.setattr(backup, "_link", linked)
    work()
    assert restored(target) == [b"kept"]


def test_a_segment_that_is_taken_back(place: IngestCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a server goes on with a segment that was not the last one for a moment, and was linked then: the
    backup has a copy of it, and never writes into the server's own file."""
    place.push(b"one")
    path, _ = frames_of(place)
    number = int(path.name[:16])
    answers = iter([[number, number + 1]])
    look = backup.numbers_in
    monkeypatch.setattr(backup, "numbers_in", lambda *about: next(answers, None) or look(*about))
    target = back_up(place)
    copy = target / ".journal" / path.name
    assert not copy.samefile(path)
    assert path.stat().st_nlink == 1
    place.push(b"two")
    place.crash()
    assert [place.payload(mid) for mid in place.mids()] == [b"one", b"two"]
    assert restored(target) == [b"one"]
