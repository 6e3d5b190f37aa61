"""A start cuts off the end that was being written when the power failed; anything else is damage."""

import errno
import logging
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from support.storage.broken_journals import Recovered, Session, flip, recover, segment_of, small_segments, start
from support.storage.engines import FaultyDisk

from qs_storage.disk import Disk
from qs_storage.engine import Durability, Options, Receipt
from qs_storage.journal.log.frames import BLOCK, FRAME_HEAD, pack_header
from qs_storage.journal.log.lock import is_in_use, read_last
from qs_storage.journal.log.opening import JournalDamagedError, numbers_in, open_segment


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def written(root: Path, *payloads: bytes, durability: Durability = Durability.ALWAYS, sync_at: int = -1) -> Recovered:
    """One segment, or more where they are small. sync_at: after that many pushes a background sync is done."""
    session = Session(root, durability)
    if "q" not in session.engine.queues():
        session.engine.create("q", Options(storage="journal"))
    for number, payload in enumerate(payloads):
        session.push("q", payload)
        if number == sync_at:
            sync = session.engine.background_sync()
            assert sync is not None
            sync()
    session.crash()
    return found(root)


def found(root: Path) -> Recovered:
    return recover(f"{root}/.journal")


def delivered(root: Path) -> list[bytes | None]:
    return [payload for payload, _ in start(root)["q"].values()]


