"""A queue's messages move from the journal to files and back: all of them, once, whatever happens meanwhile."""

import errno
import itertools
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.storage.directories import LARGE, SMALL, Root
from support.storage.engines import Crash

from qs_storage.engine import Draft, Options, StorageError
from qs_storage.settings import read_options, write_options
from qs_storage.tools.convert import Conversion, Lost, export

pytestmark = pytest.mark.usefixtures("small_first_segment")


@pytest.fixture(params=["journal", "files"])
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def other(storage: str) -> str:
    return "files" if storage == "journal" else "journal"


def test_everything_is_the_same_afterwards(tmp_path: Path, storage: str) -> None:
    """Ids, states, counts, windows, payloads and headers, of this queue and of the others; there and back again."""
    place = Root(tmp_path / "root", storage)
    before, beside = place.seen(), place.seen("other")
    assert [status for _, status, *_ in before] == ["ready", "in-flight", "ready", "delayed"]
    assert [headers for *_, headers in before] == [SMALL, LARGE, (), SMALL]
    for target in (other(storage), storage, storage):
        assert place.convert(target) == 4
        assert place.storage() == target
        names = sorted(path.name for path in (place.root / "q").iterdir())
        # With the hidden file of large headers.
        assert len(names) == (1 if target == "journal" else 6)
        assert (place.seen(), place.seen("other")) == (before, beside)


def test_schema_and_condition_stay(tmp_path: Path, storage: str) -> None:
    """A converted queue has the schema and the condition that it had, and what the schema has refused stays beside its
    messages."""
    place = Root(tmp_path / "root", storage)
    engine = place.open()
    engine.configure("q", replace(engine.queue("q").options, schema="order", where="/order[total > 100]"))
    engine.close()
    (place.root / "q" / "7.invalid").write_bytes(b"refused")
    for target in (other(storage), storage):
        place.convert(target)
        found = read_options(str(place.root / "q"), "?")
        assert (found.storage, found.schema, found.where) == (target, "order", "/order[total > 100]")
        assert (place.root / "q" / "7.invalid").read_bytes() == b"refused"
    assert len(place.seen()) == 4


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_crash_at_every_file_operation(tmp_path: Path, storage: str, step: int) -> None:
    """After a crash at any file operation, the repeated command goes on. A server that is started in between refuses,
    or shows the same as before. At each single one it takes some 30 s."""
    target = other(storage)
    for at in itertools.count(2, step):
        place = Root(tmp_path / f"{at}", storage)
        before = place.seen()
        place.disk.arm(at, Crash)
        with suppress(Crash):
            place.convert(target)
        happened = bool(place.disk.failed)
        place.crash()
        if at // step % 2:
            assert place.seen_by_a_start() in (before, "refused"), at
        assert place.convert(target) == 4, at
        assert place.seen() == before, at
        assert place.storage() == target
        shutil.rmtree(place.root)
        if not happened:
            break
    assert at > 15


@pytest.mark.parametrize("operation", ["_pwrite", "_write"])
def test_a_full_disk_loses_nothing(tmp_path: Path, storage: str, operation: str) -> None:
    """The error comes out; with room again, the command does it."""
    place = Root(tmp_path / "root", storage)
    before = place.seen()
    place.disk.arm(1, errno.ENOSPC, operation, lasting=True)
    with pytest.raises(OSError, match="No space"):
        place.convert(other(storage))
    place.crash()
    assert place.convert(other(storage)) == 4
    assert place.seen() == before


def test_what_files_cannot_keep_is_told(tmp_path: Path) -> None:
    """The conversion to files, and an export, count the messages with attributes that files have no place for, and name
    the options that files do not obey; these are gone, and all else is there."""
    place = Root(tmp_path / "root", "journal")
    engine = place.open()
    options = replace(
        engine.queue("q").options, group_in_flight=2, fair=True, max_in_flight=3, rate=1.5, retention=10**12
    )
    engine.configure("q", options)
    engine.queue("q").push(
        [
            Draft(b"a", priority=9, group="g", headers=SMALL),
            Draft(b"b", priority=1, expires=10**12),
            Draft(b"c", group="g", key="k", unique=True),
        ]
    )
    engine.close()
    before = place.seen()
    lost = Lost(
        ["group-in-flight", "fair", "max-in-flight", "rate"], {"priority": 2, "group": 2, "expires": 1, "unique": 1}
    )
    [exported] = export(str(place.root), str(tmp_path / "out"), ["q"], lambda count: None)
    assert exported.lost == lost
    conversion = Conversion(str(place.root), "q", place.used, place.clock, lambda count: None)
    conversion.run("files")
    assert conversion.lost == lost
    assert read_options(str(place.root / "q"), "?") == Options("files", visibility=options.visibility, retention=10**12)
    assert read_options(str(tmp_path / "out" / "q"), "?").rate is None
    assert place.seen() == before
    conversion = Conversion(str(place.root), "q", place.used, place.clock, lambda count: None)
    conversion.run("journal")
    assert not conversion.lost


def test_an_edited_file_is_put_right(tmp_path: Path) -> None:
    """If somebody has written the other storage into .queue.toml, the start names the command, which converts the
    queue."""
    for target in ("files", "journal"):
        place = Root(tmp_path / target, "journal")
        before = place.seen()
        options = read_options(str(place.root / "q"), "?")
        options.storage = "files"
        write_options(str(place.root / "q"), options, place.disk)
        with pytest.raises(StorageError, match=r"queue-journal.py convert"):
            place.seen()
        assert place.convert(target) == 4
        assert place.seen() == before


def test_a_file_in_the_way_is_not_overwritten(tmp_path: Path) -> None:
    """A name that a message would get: said, and nothing is changed."""
    place = Root(tmp_path / "root", "journal")
    before = place.seen()
    options = read_options(str(place.root / "q"), "?")
    write_options(str(place.root / "q"), Options(storage="files", visibility=options.visibility), place.disk)
    (place.root / "q" / str(before[0][0])).write_bytes(b"mine")
    with pytest.raises(StorageError, match="is there already"):
        place.convert("files")
    (place.root / "q" / str(before[0][0])).unlink()
    assert place.convert("files") == 4
    assert place.seen() == before
