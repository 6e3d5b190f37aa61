"""A queue's messages move from the journal to files and back: all of them, once, whatever happens meanwhile."""

import errno
import itertools
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from support.storage.directories import Root
from support.storage.engines import Crash

from qs_storage.engine import Options, StorageError
from qs_storage.settings import read_options, write_options

pytestmark = pytest.mark.usefixtures("small_first_segment")


@pytest.fixture(params=["journal", "files"])
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def other(storage: str) -> str:
    return "files" if storage == "journal" else "journal"


def test_everything_is_the_same_afterwards(tmp_path: Path, storage: str) -> None:
    """Ids, states, counts, windows and payloads, of this queue and of the others; there and back again."""
    place = Root(tmp_path / "root", storage)
    before, beside = place.seen(), place.seen("other")
    assert [status for _, status, *_ in before] == ["ready", "in-flight", "ready", "delayed"]
    for target in (other(storage), storage, storage):
        assert place.convert(target) == 4
        assert place.storage() == target
        names = sorted(path.name for path in (place.root / "q").iterdir())
        assert len(names) == (1 if target == "journal" else 5)
        assert (place.seen(), place.seen("other")) == (before, beside)


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
