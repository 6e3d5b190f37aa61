"""The room of a log on a small disk: pushes are refused, and nothing else is."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.crashing import segments_of
from support.storage.small_engine import SEGMENT, SmallEngine

from qs_storage.engine import SECOND, Draft, NoRoomError, Options, Receipt, State
from qs_storage.journal.queues.queue import LogQueue

FOREVER = 10**6 * SECOND


@pytest.fixture(name="small", params=[8, 12, 20], ids=lambda segments: f"{segments * SEGMENT >> 10} KiB")
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[SmallEngine]:
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, request.param)
    yield small
    small.close()


def test_pushes_are_refused_and_deletes_are_served(small: SmallEngine) -> None:
    """On a full disk each message can be deleted in a batch of its own; then pushes are taken again."""
    mids = small.fill()
    assert len(mids) > 20
    assert not small.pushes()
    for mid in mids:
        small.engine.begin_batch()
        small.queue.delete(Receipt(mid))
        small.commit()
    assert small.queue.list_mids(State.ALL, 9, -1) == []
    small.rest()
    assert small.pushes()


def test_a_refused_push_packs_no_names(small: SmallEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of all queues, of which there may be thousands, are packed for a segment that begins, and not for each
    batch that finds no file for one."""
    small.fill()
    packed: list[LogQueue] = []
    monkeypatch.setattr(LogQueue, "record", packed.append)
    assert not small.pushes()
    assert packed == []


def test_names_of_several_bytes_have_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is made for one large request has room for the names of all queues, in UTF-8."""
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, 1000)
    for number in range(1000):
        small.engine.create("\N{SNOWMAN}" * 20 + str(number), Options("journal"))
    small.commit()
    [mid] = small.queue.push([Draft(bytes(10 * SEGMENT))])
    small.commit()
    assert len(small.queue.payload_of(mid)) == 10 * SEGMENT
    small.close()


def test_releases_go_round(small: SmallEngine) -> None:
    """Where all messages are needed and the disk is full, each of them is received and released again and again, one by
    one: as much is written as the disk has several times. Nothing is refused or lost."""
    mids = small.fill()
    payloads = [small.queue.payload_of(mid) for mid in mids]
    written = 0
    rounds = 0
    while written < 4 * small.disk.capacity:
        for mid in mids:
            small.engine.begin_batch()
            assert small.queue.take(mid, FOREVER) is not None
            small.queue.release(Receipt(mid), 0, count=False)
            small.commit()
            written += 4096
        rounds += 1
    assert rounds > 1
    assert small.queue.list_mids(State.READY, 9999, -1) == mids
    assert [small.queue.payload_of(mid) for mid in mids] == payloads


def test_other_small_requests_are_served(small: SmallEngine) -> None:
    """Extensions, claims, acknowledgements and purges write records too, and a full disk has room for them."""
    mids = small.fill()
    for _ in range(100):
        small.engine.begin_batch()
        small.queue.take(mids[0], FOREVER)
        small.queue.extend(Receipt(mids[0]), FOREVER)
        small.commit()
        small.queue.release(Receipt(mids[0]), 0, count=False)
        small.commit()
    for seq in range(1, 11):
        small.engine.begin_batch()
        small.queue.claims.claim("c", seq, 1, None, None)
        small.commit()
        small.queue.claims.acknowledge("c", seq)
        small.commit()
    assert len(small.queue) == len(mids) - 10
    small.engine.begin_batch()
    assert small.queue.purge(mids[-1], 10**6) == len(mids) - 10
    small.commit()


def test_a_start_on_a_full_disk(small: SmallEngine) -> None:
    """A kill and a start change nothing: all is there, and can be deleted one by one."""
    mids = small.fill()
    small.close()
    small.start()
    assert small.queue.list_mids(State.ALL, 9999, -1) == mids
    for mid in mids:
        small.engine.begin_batch()
        small.queue.delete(Receipt(mid))
        small.commit()
    small.rest()
    assert small.pushes()


def test_a_segment_that_has_just_been_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the commit that secures room for deletes gives a segment up, its file is used for them at once: after a kill
    on a full disk there may be no other."""
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, 12)
    small.queue.push([Draft(bytes(100_000))])
    small.commit()
    mids = small.fill()
    small.close()
    small.start()
    for mid in mids:
        small.engine.begin_batch()
        small.queue.delete(Receipt(mid))
        small.commit()
    small.close()


