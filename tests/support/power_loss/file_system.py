"""A file system in memory that knows which of its parts are durable, and the images that a power loss leaves of it.

The file system promises as little as POSIX and a journalling file system together do: an engine that holds here relies
on nothing else. The log of a RecordingDisk is played into a FileSystem up to any point, `power_loss` makes an Image of
what may be left at that point, and `lay_out` makes the image a real directory for a new engine.
"""

import os
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from support.power_loss.disk import SYNCS, Entry
from support.power_loss.nodes import EVERYTHING, NOTHING, Change, Directory, File, Node, Pages


class FileSystem:
    """Plays operations, each of which is begun and then completed: a power loss can come in between.

    Ensures, of what is durable:
    1. Data and size of a file are, after fsync or fdatasync of it, after syncfs, and after a write with O_DSYNC or
       O_SYNC has returned, which makes only its own bytes durable.
    2. Attributes of a file are, after fsync of it or syncfs; fdatasync leaves them out.
    3. Names are, after fsync of their directory or syncfs. A file whose data is durable can still have no name.
    4. With `ordered`, any fsync also makes all names and attributes durable that were given before it, as ext4 does.
    Ensures, of what is not durable: any part of it may be left, but
    5. the names of one directory in the order in which they were given;
    6. of a rename never neither name. With `whole`, of a rename between two directories never both names, as on ext4,
       XFS and Btrfs;
    7. data by the sector of 512 bytes: each has the new bytes, those before, or zeros.
    Assumes that operations come in the order in which the process made them. Must never know what an engine is.
    """

    def __init__(self, *, ordered: bool = False, whole: bool = False) -> None:
        self.ordered = ordered
        self.whole = whole
        self._numbers = count(1)
        self.root = Directory(0)
        self.handles: dict[int, tuple[Node, int]] = {}
        """Descriptor -> the open node, and the flags."""
        self.dirty: dict[int, Node] = {}
        """The nodes that may not be durable, by number: see Node.dirty."""

    # -- look up

    def look_up(self, path: str) -> Node:
        """Returns the node of a path. Raises FileNotFoundError if there is none."""
        node: Node = self.root
        for name in path.split("/"):
            if name != ".":
                if not isinstance(node, Directory) or name not in node.entries:
                    raise FileNotFoundError(path)
                node = node.entries[name]
        return node

    def place(self, path: str) -> tuple[Directory, str]:
        """Returns the directory that holds the path, and the path's name in that directory."""
        above, _, name = path.rpartition("/")
        node = self.look_up(above or ".")
        assert isinstance(node, Directory)
        return node, name

    def new(self, kind: type[File] | type[Directory]) -> Node:
        return kind(next(self._numbers))

    def number(self) -> int:
        """Returns a number for a change, greater than all before."""
        return next(self._numbers)

    def touched(self, node: Node) -> None:
        self.dirty[node.number] = node

    # -- operations

    def begin(self, entry: Entry) -> None:
        """Applies everything of the operation that a power loss may already leave; nothing of it is durable yet."""
        if entry.kind not in SYNCS:
            getattr(self, f"_{entry.kind}")(*entry.args)

    def complete(self, entry: Entry) -> None:
        """Makes durable what the operation promises once it has returned. Other operations promise nothing."""
        if entry.kind == "write":
            handle, offset, data = entry.args
            node, flags = self.handles[handle]
            if flags & os.O_DSYNC and isinstance(node, File):  # O_SYNC contains it
                node.sync_range(offset, data)
        elif entry.kind == "syncfs":
            self.sync_all()
        elif entry.kind in SYNCS:
            self.sync(self.handles[entry.args[0]][0], data_only=entry.kind == "fdatasync")

    def play(self, entry: Entry) -> None:
        self.begin(entry)
        self.complete(entry)

    def sync(self, node: Node, *, data_only: bool = False) -> None:
        """Plays fsync, or fdatasync with data_only."""
        if isinstance(node, File) and data_only:
            node.sync_data()
            return
        node.sync()
        last = next(self._numbers)
        if isinstance(node, Directory):
            node.sync_names(last)
        if self.ordered:
            self._sync_names(last)
            for other in self.dirty.values():
                other.sync_attributes()

    def _sync_names(self, last: int) -> None:
        for node in self.dirty.values():
            if isinstance(node, Directory):
                node.sync_names(last)

    def sync_all(self) -> None:
        """Plays syncfs."""
        self._sync_names(next(self._numbers))
        for node in self.dirty.values():
            node.sync()
        self.dirty = {}

    def rename_in(self, old: Directory, name: str, new: Directory, new_name: str) -> None:
        node = old.entries[name]
        self.touched(old)
        self.touched(new)
        if old is new:
            if name != new_name and new.entries.get(new_name) is not node:
                old.change(Change(next(self._numbers), new_name, node, name))
            return
        # Between two directories there are two changes, as each becomes durable for itself: the new name may be there
        # before the old one goes, and never the other way round (needs). `whole` gives both one number.
        number = next(self._numbers)
        new.change(Change(number, new_name, node, needs=(old, number) if self.whole else None))
        old.change(Change(number if self.whole else next(self._numbers), name, None, needs=(new, number)))

    def set_name(self, directory: Directory, name: str, node: Node | None) -> None:
        self.touched(directory)
        directory.change(Change(next(self._numbers), name, node))

    def _open(self, handle: int, path: str, flags: int) -> None:
        try:
            node = self.look_up(path)
        except FileNotFoundError:
            assert flags & os.O_CREAT, path
            node = self.new(File)
            self.set_name(*self.place(path), node)
        if flags & os.O_TRUNC and isinstance(node, File):
            self.touched(node)
            node.resize(0)
        self.handles[handle] = node, flags

    def _close(self, handle: int) -> None:
        del self.handles[handle]

    def _write(self, handle: int, offset: int, data: bytes) -> None:
        node = self.handles[handle][0]
        assert isinstance(node, File)
        self.touched(node)
        node.write(offset, data)

    def _size(self, handle: int, size: int) -> None:
        node = self.handles[handle][0]
        assert isinstance(node, File)
        self.touched(node)
        node.resize(size)

    def _rename(self, old: str, new: str) -> None:
        self.rename_in(*self.place(old), *self.place(new))

    def _link(self, old: str, new: str) -> None:
        self.set_name(*self.place(new), self.look_up(old))

    def _unlink(self, path: str) -> None:
        self.set_name(*self.place(path), None)

    _rmdir = _unlink

    def _mkdir(self, path: str) -> None:
        self.set_name(*self.place(path), self.new(Directory))

    def _setxattr(self, path: str, name: str, value: bytes | None) -> None:
        node = self.look_up(path)
        self.touched(node)
        node.set_attribute(next(self._numbers), name, value)

    def _begin(self, *args: object) -> None:
        """Does nothing: the entry is a marker."""

    _answered = _left_out = _begin


