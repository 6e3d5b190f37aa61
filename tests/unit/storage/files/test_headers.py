"""The headers of messages in files: as an attribute, or in a hidden file."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.storage.calls import fail, listed, receive
from support.storage.engines import Bench, FaultyDisk, always, files_engine

from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Headers, Receipt
from qs_storage.metadata import HeaderStore, StoredHeaders
from qs_storage.tools.elements import VSQS, purge

SMALL: Headers = (("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("a", "\u00e9"))
LARGE: Headers = (("large", "x" * 2000),)
STORED = b'[["large","%s"]]' % (b"x" * 2000)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def bench(tmp_path: Path, disk: FaultyDisk) -> Bench:
    """A queue `q` of files, on a file system with extended attributes."""
    bench = Bench(files_engine(Durability.ALWAYS, always(disk))(tmp_path))
    bench.queue()
    return bench


def push(bench: Bench, headers: Headers, qid: str = "q") -> int:
    [mid] = bench.engine.queue(qid).push([Draft(b"x", headers=headers)])
    bench.engine.commit()
    return mid


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()} - {".queue.toml"}


def test_small_ones_are_an_attribute(bench: Bench, tmp_path: Path) -> None:
    """Usual headers are an attribute of the message's file, as readable JSON, and nothing else is there."""
    mid = push(bench, SMALL)
    assert names(tmp_path / "q") == {str(mid)}
    stored = os.getxattr(tmp_path / "q" / str(mid), "user.qs.headers").decode()
    assert stored == f'[["traceparent","{SMALL[0][1]}"],["a","\u00e9"]]'


def test_a_plain_message_has_none(bench: Bench, tmp_path: Path) -> None:
    """A message without headers has no attribute."""
    mid = push(bench, ())
    assert os.listxattr(tmp_path / "q" / str(mid)) == []


def test_large_ones_are_a_file(bench: Bench, tmp_path: Path) -> None:
    """Larger ones are in a hidden file, whose size is the attribute, and which goes with its message."""
    mid = push(bench, LARGE)
    assert names(tmp_path / "q") == {str(mid), f".{mid}.headers"}
    assert (tmp_path / "q" / f".{mid}.headers").read_bytes() == STORED
    assert os.getxattr(tmp_path / "q" / str(mid), "user.qs.headers") == b"%d" % len(STORED)
    bench.reopen()
    bench.engine.queue("q").delete(Receipt(mid))
    assert names(tmp_path / "q") == set()


def test_large_ones_move_along(bench: Bench, tmp_path: Path) -> None:
    """The hidden file of a dead letter is in its new directory, under its new id, and nowhere else."""
    bench.queue("dying", dead_letter="dead", max_receives=1)
    push(bench, LARGE, "dying")
    fail(bench, "dying", times=1)
    [dead] = listed(bench, qid="dead")
    assert names(tmp_path / "dying") == set()
    assert names(tmp_path / "dead") == {str(dead), f".{dead}.headers"}


def test_all_attributes_at_once(bench: Bench, tmp_path: Path) -> None:
    """The largest headers in an attribute leave room for a reason, two origins and counts."""
    headers: Headers = (("h", "x" * 1000),)
    for qid, target in (("one", "two" * 60), ("two" * 60, "three" * 36)):
        bench.queue(qid, dead_letter=target, max_receives=5)
    mid = push(bench, headers, "one")
    for qid in ("one", "two" * 60):
        [message] = receive(bench, qid)
        bench.engine.queue(qid).reject(Receipt(message.mid), "\u20ac" * 341)
    bench.engine.commit()
    bench.reopen()
    [message] = receive(bench, "three" * 36)
    assert message.origin is not None
    assert (message.headers, message.reason, message.origin.pushed_at) == (headers, "\u20ac" * 341, mid)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.E2BIG, errno.ERANGE])
def test_a_file_system_with_little_room(bench: Bench, disk: FaultyDisk, tmp_path: Path, code: int) -> None:
    """Headers for which an attribute has no room are in a hidden file, though they are small."""
    disk.arm(1, code, "setxattr")
    mid = push(bench, SMALL)
    assert names(tmp_path / "q") == {str(mid), f".{mid}.headers"}
    bench.reopen()
    [message] = receive(bench)
    assert message.headers == SMALL


@pytest.mark.parametrize("headers", [SMALL, LARGE], ids=["small", "large"])
def test_a_push_that_fails_leaves_nothing(bench: Bench, disk: FaultyDisk, tmp_path: Path, headers: Headers) -> None:
    """A push whose headers cannot be written fails, at whatever step, and leaves nothing behind."""
    queue = bench.engine.queue("q")
    at = 0
    while True:
        at += 1
        disk.arm(at, errno.EIO)
        try:
            queue.push([Draft(b"x", headers=headers)])
        except OSError:
            assert disk.failed
            assert names(tmp_path / "q") == set()
            continue
        disk.disarm()
        break
    assert at > 3
    bench.engine.commit()
    [message] = receive(bench)
    assert message.headers == headers


