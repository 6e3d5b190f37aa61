"""Other programs at work on the same root at the same moment, and what our own lists cost them."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from support.storage.engines import Bench, FaultyDisk, always, arrived, failed, files_engine

from qs_storage import vsqs
from qs_storage.disk import Disk
from qs_storage.engine import (
    Draft,
    Durability,
    Options,
    QueueExistsError,
    QueueFullError,
    QueueNotEmptyError,
    Receipt,
    State,
)

LONG_AGO = 1_000_000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(files_engine(Durability.NONE)(tmp_path))
    made.engine.create("q", Options(capacity=2))
    return made


def test_push_to_a_queue_just_made(bench: Bench, tmp_path: Path) -> None:
    """A directory that somebody makes is a queue for the very next push."""
    (tmp_path / "new").mkdir()
    assert bench.engine.queue("new").push([Draft(b"x")])


def test_room_just_made(bench: Bench, tmp_path: Path) -> None:
    """A message that somebody removes makes room for the very next push."""
    first, _ = bench.engine.queue("q").push([Draft(b"x"), Draft(b"y")])
    bench.engine.effects()
    with pytest.raises(QueueFullError):
        bench.engine.queue("q").push([Draft(b"z")])
    (tmp_path / "q" / str(first)).unlink()
    assert bench.engine.queue("q").push([Draft(b"z")])


def test_two_servers_make_the_same_queue(tmp_path: Path) -> None:
    """When two servers make the same queue at the same moment, the slower one reports that it exists."""

    class Slow(Disk):
        def rename(self, old: str, new: str) -> None:  # type: ignore[override]
            if new == str(tmp_path / "q"):
                os.mkdir(new)
                Path(new, ".queue.toml").write_text("visibility = 1\n")
            os.rename(old, new)

    bench = Bench(files_engine(Durability.NONE, always(Slow()))(tmp_path))
    with pytest.raises(QueueExistsError, match="'q' is already an existing queue"):
        bench.engine.create("q", Options())
    assert os.listdir(tmp_path) == ["q"]
    bench.engine.refresh()
    assert bench.engine.queue("q").options.visibility == 1_000_000


def test_what_a_live_server_is_making_stays(tmp_path: Path) -> None:
    """A start removes what a crash left half made or half removed, and not what another server is just at."""
    for name in (".making-live", ".removing-live", ".making-dead", ".removing-dead"):
        (tmp_path / name).mkdir()
    for name in (".making-dead", ".removing-dead"):
        (tmp_path / name / "1").touch()
        os.utime(tmp_path / name, (LONG_AGO, LONG_AGO))
    for name in (".making-live", ".removing-live"):
        os.utime(tmp_path / name, (2e9, 2e9))
    Bench(files_engine(Durability.NONE)(tmp_path))
    assert sorted(os.listdir(tmp_path)) == [".making-live", ".removing-live"]


def test_an_id_without_successors(bench: Bench, tmp_path: Path) -> None:
    """A file with the greatest id there can be is a message, and does not keep others from being pushed."""
    (tmp_path / "q" / "999999999999999999").write_bytes(b"far")
    [mid] = bench.engine.queue("q").push([Draft(b"near")])
    bench.engine.effects()
    assert mid < 10**17
    found = bench.engine.receive(["q"], 5, 100, 1000)
    assert [message.payload for message in found] == [b"near", b"far"]
    bench.reopen()
    bench.engine.queue("q").delete(Receipt(999999999999999999))
    assert bench.engine.queue("q").push([Draft(b"next")]) > [mid]


def test_open_files_are_bounded(tmp_path: Path) -> None:
    """At most two lists' files are open at a time, however many lists are pushed before a flush."""

    class Counting(FaultyDisk):
        most = 0

        def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
            fd = super().open(path, flags, mode)
            self.most = max(self.most, len(self.descriptors))
            return fd

        def fsync(self, fd: int) -> None:  # type: ignore[override]
            """Takes no time."""

    disk = Counting()
    bench = Bench(files_engine(Durability.ALWAYS, always(disk))(tmp_path))
    bench.engine.create("q", Options())
    for _ in range(4):
        bench.engine.queue("q").push([Draft(b"x")] * 600)
    bench.engine.effects()
    assert disk.most <= 1300
    assert failed(bench.engine) == {}
    assert bench.engine.queue("q").stats().ready == 2400


