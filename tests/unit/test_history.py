"""The lifecycle record: what is written when, in which files, and what becomes of it when the disk fails."""

import errno
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.engines import EPOCH, ManualClock

from qs_server.history import record
from qs_server.history.files import HistoryDisk, HistoryFolder, OpenFile
from qs_server.history.record import History, open_history
from qs_server.main.options import HistoryOptions
from qs_serving.listening import StartError

PEER = "127.0.0.1:4711"


class FaultyDisk(HistoryDisk):
    """Room for `room` bytes more (None: any number), and errors for the operations that `faults` names."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.faults: dict[str, int] = {}
        self.calls: list[str] = []

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if name in self.faults:
            raise OSError(self.faults[name], os.strerror(self.faults[name]))

    def open(self, *args: Any) -> int:  # type: ignore[override]
        self._step("open")
        return os.open(*args)

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        self._step("pwrite")
        if self.room is None:
            return os.pwrite(fd, data, offset)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.pwrite(fd, data[: self.room], offset)
        self.room -= written
        return written

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._step("fsync")

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        self._step("rename")
        os.rename(old, new)

    def ftruncate(self, fd: int, size: int) -> None:  # type: ignore[override]
        self._step("ftruncate")
        os.ftruncate(fd, size)


class Folder(HistoryFolder):
    """Says when a file has been finished."""

    def __init__(self, path: str, disk: HistoryDisk, keep: int | None = None) -> None:
        super().__init__(path, disk, keep)
        self.finished = threading.Event()

    def finish(self, file: OpenFile) -> None:
        super().finish(file)
        self.finished.set()


class Bench:
    """A record, with a clock and a timer that stand still, on a disk that can fail."""

    def __init__(self, folder: Path, size: int = 1 << 24, age: float = 60, keep: int | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.clock = ManualClock()
        self.seconds = 0.0
        self.disk = FaultyDisk()
        files = Folder(str(folder), self.disk, keep)
        self.folder_done = files.finished
        self.history = History(files, size=size, age=age, clock=self.clock, timer=lambda: self.seconds)
        self.history.begin(PEER)

    def push(self, *mids: int, qid: str = "q") -> None:
        """A batch in which these are pushed."""
        for mid in mids:
            self.history.note("pushed", qid, mid, 10, 0)
        self.history.commit()

    @property
    def finished(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if not path.name.startswith("."))

    @property
    def open(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.name.startswith("."))

    @property
    def mids(self) -> list[list[int]]:
        """Of the lines in each finished file."""
        return [[line["mid"] for line in lines_of(path)] for path in self.finished]


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text("ascii")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "history")


# -- lines


def test_a_line_is_an_object_with_seven_members(bench: Bench) -> None:
    """Every line says when, what, of which message, how large, how often received, and for whom, in this order."""
    bench.history.note("received", "orders", EPOCH, 12, 3)
    bench.clock.now += 5
    bench.history.commit()
    bench.history.close()
    assert bench.finished[0].read_text() == (
        f'{{"time":{EPOCH + 5},"event":"received","queue":"orders","mid":{EPOCH},"size":12,"receives":3,'
        f'"peer":"{PEER}"}}\n'
    )


def test_a_batch_has_one_time(bench: Bench) -> None:
    """What one commit covers happened at one time, that of its end; what comes later is later, in order."""
    bench.push(1, 2)
    bench.clock.now += 7
    bench.push(3)
    bench.history.close()
    assert [(line["mid"], line["time"]) for line in lines_of(bench.finished[0])] == [
        (1, EPOCH),
        (2, EPOCH),
        (3, EPOCH + 7),
    ]


def test_what_is_not_known_is_null(bench: Bench) -> None:
    """A size or a count that nobody knows is null."""
    bench.history.note("deleted", "q", 1, None, None)
    bench.history.close()
    [line] = lines_of(bench.finished[0])
    assert (line["size"], line["receives"]) == (None, None)


def test_whose_doing_it_is(bench: Bench) -> None:
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
def test_any_name_of_a_queue(bench: Bench, qid: str) -> None:
    """Whatever a queue is called, a line is one line, and says it."""
    bench.push(1, qid=qid)
    bench.history.close()
    assert [line["queue"] for line in lines_of(bench.finished[0])] == [qid]


def test_more_names_than_are_kept(bench: Bench) -> None:
    """Names without end take no memory without end, and stay right."""
    names = [f"q{number}" for number in range(25_000)]
    for name in names:
        bench.history.note("pushed", name, 1, 0, 0)
    assert record._quoted.cache_info().currsize <= 10_000
    bench.history.close()
    assert [line["queue"] for line in lines_of(bench.finished[0])] == names


def test_discarded(bench: Bench) -> None:
    """What was noted in a batch whose commit failed is not in the record; what comes later is."""
    bench.history.note("pushed", "q", 1, 0, 0)
    bench.history.discard()
    bench.history.commit()
    assert not bench.open
    bench.push(2)
    bench.history.close()
    assert bench.mids == [[2]]


def test_nothing_happens(bench: Bench) -> None:
    """Without an event there is no file, and no call of the disk."""
    bench.history.commit()
    bench.history.finish_due()
    bench.history.close()
    assert not list(bench.folder.iterdir())
    assert not bench.disk.calls


def test_one_write_a_batch(bench: Bench) -> None:
    """However many events a batch has, they are written at once."""
    bench.push(*range(1000))
    assert bench.disk.calls == ["open", "pwrite"]
    bench.history.close()


def test_a_batch_of_very_many(bench: Bench) -> None:
    """A batch with more lines than are to be in memory is written in pieces, whole and in order."""
    bench.push(*range(50_000))
    assert bench.disk.calls.count("pwrite") == 3
    bench.history.close()
    assert [mid for file in bench.mids for mid in file] == list(range(50_000))


# -- files


def test_the_open_file_is_hidden(bench: Bench) -> None:
    """What is being written begins with a dot, and has no other name until it is finished, synced before renamed."""
    bench.push(1)
    [path] = bench.open
    assert not bench.finished
    assert lines_of(path)[0]["mid"] == 1
    bench.history.close()
    assert [found.name for found in bench.finished] == [path.name[1:]]
    assert not bench.open
    assert bench.disk.calls == ["open", "pwrite", "fsync", "rename", "open", "fsync"]  # the last two: the folder


def test_names_sort_by_time(tmp_path: Path) -> None:
    """A name has the time of the first line, in UTC, so that it sorts; and a part of its own."""
    bench = Bench(tmp_path / "history", size=1)
    for number in range(12):
        bench.push(number)
        bench.clock.now += 3_000_001
    bench.history.finish_due()
    assert bench.mids == [[number] for number in range(12)]
    assert bench.finished[0].name.startswith("history-20251009T085320.000000Z-")
    assert bench.finished[1].name.startswith("history-20251009T085323.000001Z-")
    bench.history.close()


def test_rotation_by_size(tmp_path: Path) -> None:
    """A file that has reached the size gets no more lines; the one that crosses it is whole."""
    bench = Bench(tmp_path / "history", size=300)
    for number in range(10):
        bench.push(number)
        bench.clock.now += 1
    bench.history.close()
    assert [mid for file in bench.mids for mid in file] == list(range(10))
    assert {len(file) for file in bench.mids[:-1]} == {3}
    assert all(300 <= path.stat().st_size < 500 for path in bench.finished[:-1])


def test_rotation_by_age(bench: Bench) -> None:
    """A file is finished so long after its first line, and not before; the next line begins another one."""
    bench.push(1)
    bench.seconds = 59.9
    bench.push(2)
    bench.history.finish_due()
    assert not bench.finished
    bench.seconds = 60
    bench.history.finish_due()
    assert bench.mids == [[1, 2]]
    bench.seconds = 1000
    bench.history.finish_due()
    bench.clock.now += 1
    bench.push(3)
    bench.history.finish_due()
    assert bench.mids == [[1, 2]]
    bench.seconds = 1060
    bench.history.finish_due()
    assert bench.mids == [[1, 2], [3]]
    bench.history.close()


def test_the_oldest_go(tmp_path: Path) -> None:
    """With a bound on what stays, the oldest finished files are removed, the last never, and nothing else."""
    bench = Bench(tmp_path / "history", size=1, keep=350)
    other = bench.folder / "history-notes.txt"
    other.write_text("x" * 1000)
    for number in range(6):
        bench.push(number)
        bench.clock.now += 1
        bench.history.finish_due()
    kept = [path for path in bench.finished if path != other]
    assert [lines_of(path)[0]["mid"] for path in kept] == [3, 4, 5]
    assert other.exists()
    bench.history.close()
    small = Bench(tmp_path / "small", size=1, keep=1)
    small.push(1)
    small.history.close()
    assert small.mids == [[1]]


def test_the_thread_finishes_what_is_due(tmp_path: Path) -> None:
    """Once started, full and old files are finished without anybody's call; a close finishes the rest."""
    bench = Bench(tmp_path / "history", size=1)
    bench.history.start()
    bench.push(1)
    assert bench.folder_done.wait(20)
    assert bench.mids == [[1]]
    bench.clock.now += 1
    bench.history.note("pushed", "q", 2, 0, 0)
    bench.history.close()
    assert bench.mids == [[1], [2]]


