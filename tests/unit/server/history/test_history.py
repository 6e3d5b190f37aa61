"""Tests the lines of the history, and what becomes of them when the disk fails."""

import errno
from pathlib import Path

import pytest
from support.servers.history import PEER, Bench, lines_of
from support.storage.engines import EPOCH

from qs_server.history.history import HistoryFolder, quoted
from qs_storage.disk import Disk


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "history")


def test_note_writes_object_with_seven_members(bench: Bench) -> None:
    """Every line says when, what, of which message, how large, how often received, and for whom, in this order."""
    bench.history.note("received", "orders", EPOCH, 12, 3)
    bench.clock.now += 5
    bench.history.commit()
    bench.history.close()
    assert bench.finished[0].read_text() == (
        f'{{"time":{EPOCH + 5},"event":"received","queue":"orders","mid":{EPOCH},"size":12,"receives":3,'
        f'"peer":"{PEER}"}}\n'
    )


def test_note_of_pushed_has_trace_at_its_end(bench: Bench) -> None:
    """A trace is one more member, also if a producer has put anything there; without one, there is no such member."""
    bench.history.note("pushed", "orders", EPOCH, 12, 0, trace='00-4b"\né')
    bench.push(1)
    bench.history.commit()
    bench.history.close()
    traced, plain = lines_of(bench.finished[0])
    assert list(traced.items())[-2:] == [("peer", PEER), ("traceparent", '00-4b"\né')]
    assert "traceparent" not in plain


def test_commit_gives_lines_of_batch_one_time(bench: Bench) -> None:
    """All events of one commit have the time of its end; later ones are later, in order."""
    bench.push(1, 2)
    bench.clock.now += 7
    bench.push(3)
    bench.history.close()
    assert [(line["mid"], line["time"]) for line in lines_of(bench.finished[0])] == [
        (1, EPOCH),
        (2, EPOCH),
        (3, EPOCH + 7),
    ]


def test_note_of_unknown_size_or_receives_is_null(bench: Bench) -> None:
    """A size or a count that nobody knows is null."""
    bench.history.note("deleted", "q", 1, None, None)
    bench.history.close()
    [line] = lines_of(bench.finished[0])
    assert (line["size"], line["receives"]) == (None, None)


def test_note_names_peer_of_begin_or_its_own(bench: Bench) -> None:
    """A line has the peer that was begun with, unless the event says whose it is; the empty one is nobody."""
    history = bench.history
    history.note("pushed", "q", 1, 0, 0)
    history.begin("[::1]:80")
    history.note("pushed", "q", 2, 0, 0)
    history.note("pushed", "q", 3, 0, 0, peer=PEER)
    history.note("expired", "q", 1, 0, 0, peer="")
    history.begin("")
    history.note("released", "q", 1, 0, 0)
    history.close()
    assert [line["peer"] for line in lines_of(bench.finished[0])] == [PEER, "[::1]:80", PEER, "", ""]


@pytest.mark.parametrize("qid", ['a"b', "a\\b", "a/b", "ü 日 🐟", "\u2028", "}{,:", "a'b", "null"])
def test_note_quotes_any_queue_name(bench: Bench, qid: str) -> None:
    """A queue's name of any characters leaves a line one line, and can be read from it."""
    bench.push(1, qid=qid)
    bench.history.close()
    assert [line["queue"] for line in lines_of(bench.finished[0])] == [qid]


def test_quoted_names_are_bounded(bench: Bench) -> None:
    """Names without end take no memory without end, and stay right."""
    names = [f"q{number}" for number in range(25_000)]
    for name in names:
        bench.history.note("pushed", name, 1, 0, 0)
    assert quoted.cache_info().currsize <= 10_000
    bench.history.close()
    assert [line["queue"] for line in lines_of(bench.finished[0])] == names


def test_note_all_writes_what_note_writes(bench: Bench) -> None:
    """The lines of an event of many messages are those of as many events, in the same order."""
    history = bench.history
    history.begin(PEER)
    history.note_all("received", "q", [1, 2, 3], [10, 0, 7], iter([1, 2, 1]))
    for mid, size, receives in ((1, 10, 1), (2, 0, 2), (3, 7, 1)):
        history.note("received", "q", mid, size, receives)
    history.close()
    lines = lines_of(bench.finished[0])
    assert len(lines) == 6
    assert lines[:3] == lines[3:]


