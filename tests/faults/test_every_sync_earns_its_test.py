"""Takes away each sync of the storage, and each rename that publishes a complete file: a power loss test must fail
then.

The source is not changed. A recorded run knows which call a sync came from (sync_sites), and is played without the
syncs of that call (left_out), or with the final name at once. A new sync that no test needs fails here, and so does an
entry in the tables below that has found its test.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.power_loss.check import fast_directory
from support.power_loss.disk import RecordingDisk
from support.power_loss.engines import recorded, small_journal
from support.power_loss.syncs import WAYS, Checks, Removal, all_checks, all_places, places_on_the_way

_ORDER = (
    "the names of one directory become durable in their order in the file system that is played, and in those that we "
    "know; it is not promised anywhere, and a repair can wait for it"
)
SURVIVORS: dict[Removal, str] = {
    ("journal/rescue/repair.py _set_aside: sync_directory", "no sync"): _ORDER,
    ("journal/rescue/repair.py _repair: sync_directory", "no sync"): _ORDER,
    ("journal/rescue/repair.py _repair: sync_directory 2", "no sync"): (
        "what comes back is a checkpoint and segments that the new one calls obsolete: the next start removes them"
    ),
    ("journal/log/pool.py Pool.make: rename", "in place"): (
        "a file of the pool that is not whole is smaller, or some of its blocks are not allocated: a segment that is "
        "begun there is all right unless the disk is full just then"
    ),
    ("journal/rescue/repair.py _set_aside: rename", "in place"): (
        "links of what is in the journal still: but the next run would take them for what a repair has set aside"
    ),
}
"""What can be left out, and no test of a power loss fails: and why it is done nevertheless."""

_RENAMED = frozenset(
    {
        "files/directory.py MessageDirectory._rename: rename",
        "files/queue.py FilesQueue._rename: rename",
        "dirq/elements.py make_obsolete: rename",
        "dirq/elements.py lock_file: link",
        "journal/upkeep/ingest_run.py IngestRun._rename_and_read: rename",
        "journal/rescue/repair.py _link: link",
        "journal/log/log.py Log._place: rename",
        "journal/log/pool.py Pool.recycle: rename",
        "root.py RootDirectory._move_away: rename",
    }
)
"""Gives another name to what has one, or a second one: there is no other way to do it."""
_AFTER_ERRORS = frozenset(
    {
        "settings.py make_queue: rename",
        "root.py RootDirectory._move_away: rename 2",
        "journal/log/log.py Log._take_back: rename",
    }
)
"""Takes back the rename before it, after an error: that was not answered."""
_AT_STARTS = frozenset({"files/listing.py _do_what_it_says: rename"})
"""Completes what a crash interrupted; done once more by the next start."""
_AFTER_POWER_LOSSES = frozenset({"journal/log/segments.py SegmentWriter.resume: fdatasync"})
"""Done by a start that finds a torn end on a full disk. The recorded runs end with kills, which tear nothing."""
_NOTHING: Removal = ("nowhere", "no sync")
"""With this removed, no test fails."""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for recorded runs, with the places of their operations."""
    small_journal(monkeypatch)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # a purge of dirq waits for others, and here are none
    monkeypatch.setattr(RecordingDisk, "places", staticmethod(places_on_the_way))
    recorded.cache_clear()
    with fast_directory(tmp_path) as made:
        yield made
    recorded.cache_clear()


def finds(checks: Checks, removal: Removal, directory: Path) -> bool:
    place, way = removal
    return checks.finds(partial(WAYS[way], place=place), directory)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_sync_earns_its_test(directory: Path) -> None:
    """Leaving out any sync, in each way, makes some test fail. Takes some 2 minutes of one processor."""
    seen: set[Removal] = set()
    found: dict[Removal, str] = {}
    for name, make in all_checks(directory).items():
        checks = make()
        assert checks.takes_long or not finds(checks, _NOTHING, directory), name
        removals = checks.removals(directory)
        seen |= removals
        for removal in sorted(removals - found.keys()):
            if checks.takes_long and removal in SURVIVORS:
                continue
            if finds(checks, removal, directory):
                found[removal] = name
    assert seen - found.keys() == SURVIVORS.keys()
    assert (
        set(all_places()) - {place for place, _ in seen} == _RENAMED | _AFTER_ERRORS | _AT_STARTS | _AFTER_POWER_LOSSES
    )


def test_tables_name_places_of_source() -> None:
    """Each place in them is one."""
    places = {place for place, _ in SURVIVORS} | _RENAMED | _AFTER_ERRORS | _AT_STARTS | _AFTER_POWER_LOSSES
    assert places <= set(all_places())


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("dead letters files", "files/queue.py FilesQueue._rename: sync_file"),
        ("dead letters files", "directories.py DirectoriesEngine._find_or_make: sync"),
        ("claims journal-buffered", "journal/log/segments.py SegmentWriter.write: sync"),
        ("claims journal", "journal/log/segments.py SegmentWriter._open: open_file O_DSYNC"),
        ("checkpoints", "journal/upkeep/checkpoint.py CheckpointWriter.publish: fsync"),
        ("published", "vsqs.py Queue._open: make_directories"),
    ],
)
def test_leaving_out_one_sync_is_found(directory: Path, name: str, place: str) -> None:
    """A frame that is not synced, with and without O_DIRECT, and others that are quick to be found."""
    checks = all_checks(directory)[name]()
    assert (place, "no sync") in checks.removals(directory)
    assert finds(checks, (place, "no sync"), directory)
    assert not finds(checks, _NOTHING, directory)
