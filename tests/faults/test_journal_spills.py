"""Messages on their way from the journal to files: whatever happens, each is there once, or gone for good."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from crashing import HOUR, LOTS, Place, places, segments_of
from qs_server.storage.journal.ledger import SpillLimits

from qs_server.storage.engine import SECOND, Draft, Receipt
from qs_server.storage.journal import spill as spilling


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Its segments are small."""
    segments_of(monkeypatch, 24576, 24576)
    yield from places(tmp_path)


def copied(place: Place, count: int = 1) -> list[int]:
    """Messages in queue `a`, and in queue `b` their copies, all with files."""
    place.queue("a", "b")
    mids = [mid for number in range(count) for mid in place.push("a", b"p%d" % number)]
    for mid in mids:
        place.engine.copy("a", mid, ["b"])
    place.engine.commit()
    place.spill_all()
    return mids


def delete(place: Place, qid: str, *mids: int) -> None:
    for mid in mids:
        place.engine.delete(qid, Receipt(mid))
    place.engine.commit()


def copy_again(place: Place, mid: int) -> None:
    place.engine.copy("a", mid, ["b"])
    place.engine.commit()


def assert_gone(place: Place, qid: str, mid: int) -> None:
    """Once it is deleted it stays so: in the directory, and for the next server."""
    delete(place, qid, mid)
    place.restart()
    assert (place.files(qid), place.mids(qid)) == ([], [])


# -- a message that is deleted, and copied into the queue again --------------------------------------------------------