def test_discard_drops_events_of_failed_commit(bench: Bench) -> None:
    """Events of a batch whose commit failed are not written; later ones are."""
    bench.history.note("pushed", "q", 1, 0, 0)
    bench.history.discard()
    bench.history.commit()
    assert not bench.open
    bench.push(2)
    bench.history.close()
    assert bench.mids == [[2]]


def test_commit_without_events_makes_no_file(bench: Bench) -> None:
    """Without an event there is no file, and no call of the disk."""
    bench.history.commit()
    bench.history.finish_due()
    bench.history.close()
    assert not list(bench.folder.iterdir())
    assert not bench.disk.calls


def test_commit_writes_batch_at_once(bench: Bench) -> None:
    """All events of a batch are written at once."""
    bench.push(*range(1000))
    assert bench.disk.calls == ["open", "pwrite"]
    bench.history.close()


def test_note_writes_pieces_of_very_large_batch(bench: Bench) -> None:
    """A batch with more lines than are to be in memory is written in pieces, whole and in order."""
    bench.push(*range(50_000))
    assert bench.disk.calls.count("pwrite") == 3
    bench.history.close()
    assert [mid for file in bench.mids for mid in file] == list(range(50_000))


def test_commit_on_full_disk_loses_events_and_says_so(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """While the disk is full events are lost, with one line in the log; once there is room, a line says how many, and
    the file has whole lines only."""
    bench.push(1)
    bench.disk.room = 150
    bench.push(2, 3, 4)
    bench.disk.room = 0
    for mid in range(5, 10):
        bench.seconds += 2
        bench.push(mid)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "No space left" in caplog.text
    bench.disk.room = None
    bench.seconds += 2
    bench.push(10)
    bench.push(11)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "8 events" in caplog.records[1].getMessage()
    bench.history.close()
    assert bench.mids == [[1, 10, 11]]


def test_commit_does_not_try_full_disk_for_a_second(bench: Bench) -> None:
    """After a failure nothing is tried for a second, so that a nearly full disk does not fill the log."""
    bench.disk.room = 0
    bench.push(1)
    calls = len(bench.disk.calls)
    bench.disk.room = None
    bench.push(2)
    assert len(bench.disk.calls) == calls
    bench.seconds = 1
    bench.push(3)
    bench.history.close()
    assert bench.mids == [[3]]


def test_commit_cuts_off_torn_line_first(bench: Bench) -> None:
    """The torn line of a failed write is cut off before anything else is written."""
    bench.push(1)
    bench.disk.room = 50
    bench.disk.faults["ftruncate"] = errno.EIO
    bench.push(2)
    bench.disk.room = None
    bench.seconds = 2
    bench.push(3)
    assert bench.open[0].read_bytes().count(b"\n") == 1
    del bench.disk.faults["ftruncate"]
    bench.seconds = 4
    bench.push(4)
    bench.history.close()
    assert bench.mids == [[1, 4]]


def test_close_says_how_many_events_were_lost(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """When no file can be opened events are lost until one can; a close says how many were."""
    bench.disk.faults["open"] = errno.EMFILE
    bench.push(1, 2)
    bench.history.close()
    assert "2 events are not in the history" in caplog.text
    assert not list(bench.folder.iterdir())


@pytest.mark.parametrize("operation", ["fsync", "rename"])
def test_finish_that_fails_is_left_to_next_start(
    bench: Bench, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    """A file that cannot be synced or renamed stays hidden, with a line in the log, and the next start finishes it."""
    bench.disk.faults[operation] = errno.EIO
    bench.push(1)
    bench.seconds = 60
    bench.history.finish_due()
    assert "could not be finished" in caplog.text
    assert not bench.finished
    bench.disk.faults.clear()
    bench.clock.now += 1
    bench.push(2)
    bench.history.close()
    assert bench.mids == [[2]]
    HistoryFolder(str(bench.folder), Disk()).recover()
    assert bench.mids == [[1], [2]]


def test_finish_removes_empty_file(bench: Bench) -> None:
    """A file in which nothing could be written goes when its time is over."""
    bench.disk.room = 0
    bench.push(1)
    assert bench.open
    bench.seconds = 60
    bench.history.finish_due()
    assert not list(bench.folder.iterdir())
    bench.history.close()
