"""A journal that is not as it was written: the start is refused, or loses nothing, or says what it has cut off."""

import logging
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from support.storage.broken_journals import Journal, Recovered, Session, flip, made, small_segments, start
from support.storage.engines import LOTS

from qs_storage.engine import Durability
from qs_storage.journal.log.opening import JournalDamagedError
from qs_storage.journal.log.places import segment_name


@pytest.fixture(scope="module")
def built(home: Path) -> Iterator[Journal]:
    """A journal that tests may change only for a moment."""
    with pytest.MonkeyPatch.context() as patch:
        small_segments(patch)
        journal = made(home / "built")
    yield journal
    assert journal.recover().records() == journal.right, "a test has left its damage behind"


_numbers = count()


def start_a_copy(journal: Journal, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A start that is not refused delivers what there was, all or all but the last frame, which it has kept."""
    copy = journal.copy(home / f"copy-{next(_numbers)}")
    caplog.clear()
    found = start(copy)
    kept = [path.name for path in (copy / ".journal").iterdir() if path.name.startswith("cut-")]
    if kept:
        assert f"kept in {copy}/.journal/{kept[0]}" in caplog.text
    shutil.rmtree(copy)
    if found != journal.picture:
        assert kept, "messages are missing without a word"
        without = {qid: dict(messages) for qid, messages in journal.picture.items()}
        last = max(without["orders"])
        assert without["orders"].pop(last)[0] == b"the end"
        assert found == without


def recovered(journal: Journal, damaged: Path) -> Recovered | None:
    """None: it is refused, with a text that names the file and the command."""
    try:
        return journal.recover()
    except JournalDamagedError as error:
        said = str(error)
    assert str(damaged) in said
    assert f"queue-journal.py repair --root {journal.root}" in said
    assert "\n" not in said
    return None


def check_flips(
    journal: Journal, home: Path, caplog: pytest.LogCaptureFixture, *, step: int, bits: range | None = None
) -> tuple[int, int, int]:
    """Flips, those that stopped the start, those that cut something off. bits: None for one that differs from byte to
    byte."""
    flips = refused = cut = 0
    for path, places in journal.written():
        for at in places[flips % step :: step]:
            for bit in bits or range(at % 8, at % 8 + 1):
                flips += 1
                flip(path, at, bit)
                found = recovered(journal, path)
                if found is None:
                    refused += 1
                elif found.records() != journal.right:
                    assert found.torn is not None
                    cut += 1
                    start_a_copy(journal, home, caplog)
                flip(path, at, bit)
    return flips, refused, cut


def test_some_bits(built: Journal, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One bit in every 15th byte that was written: refused, or reported."""
    caplog.set_level(logging.WARNING)
    flips, refused, cut = check_flips(built, home, caplog, step=15)
    assert flips > 800
    assert 0 < cut < 100
    assert refused + cut > flips * 0.98  # the rest is in the four bytes behind a header's checksum


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_bit(built: Journal, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each bit of each byte that was written: refused, or reported. Ten minutes."""
    caplog.set_level(logging.WARNING)
    flips, refused, cut = check_flips(built, home, caplog, step=1, bits=range(8))
    assert refused + cut > flips * 0.98


def test_bits_that_do_not_matter(built: Journal) -> None:
    """One bit in what was never written: nothing is missing; behind the last frame it may be called torn."""
    written = {(path, at) for path, places in built.written() for at in places}
    for path in built.paths():
        for at in range(path.stat().st_size - 1, 60, -1511):
            if (path, at) not in written:
                flip(path, at, at % 8)
                assert built.recover().records() == built.right
                flip(path, at, at % 8)


def test_bits_of_the_lock_file(built: Journal) -> None:
    """The note which segment was the last: one bit never stops a start, nor does its loss."""
    path = Path(built.directory) / "lock"
    for at in range(0, path.stat().st_size, 3):
        flip(path, at, at % 8)
        assert built.recover().records() == built.right
        flip(path, at, at % 8)
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert built.recover().records() == built.right
    path.write_bytes(whole)


def paths_of(journal: Journal) -> list[Path]:
    return sorted((journal.root / ".journal").glob("*.segment"))


def refusal(journal: Journal) -> str:
    with pytest.raises(JournalDamagedError) as refused:
        start(journal.root)
    assert f"queue-journal.py repair --root {journal.root}" in str(refused.value)
    return str(refused.value)


def test_cut_anywhere(built: Journal) -> None:
    """A segment that is shorter than it was made is refused, wherever it ends."""
    for segment in built.recovered.segments:
        path = Path(segment.path)
        whole = path.read_bytes()
        ends = {len(whole) - 1, *range(70), *range(70, len(whole), 4001)}
        for frame in segment.frames:
            borders = (frame.start, frame.start + 36, frame.start + 36 + frame.length, frame.end)
            ends |= {border + near for border in borders for near in (-1, 0, 1)}
        for end in sorted(ends - {len(whole), len(whole) + 1}, reverse=True):
            os.truncate(path, end)
            assert recovered(built, path) is None
        path.write_bytes(whole)


def test_bytes_behind(damaged: Journal) -> None:
    """A segment that is longer than it was made is refused."""
    for path in paths_of(damaged):
        whole = path.read_bytes()
        for more in (b"\0", b"x" * 5000, whole):
            path.write_bytes(whole + more)
            assert str(path) in refusal(damaged)
        path.write_bytes(whole)


def test_two_in_each_others_place(damaged: Journal) -> None:
    """Two segments under each other's name: refused."""
    first, *_, last = paths_of(damaged)
    first.rename(f"{first}.away")
    last.rename(first)
    Path(f"{first}.away").rename(last)
    assert "its header says that it is segment" in refusal(damaged)


@pytest.mark.parametrize("which", [0, 1, -2, -1])
def test_one_is_missing(damaged: Journal, which: int) -> None:
    """The first segment that is needed, one in the middle, the last: refused, with its name."""
    path = paths_of(damaged)[which]
    path.unlink()
    assert f"{path}: it is missing" in refusal(damaged)


def test_all_are_missing(damaged: Journal) -> None:
    """No segment at all, where there was one: refused."""
    for path in paths_of(damaged):
        path.unlink()
    assert "it is missing" in refusal(damaged)


def test_several_last_ones_are_missing(damaged: Journal) -> None:
    """The last segments: refused, with the name of one."""
    for path in paths_of(damaged)[-3:]:
        path.unlink()
    assert f"{path}: it is missing" in refusal(damaged)


def test_the_last_is_missing_after_a_rest(damaged: Journal) -> None:
    """The last one, of which a checkpoint says more than the segments do: refused too."""
    session = Session(damaged.root)
    session.engine.close()
    path = paths_of(damaged)[-1]
    path.unlink()
    assert f"{path}: it is missing" in refusal(damaged)


def test_an_old_one_under_a_later_name(damaged: Journal) -> None:
    """A copy of a segment as the one behind the last, or as the last: refused."""
    first, *_, last = paths_of(damaged)
    for name in (last.name, segment_name(int(last.name[:16]) + 1), segment_name(10**15)):
        with_copy = damaged._replace(root=damaged.copy(damaged.root / f"copy-{name}"))
        shutil.copy(first, with_copy.root / ".journal" / name)
        assert name in refusal(with_copy)


def test_segment_of_another_journal_is_refused(damaged: Journal) -> None:
    """A whole segment with a great number, for which no older one is needed: refused, or it would be taken for all."""
    other = damaged.copy(damaged.root / "other")
    number = int(paths_of(damaged)[-1].name[:16])
    while True:
        session = Session(other)
        session.push("orders", b"of another life")
        session.engine.close()
        *_, foreign = sorted((other / ".journal").glob("*.segment"))
        if int(foreign.name[:16]) > number + 1:
            break
    shutil.copy(foreign, damaged.root / ".journal")
    assert "does not belong to this journal" in refusal(damaged)


def test_an_empty_file(damaged: Journal) -> None:
    """A segment without a byte: refused."""
    path = paths_of(damaged)[2]
    path.write_bytes(b"")
    assert f"{path}: it has 0 bytes" in refusal(damaged)


def test_foreign_files(damaged: Journal) -> None:
    """A file whose name is not a segment's stays, and the journal is complete."""
    directory = damaged.root / ".journal"
    for name in ("notes.txt", "1.segment", "0000000000000004.segment.bak", "next", "spare", "damaged-1"):
        (directory / name).write_bytes(b"qsF\x01 whatever")
    (directory / "0000000000000099.segment").mkdir()
    assert start(damaged.root) == damaged.picture
    assert {"notes.txt", "1.segment", "0000000000000004.segment.bak", "damaged-1"} <= {
        path.name for path in directory.iterdir()
    }


def test_the_first_frame_of_the_last(damaged: Journal) -> None:
    """The first frame was durable before the segment had a name, so a torn one is refused."""
    last = damaged.recovered.segments[-1]
    path = paths_of(damaged)[-1]
    flip(path, last.frames[0].start + 50, 3)
    for frame in last.frames[1:]:
        with path.open("r+b") as file:
            file.seek(frame.start)
            file.write(bytes(frame.end - frame.start))
    assert "its first frame is not whole" in refusal(damaged)


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.NONE])
def test_bad_frame_without_syncs(
    durability: Durability, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where frames are not synced one by one, a bad frame in the last segment cuts off those behind it, with a line in
    the log; in earlier segments it is damage."""
    small_segments(monkeypatch, 40 * 1024)
    journal = made(home / durability.value, durability)
    for segment in journal.recovered.segments:
        for frame in segment.frames:
            flip(Path(segment.path), frame.start + 40, 0)
            found = recovered(journal, Path(segment.path))
            if found is not None:
                assert segment is journal.recovered.segments[-1]
                assert found.torn is not None
                assert found.torn.gap.start == frame.start
            else:
                assert segment is not journal.recovered.segments[-1] or frame is segment.frames[0]
            flip(Path(segment.path), frame.start + 40, 0)
    assert "compact" not in caplog.text


# -- checkpoints -------------------------------------------------------------------------------------------------------


def state_of(root: Path) -> object:
    """All that a start knows of the queues, and of the room that they take."""
    session = Session(root)
    store = session.engine._journal.store
    assert store is not None
    found = {
        queue.qid: (
            [(mid, queue.state_of(mid), queue.places.get(mid)) for mid in queue.index.messages.after(-1, LOTS)],
            sorted(queue.index.new.after(-1, LOTS)),
            queue.last_mid,
            {key: known[:2] for key, known in queue.keys.entries.items()},
            {
                name: (each.acked, {seq: (list(held.record.mids), held.gone) for seq, held in each.claims.items()})
                for name, each in queue.claims.consumers.items()
            },
            {name: (each.last, each.staged) for name, each in queue.batches.producers.items()},
        )
        for queue in session.engine._journal.queues.values()
    }
    usage = {segment: size for segment, size in store.usage.live.items() if size}
    session.crash()
    return found, usage


def test_a_checkpoint_says_the_same_as_the_segments(damaged: Journal, caplog: pytest.LogCaptureFixture) -> None:
    """A start with it, one without it, and one with any that is torn or has a wrong bit finds the same; the latter
    says so, once."""
    session = Session(damaged.root)
    session.push("orders", b"before the stop")
    session.engine.close()
    whole = (damaged.root / ".journal" / "checkpoint").read_bytes()

    def start_with(data: bytes | None) -> object:
        root = damaged.copy(damaged.root / "copy")
        (root / ".journal" / "checkpoint").unlink()
        if data is not None:
            (root / ".journal" / "checkpoint").write_bytes(data)
        caplog.clear()
        try:
            return state_of(root)
        finally:
            shutil.rmtree(root)

    right = start_with(whole)
    assert "ignored" not in caplog.text
    assert start_with(None) == right
    assert "ignored" not in caplog.text
    torn = [whole[: len(whole) * part // 7] for part in range(7)] + [whole[:-1], whole + b"x", bytes(len(whole))]
    places = [(at, at % 8) for at in range(0, len(whole), len(whole) // 40)]
    places += [(len(whole) - at, at % 8) for at in range(1, 13)]
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at, bit in places]
    for data in [*torn, *flipped]:
        assert start_with(data) == right
        assert caplog.text.count("checkpoint is ignored, and the segments are read") == 1
