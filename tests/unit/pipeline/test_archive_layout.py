"""The state of an archive: partitions, its id, its checkpoint, its columns."""

import json
import os
from pathlib import Path

import pytest

from qs_pipeline import errors
from qs_pipeline.archive_layout import QueueState, archive_id, partition
from qs_pipeline.checkpoint import OFFSETS
from qs_pipeline.files import LocalFiles


def test_partition_is_named_like_hive() -> None:
    """Characters with a meaning in paths are escaped; letters of any language are not."""
    assert partition("orders") == "queue=orders"
    assert partition("a/b=c%d:e") == "queue=a%2Fb%3Dc%25d%3Ae"
    assert partition("Aufträge 2") == "queue=Aufträge 2"
    with pytest.raises(errors.UsageError, match="cannot be archived"):
        partition("__HIVE_DEFAULT_PARTITION__")
    with pytest.raises(errors.UsageError, match="too long"):
        partition("ä" * 130)


def test_archive_id_is_made_once(tmp_path: Path) -> None:
    """Made once. Without it, files that are there are not taken for nothing."""
    files = LocalFiles(str(tmp_path))
    with pytest.raises(errors.UsageError, match="is no archive"):
        archive_id(files, create=False)
    made = archive_id(files, create=True)
    assert archive_id(files, create=False) == made
    (tmp_path / "queue=a").mkdir()
    (tmp_path / "_qs" / "archive.json").unlink()
    with pytest.raises(errors.CheckpointLostError, match="from a backup"):
        archive_id(files, create=True)


def test_open_notices_lost_checkpoint(tmp_path: Path) -> None:
    """Gone, or older than what was archived: neither goes on."""
    state = QueueState(LocalFiles(str(tmp_path)), "abc", "orders")
    state.open({"mid": "bigint"})
    state.set_batch(3, 10, [], done=True)
    with pytest.raises(errors.CheckpointLostError, match="qs claims orders"):
        state.open({"mid": "bigint"})
    offsets = tmp_path / "_qs" / "queues" / os.listdir(tmp_path / "_qs" / "queues")[0] / "checkpoint" / OFFSETS
    offsets.mkdir(parents=True)
    (offsets / "2").write_text("v1\n{}\n{}")
    with pytest.raises(errors.CheckpointLostError):
        state.open({"mid": "bigint"})
    (offsets / "3").write_text("v1\n{}\n{}")
    state.open({"mid": "bigint"})


def test_open_refuses_other_columns(tmp_path: Path) -> None:
    """A table has one schema."""
    state = QueueState(LocalFiles(str(tmp_path)), "abc", "orders")
    state.open({"mid": "bigint", "body": "other"})
    state.open({"mid": "bigint", "body": "binary"})  # nothing was written: nothing is bound
    state.set_batch(0, 0, [], done=True)
    with pytest.raises(errors.SchemaMismatchError, match="body: binary then, string now"):
        state.open({"mid": "bigint", "body": "string"})


def test_open_adds_attributes(tmp_path: Path) -> None:
    """An archive that an earlier version began, without columns of attributes, goes on with them, and not back."""
    state = QueueState(LocalFiles(str(tmp_path)), "abc", "orders")
    offsets = Path(state.checkpoint.uri.removeprefix("file:")) / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n{}\n{}")
    state.open({"mid": "bigint"})
    state.set_batch(0, 0, [], done=True)
    state.open({"mid": "bigint", "group": "string"})
    with pytest.raises(errors.SchemaMismatchError, match="group: string then, none now"):
        state.open({"mid": "bigint"})


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", json.dumps({"format": 99}).encode()])
def test_batch_tells_of_damaged_state(tmp_path: Path, damage: bytes) -> None:
    """A damaged state is reported, and not overwritten."""
    files = LocalFiles(str(tmp_path))
    files.replace("_qs/archive.json", damage)
    with pytest.raises(errors.PipelineError, match="damaged"):
        archive_id(files, create=True)
    assert files.read("_qs/archive.json") == damage
