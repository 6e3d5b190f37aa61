"""Tests when compaction gives up the oldest segment, what it copies for that, and what it leaves as it is."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.crashing import LogSession, segments_of
from support.storage.engines import maintenance_of, upkeep

from qs_storage.engine import SECOND, Draft, Receipt, State
from qs_storage.journal.upkeep import compaction

COLD = [bytes([number]) * 3950 for number in range(1, 40)]
"""Each takes a block of a segment."""


@pytest.fixture(name="session")
def _session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogSession]:
    """A journal with some segments of messages that nobody takes, in the queue `cold`."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    session = LogSession(tmp_path / "root")
    session.create("hot")
    cold = session.create("cold", dead_letter="hot", max_receives=9)
    for payload in COLD:
        cold.push([Draft(payload)])
        session.engine.commit()
    yield session
    session.leave()


def churn(session: LogSession, count: int) -> None:
    """Pushes messages of 9 KB, deletes each, and does what upkeep there is."""
    hot = session.queue("hot")
    for _ in range(count):
        session.engine.begin_batch()
        [mid] = hot.push([Draft(bytes(9000))])
        hot.delete(Receipt(mid))
        session.engine.commit()
        upkeep(session.engine, session.clock.now, 1000)


def cold_payloads(session: LogSession) -> list[bytes]:
    cold = session.queue("cold")
    return [cold.payload_of(mid) for mid in cold.list_mids(State.ALL, 999, -1)]


def test_the_journal_stays_small_beside_cold_messages(session: LogSession) -> None:
    """However much comes and goes, the segments have at most 2.2 times the live bytes, two segments apart; what is cold
    is copied now and then."""
    log, compaction = session.store.log, session.compaction
    largest = 0
    for _ in range(60):
        churn(session, 5)
        largest = max(largest, log.segments.size - log.room)
    assert largest < 2.2 * session.store.usage.total + 2 * (1 << 16)
    assert compaction.total > sum(map(len, COLD))
    assert cold_payloads(session) == COLD


def test_what_is_live_is_left_where_it_is(session: LogSession) -> None:
    """While most of the journal is needed, nothing is copied."""
    before = session.store.usage.segments()
    upkeep(session.engine, session.clock.now, 1000)
    assert session.compaction.total == 0
    assert session.store.usage.segments() == before


def test_only_the_oldest_goes(session: LogSession) -> None:
    """The segments that are there follow each other without a gap, and a start that finds one missing refuses it."""
    churn(session, 40)
    numbers = list(session.store.log.segments.sizes)
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[0] > 1


def test_what_follows_a_damaged_segment_stays(session: LogSession, caplog: pytest.LogCaptureFixture) -> None:
    """A segment that cannot be copied is needed, and so are those after it. A line in the log says so, and compaction
    tries no more. What can be read is handed out."""
    log, cold = session.store.log, session.queue("cold")
    first = min(session.store.usage.segments())
    path = Path(log.segments.path_of(first))
    path.write_bytes(path.read_bytes().replace(COLD[0][:50], bytes(50)))
    churn(session, 40)
    assert (log.segments.oldest, session.compaction.oldest) == (first, None)
    assert caplog.text.count("cannot be compacted and stays") == 1
    assert [cold.payload_of(mid) for mid in cold.list_mids(State.ALL, 999, -1)[1:]] == COLD[1:]


def test_claims_batches_and_files_are_said_again(session: LogSession) -> None:
    """A claim, an acknowledgement, a staged message, a part without any, and a published batch outlive their
    segments."""
    cold = session.queue("cold")
    cold.claims.claim("c", 1, 1, None, None)
    cold.claims.acknowledge("c", 1)
    cold.claims.claim("c", 2, 2, None, None)
    cold.batches.stage("p", (1, 0, 0), list(map(Draft, [b"published"])))
    cold.batches.publish("p", 1, [(0, 0)])
    cold.batches.stage("p", (2, 0, 0), [])
    cold.batches.stage("p", (2, 1, 0), list(map(Draft, [b"staged"])))
    session.engine.commit()
    last = session.store.log.number
    churn(session, 20)
    session.compact(last)
    before = session.memory()
    assert before["cold"]["claims"]["c"][0] == 1
    assert len(before["cold"]["batches"]["p"][1]) == 2
    for _ in range(2):
        session.kill()
        assert session.memory() == before
        session.restart()
        assert session.memory() == before


@pytest.mark.parametrize("count", [1, 2])
def test_receives_are_copied_with_their_messages(session: LogSession, count: int) -> None:
    """The note of a receive may be in a segment that goes after that of its message: a start finds both."""
    cold = session.queue("cold")
    taken = [message.mid for message in cold.take_first(count, 100 * SECOND, 1 << 20)]
    session.transaction.commit(notes=True)
    churn(session, 1)
    session.compact()
    session.kill()
    assert [session.queue("cold").read(Receipt(mid)).receives for mid in taken] == [1] * count


def test_copies_that_are_taken_back_are_made_again(session: LogSession) -> None:
    """If the commit of a slice fails, the messages are where they were; the next try copies all of them."""
    room = session.engine._journal.room
    assert room is not None
    first = min(session.store.usage.segments())
    session.compact(first - 1)
    before = session.memory()
    room.compact(float("inf"), 20_000)
    assert session.memory() != before
    session.engine.roll_back()
    assert session.memory() == before
    session.compact(first)
    assert cold_payloads(session) == COLD
    assert session.store.log.segments.oldest == first + 1


def test_few_commits_look_for_work(session: LogSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit asks whether there is something to compact, and knows it without a look at the segments until
    enough is gone."""
    hot, log = session.queue("hot"), session.store.log
    while log.room < 53_000:
        hot.push([Draft(b"x")])
        session.engine.commit()
    upkeep(session.engine, session.clock.now, 1000)
    maintenance = maintenance_of(session.engine)
    looks: list[int] = []
    look = maintenance._look
    monkeypatch.setattr(maintenance, "_look", lambda: looks.append(1) or look())
    monkeypatch.setattr("support.storage.engines.overlooks_work", lambda engine: False)
    for _ in range(5):
        hot.push([Draft(b"x")])
        session.engine.commit()
        assert maintenance.next_due() is None
    assert len(looks) <= 1
    cold = session.queue("cold")
    for mid in cold.list_mids(State.ALL, 999, -1)[:30]:
        cold.delete(Receipt(mid))
    session.engine.commit()
    assert maintenance.next_due() == 0


def test_step_looks_at_few_queues(session: LogSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each segment, all queues are asked for keys and claims in it. With thousands of them, steps end in between,
    and nothing is appended."""
    monkeypatch.setattr(compaction, "_QUEUES", 2)
    for number in range(5):
        session.create(f"idle {number}")
    session.engine.commit()
    work = maintenance_of(session.engine).compaction
    before = work.oldest
    assert [work.step() for _ in range(3)] == [0, 0, 0]
    assert work.oldest == before
    assert work.total == 0
