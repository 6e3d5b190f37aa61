"""A power loss at every step while files are taken in from a queue's directory: each is a message, exactly once."""

import contextlib
from pathlib import Path

import pytest
from support.power_loss.check import fast_directory
from support.power_loss.directories import check_ingest, record_ingest
from support.power_loss.disk import Entry

from qs_storage.engine import Durability

pytestmark = pytest.mark.usefixtures("small_first_segment")


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
def test_ingest_power_loss_at_every_point(tmp_path: Path, durability: Durability, ordered: bool) -> None:
    """No published message is lost, doubled or torn; with `always` no deleted message comes back."""
    run = record_ingest(durability)
    with fast_directory(tmp_path) as directory:
        assert check_ingest(run, durability, directory, ordered=ordered) > 300


@pytest.mark.parametrize("missing", ["sync of the directory before the commit", "sync of the log before the removal"])
def test_a_sync_that_is_left_out_is_noticed(tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: without one of the syncs that this is about, a message is lost or doubled."""
    durability = Durability.INTERVAL
    if missing.startswith("sync of the log"):
        monkeypatch.setattr("qs_storage.journal.log.log.Log.background_sync", lambda log: None)
    run = record_ingest(durability)
    if missing.startswith("sync of the directory"):
        queue = {entry.args[0] for entry in run.log if entry.kind == "open" and entry.args[1] == "q"}
        run = run._replace(
            log=[Entry("begin", (0,)) if e.kind == "fsync" and e.args[0] in queue else e for e in run.log]
        )
    with fast_directory(tmp_path) as directory, contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(AssertionError))
        check_ingest(run, durability, directory, ordered=False)