class Left(NamedTuple):
    """A file, or a directory (pages: None), that the power loss has left. number: the same for hard links; content:
    differs for different contents of the same file."""

    path: str
    number: int
    content: object
    pages: Pages | None
    attributes: dict[str, bytes]


class Image(NamedTuple):
    """The files that are left, each directory before its entries. key: equal images have equal keys."""

    left: list[Left]
    key: object


def power_loss(file_system: FileSystem, how: str) -> Image:
    """Makes the image that a power loss now leaves. how: NOTHING or EVERYTHING of what is not durable, or else the seed
    of a mixture."""
    rng = None if how in (NOTHING, EVERYTHING) else random.Random(how)
    file_system.dirty = {number: node for number, node in file_system.dirty.items() if node.dirty}
    last = None if rng is None or not file_system.ordered else _last(file_system, rng)
    cuts = _cuts(file_system, how, rng, last)
    found: list[Left] = []
    contents: dict[int, tuple[object, Pages]] = {}
    attributes: dict[int, dict[str, bytes]] = {}
    for path, node in _walk(file_system.root, "", cuts):
        if node.number not in attributes:
            attributes[node.number] = _attributes(node, how, rng, last)
            if isinstance(node, File):
                contents[node.number] = node.left(how, rng)
        content, pages = contents.get(node.number, (None, None))
        found.append(Left(path, node.number, content, pages, attributes[node.number]))
    return Image(found, tuple((*one[:3], tuple(sorted(one.attributes.items()))) for one in found))


def without_checkpoint(image: Image) -> Image:
    """Returns the image without the journal's checkpoint, which is a cache: a start finds the same in the segments."""
    left = [one for one in image.left if one.path != ".journal/checkpoint"]
    return image if len(left) == len(image.left) else Image(left, (image.key, "without"))


def _last(file_system: FileSystem, rng: random.Random) -> int:
    """Returns the last change of a name or an attribute that is left, for a file system that keeps them in their
    order."""
    names = [
        change.number for node in file_system.dirty.values() if isinstance(node, Directory) for change in node.changes
    ]
    attributes = [number for node in file_system.dirty.values() for number, _, _ in node.attribute_changes]
    return rng.choice([0, *sorted(names + attributes)])


