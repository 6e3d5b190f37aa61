"""Tests the files of the history: names, rotation, what stays, and what a start finishes."""

import logging
from pathlib import Path
from typing import Any

import pytest
from support.servers.history import Bench, Folder, lines_of
from support.storage.engines import ManualClock

from qs_server.history.history import History, open_history
from qs_server.main.options import HistoryOptions
from qs_serving.errors import StartError
from qs_storage.disk import Disk


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "history")


def test_open_file_has_hidden_name(bench: Bench) -> None:
    """The open file's name begins with a dot; it gets its final name when it is finished, after a sync."""
    bench.push(1)
    [path] = bench.open
    assert not bench.finished
    assert lines_of(path)[0]["mid"] == 1
    bench.history.close()
    assert [found.name for found in bench.finished] == [path.name[1:]]
    assert not bench.open
    assert bench.disk.calls == ["open", "pwrite", "fsync", "rename", "open", "fsync"]  # the last two: the folder


def test_file_names_sort_by_time(tmp_path: Path) -> None:
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


def test_file_is_finished_at_size(tmp_path: Path) -> None:
    """A file that has reached the size gets no more lines; the one that crosses it is whole."""
    bench = Bench(tmp_path / "history", size=300)
    for number in range(10):
        bench.push(number)
        bench.clock.now += 1
    bench.history.close()
    assert [mid for file in bench.mids for mid in file] == list(range(10))
    assert {len(file) for file in bench.mids[:-1]} == {3}
    assert all(300 <= path.stat().st_size < 500 for path in bench.finished[:-1])


def test_file_is_finished_at_age(bench: Bench) -> None:
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


def test_finish_removes_oldest_files_over_limit(tmp_path: Path) -> None:
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


def test_thread_finishes_full_and_old_files(tmp_path: Path) -> None:
    """Once started, the thread finishes full and old files without a call; a close finishes the rest."""
    bench = Bench(tmp_path / "history", size=1)
    bench.history.start()
    bench.push(1)
    assert bench.folder_done.wait(20)
    assert bench.mids == [[1]]
    bench.clock.now += 1
    bench.history.note("pushed", "q", 2, 0, 0)
    bench.history.close()
    assert bench.mids == [[1], [2]]


def test_thread_waits_for_age(tmp_path: Path) -> None:
    """A file that is not full is finished by its age, on the real clock."""
    folder = Folder(str(tmp_path), Disk())
    history = History(folder, size=1 << 20, age=0.05, clock=ManualClock())
    history.start()
    history.note("pushed", "q", 1, 0, 0)
    history.commit()
    assert folder.finished.wait(20)
    assert [path.name[0] for path in tmp_path.iterdir()] == ["h"]
    history.close()


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
def test_recover_finishes_file_of_killed_server(tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: bytes) -> None:
    """A start finishes the file of a server that was killed, without its torn last line, and says so if there is."""
    caplog.set_level(logging.WARNING)
    path = left_behind(tmp_path / "history", LINE * 3 + torn)
    start(tmp_path / "history", tmp_path / "root").close()
    assert [(found.name, found.read_bytes()) for found in path.parent.iterdir()] == [(path.name[1:], LINE * 3)]
    assert [f"{len(torn)} bytes" in record.getMessage() for record in caplog.records] == [True] * bool(torn)


@pytest.mark.parametrize("content", [b"", LINE[:-1]])
def test_recover_removes_file_without_whole_line(tmp_path: Path, content: bytes) -> None:
    """A file without a whole line is removed."""
    path = left_behind(tmp_path / "history", content)
    start(tmp_path / "history", tmp_path / "root").close()
    assert not list(path.parent.iterdir())


def test_recover_leaves_other_files(tmp_path: Path) -> None:
    """Files that are not of the history stay as they are."""
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


def test_recover_leaves_file_of_living_server(bench: Bench) -> None:
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


def test_open_history_makes_folder(tmp_path: Path) -> None:
    """A folder that is missing is made, with those above it."""
    start(tmp_path / "a" / "b", tmp_path / "root").close()
    assert (tmp_path / "a" / "b").is_dir()


def test_open_history_refuses_file_as_folder(tmp_path: Path) -> None:
    """A file in the place of the folder stops the start with one line that names the flag."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StartError, match=r"^cannot keep the history in .*/file.*: .*--history$"):
            start(path, tmp_path / "root")


@pytest.mark.parametrize("inside", ["", "orders", "orders/history", ".journal", "../link/orders", ".historical"])
def test_open_history_refuses_folder_among_queues(tmp_path: Path, inside: str) -> None:
    """The root and what is in it cannot hold the history, by whatever path: it would be a queue."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(StartError, match="among the queues"):
        start(root / inside, root)
    assert not list(root.iterdir())


@pytest.mark.parametrize("beside", ["root/.history", "root/.history/a", "rooted", "."])
def test_open_history_takes_folder_that_is_no_queue(tmp_path: Path, beside: str) -> None:
    """Beside the root, above it, and under a name in it that no queue can have, the folder is taken."""
    start(tmp_path / beside, tmp_path / "root").close()
    assert (tmp_path / beside).is_dir()
