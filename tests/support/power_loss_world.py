"""A file system in memory that knows what of it is durable, so that a power loss can be played at any moment.

It keeps what POSIX promises and a journalling file system keeps. The data and the size of a file become durable by
fsync or fdatasync, by a write with O_DSYNC or O_SYNC once it returns, or by syncfs; its attributes by fsync or syncfs;
names by fsync of their directory or syncfs. `ordered`: attributes and names also by any other fsync, in the order in
which they were given (as ext4 does). What is not durable may be there or not: names of one directory in their order,
and of a rename never neither name; data by the sector of 512 bytes, else what was there before, or zeros. `whole`: a
rename between two directories leaves one name, never both (as on ext4, XFS and Btrfs).
"""

import os
from itertools import count

from support.power_loss_disk import SYNCS, Entry
from support.power_loss_nodes import Change, Directory, File, Node


class World:
    """The file system. Each operation is begun and then completed; a power loss can come in between."""

    def __init__(self, *, ordered: bool = False, whole: bool = False) -> None:
        self.ordered = ordered
        self.whole = whole
        self._numbers = count(1)
        self.root = Directory(0)
        self.handles: dict[int, tuple[Node, int]] = {}
        """Descriptor -> what is open, and the flags."""
        self.dirty: dict[int, Node] = {}
        """The nodes that are not durable, by number: perhaps, see Node.dirty."""

    # -- what is there

    def look_up(self, path: str) -> Node:
        """FileNotFoundError."""
        node: Node = self.root
        for name in path.split("/"):
            if name != ".":
                if not isinstance(node, Directory) or name not in node.entries:
                    raise FileNotFoundError(path)
                node = node.entries[name]
        return node

    def place(self, path: str) -> tuple[Directory, str]:
        """The directory that holds the path, and its name there."""
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
        """All of the operation that a power loss may already have left; nothing of it is durable."""
        if entry.kind not in SYNCS:
            getattr(self, f"_{entry.kind}")(*entry.args)

    def complete(self, entry: Entry) -> None:
        """Applies an operation that syncs: its bytes are durable once it has returned."""
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
        """fsync or fdatasync."""
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
        """syncfs."""
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
        """A marker."""

    _answered = _left_out = _begin
