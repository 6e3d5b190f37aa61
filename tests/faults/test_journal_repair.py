"""A repair of a journal keeps what is whole, reports what is lost, and loses nothing by a crash in the middle."""

import shutil
from itertools import count
from pathlib import Path

import pytest
from support.storage.broken_journals import Journal, Picture, Segment, Session, flip, made, small_segments, start
from support.storage.engines import Crash, FaultyDisk

from qs_storage.disk import Disk
from qs_storage.engine import Durability, Options
from qs_storage.journal.log import pool
from qs_storage.journal.log.frames import BLOCK, FRAME_HEAD, Frame
from qs_storage.journal.log.lock import InUseError
from qs_storage.journal.log.opening import JournalDamagedError
from qs_storage.journal.log.places import segment_of as number_of
from qs_storage.journal.log.places import start_of
from qs_storage.journal.log.records import Claim, Letter, Moved, Push, Shared, Staged, Transfer
from qs_storage.journal.rescue.damage import messages_in
from qs_storage.journal.rescue.repair import Repaired, repair

_numbers = count()


@pytest.fixture(scope="module")
def built(home: Path) -> Journal:
    with pytest.MonkeyPatch.context() as patch:
        small_segments(patch)
        return made(home / "built")


def in_copy(journal: Journal, segment: Segment) -> Path:
    return Path(journal.directory) / Path(segment.path).name


def repaired(journal: Journal) -> tuple[Repaired, Picture]:
    """Returns what the repair says, and what a server delivers then. The originals are kept."""
    before = {path.name: path.read_bytes() for path in Path(journal.directory).glob("*.segment")}
    with pytest.raises(JournalDamagedError):
        journal.recover()
    done = repair(journal.directory, Disk())
    assert done is not None
    assert {path.name: path.read_bytes() for path in Path(done.aside).glob("*.segment")} == before
    assert sorted(map(str, Path(journal.directory).glob("*.segment"))) == done.segments
    assert repair(journal.directory, Disk()) is None
    return done, start(journal.root)


def all_messages(picture: Picture) -> dict[tuple[str, int], bytes | None]:
    return {(qid, mid): payload for qid, found in picture.items() for mid, (payload, _) in found.items()}


def ids_in(journal: Journal, segment: Segment, start: int = 0) -> list[int]:
    """Ids of the messages that are lost with a segment from a byte on: what it makes messages, and what names a payload
    in it."""
    number, found = segment.header.number, list[int]()

    def is_lost(place: int) -> bool:
        return number_of(place) == number and start_of(place) >= start

    for place, record in journal.recovered.placed:
        if is_lost(place) or (isinstance(record, (Shared, Transfer)) and is_lost(record.place)):
            found += messages_in(record)
    staged = (isinstance(record, Staged) for place, record in journal.recovered.placed if is_lost(place))
    return found + [-1] * sum(staged)


def check_kept(journal: Journal, found: Picture, lost: int) -> None:
    """Everything is there but for that many messages, with the right payload; what comes back was deleted before."""
    right, now = all_messages(journal.picture), all_messages(found)
    assert all(now[message] == payload for message, payload in right.items() if message in now)
    assert len(right.keys() - now.keys()) <= lost
    pushed = {record.payload for record in journal.right if isinstance(record, (Push, Moved, Letter, Staged))}
    assert {payload for message, payload in now.items() if message not in right} <= pushed


