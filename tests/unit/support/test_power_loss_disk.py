"""The simulated power loss itself: it loses what was not synced, and nothing else."""

import itertools
import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.power_loss.disk import DERIVED, HARMLESS, RECORDED, Entry, RecordingDisk, everything_recorded
from support.power_loss.file_system import FileSystem, lay_out, pick_up, points, power_loss
from support.power_loss.nodes import EVERYTHING, NOTHING, PAGE, Pages
from support.storage.engines import EPOCH

from qs_storage.disk import Disk

NEW = os.O_CREAT | os.O_WRONLY
MANY = [f"mixed/{seed}" for seed in range(200)]
Found = dict[str, bytes | None]
"""Path -> content, None for a directory."""


class Scene:
    """A disk to work with, and what a power loss would leave."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "real").mkdir()
        self.disk = RecordingDisk(path / "real")

    def at(self, name: str) -> str:
        return f"{self.disk.root}/{name}"

    def write(self, name: str, data: bytes, *, sync: bool = False, flags: int = NEW) -> None:
        fd = self.disk.open(self.at(name), flags)
        self.disk.write(fd, data)
        if sync:
            self.disk.fsync(fd)
        self.disk.close(fd)

    def file_system(self, *, ordered: bool = False) -> FileSystem:
        file_system = FileSystem(ordered=ordered)
        for entry in self.disk.log:
            file_system.play(entry)
        return file_system

    def left(self, how: str = NOTHING, *, ordered: bool = False) -> Found:
        return found(power_loss(self.file_system(ordered=ordered), how).left)

    def possible(self, *, ordered: bool = False) -> list[Found]:
        return [self.left(how, ordered=ordered) for how in (NOTHING, EVERYTHING, *MANY)]


def found(left: object) -> Found:
    return {
        one.path: None if one.pages is None else one.pages.read(0, one.pages.size)
        for one in left  # type: ignore[attr-defined]
    }


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def distinct(many: list[Found]) -> list[Found]:
    return [one for index, one in enumerate(many) if one not in many[:index]]


# -- data


def test_data_that_was_not_synced_is_lost(scene: Scene) -> None:
    """The name is synced, the data is not: the file is there and empty, or has it all, or part of it, or zeros."""
    data = os.urandom(2000)
    scene.write("a", data)
    scene.disk.sync_directory(scene.disk.root)
    assert scene.left(NOTHING) == {"a": b""}
    assert scene.left(EVERYTHING) == {"a": data}
    contents = [one["a"] for one in scene.possible()]
    assert {b"", data} < set(contents)
    assert any(content not in (b"", data) for content in contents), "never torn"
    assert any(content and content not in (b"", data) and not content.strip(b"\0") for content in contents), "no zeros"
    for content in contents:
        assert content is not None
        for start in range(0, len(content) // 512 * 512, 512):
            assert content[start : start + 512] in (data[start : start + 512], bytes(512))


def test_synced_data_stays(scene: Scene) -> None:
    """After fsync of file and directory there is nothing to lose, in any variant."""
    scene.write("a", b"x" * 5000, sync=True)
    scene.disk.sync_directory(scene.disk.root)
    assert distinct(scene.possible()) == [{"a": b"x" * 5000}]


def test_overwritten_data_is_old_or_new_by_the_sector(scene: Scene) -> None:
    """Without a sync each sector is as it was or as it is; what was not written to is as it was."""
    scene.write("a", b"o" * 3000, sync=True)
    scene.disk.sync_directory(scene.disk.root)
    fd = scene.disk.open(scene.at("a"), os.O_WRONLY)
    scene.disk.pwrite(fd, b"n" * 1100, 600)
    many = {one["a"] for one in scene.possible()}
    assert len(many) > 4
    for content in many:
        assert content is not None
        assert len(content) == 3000
        assert content[:600] + content[1700:] == b"o" * 1900
        edges = [600, 1024, 1536, 1700]
        for start, end in itertools.pairwise(edges):
            assert content[start:end] in (b"o" * (end - start), b"n" * (end - start))
    scene.disk.fdatasync(fd)
    scene.disk.close(fd)
    assert len(distinct(scene.possible())) == 1


@pytest.mark.parametrize("flag", [os.O_DSYNC, os.O_SYNC])
def test_a_synchronous_write_is_durable_once_it_returns(scene: Scene, flag: int) -> None:
    """While it runs any of its sectors may be there; afterwards all, and what others wrote elsewhere is not."""
    scene.write("a", bytes(4096), sync=True)
    scene.disk.sync_directory(scene.disk.root)
    plain = scene.disk.open(scene.at("a"), os.O_WRONLY)
    scene.disk.pwrite(plain, b"p" * 2048, 0)
    direct = scene.disk.open(scene.at("a"), os.O_WRONLY | flag)
    scene.disk.pwrite(direct, memoryview(b"d" * 1024), 1024)
    assert scene.left(NOTHING)["a"] == bytes(1024) + b"d" * 1024 + bytes(2048)
    assert all((one["a"] or b"")[1024:2048] == b"d" * 1024 for one in scene.possible())
    file_system = FileSystem()
    for entry in scene.disk.log[:-1]:
        file_system.play(entry)
    file_system.begin(scene.disk.log[-1])
    assert found(power_loss(file_system, NOTHING).left)["a"] == bytes(4096)
    scene.disk.close(plain)
    scene.disk.close(direct)


def test_truncated_files(scene: Scene) -> None:
    """Bytes that O_TRUNC removes may still be there, until it is synced."""
    scene.write("a", b"old", sync=True)
    scene.disk.sync_directory(scene.disk.root)
    scene.write("a", b"n", flags=NEW | os.O_TRUNC)
    assert scene.left(NOTHING) == {"a": b"old"}
    assert scene.left(EVERYTHING) == {"a": b"n"}
    assert {b"old", b"n", b""} <= {one["a"] for one in scene.possible()}


def test_direct_io(scene: Scene) -> None:
    """Aligned buffers through O_DIRECT are recorded as any other, where the file system has that."""
    buffer = mmap.mmap(-1, PAGE)
    buffer[:] = b"m" * PAGE
    try:
        fd = scene.disk.open(scene.at("a"), NEW | os.O_DIRECT | os.O_DSYNC)
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    with memoryview(buffer) as view:
        scene.disk.pwrite(fd, view, 0)
    scene.disk.close(fd)
    scene.disk.sync_directory(scene.disk.root)
    assert scene.left(NOTHING) == {"a": b"m" * PAGE}


# -- names


def test_names_that_were_not_synced_are_lost(scene: Scene) -> None:
    """`fsync` of the file does not make its name durable; fsync of the directory does."""
    scene.write("a", b"x", sync=True)
    assert distinct(scene.possible()) == [{}, {"a": b"x"}]
    assert scene.left(NOTHING, ordered=True) == {"a": b"x"}
    scene.disk.sync_directory(scene.disk.root)
    assert distinct(scene.possible()) == [{"a": b"x"}]


def test_a_rename_is_lost_or_done(scene: Scene) -> None:
    """Without a sync of the directory the old name may be there or the new one; never none, never both."""
    scene.write("a", b"x", sync=True)
    scene.write("b", b"y", sync=True)
    scene.disk.sync_directory(scene.disk.root)
    scene.disk.rename(scene.at("a"), scene.at("b"))
    assert distinct(scene.possible()) == [{"a": b"x", "b": b"y"}, {"b": b"x"}]


def test_names_of_a_directory_keep_their_order(scene: Scene) -> None:
    """A later change is there only with all the earlier ones of that directory; those of others are for themselves."""
    scene.disk.mkdir(scene.at("d"))
    scene.disk.mkdir(scene.at("e"))
    scene.disk.sync_directory(scene.disk.root)
    for name in ("d/1", "e/1", "d/2", "e/2"):
        scene.write(name, b"", sync=True)
    seen = {frozenset(name for name in one if "/" in name) for one in scene.possible()}
    assert len(seen) == 9
    for names in seen:
        assert ("d/2" not in names or "d/1" in names) and ("e/2" not in names or "e/1" in names)  # noqa: PT018
    assert {frozenset(n for n in one if "/" in n) for one in scene.possible(ordered=True)} == {
        frozenset({"d/1", "e/1", "d/2", "e/2"})
    }


def test_a_rename_to_another_directory(scene: Scene) -> None:
    """A renamed file is never gone from both directories, whichever of the two is synced."""
    for name in ("d", "e"):
        scene.disk.mkdir(scene.at(name))
    scene.write("d/a", b"x", sync=True)
    scene.disk.sync_directory(scene.at("d"))
    scene.disk.sync_directory(scene.disk.root)
    scene.disk.rename(scene.at("d/a"), scene.at("e/b"))
    possible = {frozenset(name for name in one if "/" in name) for one in scene.possible()}
    assert possible == {frozenset({"d/a"}), frozenset({"d/a", "e/b"}), frozenset({"e/b"})}
    scene.disk.sync_directory(scene.at("d"))
    assert {frozenset(name for name in one if "/" in name) for one in scene.possible()} == {frozenset({"e/b"})}


def test_deleted_files_come_back(scene: Scene) -> None:
    """`unlink` and rmdir are lost as any other change of names."""
    scene.disk.mkdir(scene.at("d"))
    scene.write("d/a", b"x", sync=True)
    scene.disk.sync_directory(scene.at("d"))
    scene.disk.sync_directory(scene.disk.root)
    scene.disk.unlink(scene.at("d/a"))
    scene.disk.rmdir(scene.at("d"))
    assert {tuple(one) for one in scene.possible()} == {(), ("d",), ("d", "d/a")}
    scene.disk.sync_file_system(scene.disk.root)
    assert distinct(scene.possible()) == [{}]


def test_attributes(scene: Scene) -> None:
    """Attributes are durable with fsync, not with fdatasync, and shared by hard links."""
    scene.write("a", b"x", sync=True)
    scene.disk.link(scene.at("a"), scene.at("b"))
    scene.disk.sync_directory(scene.disk.root)
    scene.disk.setxattr(scene.at("a"), "user.n", b"1")
    fd = scene.disk.open(scene.at("b"), os.O_RDONLY)
    scene.disk.fdatasync(fd)
    assert [one.attributes for one in power_loss(scene.file_system(), NOTHING).left] == [{}, {}]
    scene.disk.fsync(fd)
    scene.disk.close(fd)
    assert [one.attributes for one in power_loss(scene.file_system(), NOTHING).left] == [{"user.n": b"1"}] * 2
    scene.disk.removexattr(scene.at("a"), "user.n")
    assert {len(power_loss(scene.file_system(), how).left[0].attributes) for how in MANY} == {0, 1}


# -- the image


def test_laid_out_and_picked_up(scene: Scene) -> None:
    """An image becomes a real directory with links and attributes, and that a file system which is the same again."""
    scene.disk.mkdir(scene.at("d"))
    scene.write("d/a", b"x" * 10_000)
    scene.write("empty", b"")
    scene.disk.link(scene.at("d/a"), scene.at("b"))
    scene.disk.setxattr(scene.at("b"), "user.n", b"1")
    image = power_loss(scene.file_system(), EVERYTHING)
    copy = scene.path / "copy"
    copy.mkdir()
    lay_out(image, str(copy), EPOCH // 10**6)
    assert (copy / "d/a").read_bytes() == b"x" * 10_000
    assert (copy / "b").samefile(copy / "d/a")
    assert (copy / "b").stat().st_mtime == EPOCH // 10**6
    assert os.getxattr(copy / "b", "user.n") == b"1"
    again = power_loss(pick_up(str(copy)), NOTHING).left
    assert found(again) == found(image.left)
    assert len({one.number for one in again}) == 3


def test_equal_images_have_equal_keys(scene: Scene) -> None:
    """Equal images have equal keys, and a difference in names, data or attributes is one of the keys."""
    keys = []
    steps: list[Callable[[], object]] = [
        lambda: scene.write("a", b"x"),
        lambda: scene.disk.sync_directory(scene.disk.root),
        lambda: scene.write("a", b"y"),
        lambda: scene.disk.setxattr(scene.at("a"), "user.n", b"1"),
        lambda: scene.disk.rename(scene.at("a"), scene.at("b")),
    ]
    for step in steps:
        step()
        keys.append(power_loss(scene.file_system(), EVERYTHING).key)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert power_loss(scene.file_system(), MANY[0]).key == power_loss(scene.file_system(), MANY[0]).key


def test_pages() -> None:
    """Writes across pages, holes, and sizes up and down are those of a file."""
    pages, expected = Pages(), bytearray()
    for offset, data in [(3, b"abc"), (PAGE - 2, b"defgh"), (3 * PAGE, b"z" * (2 * PAGE)), (PAGE, bytes(PAGE))]:
        expected.extend(bytes(max(offset + len(data) - len(expected), 0)))
        expected[offset : offset + len(data)] = data
        pages.write(offset, data)
        assert pages.read(0, 10**6) == expected
    for size in (3 * PAGE + 7, 4 * PAGE, 5):
        expected = expected[:size] + bytes(size - len(expected[:size]))
        pages.resize(size)
        assert pages.read(0, 10**6) == expected
    assert pages.read(2, 2) == bytes(expected[2:4])


# -- the recording


def test_every_operation_of_the_disk_is_known() -> None:
    """A new operation of Disk has to be said to be recorded, harmless, or made of others."""
    assert {name for name in vars(Disk) if not name.startswith("__")} <= RECORDED | HARMLESS | DERIVED
    changing = {name for name in vars(Disk) if name in RECORDED}
    assert changing <= vars(RecordingDisk).keys()


def test_trees_are_removed_step_by_step(scene: Scene) -> None:
    """Removals by the storage with shutil are recorded too."""
    with everything_recorded(scene.disk):
        scene.disk.mkdir(scene.at("d"))
        scene.write("d/a", b"x")
        shutil.rmtree(scene.at("d"), ignore_errors=True)
        shutil.rmtree(scene.at("d"), ignore_errors=True)
    assert [str(entry) for entry in scene.disk.log[-2:]] == ["unlink('d/a')", "rmdir('d')"]
    assert not os.path.exists(scene.at("d"))


def test_points_are_what_changes() -> None:
    """Opening for reading, closing, and the beginning of an operation are no points."""
    log = [
        Entry("begin", (1,)),
        Entry("open", (1, "a", os.O_RDONLY)),
        Entry("open", (2, "b", NEW)),
        Entry("write", (2, 0, b"x")),
        Entry("fsync", (2,)),
        Entry("close", (2,)),
        Entry("answered", (1,)),
    ]
    assert points(log) == [2, 3, 4, 6]
