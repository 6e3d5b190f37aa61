"""A power loss at every step of a conversion: given again, it ends with the same messages."""

import shutil
import tempfile
from pathlib import Path

import pytest
from support.power_loss.check import VARIANTS, fast_directory, nobody_else
from support.power_loss.disk import QuietDisk, RecordingDisk, everything_recorded
from support.power_loss.file_system import lay_out, pick_up, points, power_loss
from support.power_loss.nodes import EVERYTHING, NOTHING
from support.storage.directories import Root

pytestmark = pytest.mark.usefixtures("small_first_segment")


@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
@pytest.mark.parametrize(("storage", "target"), [("journal", "files"), ("files", "journal")])
def test_convert_power_loss_at_every_point(tmp_path: Path, storage: str, target: str, ordered: bool) -> None:
    """After a power loss at any point, a start shows the same messages, or is refused with a hint at the command, which
    goes on."""
    with fast_directory(tmp_path) as directory:
        root = directory / "root"
        place = Root(root, storage)
        before = place.seen()
        file_system = pick_up(str(root), ordered=ordered)
        place.used = recording = RecordingDisk(str(root))
        with everything_recorded(recording):
            place.convert(target)
        wanted = set(points(recording.log))
        for number, entry in enumerate(recording.log):
            file_system.begin(entry)
            if number in wanted:
                variant = VARIANTS[number % len(VARIANTS)]
                how = variant if variant in (NOTHING, EVERYTHING) else f"{variant}/{number}"
                left = Path(tempfile.mkdtemp(dir=directory))
                lay_out(power_loss(file_system, how), str(left))
                disk = QuietDisk()
                with nobody_else():
                    found = Root(left, None, disk)
                    where = f"{variant} at {number}: {entry}"
                    if number % 3 == 0:
                        assert found.seen_by_a_start() in (before, "refused"), where
                    assert found.convert(target) == 4, where
                    assert found.seen() == before, where
                disk.end()
                shutil.rmtree(left)
            file_system.complete(entry)
        assert len(wanted) > 30
