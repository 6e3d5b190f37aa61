"""Files that are put into the directory of a queue of the journal become messages, each exactly once."""

import errno
import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.storage.directories import LARGE, SMALL
from support.storage.engines import EPOCH, Crash
from support.storage.ingest import IngestCase

from qs_storage.engine import Durability, QueueNotEmptyError
from qs_storage.journal.upkeep import ingest_run
from qs_storage.metadata import HeaderStore

pytestmark = pytest.mark.usefixtures("small_first_segment")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[IngestCase]:
    made = IngestCase(tmp_path / "root")
    yield made
    made.disk.crash()
    made.engine._watch.close()


def test_a_file_becomes_the_message_of_its_id(place: IngestCase) -> None:
    """A file's message keeps its id, the file goes from the directory, the message is there after a restart, and later
    ids are greater."""
    place.put(EPOCH + 5, b"one")
    place.put(7, b"seven")
    place.settle()
    assert place.files() == []
    assert place.mids() == [7, EPOCH + 5]
    assert place.push(b"next")[0] > EPOCH + 5
    place.crash()
    assert [place.payload(mid) for mid in place.mids()] == [b"seven", b"one", b"next"]
    assert place.engine.queue("q").stats().ready == 3


def test_many_files_come_in_their_order(place: IngestCase) -> None:
    """More than are taken in together: nobody gets a newer one before an older one."""
    place.settle()
    for mid in range(1, 901):
        place.put(mid, b"x")
    place.engine.refresh()
    while place.step():
        assert place.mids() == list(range(1, len(place.mids()) + 1))
    assert len(place.mids()) == 900


def test_files_from_before_a_start_are_found(place: IngestCase) -> None:
    """A start finds files that came before it, also while no server ran."""
    place.engine.close()
    place.put(3, b"three")
    place.start()
    place.settle()
    assert (place.mids(), place.files()) == ([3], [])


def test_an_id_that_is_taken_gives_a_new_one(place: IngestCase) -> None:
    """A file gets another id if its own is taken, by a message or by another file of the same moment."""
    [mid] = place.push(b"pushed")
    place.put(mid, b"file")
    place.put(f"5.{EPOCH + 10**9}", b"hidden")
    place.put(5, b"five")
    place.settle()
    assert place.files() == []
    assert place.payload(mid) == b"pushed"
    place.clock.now += 10**9
    assert sorted(place.consume()) == [b"file", b"five", b"hidden", b"pushed"]


@pytest.mark.parametrize(
    ("receives", "delayed", "state"), [(None, False, "in-flight"), (3, False, "in-flight"), (None, True, "delayed")]
)
def test_a_hidden_file_stays_hidden_until_its_time(
    place: IngestCase, receives: int | None, delayed: bool, state: str
) -> None:
    """With the count and the kind of window that its attributes tell; over a restart too."""
    until = EPOCH + 1000
    made = place.root / ".made"
    made.write_bytes(b"x")
    if receives:
        os.setxattr(made, "user.qs.receives", b"%d" % receives)
    if delayed:
        os.setxattr(made, "user.qs.delayed", b"%d" % until)
    made.rename(place.path / f"9.{until}")
    place.settle()
    for _ in range(2):
        message = place.engine.queue("q").get(9, peek=True, visibility=None)
        assert (message.status, message.receives, message.visible_at) == (state, receives or 0, until)
        place.crash()
    place.clock.now = until
    place.engine.expire(10)
    assert place.consume() == [b"x"]


