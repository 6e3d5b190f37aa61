"""`.queue.toml`."""

from dataclasses import fields
from pathlib import Path

import pytest
from support.storage.engines import Bench, files_engine

from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Durability, Options, Receipt, StorageError
from qs_storage.settings import read_options, write_options


@pytest.mark.parametrize(
    "options",
    [
        Options("files"),
        Options("files", visibility=0),
        Options("files", visibility=1, capacity=1),
        Options("journal", backoff=1, backoff_max=1),
        Options("journal", backoff=2_500_000),
        Options("files", visibility=1_234_567, capacity=10**12, timestamps="ms"),
    ],
)
def test_options_are_read_as_written(tmp_path: Path, options: Options) -> None:
    """Options are read as written, to the microsecond."""
    write_options(str(tmp_path), options, Disk())
    assert read_options(str(tmp_path), "other") == options
    assert [path.name for path in tmp_path.iterdir()] == [".queue.toml"]


def test_missing(tmp_path: Path) -> None:
    """A queue without the file has the defaults, and the storage of the engine that opens it."""
    assert read_options(str(tmp_path), "files") == Options("files")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("visibility = -1", "visibility"),
        ("visibility = nan", "visibility"),
        ("visibility = inf", "visibility"),
        ("visibility = '3'", "visibility"),
        ("visibility = true", "visibility"),
        ("capacity = 0", "capacity"),
        ("capacity = 1.5", "capacity"),
        ("capacity = true", "capacity"),
        ("timestamps = 'ns'", "timestamps"),
        ("timestamps = ['us']", "timestamps"),
        ("storage = 3", "storage"),
        ("backoff = 0", "backoff"),
        ("backoff = '1'", "backoff"),
        ("backoff-max = 5", "'backoff-max' needs"),
        ("backoff = 9.0\nbackoff-max = 5", "longer"),
        ("colour = 'red'", "colour"),
        ("[visibility]", "visibility"),
        ("visibility", "not TOML"),
        ("a = '\udcff'", "not TOML"),
    ],
)
def test_wrong(tmp_path: Path, text: str, message: str) -> None:
    """An error names the file, the key, and every option that is allowed there."""
    path = tmp_path / ".queue.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StorageError, match=message) as caught:
        read_options(str(tmp_path), "files")
    assert str(path) in str(caught.value)
    for option in fields(Options):
        assert f"{option.name.replace('_', '-')} = " in str(caught.value)


def test_wrong_at_the_start(tmp_path: Path) -> None:
    """An engine does not start over a queue whose options are wrong."""
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / ".queue.toml").write_text("storage = 'punched cards'")
    with pytest.raises(StorageError, match="punched cards"):
        Bench(files_engine(Durability.NONE)(tmp_path))


def test_endless_window(tmp_path: Path) -> None:
    """A window of any length ends at a time that a file name can carry, so that a restart finds the message."""
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / ".queue.toml").write_text("visibility = 1e300")
    bench = Bench(files_engine(Durability.NONE)(tmp_path))
    [mid] = bench.push(b"x")
    bench.engine.receive(["q"], 1, None, 1)
    bench.engine.queue("q").extend(Receipt(mid), 10**30 * SECOND)
    assert bench.reopen().queue("q").get(mid, peek=True, visibility=None).status == "in-flight"
    bench.engine.close()
