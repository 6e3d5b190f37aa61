"""Spark's logs of a checkpoint: what is there, and what a loss of power left."""

from pathlib import Path

from qs_pipeline.checkpoint import COMMITS, OFFSETS, Checkpoint
from qs_pipeline.files import LocalFiles


def written(root: Path, log: str, batch: int, text: str = 'v1\n{"a":1}\n{"seq":3}\n') -> None:
    place = root / "c" / log / str(batch)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.with_name(f".{batch}.crc").write_bytes(b"crc")


def test_mend_removes_torn_entries(tmp_path: Path) -> None:
    """An empty or torn log entry at the end is removed, with its checksum; earlier ones stay."""
    for batch in (8, 9, 10):
        written(tmp_path, OFFSETS, batch)
    written(tmp_path, OFFSETS, 11, 'v1\n{"a":1}\n{"se')
    written(tmp_path, OFFSETS, 12, "")
    written(tmp_path, COMMITS, 9, "v1\n{}")
    written(tmp_path, COMMITS, 10, "")
    checkpoint = Checkpoint(LocalFiles(str(tmp_path)), "c")
    assert checkpoint.last(OFFSETS) == 12
    checkpoint.mend()
    assert checkpoint.last(OFFSETS) == 10
    assert checkpoint.last(COMMITS) == 9
    assert checkpoint.end_offset(10) == {"seq": 3}
    assert sorted(path.name for path in (tmp_path / "c" / OFFSETS).iterdir()) == [
        ".10.crc",
        ".8.crc",
        ".9.crc",
        "10",
        "8",
        "9",
    ]


def test_last_without_checkpoint(tmp_path: Path) -> None:
    """Reading a log of a missing checkpoint makes no files."""
    checkpoint = Checkpoint(LocalFiles(str(tmp_path)), "c")
    checkpoint.mend()
    assert checkpoint.last(OFFSETS) is None
    assert checkpoint.end_offset(0) is None
    assert list(tmp_path.iterdir()) == []