@pytest.mark.parametrize("attributes", [True, False], ids=["attributes", "beside"])
def test_headers_come_along(place: IngestCase, attributes: bool) -> None:
    """A file's headers are those of its message, also after a restart and under another id; nothing of them stays."""
    place.disk.attributes = attributes
    store = HeaderStore(str(place.path), place.disk, beside=not attributes, sync=False)
    [taken] = place.push(b"pushed")
    for mid, headers in ((7, SMALL), (8, LARGE), (taken, LARGE)):
        made = place.root / ".made"
        made.write_bytes(b"x")
        store.write(str(made), mid, headers)
        made.rename(place.path / str(mid))
    place.put(9, b"plain")
    place.settle()
    assert [each.name for each in place.path.iterdir()] == [".queue.toml"]
    for _ in range(2):
        queue = place.engine.queue("q")
        found = [queue.get(mid, peek=True, visibility=None) for mid in place.mids()]
        assert [(message.mid, message.headers) for message in found[:4]] == [
            (7, SMALL),
            (8, LARGE),
            (9, ()),
            (taken, ()),
        ]
        assert [(message.payload, message.headers) for message in found[4:]] == [(b"x", LARGE)]
        place.crash()


def test_without_extended_attributes(place: IngestCase) -> None:
    """The file beside it that has the count is read, and goes with the file."""
    place.disk.attributes = False
    until = EPOCH + 1000
    (place.path / ".9.attributes").write_bytes(b"4 %d\n" % until)
    place.put(f"9.{until}", b"x")
    place.settle()
    message = place.engine.queue("q").get(9, peek=True, visibility=None)
    assert (message.status, message.receives, message.visible_at) == ("delayed", 4, until)
    assert place.files() == []


def test_what_is_no_message_stays_and_is_named_once(place: IngestCase, caplog: pytest.LogCaptureFixture) -> None:
    """A name that is none of a message, a link, a file that is too large; and unfinished ones, silently."""
    place.settle()
    place.put("notes.txt", b"")
    place.put("5.new", b"")
    (place.root / ".link").symlink_to("/etc/passwd")
    (place.root / ".link").rename(place.path / "6")
    place.put(8, b"")
    os.truncate(place.path / "8", ingest_run.MAX_SIZE + 1)
    place.settle()
    place.put("notes.txt", b"")
    place.settle()
    assert place.files() == ["5.new", "6", "8", "notes.txt"]
    named = sorted(record.getMessage().partition(" is no message, and stays: ")[2] for record in caplog.records)
    assert named == [
        "it has 67108865 bytes; the limit is 67108864",
        "it is a symbolic link",
        "it is not named as a message",
    ]
    with pytest.raises(QueueNotEmptyError):
        place.engine.remove("q", force=False)


