"""The keys of idempotent pushes: as many as are needed are known, and compaction says them again in slices."""

from pathlib import Path

import pytest
from support.storage.crashing import Place, segments_of
from support.storage.engines import Bench, checkpointed, compact, journal_engine

from qs_storage.directories import DirectoriesEngine
from qs_storage.engine import Draft, Durability, Options, QueueFullError, Receipt, State
from qs_storage.journal.queues.keys import WINDOW
from qs_storage.journal.queues.queue import LogQueue

MINUTE = 60_000_000


def _queue(bench: Bench) -> LogQueue:
    assert isinstance(bench.engine, DirectoriesEngine)
    queue = bench.engine.queue("q")
    assert isinstance(queue, LogQueue)
    return queue


def test_old_keys_are_forgotten_as_fast_as_new_ones_come(tmp_path: Path) -> None:
    """Old keys are forgotten as fast as new ones come, also in lists."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    bench.queue()
    for number in range(20):
        bench.engine.queue("q").push([Draft(b"x", key=f"{number}-{each}") for each in range(100)])
        bench.engine.commit()
        bench.clock.now += WINDOW // 2
    assert len(_queue(bench).keys.entries) <= 300
    bench.engine.close()


def test_keys_are_said_again_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are written again in slices, however many there are, and are known after a start."""
    segments_of(monkeypatch, 1 << 18, 1 << 18)
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    assert isinstance(bench.engine, DirectoriesEngine)
    bench.queue()
    mids = bench.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(2000)])
    bench.engine.queue("q").push([Draft(bytes(1 << 18))])
    for mid in bench.engine.queue("q").list_mids(State.ALL, 3000, -1):
        bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.commit()
    keeper = bench.engine._journal
    room, log = keeper.room, keeper.open().log
    assert room is not None
    oldest, steps = log.segments.oldest, 0
    while log.segments.oldest == oldest:
        room.compact(0.0, 1 << 62)
        bench.engine.commit()
        steps += 1
    assert steps > 2000 // 256
    keeper.close()  # as at the end of a process that is killed
    bench.engine._watch.close()
    bench.engine = bench.make(bench.clock)
    assert bench.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(2000)]) == mids
    bench.engine.close()


def _forget_messages(place: Place, count: int) -> list[int]:
    """Pushes keyed messages and deletes them: what is left of them is keys."""
    place.queue("q")
    mids = place.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(count)])
    for mid in mids:
        place.engine.queue("q").delete(Receipt(mid))
    place.engine.commit()
    return mids


def _leave_segment(place: Place) -> None:
    """Writes until the log goes over into another segment."""
    segments = place.segments()
    while place.segments()[-1] == segments[-1]:
        [mid] = place.push("q", bytes(1 << 14))
        place.engine.queue("q").delete(Receipt(mid))
        place.engine.commit()


def test_segments_of_keys_alone_come_to_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known key is needed: a segment of nothing else is not copied again and again. They are known after a kill."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    place = Place(tmp_path / "root")
    mids = _forget_messages(place, 4000)
    place.upkeep_all()
    assert len(place.segments()) <= 8
    place.crash()
    assert place.engine.queue("q").push([Draft(b"x", key=str(each)) for each in range(4000)]) == mids
    place.leave()


@pytest.mark.parametrize("end", ["forgotten by compaction", "forgotten at leisure", "queue removed"])
def test_segments_of_old_keys_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Keys whose time is over, and those of a queue that is gone, hold no segment."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    place = Place(tmp_path / "root")
    _forget_messages(place, 4000)
    place.upkeep_all()
    place.queue("other")
    if end == "queue removed":
        place.engine.remove("q", force=True)
        place.engine.commit()
        place.queue("q")
    else:
        place.clock.now += WINDOW
    if end == "forgotten by compaction":
        _leave_segment(place)
    place.upkeep_all()
    place.clock.now += MINUTE
    place.upkeep_all()
    assert len(place.segments()) <= 3
    assert place.engine.effects().next_upkeep is None
    place.leave()


def test_a_checkpoint_with_old_keys_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the segments that say them are gone since: nobody asks for those keys any more."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    place = Place(tmp_path / "root")
    _forget_messages(place, 500)
    segments = place.engine._journal.open().log.segments
    with_keys = segments.newest
    _leave_segment(place)
    place.engine._journal.rest()
    with_checkpoint = segments.newest
    place.clock.now += WINDOW
    _leave_segment(place)
    compact(place.engine, with_keys)
    place.engine.commit()
    assert segments.oldest == with_checkpoint
    place.crash()
    assert checkpointed(place.engine) is not None
    assert "is ignored" not in caplog.text
    place.leave()


def _push(bench: Bench, *keys: str | None, qid: str = "q") -> list[int]:
    mids = bench.engine.queue(qid).push([Draft(b"x", key=key) for key in keys])
    bench.engine.commit()
    return mids


def _bounded(root: Path, keys: int) -> Bench:
    bench = Bench(journal_engine(Durability.NONE, keys=keys)(root))
    for qid in ("q", "r"):
        bench.engine.create(qid, Options(storage="journal"))
    bench.engine.commit()
    return bench