def _cuts(file_system: FileSystem, how: str, rng: random.Random | None, last: int | None) -> dict[int, int]:
    """Returns, by directory, how many of its changes of names are left."""
    directories = [node for node in file_system.dirty.values() if isinstance(node, Directory) and node.changes]
    if rng is None:
        return {node.number: len(node.changes) if how == EVERYTHING else 0 for node in directories}
    if last is not None:
        return {node.number: sum(change.number <= last for change in node.changes) for node in directories}
    # None, all, or any number of them: in a long log of changes, the two ends would hardly come up by chance.
    cuts = {
        node.number: rng.choice((0, len(node.changes), rng.randrange(len(node.changes) + 1))) for node in directories
    }
    # What one cut takes back may be needed by a change that was looked at before: repeated until all needs are met.
    while any(_without_its_need(node, cuts) for node in directories):
        pass
    return cuts


def _without_its_need(directory: Directory, cuts: dict[int, int]) -> bool:
    """Tells whether a change had to be taken back because the change that it needs is not left."""
    for index, change in enumerate(directory.changes[: cuts[directory.number]]):
        if change.needs is not None:
            other, number = change.needs
            if number in (later.number for later in other.changes[cuts.get(other.number, 0) :]):
                cuts[directory.number] = index
                return True
    return False


def _walk(directory: Directory, above: str, cuts: dict[int, int]) -> Iterator[tuple[str, Node]]:
    for name, node in directory.entries_after(cuts.get(directory.number, 0)).items():
        yield above + name, node
        if isinstance(node, Directory):
            yield from _walk(node, f"{above}{name}/", cuts)


def _attributes(node: Node, how: str, rng: random.Random | None, last: int | None) -> dict[str, bytes]:
    changes = len(node.attribute_changes)
    if rng is None or not changes:
        return node.attributes_after(changes if how == EVERYTHING else 0)
    if last is not None:
        return node.attributes_after(sum(number <= last for number, _, _ in node.attribute_changes))
    return node.attributes_after(rng.choice((0, changes, rng.randrange(changes + 1))))


def lay_out(image: Image, directory: str, modified: int | None = None) -> None:
    """Makes the image a directory, which must exist and be empty. modified: the time of change of all files, in seconds
    since the Epoch; None: now."""
    made: dict[int, str] = {}
    for path, number, _, pages, attributes in image.left:
        full = f"{directory}/{path}"
        if pages is None:
            os.mkdir(full)
        elif number in made:
            os.link(made[number], full)
            continue
        else:
            made[number] = full
            _write(full, pages)
        for name, value in attributes.items():
            os.setxattr(full, name, value)
    if modified is not None:
        for left in reversed(image.left):
            os.utime(f"{directory}/{left.path}", (modified, modified))


def _write(path: str, pages: Pages) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    try:
        end = 0
        for offset, part in pages.parts():
            end = max(end, offset + os.pwrite(fd, part, offset))
        if end != pages.size:
            os.ftruncate(fd, pages.size)  # pages of zeros at the end were not written
    finally:
        os.close(fd)


def pick_up(directory: str, *, ordered: bool = False, whole: bool = False) -> FileSystem:
    """Returns a file system in which everything in a real directory is durable."""
    file_system = FileSystem(ordered=ordered, whole=whole)
    links: dict[int, str] = {}
    for above, directories, files in os.walk(directory):
        relative = "" if above == directory else os.path.relpath(above, directory) + "/"
        for name in sorted(directories):
            file_system.play(Entry("mkdir", (relative + name,)))
        for name in sorted(files):
            _pick_up_file(file_system, f"{above}/{name}", relative + name, links)
    file_system.sync_all()
    return file_system


def _pick_up_file(file_system: FileSystem, full: str, path: str, links: dict[int, str]) -> None:
    known = links.setdefault(os.stat(full).st_ino, path)
    if known != path:
        file_system.play(Entry("link", (known, path)))
        return
    file_system.play(Entry("open", (0, path, os.O_CREAT)))
    file_system.play(Entry("write", (0, 0, Path(full).read_bytes())))
    file_system.play(Entry("close", (0,)))
    for name in os.listxattr(full):
        if name.startswith("user."):  # others are the file system's own, such as security.selinux
            file_system.play(Entry("setxattr", (path, name, os.getxattr(full, name))))


def points(log: list[Entry]) -> list[int]:
    """Returns the numbers of the entries at which a power loss can leave something else than at the previous entry."""
    return [number for number, entry in enumerate(log) if entry.changes]