def test_room_that_appears(small: SmallEngine) -> None:
    """When other files have gone, pushes are taken again, though nothing was deleted here."""
    small.fill()
    assert not small.pushes()
    small.disk.capacity *= 4
    small.rest()
    assert small.pushes()


def test_a_request_that_needs_more_ends_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request says how many more bytes it needs, and gets them in the next batch, in a segment of its own; earlier
    requests of the batch are committed."""
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, 1000)
    monkeypatch.setattr("support.storage.engines.without_broker", {})  # else the engine of the tests ends the batch
    small.engine.secure()
    [first] = small.queue.push([Draft(b"first")])
    with pytest.raises(NoRoomError) as caught:
        small.queue.push([Draft(bytes(10 * SEGMENT))])
    assert small.queue.list_mids(State.ALL, 9, -1) == [first]
    small.engine.commit()
    small.engine.secure(caught.value)
    [second] = small.queue.push([Draft(bytes(10 * SEGMENT))])
    small.engine.commit()
    assert small.queue.list_mids(State.ALL, 9, -1) == [first, second]
    assert small.engine._journal.open().log.segments.largest > 10 * SEGMENT
    small.close()


def test_each_refused_request_gets_its_own_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the room that was secured for all that was refused has been used by others since."""
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, 1000)
    monkeypatch.setattr("support.storage.engines.without_broker", {})  # else the engine of the tests ends the batch
    small.engine.secure()
    draft = Draft(bytes(2 * SEGMENT // 3))
    pushed = small.queue.push([draft])
    refused = []
    for _ in range(3):
        with pytest.raises(NoRoomError) as caught:
            small.queue.push([draft])
        refused.append(caught.value)
    small.engine.commit()
    for error in refused:
        small.engine.secure(error)
        pushed += small.queue.push([draft])
        small.engine.commit()
    assert small.queue.list_mids(State.ALL, 9, -1) == pushed
    small.close()


@pytest.fixture(name="dying")
def _dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallEngine]:
    """Has 150 messages that are due to become dead letters, 200 others, and room for little more than 9 KiB."""
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, 1000)
    small.engine.create("dead", Options("journal"))
    small.engine.configure("q", Options(storage="journal", max_receives=1, dead_letter="dead"))
    small.first = small.queue.push([Draft(b"x")] * 350)[0]
    small.commit()
    monkeypatch.setattr("support.storage.engines.without_broker", {})  # else the engine of the tests ends the batch
    small.engine.receive(["q"], 150, 1000, 1 << 20)
    small.commit()
    small.clock.now += 1000
    small.engine._journal.open().transaction.left = 9 << 10
    yield small
    small.close()


def test_burials_leave_room_to_the_request_that_finds_them_due(dying: SmallEngine) -> None:
    """A reject that was refused for lack of room gets the room that was secured for it, whatever is due besides."""
    dying.queue.reject(Receipt(dying.first + 149, 1), "é" * 1000)
    assert 1 < dying.engine.queue("dead").stats().ready < 150
    dying.commit()


def test_burials_leave_room_to_a_claim(dying: SmallEngine) -> None:
    """While many messages die, a claim gets the bytes that were secured for its record, which has all its ids."""
    claim = dying.queue.claims.claim("c", 1, 200, None, None)
    assert claim.count == 200
    assert 1 < dying.engine.queue("dead").stats().ready < 150
    dying.commit()


def test_the_timer_says_that_there_is_no_room(dying: SmallEngine) -> None:
    """When no message that is due can be moved, as the log has failed, the timer is told: it would come again at
    once."""
    log = dying.engine._journal.open().log
    log.fail(OSError(errno.EIO, "broken"))
    dying.engine.roll_back()
    with pytest.raises(OSError, match="the journal failed"):
        dying.engine.expire(100)
    assert dying.queue.next_expiry() == dying.clock.now


def test_requests_that_are_larger_than_a_segment_leave_none_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is made for one large request has room for the batch after it, too: the next such request does not
    leave a segment behind that was begun for that batch."""
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    small = SmallEngine(tmp_path, 1000)
    for _ in range(20):
        small.engine.begin_batch()
        small.queue.push([Draft(bytes(2 * SEGMENT))])
        small.commit()
    store = small.engine._journal.open()
    empty = [number for number in store.log.segments.sizes if not store.usage.live.get(number)]
    assert len(empty) <= 1  # the first one, which was there before
    small.close()