def test_any_byte(built: Journal, home: Path) -> None:
    """A bit in any frame that stops the start: after the repair at most the message of one record is missing."""
    places = [(path, at) for path, places in built.written() for at in places]
    for path, at in places[:: len(places) // 40]:
        copy = built._replace(root=built.copy(home / f"one-{next(_numbers)}"))
        flip(Path(copy.directory) / path.name, at, at % 8)
        try:
            copy.recover()
        except JournalDamagedError:
            check_kept(built, repaired(copy)[1], lost=1)
        shutil.rmtree(copy.root)


def test_nothing_to_repair(damaged: Journal) -> None:
    """A journal that is whole is left as it is."""
    before = sorted(path.name for path in Path(damaged.directory).iterdir())
    assert repair(damaged.directory, Disk()) is None
    assert sorted(path.name for path in Path(damaged.directory).iterdir()) == before


def test_a_server_is_running(damaged: Journal) -> None:
    """The journal of a server that lives is not touched."""
    session = Session(damaged.root)
    with pytest.raises(InUseError):
        repair(damaged.directory, Disk())
    session.crash()


@pytest.mark.parametrize("size", [60, BLOCK])
def test_a_header_is_lost(damaged: Journal, size: int) -> None:
    """A header of zeros takes nothing with it: the salt is worked out from a frame."""
    for segment in damaged.recovered.segments:
        root = damaged.copy(damaged.root.parent / f"headless-{next(_numbers)}")
        copy = damaged._replace(root=root)
        with in_copy(copy, segment).open("r+b") as file:
            file.write(bytes(size))
        assert repaired(copy)[1] == damaged.picture
        shutil.rmtree(root)


def test_a_head_of_a_frame_is_lost(damaged: Journal) -> None:
    """Records of a frame without its head are found by their own checksums."""
    segment = damaged.recovered.segments[1]
    with in_copy(damaged, segment).open("r+b") as file:
        file.seek(segment.frames[1].start)
        file.write(bytes(FRAME_HEAD))
    assert repaired(damaged)[1] == damaged.picture


def a_list(journal: Journal) -> tuple[Path, Frame]:
    """Returns a frame of three messages that were pushed together and are still there, and a copy of its segment."""
    for segment in journal.recovered.segments:
        for frame in segment.frames:
            if b"of list 1: 0" in bytes(segment.data[frame.start : frame.end]):
                return in_copy(journal, segment), frame
    raise AssertionError


def test_a_record_of_a_list(damaged: Journal) -> None:
    """The other messages of the list are kept."""
    path, frame = a_list(damaged)
    flip(path, frame.start + FRAME_HEAD + 100, 0)
    done, found = repaired(damaged)
    [hole] = [hole for part in done.found.parts for hole in part.holes]
    [piece] = hole.pieces
    assert (len(piece.starts), piece.lost) == (2, 1)
    right = all_messages(damaged.picture)
    assert len(right.keys() - all_messages(found).keys()) == 1
    check_kept(damaged, found, lost=1)


def test_the_length_of_a_record(damaged: Journal) -> None:
    """After a wrong length, the following records are still found."""
    path, frame = a_list(damaged)
    flip(path, frame.start + FRAME_HEAD + 1, 0)
    done, found = repaired(damaged)
    assert [len(piece.starts) for part in done.found.parts for hole in part.holes for piece in hole.pieces] == [2]
    check_kept(damaged, found, lost=1)


def test_a_copy_keeps_its_payload(damaged: Journal) -> None:
    """A copy shares its payload at the new place too."""
    with in_copy(damaged, damaged.recovered.segments[1]).open("r+b") as file:
        file.write(bytes(60))
    assert repaired(damaged)[1] == damaged.picture
    placed = dict(damaged.recover().placed)
    shared = [record for record in placed.values() if isinstance(record, Shared)]
    assert shared
    for record in shared:
        other = placed[record.place]
        assert isinstance(other, (Push, Moved))
        assert (other.mid, len(other.payload)) == (record.mid, record.size)
        assert other.number == record.source


def test_a_claim_that_is_lost(damaged: Journal) -> None:
    """Messages of a lost claim are visible again."""
    right = damaged.picture["claimed"]
    [held] = [mid for mid, (_, receives) in right.items() if receives < 0]
    paths = {segment.header.number: in_copy(damaged, segment) for segment in damaged.recovered.segments}
    for place, record in damaged.recovered.placed:
        if isinstance(record, Claim) and held in record.mids:
            flip(paths[number_of(place)], start_of(place) + 20, 0)
    found = repaired(damaged)[1]["claimed"]
    assert found[held] == (right[held][0], 0)
    assert found.keys() >= right.keys()


def clear(path: Path, frame: Frame) -> None:
    with path.open("r+b") as file:
        file.seek(frame.start)
        file.write(bytes(frame.end - frame.start))


def test_the_names_of_queues_are_lost(damaged: Journal) -> None:
    """The other segments of the same start of a server say what the numbers mean."""
    for segment in damaged.recovered.segments[1:-1]:
        clear(in_copy(damaged, segment), segment.frames[0])
    assert repaired(damaged)[1] == damaged.picture


def test_all_names_of_a_start_are_lost(damaged: Journal) -> None:
    """Messages whose queue is unknown are kept as files, in no queue."""
    session = Session(damaged.root)
    mids = [session.push("orders", payload)[0] for payload in (b"one", b"two")]
    session.crash()
    last = damaged.recover().segments[-1]
    assert len(last.frames) == 3
    clear(Path(last.path), last.frames[0])
    done, found = repaired(damaged)
    assert found == damaged.picture
    files = {int(path.name): path.read_bytes() for path in Path(done.aside).glob("queue-number-*/*")}
    assert files == dict(zip(mids, (b"one", b"two"), strict=True))
    assert done.counts.unplaced == 2


def test_a_queue_that_was_gone_at_a_start(damaged: Journal) -> None:
    """The removal of a queue is kept that a start found without its directory: nothing of it comes into a new queue of
    the same name."""
    session = Session(damaged.root)
    session.engine.create("gone", Options(storage="journal"))
    session.push("gone", b"of the old queue", b"of the old queue too")
    session.crash()
    shutil.rmtree(damaged.root / "gone")
    session = Session(damaged.root)
    session.engine.create("gone", Options(storage="journal"))
    session.push("gone", b"of the new queue")
    session.crash()
    with in_copy(damaged, damaged.recovered.segments[1]).open("r+b") as file:
        file.write(bytes(60))
    found = repaired(damaged)[1]["gone"]
    assert [payload for payload, _ in found.values()] == [b"of the new queue"]


def test_the_name_of_a_copys_source_is_lost(damaged: Journal) -> None:
    """The copy has its payload for itself then, in its own queue."""
    session = Session(damaged.root)
    session.push("orders", b"alone")
    session.engine.create("taken", Options())  # named in a frame of its own
    [mid] = session.push("orders", b"copied")
    session.engine.copy("orders", mid, ["taken"])
    session.engine.commit()
    session.crash()
    last = damaged.recover().segments[-1]
    clear(Path(last.path), last.frames[0])
    done, _ = repaired(damaged)
    assert {path.read_bytes() for path in Path(done.aside).glob("queue-number-*/*")} == {b"alone", b"copied"}
    session = Session(damaged.root)
    assert session.engine.queue("taken").get(mid, peek=True, visibility=None).payload == b"copied"
    session.crash()


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_segment_is_missing(damaged: Journal, which: int) -> None:
    """The rest is kept, and the missing segment is named."""
    segment = damaged.recovered.segments[which]
    in_copy(damaged, segment).unlink()
    done, found = repaired(damaged)
    assert any(Path(segment.path).name in line for line in done.found.missing)
    check_kept(damaged, found, lost=len(ids_in(damaged, segment)))


def test_all_segments_are_missing(damaged: Journal) -> None:
    """Without segments, only the files in the directories remain."""
    for segment in damaged.recovered.segments:
        in_copy(damaged, segment).unlink()
    _, found = repaired(damaged)
    assert found["mail"].keys() <= damaged.picture["mail"].keys()


def test_a_segment_is_cut(damaged: Journal) -> None:
    """Records before the cut, and those of the other segments, are kept."""
    segment = damaged.recovered.segments[1]
    end = segment.frames[2].start + 7
    with in_copy(damaged, segment).open("r+b") as file:
        file.truncate(end)
    check_kept(damaged, repaired(damaged)[1], lost=len(ids_in(damaged, segment, end)))


def test_segments_in_each_others_place(damaged: Journal) -> None:
    """Segments under each other's names lose no message: their headers say which is which."""
    one, two = (in_copy(damaged, segment) for segment in damaged.recovered.segments[1:3])
    one.rename(f"{one}.away")
    two.rename(one)
    Path(f"{one}.away").rename(two)
    assert repaired(damaged)[1] == damaged.picture


def test_a_copy_under_a_later_name(damaged: Journal) -> None:
    """A copy of a segment under a later name loses no message, and none is there twice."""
    one = in_copy(damaged, damaged.recovered.segments[1])
    last = damaged.recovered.segments[-1].header.number
    for number in (last + 1, last + 5):
        shutil.copy(one, f"{damaged.directory}/{number:016d}.segment")
    assert repaired(damaged)[1] == damaged.picture


def test_repair_sets_segment_of_another_journal_aside(damaged: Journal, home: Path) -> None:
    """A segment of another journal is set aside, and none of its messages is delivered."""
    other = damaged.copy(damaged.root.parent / f"other-{next(_numbers)}")
    for _ in range(6):
        session = Session(other)
        session.push("orders", b"of another life")
        session.engine.close()
    *_, foreign = sorted((other / ".journal").glob("*.segment"))
    shutil.copy(foreign, damaged.directory)
    shutil.rmtree(other)
    assert repaired(damaged)[1] == damaged.picture


def test_frames_that_the_next_segment_has_again(damaged: Journal) -> None:
    """Two segments that both have a frame of one number: that of the older one was cut off, and does not come back."""
    last = damaged.recovered.segments[-1]
    path = in_copy(damaged, last)
    place = last.frames[-1].start + FRAME_HEAD + 55
    flip(path, place, 0)
    session = Session(damaged.root)
    session.push("orders", b"more")
    session.crash()
    flip(path, place, 0)
    found = all_messages(start(damaged.root))
    assert b"more" in found.values()
    check_kept(damaged, {qid: messages for qid, messages in start(damaged.root).items() if qid != "orders"}, len(found))


@pytest.mark.parametrize("largest", [3 * BLOCK, pool.LARGEST_SEGMENT])
def test_a_crash_at_any_step(damaged: Journal, home: Path, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a repair ends, which writes several segments or one: a server does not start, or has everything; a
    second run makes it so."""
    monkeypatch.setattr(pool, "LARGEST_SEGMENT", largest)
    segment = damaged.recovered.segments[1]
    flip(in_copy(damaged, segment), segment.frames[1].start + FRAME_HEAD + 100, 0)
    expected = repaired(damaged._replace(root=damaged.copy(home / f"expected-{next(_numbers)}")))[1]
    for step in count(1):
        root = damaged.copy(home / f"step-{next(_numbers)}")
        disk = FaultyDisk()
        disk.arm(step, Crash)
        try:
            done = repair(f"{root}/.journal", disk)
        except Crash:
            done = None
        disk.crash()
        if disk.failed:
            try:
                assert start(root) == expected
            except JournalDamagedError:
                done = repair(f"{root}/.journal", Disk())
                assert done is not None
                originals = {p.name: p.read_bytes() for p in Path(damaged.directory).glob("*.segment")}
                aside = {p.name: p.read_bytes() for p in Path(done.aside).glob("*.segment")}
                assert aside.items() >= originals.items()  # and segments that the first run has written
        assert start(root) == expected
        assert list(root.glob(".journal/*.tmp")) == []
        shutil.rmtree(root)
        if not disk.failed:
            assert step > 15
            return


def test_repair_keeps_unsynced_frames(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that were not synced one by one are kept too when there is damage before them."""
    small_segments(monkeypatch, 40 * 1024)
    journal = made(home / "interval", Durability.INTERVAL)
    segment = journal.recovered.segments[0]
    flip(Path(segment.path), segment.frames[-1].start + FRAME_HEAD + 20, 0)
    check_kept(journal, repaired(journal)[1], lost=1)