def overwrite(path: str, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def test_nothing(root: Path) -> None:
    """A directory without a segment is that of a new server."""
    nothing = recover(str(root))
    assert (nothing.segments, nothing.number, nothing.sequence) == ([], 0, 0)


def test_an_end_that_is_torn(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Any part of the blocks of the last frame is there: it is cut off and kept, and the log says where."""
    segment = written(root, b"first", b"x" * (3 * BLOCK)).segments[-1]
    last = segment.frames[-1]
    whole = bytes(segment.data)
    for there in range(1, 15):
        blocks = b"".join(
            whole[last.start + at * BLOCK :][:BLOCK] if there >> at & 1 else bytes(BLOCK) for at in range(4)
        )
        overwrite(segment.path, last.start, blocks)
        torn = found(root).torn
        assert torn is not None
        assert (torn.gap.start, torn.next) == (last.start, last.sequence)
    caplog.set_level(logging.WARNING)
    assert delivered(root) == [b"first"]
    kept = root / ".journal" / f"cut-1-{last.start // BLOCK}"
    assert kept.read_bytes() == blocks.rstrip(b"\0")
    assert f"kept in {kept}" in caplog.text
    assert delivered(root) == [b"first"]  # said again, and the same


def test_a_torn_end_on_a_full_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn end that there is no room to keep does not stop the start; the log says where the bytes still are. Another
    error stops it."""

    def refuse(code: int) -> Callable[..., int]:
        def write(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        return write

    segment = written(root, b"first", b"torn").segments[-1]
    flip(Path(segment.path), segment.frames[-1].start + FRAME_HEAD + 50, 1)
    monkeypatch.setattr(FaultyDisk, "_write", refuse(errno.EIO))
    with pytest.raises(OSError, match="error"):
        start(root)
    monkeypatch.setattr(FaultyDisk, "_write", refuse(errno.ENOSPC))
    caplog.set_level(logging.WARNING)
    assert delivered(root) == [b"first"]
    assert "there is no room: copy the segment" in caplog.text
    assert segment.path in caplog.text
    assert not list((root / ".journal").glob("cut-*"))


def test_what_follows_a_torn_end(root: Path) -> None:
    """A start goes on in a new segment; what was cut off never comes back, and does not stop a later start."""
    segment = written(root, b"first", b"torn").segments[-1]
    flip(Path(segment.path), segment.frames[-1].start + FRAME_HEAD + 50, 1)
    written(root, b"second")
    assert delivered(root) == [b"first", b"second"]
    flip(Path(segment.path), segment.frames[-1].start + FRAME_HEAD + 50, 1)  # whole again
    assert delivered(root) == [b"first", b"second"]


def test_zeros_for_the_end(root: Path) -> None:
    """If no byte of the last frame was written, the start cuts nothing off and logs nothing."""
    segment = written(root, b"first", b"gone").segments[-1]
    last = segment.frames[-1]
    overwrite(segment.path, last.start, bytes(last.end - last.start))
    assert found(root).torn is None
    assert delivered(root) == [b"first"]


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.NONE])
def test_frames_that_were_not_synced(root: Path, durability: Durability) -> None:
    """Lost in any order: what is whole before the first that is lost counts, the rest is cut off."""
    segment = written(root, *(b"%d" % number for number in range(8)), durability=durability).segments[-1]
    whole = bytes(segment.data)
    choose = random.Random(20251120)
    for _ in range(60):
        lost = choose.sample(segment.frames[1:], choose.randrange(1, 8))
        for frame in lost:
            overwrite(segment.path, frame.start, bytes(BLOCK))
        torn = found(root)
        first = min(frame.sequence for frame in lost)
        assert torn.sequence == first - 1
        assert (torn.torn is None) is (len(lost) == segment.frames[-1].sequence - first + 1)
        overwrite(segment.path, 0, whole)


def test_frames_that_were_synced(root: Path) -> None:
    """A later frame calls them durable: it is damage that they are not there, wherever that frame stands."""
    payloads = [b"%d" % number for number in range(8)]
    segment = written(root, *payloads, durability=Durability.INTERVAL, sync_at=3).segments[-1]
    whole = bytes(segment.data)
    durable = segment.frames[4].sequence
    assert segment.frames[-1].synced == durable
    for number, frame in enumerate(segment.frames[1:], 1):
        overwrite(segment.path, frame.start, bytes(BLOCK))
        if number <= 4:
            with pytest.raises(JournalDamagedError, match=f"frame {frame.sequence}|no frame"):
                found(root)
            # Also when the first frame behind it was written before the sync, and others are lost too.
            overwrite(segment.path, segment.frames[5].start, bytes(BLOCK))
            with pytest.raises(JournalDamagedError):
                found(root)
        else:
            assert found(root).sequence == frame.sequence - 1
        overwrite(segment.path, 0, whole)


def test_a_frame_that_is_larger_than_a_segment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is larger than a segment gets a segment of its own size."""
    small_segments(monkeypatch, 4 * BLOCK)
    segments = written(root, b"small", b"x" * 100_000, b"after").segments
    assert max(segment.header.size for segment in segments) > 100_000
    assert delivered(root) == [b"small", b"x" * 100_000, b"after"]


def test_a_payload_that_is_a_segment(root: Path) -> None:
    """The journal itself as a message, with its blocks where blocks are: nothing in it counts, torn or not."""
    segment = written(root, b"first", b"second").segments[-1]
    shift = -(FRAME_HEAD + 53) % BLOCK
    copied = bytes(shift) + bytes(segment.data[: 4 * BLOCK])
    last = written(root, copied, b"end").segments[-1]
    shutil.copytree(root, f"{root}-whole")
    assert delivered(Path(f"{root}-whole")) == [b"first", b"second", copied, b"end"]
    flip(Path(last.path), last.frames[1].start + 3, 0)
    with pytest.raises(JournalDamagedError):
        found(root)
    overwrite(last.path, last.frames[2].start, bytes(BLOCK))
    assert delivered(root) == [b"first", b"second"]


def test_a_message_without_a_byte(root: Path) -> None:
    """An empty message is one like any other."""
    written(root, b"", b"")
    assert delivered(root) == [b"", b""]


def test_only_the_last_segment_may_be_torn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last frame of an earlier one was durable before the next was begun."""
    small_segments(monkeypatch, 4 * BLOCK)
    segments = written(root, *(b"%d" % number for number in range(9))).segments
    for segment in segments[:-1]:
        flip(Path(segment.path), segment.frames[-1].start + FRAME_HEAD + 9, 0)
        with pytest.raises(JournalDamagedError, match="are not whole"):
            found(root)
        flip(Path(segment.path), segment.frames[-1].start + FRAME_HEAD + 9, 0)


def test_damage_before_a_segment_is_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that hides the frame which gave up a segment is what the start names, and not that segment, which is gone
    as it should be."""
    small_segments(monkeypatch, 16 * BLOCK)
    session = Session(root)
    session.engine.create("q", Options(storage="journal"))
    for _ in range(100):
        [mid] = session.push("q", bytes(9000))
        session.engine.queue("q").delete(Receipt(mid))
        session.engine.commit()
        session.upkeep()
        last = segment_of(open_segment(f"{root}/.journal", numbers_in(f"{root}/.journal", Disk())[-1]))
        changes = [two for one, two in pairwise(last.frames) if one.oldest != two.oldest]
        if changes and last.frames[-1].sequence > changes[0].sequence + 1:
            break
    else:
        raise AssertionError("no segment is given up")
    session.crash()
    flip(Path(last.path), changes[0].start + FRAME_HEAD - 1, 0)
    with pytest.raises(JournalDamagedError, match=rf"{last.path}: byte {changes[0].start}: no frame begins there"):
        found(root)


def test_the_note_of_the_last_segment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of the last segment follows the segments; one segment more than it says is from a crash in between, two
    are not."""
    small_segments(monkeypatch, 4 * BLOCK)
    directory = f"{root}/.journal"
    last = written(root, *(b"%d" % number for number in range(9))).number
    assert read_last(directory) == last
    session = Session(root)
    assert is_in_use(directory)
    session.engine.close()
    assert not is_in_use(directory)
    last = numbers_in(directory, Disk())[-1]
    assert read_last(directory) == last
    segment = segment_of(open_segment(directory, last))
    for number in (last + 1, last + 2):
        moved = segment.header._replace(number=number)
        path = Path(directory) / f"{number:016d}.segment"
        path.write_bytes(pack_header(moved) + bytes(segment.data[BLOCK:]))
        if number == last + 1:
            assert found(root).number == number
        else:
            with pytest.raises(JournalDamagedError, match="does not belong to this journal"):
                found(root)
        path.unlink()


@pytest.mark.parametrize("step", ["sync_directory", "fdatasync"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_segment_that_could_not_be_placed(root: Path, step: str, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment whose name, or the note of it, is not durable does not stay on a full disk, and the one before it goes
    on; any other error ends it all. Nothing is missing at the next start."""
    session = Session(root, Durability.INTERVAL)
    session.engine.create("q", Options(storage="journal"))
    session.push("q", b"first")
    journal, room = session.engine._journal.open().log, session.engine._journal.room
    assert room is not None

    def place(path: str, number: int, place: Callable[[str, int], None] = journal._place) -> None:
        monkeypatch.setattr(session.disk, step, fail)
        place(path, number)

    def fail(of: object) -> None:
        monkeypatch.undo()
        raise OSError(error, "broken")

    monkeypatch.setattr(journal, "_place", place)
    with suppress(OSError) if error == errno.ENOSPC else pytest.raises(OSError, match="broken"):
        room._begin(0, push=False)
    assert journal.number == 1
    monkeypatch.undo()
    assert (journal.failed is not None) is (error == errno.EIO)
    if not journal.failed:
        session.push("q", b"second")
    session.crash()
    assert numbers_in(f"{root}/.journal", Disk()) == ([1, 2] if journal.failed else [1])
    assert delivered(root) == ([b"first"] if journal.failed else [b"first", b"second"])