@pytest.mark.parametrize("headers", [SMALL, LARGE], ids=["small", "large"])
def test_a_move_that_fails_loses_nothing(bench: Bench, disk: FaultyDisk, tmp_path: Path, headers: Headers) -> None:
    """A dead letter that cannot move stays with its headers, and nothing of it is left in the other queue."""
    bench.queue("dying", dead_letter="dead", max_receives=9)
    bench.queue("dead")
    mid = push(bench, headers, "dying")
    bench.clock.tick()
    at, moved = 0, False
    while not moved:
        at += 1
        disk.arm(at, errno.EIO)
        try:
            bench.engine.queue("dying").reject(Receipt(mid), None)
            moved = True
        except OSError:
            assert names(tmp_path / "dead") == set()
            assert bench.engine.queue("dying").get(mid, peek=True, visibility=None).headers == headers
        disk.disarm()
    assert at > 3
    [message] = receive(bench, "dead")
    assert message.headers == headers
    # The removal of the hidden file failed, which the log says: a later start removes the file.
    assert names(tmp_path / "dying") == ({f".{mid}.headers"} if headers is LARGE else set())


def test_a_vsqs_program_removes_a_message(bench: Bench, tmp_path: Path) -> None:
    """The hidden file of a message that is gone is removed by a start, once it is old; that of one that is being
    written stays."""
    gone, written = push(bench, LARGE), push(bench, LARGE)
    directory = tmp_path / "q"
    (directory / str(gone)).unlink()
    (directory / str(written)).rename(directory / f"{written}.new")
    bench.reopen()
    assert f".{gone}.headers" in names(directory)
    then = bench.clock() / 10**6 - 601
    for mid in (gone, written):
        os.utime(directory / f".{mid}.headers", (then, then))
    bench.reopen()
    assert names(directory) == {f"{written}.new", f".{written}.headers"}


def test_a_purge_removes_them(bench: Bench, tmp_path: Path) -> None:
    """The command that empties a directory takes the hidden files along."""
    for headers in (SMALL, LARGE, ()):
        push(bench, headers)
    bench.engine.close()
    assert purge(str(tmp_path / "q"), VSQS, None, None, everything=True).removed == 3
    assert names(tmp_path / "q") == set()
    bench.engine = bench.make(bench.clock)


def test_a_server_beside(bench: Bench, tmp_path: Path) -> None:
    """Another server sees the headers of messages that are pushed, received and given back here."""
    other = Bench(files_engine(Durability.ALWAYS)(tmp_path))
    other.clock = bench.clock
    for headers in (SMALL, LARGE):
        mid = push(bench, headers)
        other.engine.refresh()
        assert other.engine.queue("q").get(mid, peek=True, visibility=None).headers == headers
        [message] = receive(bench)
        bench.engine.queue("q").release(Receipt(mid, message.receives), 0)
        bench.engine.commit()
        other.engine.refresh()
        [message] = receive(other)
        assert (message.mid, message.headers) == (mid, headers)
        bench.engine.refresh()
    other.engine.close()


def test_a_message_that_moves_while_it_is_read(bench: Bench, tmp_path: Path) -> None:
    """A message that another program takes between the reading of payload and headers is not given out without them."""
    mid = push(bench, SMALL)
    bench.reopen()
    path = tmp_path / "q" / str(mid)
    queue = bench.engine.queue("q")

    class Racing(Disk):
        def read_all(self, fd: int, size: int) -> bytes:
            path.rename(path.with_name(f"{mid}.{bench.clock() + 10**7}"))
            return super().read_all(fd, size)

    queue.store._disk = Racing()  # type: ignore[attr-defined]
    assert receive(bench) == []


STORES: dict[str, Callable[[Path, Disk], HeaderStore]] = {
    "attributes": lambda path, disk: HeaderStore(str(path), disk, beside=False, sync=True),
    "beside": lambda path, disk: HeaderStore(str(path), disk, beside=True, sync=True),
}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("headers", [SMALL, LARGE], ids=["small", "large"])
def test_headers_round_trip(tmp_path: Path, kind: str, headers: Headers) -> None:
    """Headers are found where they were written, and read as written; nothing once they are forgotten."""
    store = STORES[kind](tmp_path, Disk())
    (tmp_path / "5").touch()
    path = str(tmp_path / "5")
    assert store.find(path, 5) is None
    written = store.write(path, 5, headers)
    assert written.is_file is (kind == "beside" or headers is LARGE)
    assert store.find(path, 5) == written
    assert store.read(path, 5, is_file=written.is_file) == headers
    os.unlink(path)
    store.forget(5)
    store.forget(5)
    assert store.find(path, 5) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "found"),
    [(b"nonsense", StoredHeaders(8, False)), (b"7", None), (b"0", StoredHeaders(1, False)), (b"", None)],
)
def test_what_another_program_wrote(tmp_path: Path, value: bytes, found: StoredHeaders | None) -> None:
    """An attribute that names a hidden file that is not there, or is not in the format, counts as no headers."""
    store = STORES["attributes"](tmp_path, Disk())
    (tmp_path / "5").touch()
    os.setxattr(tmp_path / "5", "user.qs.headers", value)
    assert store.find(str(tmp_path / "5"), 5) == found
    assert store.read(str(tmp_path / "5"), 5, is_file=False) == ()