def test_the_thread_waits_for_the_age(tmp_path: Path) -> None:
    """A file that is not full is finished by its age, on the real clock."""
    folder = Folder(str(tmp_path), HistoryDisk())
    history = History(folder, size=1 << 20, age=0.05, clock=ManualClock())
    history.start()
    history.note("pushed", "q", 1, 0, 0)
    history.commit()
    assert folder.finished.wait(20)
    assert [path.name[0] for path in tmp_path.iterdir()] == ["h"]
    history.close()


# -- a disk that fails


def test_a_full_disk(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_full_disk_is_not_asked_for_each_batch(bench: Bench) -> None:
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


def test_a_torn_line_that_cannot_be_taken_back(bench: Bench) -> None:
    """What a failed write has left is cut off before anything else is written."""
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


def test_no_file_can_be_made(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """When no file can be opened events are lost until one can; a close says how many were."""
    bench.disk.faults["open"] = errno.EMFILE
    bench.push(1, 2)
    bench.history.close()
    assert "2 events are not in the history" in caplog.text
    assert not list(bench.folder.iterdir())


@pytest.mark.parametrize("operation", ["fsync", "rename"])
def test_a_file_that_cannot_be_finished(bench: Bench, caplog: pytest.LogCaptureFixture, operation: str) -> None:
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
    HistoryFolder(str(bench.folder), HistoryDisk()).recover()
    assert bench.mids == [[1], [2]]


def test_an_empty_file_is_not_kept(bench: Bench) -> None:
    """A file in which nothing could be written goes when its time is over."""
    bench.disk.room = 0
    bench.push(1)
    assert bench.open
    bench.seconds = 60
    bench.history.finish_due()
    assert not list(bench.folder.iterdir())
    bench.history.close()


# -- starts


def start(folder: Path, root: Path, **options: Any) -> History:
    return open_history(HistoryOptions(str(folder), **options), str(root), ManualClock())


def left_behind(folder: Path, content: bytes, name: str = ".history-20251009T085320.000000Z-0123abcd.jsonl") -> Path:
    """A file that a killed server has left."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


LINE = b'{"time":1,"event":"pushed","queue":"q","mid":1,"size":0,"receives":0,"peer":""}\n'


@pytest.mark.parametrize("torn", [b"", LINE[:-1], LINE[:1], b"\0" * 5000, b"x" * 200_000])
def test_what_a_kill_left_is_finished(tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: bytes) -> None:
    """A start finishes the file of a server that was killed, without its torn last line, and says so if there is."""
    caplog.set_level(logging.WARNING)
    path = left_behind(tmp_path / "history", LINE * 3 + torn)
    start(tmp_path / "history", tmp_path / "root").close()
    assert [(found.name, found.read_bytes()) for found in path.parent.iterdir()] == [(path.name[1:], LINE * 3)]
    assert [f"{len(torn)} bytes" in record.getMessage() for record in caplog.records] == [True] * bool(torn)


@pytest.mark.parametrize("content", [b"", LINE[:-1]])
def test_a_kill_before_the_first_line(tmp_path: Path, content: bytes) -> None:
    """A file without a whole line is removed."""
    path = left_behind(tmp_path / "history", content)
    start(tmp_path / "history", tmp_path / "root").close()
    assert not list(path.parent.iterdir())


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """What is not of the record stays as it is."""
    names = [
        ".history-notes",
        ".hidden.jsonl",
        "history-x.jsonl",
        ".history-20251009T085320.000000Z-0123abcd.jsonl.tmp",
    ]
    for name in names:
        left_behind(tmp_path / "history", b"x", name)
    start(tmp_path / "history", tmp_path / "root").close()
    assert sorted(path.name for path in (tmp_path / "history").iterdir()) == sorted(names)


def test_two_servers_share_a_folder(bench: Bench) -> None:
    """Servers that share a folder write files of their own, and a start does not finish those of one that lives."""
    bench.push(1)
    other = start(bench.folder, bench.folder.parent / "root")
    assert len(bench.open) == 1
    assert not bench.finished
    other.note("pushed", "q", 2, 0, 0)
    other.commit()
    assert len(bench.open) == 2
    bench.push(3)
    bench.history.close()
    other.close()
    assert sorted(bench.mids) == [[1, 3], [2]]


def test_the_folder_is_made(tmp_path: Path) -> None:
    """A folder that is missing is made, with those above it."""
    start(tmp_path / "a" / "b", tmp_path / "root").close()
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    """What cannot be a folder stops the start with one line that names the flag."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StartError, match=r"^cannot keep the history in .*/file.*: .*--history$"):
            start(path, tmp_path / "root")


@pytest.mark.parametrize("inside", ["", "orders", "orders/history", ".journal", "../link/orders", ".historical"])
def test_a_folder_among_the_queues(tmp_path: Path, inside: str) -> None:
    """The root and what is in it cannot hold the record, by whatever path: it would be a queue."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(StartError, match="among the queues"):
        start(root / inside, root)
    assert not list(root.iterdir())


@pytest.mark.parametrize("beside", ["root/.history", "root/.history/a", "rooted", "."])
def test_a_folder_that_is_no_queue(tmp_path: Path, beside: str) -> None:
    """Beside the root, above it, and under a name in it that no queue can have, the record is taken."""
    start(tmp_path / beside, tmp_path / "root").close()
    assert (tmp_path / beside).is_dir()