def test_many_files_come_in_bounded_pieces(place: IngestCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are reported one by one, and many times what one commit takes."""
    monkeypatch.setattr("qs_storage.journal.upkeep.ingest._NAMES", 50)
    monkeypatch.setattr(ingest_run, "_FILES", 20)
    monkeypatch.setattr(ingest_run, "_LOOKED_AT", 30)
    for number in range(1, 300):
        place.put(number, b"%d" % number)
    biggest = 0
    place.engine.refresh()
    while True:
        before = len(place.mids())
        if not place.step():
            break
        biggest = max(biggest, len(place.mids()) - before)
    assert (place.mids(), place.files()) == (list(range(1, 300)), [])
    assert biggest == 20


def test_files_wait_while_the_queue_is_full(tmp_path: Path) -> None:
    """The capacity holds, nothing is polled for, and a deletion lets the next ones in."""
    place = IngestCase(tmp_path / "root", capacity=3)
    for number in range(1, 8):
        place.put(number, b"%d" % number)
    place.settle()
    assert place.mids() == [1, 2, 3]
    assert place.engine.effects().next_upkeep is None or place.engine.effects().next_upkeep > place.clock()  # type: ignore[operator]
    assert place.consume() == [b"1", b"2", b"3"]
    place.settle()
    assert place.mids() == [4, 5, 6]
    place.engine.close()


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("consumed", [False, True])
def test_a_crash_at_every_file_operation(tmp_path: Path, durability: Durability, consumed: bool) -> None:
    """Each file is a message exactly once, also if that was consumed before its file was gone."""
    for at in itertools.count(1):
        place = IngestCase(tmp_path / f"{at}", durability)
        for number in range(1, 4):
            place.put(number, b"%d" % number)
        got: list[bytes] = []
        place.engine.refresh()
        place.disk.arm(at, Crash)
        try:
            while place.step():
                if consumed:
                    got += place.consume()
        except Crash:
            pass
        crashed = bool(place.disk.failed)
        place.crash()
        place.settle()
        unsure = place.unsure  # durably deleted, if the crash came after the write of the commit
        got += place.consume() or unsure
        assert (sorted(got), place.files()) == ([b"1", b"2", b"3"], []), at
        place.crash()
        place.settle()
        assert place.consume() == []
        place.engine.close()
        if not crashed:
            break
    assert at > 15


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_an_error_at_every_file_operation(tmp_path: Path, error: int) -> None:
    """An error at any file operation loses or doubles no message. The upkeep goes on by itself, or after a start if the
    journal has failed."""
    for at in itertools.count(1):
        place = IngestCase(tmp_path / f"{at}")
        for number in range(1, 4):
            place.put(number, b"%d" % number)
        place.engine.refresh()
        place.disk.arm(at, error)
        for _ in range(50):
            with suppress(OSError):
                place.step()
            place.clock.now += 1_000_000
        happened = bool(place.disk.failed)
        place.disk.disarm()
        if place.failed or place.files():
            place.crash()
            place.settle()
        assert (sorted(place.consume()), place.files()) == ([b"1", b"2", b"3"], []), at
        place.engine.close()
        if not happened:
            break
    assert at > 15


def test_trouble_with_a_directory_is_said_once(place: IngestCase, caplog: pytest.LogCaptureFixture) -> None:
    """Trouble with a directory is logged once, and so is its end. Other upkeep goes on meanwhile."""
    place.settle()
    caplog.set_level(logging.WARNING)
    place.disk.arm(1, errno.EACCES, "rename", lasting=True)
    place.put(1, b"one")
    for _ in range(5):
        place.settle()
        place.clock.now += 1_000_000
    place.disk.disarm()
    place.settle()
    assert place.mids() == [1]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "cannot be taken in, and wait" in said[0]
    assert said[1].endswith("again")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_was_taken_is_known_after_compaction_and_a_checkpoint(
    place: IngestCase, monkeypatch: pytest.MonkeyPatch, checkpoint: bool
) -> None:
    """A file that could not be removed yet is not a second message, though the segment of its record has gone."""
    monkeypatch.setattr("qs_storage.journal.log.pool.LARGEST_SEGMENT", 1 << 16)
    place.settle()
    place.put(1, b"one")
    place.engine.refresh()
    while not place.mids():
        place.step()
    private = place.files()
    with monkeypatch.context() as stalled:
        stalled.setattr("qs_storage.journal.upkeep.ingest.Ingester.due", lambda ingester: None)
        first = min((place.root / ".journal").glob("*.segment"))
        while first.exists():
            place.push(*[b"x" * 5000] * 10)
            place.consume_but(1)
            place.settle()
        if checkpoint:
            place.engine._journal.rest()
    assert place.files() == private
    place.crash()
    assert place.consume() == [b"one"]
    place.settle()
    assert (place.files(), place.consume()) == ([], [])
    assert not place.engine._queues["q"].taken  # type: ignore[union-attr]


def test_an_empty_queue_goes_though_a_file_of_it_is_not_removed_yet(place: IngestCase) -> None:
    """An empty queue can be removed though a consumed message's file is still there; a file that was not taken in keeps
    it."""
    place.settle()
    place.put(1, b"one")
    place.engine.refresh()
    while not place.mids():
        place.step()
    assert place.consume() == [b"one"]
    place.put(f".taken-{5:016x}-2", b"two")
    with pytest.raises(QueueNotEmptyError):
        place.engine.remove("q", force=False)
    (place.path / f".taken-{5:016x}-2").unlink()
    place.engine.remove("q", force=False)
    assert not place.path.exists()