def test_a_copy_of_what_is_to_be_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was deleted and copied again before its file went has a file afterwards, however many others had
    to go before it."""
    monkeypatch.setattr(spilling, "_MESSAGES", 4)
    mids = copied(place, 9)
    delete(place, "b", *mids)
    copy_again(place, mids[-1])
    place.spill_all()
    place.engine.refresh()
    assert (place.files("b"), place.mids("b")) == ([str(mids[-1])], [mids[-1]])
    place.restart()
    assert place.payloads("b") == [b"p8"]


@pytest.mark.parametrize("when", ["planned", "done"])
def test_a_copy_of_what_is_being_removed(place: Place, when: str) -> None:
    """Also when it is copied while its file is being removed; after a crash, too."""
    [mid] = copied(place)
    delete(place, "b", mid)
    spill = place.engine.begin_spill()
    assert spill is not None
    if when == "planned":
        copy_again(place, mid)
    spill.run()
    if when == "done":
        copy_again(place, mid)
    place.engine.finish_spill(spill)
    place.engine.commit()
    assert place.payloads("b") == [b"p0"]
    place.spill_all()
    assert (place.files("b"), place.payloads("b")) == ([str(mid)], [b"p0"])
    place.crash()
    assert place.payloads("b") == [b"p0"]
    assert_gone(place, "b", mid)


def test_a_copy_that_is_refused(place: Place) -> None:
    """When the copy does not get into the journal, the file of the message that was deleted goes all the same."""
    [mid] = copied(place)
    delete(place, "b", mid)
    place.engine.copy("a", mid, ["b"])
    place.disk.refuse("_pwrite", "*.segment", times=1)
    with pytest.raises(OSError, match="space"):
        place.engine.commit()
    assert place.mids("b") == []
    place.spill_all()
    assert place.files("b") == []
    place.crash()
    assert place.mids("b") == []


def test_a_copy_of_what_was_in_flight_and_a_crash(place: Place) -> None:
    """A message that was deleted in flight and copied again is ready after a crash, and has one file then."""
    [mid] = copied(place)
    place.receive("b")
    place.spill_all()
    assert place.files("b") == [f"{mid}.{place.clock.now + HOUR}"]
    delete(place, "b", mid)
    copy_again(place, mid)
    place.crash()
    assert place.payloads("b") == [b"p0"]
    place.spill_all()
    assert place.files("b") == [str(mid)]
    assert_gone(place, "b", mid)


# -- a disk that fails in the middle -----------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "_write", "setxattr", "rename"])
def test_a_file_that_can_be_renamed_and_not_written(place: Place, operation: str) -> None:
    """A message whose file has another name, and not its content again, is never in two files."""
    place.queue("a")
    [mid] = place.push("a", b"x")
    spill = place.engine.begin_spill()
    assert spill is not None
    spill.run()
    place.engine.finish_spill(spill)  # so the file is there, and nothing in the journal says so
    place.receive("a")
    place.crash()
    assert place.files("a") == [str(mid)]
    place.disk.refuse(operation, "*/a/*")
    place.spill()
    assert len(place.files("a")) == 1
    place.disk.disarm()
    place.clock.now += 2 * SECOND
    place.engine.release("a", Receipt(mid), 0)
    place.engine.commit()
    place.spill_all()
    assert place.files("a") == [str(mid)]
    assert_gone(place, "a", mid)


@pytest.mark.parametrize("changes", ["deleted", "received"])
def test_a_file_that_moved_while_its_message_changed(place: Place, changes: str) -> None:
    """What is done to a message while its file gets another name, but not its content, is done to that file."""
    place.queue("a")
    [mid] = place.push("a", b"x")
    spill = place.engine.begin_spill()
    assert spill is not None
    spill.run()
    place.engine.finish_spill(spill)
    place.receive("a")
    place.crash()
    spill = place.engine.begin_spill()
    assert spill is not None
    place.disk.refuse("_write", "*/a/*")
    spill.run()
    if changes == "deleted":
        delete(place, "a", mid)
    else:
        place.engine.release("a", Receipt(mid), 0)
        place.engine.commit()
    place.engine.finish_spill(spill)
    place.engine.commit()
    place.disk.disarm()
    place.clock.now += 2 * SECOND
    place.spill_all()
    assert place.files("a") == ([] if changes == "deleted" else [str(mid)])
    if changes == "received":
        assert_gone(place, "a", mid)


def test_a_batch_is_refused_in_which_a_spill_ends(place: Place) -> None:
    """What the batch changed has not happened, and the file that was written meanwhile is known all the same."""
    place.queue("a")
    [mid] = place.push("a", b"x")
    spill = place.engine.begin_spill()
    assert spill is not None
    assert place.engine.receive(["a"], 1, None, LOTS)
    spill.run()
    place.engine.finish_spill(spill)
    place.disk.refuse("_pwrite", "*.segment", times=1)
    with pytest.raises(OSError, match="space"):
        place.engine.commit()
    assert place.engine.get("a", mid, peek=True, visibility=None).status == "ready"
    assert_gone(place, "a", mid)


@pytest.mark.parametrize("stop", [Place.restart_unfinished, Place.crash])
def test_attributes_that_cannot_be_written(place: Place, stop: Callable[[Place], None]) -> None:
    """A delay and a count of receives that the file cannot take stay in the journal, over a clean stop too."""
    place.queue("a")
    [later] = place.push("a", b"x", delay=HOUR)
    [back] = place.push("a", b"y")
    place.receive("a", window=0)
    place.clock.now += 1
    place.engine.expire(10)
    place.disk.refuse("setxattr", "*/a/*")
    stop(place)
    stats = place.engine.stats("a")
    assert (stats.delayed, stats.in_flight, stats.ready) == (1, 0, 1)
    found = [place.engine.get("a", mid, peek=True, visibility=None) for mid in (later, back)]
    assert [(message.status, message.receives) for message in found] == [("delayed", 0), ("ready", 1)]
    place.restart()
    assert place.engine.stats("a").delayed == 1


def test_a_file_that_cannot_be_removed(place: Place) -> None:
    """It stops nothing else: other messages get their files; its message stays deleted, and it goes when it can."""
    place.queue("a", "b")
    [stuck] = place.push("a", b"x")
    place.spill_all()
    place.restart()
    place.disk.refuse("unlink", f"*/a/{stuck}", errno.EPERM)
    delete(place, "a", stuck)
    [other] = place.push("b", b"y")
    place.spill()
    assert place.files("b") == [str(other)]
    assert place.mids("a") == []
    place.restart_unfinished()
    assert place.mids("a") == []
    place.spill_all()
    place.restart()
    assert (place.files("a"), place.files("b")) == ([], [str(other)])
    assert len(place.segments()) == 1


@pytest.mark.parametrize("failing", [("_syncfs", "fsync"), ("unlink",)])
def test_old_segments_that_cannot_go(place: Place, failing: tuple[str, ...]) -> None:
    """When a sync or a removal fails once, the segments that should have gone then go later, while the server runs."""
    place.queue("a")
    for _ in range(6):
        for _ in range(6):
            place.push("a", bytes(6000))
        for operation in failing:
            place.disk.refuse(operation, "*.segment" if operation == "unlink" else "*", errno.EIO)
        place.spill()
        place.disk.disarm()
        place.clock.now += 2 * SECOND
        place.spill()
    place.spill_all()
    place.clock.now += 2 * SECOND
    place.spill_all()
    assert len(place.segments()) == 1
    place.crash()
    assert len(place.mids("a")) == 36


# -- others ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_message_of_others_of_the_same_id(place: Place, when: str) -> None:
    """A file that somebody publishes under the id of a message that has none yet is not overwritten: ours keeps its id,
    theirs gets another one."""
    place.queue("a")
    [mid] = place.push("a", b"ours")

    def publish() -> None:
        (place.root / "a" / ".theirs").write_bytes(b"theirs")
        os.rename(place.root / "a" / ".theirs", place.root / "a" / str(mid))

    if when == "before":
        publish()
    spill = place.engine.begin_spill()
    assert spill is not None
    if when == "meanwhile":
        publish()
    spill.run()
    place.engine.finish_spill(spill)
    place.engine.commit()
    place.engine.refresh()
    assert place.mids("a")[0] == mid
    assert place.payloads("a") == [b"ours", b"theirs"]
    place.spill_all()
    place.restart()
    assert place.payloads("a") == [b"ours", b"theirs"]
    assert place.files("a") == [str(each) for each in place.mids("a")]


def test_ids_after_one_of_the_future(place: Place) -> None:
    """A message of others with a greater id than ours is taken and deleted: also after a crash, ids are greater."""
    place.queue("a")
    far = place.clock.now + 10**12
    (place.root / "a" / ".theirs").write_bytes(b"theirs")
    os.rename(place.root / "a" / ".theirs", place.root / "a" / str(far))
    place.engine.refresh()
    assert place.mids("a") == [far]
    delete(place, "a", far)
    place.spill_all()
    place.crash()
    [mid] = place.push("a", b"x")
    assert mid > far


# -- two threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [("create", "*/spare*"), ("_pwrite", "*/spare*"), ("rename", "*/spare*")])
def test_segments_are_begun_while_one_is_made_ready(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: tuple[str, str]
) -> None:
    """A segment that is made ready in another thread has the size that it is taken for, though others, of growing
    sizes, are begun meanwhile: after a crash everything can be read."""
    segments_of(monkeypatch, 20480, 1 << 20)
    place.restart()
    place.queue("a")
    mids: list[int] = []

    def push(count: int) -> None:
        for _ in range(count):
            mids.extend(place.push("a", bytes(5000)))

    place.disk.before(*moment, lambda: push(60))
    for _ in range(50):
        push(1)
        place.spill()
        if not place.disk.waiting:
            break
    assert not place.disk.waiting, "no segment was made ready"
    push(400)
    place.crash()
    assert place.mids("a") == mids


def test_room_that_a_spare_segment_takes_while_it_is_made(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a segment is made ready in another thread, and there is no room beside it, what makes room waits for it:
    deleting goes on."""
    segments_of(monkeypatch, 24576, 24576)
    place.limits = SpillLimits(age=HOUR)
    place.restart()
    place.queue("a")
    mids = place.push("a", *[b"x"] * 5)
    while place.engine.begin_spill() is None:  # which makes a segment ready, once this one is half full
        mids += place.push("a", b"x")
    place.disk.refuse("create", "*/next")
    segments = place.segments()
    for mid in mids:
        place.engine.delete("a", Receipt(mid))
        place.engine.commit()
    assert place.segments() != segments, "one segment had room for all"
    assert place.mids("a") == []