def _count(bench: Bench) -> int:
    """The number of keys that the engine counts, which has to be that of those it has."""
    assert isinstance(bench.engine, DirectoriesEngine)
    journal = bench.engine._journal
    assert journal.open().known_keys.count == sum(len(queue.keys.entries) for queue in journal.queues.values())
    return journal.open().known_keys.count


def test_keys_are_bounded(tmp_path: Path) -> None:
    """Beyond the bound, of all queues together, a push with a new key is refused, a list as a whole; known keys and
    pushes without a key are not. After the window there is room again."""
    bench = _bounded(tmp_path, 5)
    mids = _push(bench, "0", "1", "1", None)
    other = _push(bench, "0", "1", qid="r")
    bench.clock.now += WINDOW // 2
    with pytest.raises(QueueFullError, match=r"remembers 4 keys .*, and 5 is the most: .*without a key.*--max-keys"):
        _push(bench, "1", "2", None, "3")
    assert len(bench.engine.queue("q").list_mids(State.ALL, 10, -1)) == 3
    last = _push(bench, "2", None)
    for qid in ("q", "r"):
        with pytest.raises(QueueFullError):
            _push(bench, "4", qid=qid)
    assert _push(bench, "0", "1", "2") == [*mids[:2], last[0]]
    assert _push(bench, "0", "1", qid="r") == other
    assert _count(bench) == 5
    bench.clock.now += WINDOW // 2  # those of both queues but the last are over
    assert len(set(_push(bench, "5", "6", "7", "8"))) == 4
    assert _push(bench, "2") == last[:1]
    assert _count(bench) == 5
    with pytest.raises(QueueFullError):
        _push(bench, "9")
    bench.engine.close()


def test_the_bound_of_keys_over_a_restart(tmp_path: Path) -> None:
    """Keys that are remembered after a stop or a kill count, also above a bound that is lower now; those whose time
    is over do not."""
    bench = _bounded(tmp_path, 4)
    mids = _push(bench, "0", "1", "2")
    for end in ("stop", "kill"):
        if end == "stop":
            bench.reopen()
        else:
            assert isinstance(bench.engine, DirectoriesEngine)
            bench.engine._watch.close()
            bench.engine._journal.close()
            bench.engine = bench.make(bench.clock)
        assert _count(bench) == 3
        with pytest.raises(QueueFullError):
            _push(bench, "3", "4")
        assert _push(bench, "0", "1", "2") == mids
    bench.engine.close()
    bench = Bench(journal_engine(Durability.NONE, keys=2)(tmp_path), bench.clock)
    with pytest.raises(QueueFullError):
        _push(bench, "3")
    assert _push(bench, "2", None)[0] == mids[2]
    bench.clock.now += WINDOW
    assert _push(bench, "3", "4") == _push(bench, "3", "4")
    bench.clock.now += WINDOW
    bench.reopen()
    assert _count(bench) == 0
    bench.engine.close()


def test_keys_of_a_start_from_the_log_alone(tmp_path: Path) -> None:
    """A start reads only keys whose window is not over, though the log has others: memory does not depend on it."""
    bench = _bounded(tmp_path, 4)
    for number in range(5):
        _push(bench, *(f"{number}-{each}" for each in range(4)))
        bench.clock.now += WINDOW
    kept = _push(bench, "kept")
    bench.clock.now += WINDOW - 1
    assert isinstance(bench.engine, DirectoriesEngine)
    bench.engine._watch.close()
    bench.engine._journal.close()
    bench.engine = bench.make(bench.clock)
    assert checkpointed(bench.engine) is None
    assert _count(bench) == 1
    assert _push(bench, "kept") == kept
    bench.engine.close()


def test_keys_of_what_is_taken_back_or_removed(tmp_path: Path) -> None:
    """Neither pushes of a batch that fails nor those to a queue that is removed count."""
    bench = _bounded(tmp_path, 3)
    _push(bench, "0")
    bench.engine.queue("q").push([Draft(b"x", key="1"), Draft(b"x", key="2")])
    bench.engine.roll_back()
    assert _count(bench) == 1
    _push(bench, "1", "2", qid="r")
    bench.engine.remove("r", force=True)
    bench.engine.commit()
    assert _count(bench) == 1
    _push(bench, "3", "4")
    bench.engine.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_key_from_the_future_is_cut_to_its_length(tmp_path: Path, clean: bool) -> None:
    """A start whose time is an hour before that of a key, as its file of the time was lost, remembers the key for five
    minutes and not for an hour: from a checkpoint and from the records."""
    bench = Bench(journal_engine(Durability.NONE)(tmp_path))
    bench.queue()
    (first,) = bench.engine.queue("q").push([Draft(b"x", key="k")])
    bench.engine.commit()
    if clean:
        bench.engine.close()
    else:
        assert isinstance(bench.engine, DirectoriesEngine)
        bench.engine._journal.close()  # as at the end of a process that is killed
        bench.engine._watch.close()
    bench.clock.now -= 60 * MINUTE
    bench.engine = bench.make(bench.clock)
    bench.clock.now += 4 * MINUTE
    assert bench.engine.queue("q").push([Draft(b"x", key="k")]) == [first]
    bench.clock.now += MINUTE
    assert bench.engine.queue("q").push([Draft(b"x", key="k")]) > [first]
    bench.engine.close()