def test_own_lists_do_not_overflow_the_reports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """More changes of our own than the kernel keeps reports of do not make the engine list its directories anew."""
    bench = Bench(files_engine(Durability.NONE)(tmp_path))
    bench.engine.create("q", Options())
    for _ in range(7):
        bench.engine.queue("q").push([Draft(b"x")] * 1000)
    for mid in bench.engine.queue("q").list_mids(State.ALL, 7000, -1):
        bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.refresh()
    assert "listed again" not in caplog.text
    assert bench.engine.queue("q").stats().ready == 0


def test_what_is_no_message_keeps_a_queue(bench: Bench, tmp_path: Path) -> None:
    """A queue whose directory holds something else is not removed without force, and the error names it."""
    (tmp_path / "q" / "notes").touch()
    with pytest.raises(QueueNotEmptyError, match="notes"):
        bench.engine.remove("q", force=False)
    bench.engine.remove("q", force=True)
    assert os.listdir(tmp_path) == []


def test_a_receive_that_fails_is_an_arrival(tmp_path: Path) -> None:
    """A message that could not be read is announced again, for the next receive."""
    disk = FaultyDisk()
    bench = Bench(files_engine(Durability.NONE, always(disk))(tmp_path))
    bench.engine.create("q", Options())
    bench.engine.queue("q").push([Draft(b"x")])
    bench.engine.effects()
    assert arrived(bench.engine) == {"q": 1}
    disk.arm(1, errno.EIO, "open")
    with pytest.raises(OSError, match="Input/output"):
        bench.engine.receive(["q"], 1, 10, 100)
    assert arrived(bench.engine) == {"q": 1}


def test_a_library_queue_whose_directory_is_replaced(tmp_path: Path) -> None:
    """A queue of the library goes on when somebody removes its directory, and when it is made again."""
    with vsqs.Queue(tmp_path / "q", create=True, sync=False) as queue:
        queue.publish(b"lost with the directory")
        shutil.rmtree(tmp_path / "q")
        assert queue.size() == 0
        queue.publish(b"x")
        assert queue.receive(timeout=0) is not None
        shutil.rmtree(tmp_path / "q")
        (tmp_path / "q").mkdir()
        (tmp_path / "q" / "5").write_bytes(b"foreign")
        assert queue.receive(timeout=0) == ("5", b"foreign")


def test_directories_above_are_durable(tmp_path: Path) -> None:
    """Every directory that is made on the way to the root has its name synced; one that is there costs nothing."""

    class Recording(Disk):
        synced: list[str] = []  # noqa: RUF012

        def sync_directory(self, path: str) -> None:
            self.synced.append(os.path.relpath(path, tmp_path))

    disk = Recording()
    disk.make_directories(str(tmp_path / "a" / "b"), sync=True)
    assert disk.synced == [".", "a"]
    disk.make_directories(str(tmp_path / "a" / "b"), sync=True)
    assert disk.synced == [".", "a"]
    disk.make_directories(str(tmp_path / "c"), sync=False)
    assert (tmp_path / "c").is_dir()
    assert disk.synced == [".", "a"]


def test_order_over_units(tmp_path: Path) -> None:
    """A receive over queues that count in micro- and in milliseconds goes by time, not by number."""
    (tmp_path / "ms").mkdir()
    (tmp_path / "ms" / ".queue.toml").write_text('timestamps = "ms"\n')
    bench = Bench(files_engine(Durability.NONE)(tmp_path))
    bench.engine.create("us", Options())
    for payload, qid in ((b"1", "us"), (b"2", "ms"), (b"3", "us"), (b"4", "ms")):
        bench.clock.now += 5000
        bench.engine.queue(qid).push([Draft(payload)])
    found = bench.engine.receive(["ms", "us"], 9, 100, 1000)
    assert [message.payload for message in found] == [b"1", b"2", b"3", b"4"]