def test_a_queue_with_too_many_messages_is_not_the_only_one(place: Place) -> None:
    """Another queue's message is written when its turn comes, though the first one has more than a spill takes, again
    and again."""
    place.queue("a", "b")
    place.push("a", *[b"x"] * 500)
    [mid] = place.push("b", b"y")
    for _ in range(5):
        place.push("a", *[b"x"] * 4500)
        place.spill()
    assert place.files("b") == [str(mid)]


def test_a_spill_that_takes_too_long(place: Place) -> None:
    """What it does not come to is left for the next one: nothing is missing in between, nor after a crash."""
    place.queue("a")
    mids = place.push("a", *[b"x"] * 450)
    spill = place.engine.begin_spill()
    assert isinstance(spill, spilling.Spill)
    spill.seconds = -1
    spill.run()
    place.engine.finish_spill(spill)
    place.engine.commit()
    assert len(place.files("a")) == 200
    assert place.mids("a") == mids
    place.crash()
    assert place.mids("a") == mids
    place.spill_all()
    assert place.files("a") == [str(mid) for mid in mids]


def test_a_spill_beside_everything_else(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """While files are written in another thread, messages are pushed, received and deleted, those being written too,
    and segments are begun: all of it holds, at once, after a crash and in the directory."""
    segments_of(monkeypatch, 20480, 1 << 18)
    place.restart()
    place.queue("a")
    mids = [place.push("a", b"%d" % number)[0] for number in range(40)]
    spill = place.engine.begin_spill()
    assert spill is not None
    begun, go_on = Event(), Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(30)

    place.disk.before("create", f"*/a/.{mids[20]}.*", hold)
    thread = Thread(target=spill.run)
    thread.start()
    assert begun.wait(30)
    delete(place, "a", *mids[:5], *mids[20:25], *mids[35:])
    received = place.receive("a", 3)
    more = [place.push("a", bytes(3000))[0] for _ in range(60)]
    place.engine.refresh()
    go_on.set()
    thread.join(30)
    place.engine.finish_spill(spill)
    place.engine.commit()
    expected = mids[5:20] + mids[25:35] + more
    assert place.mids("a") == expected
    place.crash()
    assert place.mids("a") == expected
    place.spill_all()
    end = place.clock.now - 60 + HOUR
    assert place.files("a") == sorted(
        [f"{message.mid}.{end}" for message in received] + [str(mid) for mid in expected[3:]]
    )
    place.restart()
    assert (place.mids("a"), place.engine.stats("a").in_flight) == (expected, 3)


def test_spills_and_batches_side_by_side(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server has it: one spill after the other in a thread, and in this one batches all the time; then a crash."""
    segments_of(monkeypatch, 20480, 1 << 18)
    place.restart()
    place.queue("a")
    left: dict[int, bytes] = {}
    for turn in range(30):
        spill = place.engine.begin_spill()
        thread = Thread(target=spill.run if spill is not None else lambda: None)
        thread.start()
        for number in range(12):
            payload = b"%d %d" % (turn, number) * 200
            place.clock.now += 1
            [mid] = place.engine.push("a", [Draft(payload)])
            left[mid] = payload
            if number % 3 == 0:
                [message] = place.engine.receive(["a"], 1, None, LOTS)
                place.engine.delete("a", Receipt(message.mid, message.receives))
                del left[message.mid]
            place.engine.commit()
        thread.join(30)
        if spill is not None:
            place.engine.finish_spill(spill)
    place.engine.commit()
    assert place.mids("a") == sorted(left)
    place.crash()
    assert dict(zip(place.mids("a"), place.payloads("a"), strict=True)) == left
    place.spill_all()
    assert place.files("a") == [str(mid) for mid in sorted(left)]
