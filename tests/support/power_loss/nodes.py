"""Files and directories in memory: their present state, the durable part of it, and what a power loss may leave.

A file's content is kept in pages, and a page of nothing but zeros takes no memory: a segment is made of zeros before it
is written, and there are several of them in each of thousands of images.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

PAGE = 4096
"""Bytes of a page. A frame of the journal fills whole blocks of this size, so most writes replace whole pages."""
_ZEROS = bytes(PAGE)


class Pages:
    """Bytes that can be written anywhere. A copy shares its pages with the original."""

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytes] = {}

    def copy(self) -> Pages:
        found = Pages()
        found.size, found.pages = self.size, dict(self.pages)
        return found

    def write(self, offset: int, data: bytes) -> None:
        """Writes data at an offset. Fills the bytes between the end and the offset with zeros."""
        self.size = max(self.size, offset + len(data))
        done = 0
        while done < len(data):
            number, start = divmod(offset + done, PAGE)
            part = data[done : done + PAGE - start]
            if len(part) < PAGE:
                page = self.pages.get(number, _ZEROS)
                page = page[:start] + part + page[start + len(part) :]
            else:
                page = bytes(part)
            if page == _ZEROS:
                self.pages.pop(number, None)
            else:
                self.pages[number] = page
            done += len(part)

    def resize(self, size: int) -> None:
        """Cuts off bytes, or adds zeros."""
        if size < self.size:
            last, rest = divmod(size, PAGE)
            for number in [number for number in self.pages if number >= last]:
                page = self.pages.pop(number)
                if number == last and rest:
                    self.pages[number] = page[:rest] + _ZEROS[rest:]
        self.size = size

    def read(self, offset: int, length: int) -> bytes:
        """Returns the bytes at the offset: fewer at the end of the file."""
        length = max(min(length, self.size - offset), 0)
        first = offset // PAGE
        numbers = range(first, (offset + length + PAGE - 1) // PAGE)
        whole = b"".join(self.pages.get(number, _ZEROS) for number in numbers)
        return whole[offset - first * PAGE :][:length]

    def parts(self) -> Iterator[tuple[int, bytes]]:
        """Returns the parts that are not zeros, with their offsets."""
        for number, page in self.pages.items():
            yield number * PAGE, page[: self.size - number * PAGE]


_SECTOR = 512
"""Bytes that a disk writes whole or not at all. A disk with sectors of 4096 bytes tears less than this model."""
NOTHING, EVERYTHING = "nothing", "everything"
"""The power losses that leave nothing, or everything, of what is not durable. Other words are seeds of mixtures."""


class Change(NamedTuple):
    """A change of the names in a directory. node: what the name is now, None for a removed name. old: the former name
    of a renamed node. needs: the change in another directory without which this one cannot be left."""

    number: int
    name: str
    node: Node | None
    old: str | None = None
    needs: tuple[Directory, int] | None = None


class Node:
    """A file or a directory, with its extended attributes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attributes: dict[str, bytes] = {}
        self.durable_attributes: dict[str, bytes] = {}
        self.attribute_changes: list[tuple[int, str, bytes | None]] = []
        """Number, name and value (None for a removed attribute) of the changes that are not durable."""

    @property
    def dirty(self) -> bool:
        return bool(self.attribute_changes)

    def set_attribute(self, number: int, name: str, value: bytes | None) -> None:
        self.attribute_changes.append((number, name, value))
        _set_attribute(self.attributes, name, value)

    def attributes_after(self, changes: int) -> dict[str, bytes]:
        """Returns the attributes after the first `changes` changes that are not durable."""
        found = dict(self.durable_attributes)
        for _, name, value in self.attribute_changes[:changes]:
            _set_attribute(found, name, value)
        return found

    def sync_attributes(self) -> None:
        self.durable_attributes = dict(self.attributes)
        self.attribute_changes = []

    def sync(self) -> None:
        self.sync_attributes()


def _set_attribute(attributes: dict[str, bytes], name: str, value: bytes | None) -> None:
    attributes.pop(name, None)
    if value is not None:
        attributes[name] = value


class File(Node):
    """A file. pending: writes (offset, data) and new sizes (size, None) that are not durable, in their order.

    Ensures that what `left` returns has, in each sector, the bytes of one of the pending writes or the durable ones, or
    zeros behind the durable end; and that equal contents of one file have equal keys, so they are looked at once.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.pages = Pages()
        self.durable = Pages()
        self.version = 0
        """How often the durable content has changed: together with the number of pending writes, this is the key of a
        content."""
        self.pending: list[tuple[int, bytes | None]] = []

    @property
    def dirty(self) -> bool:
        return bool(self.pending or self.attribute_changes)

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append((offset, data))
        self.pages.write(offset, data)

    def resize(self, size: int) -> None:
        if size != self.pages.size:
            self.pending.append((size, None))
            self.pages.resize(size)

    def sync_data(self) -> None:
        if self.pending:
            self.durable = self.pages.copy()
            self.pending = []
            self.version += 1

    def sync(self) -> None:
        super().sync()
        self.sync_data()

    def sync_range(self, offset: int, data: bytes) -> None:
        """Makes durable the data that was just written at the offset. Earlier writes elsewhere stay pending."""
        # With a new size among the pending changes, all of them become durable, which is more than O_DSYNC promises.
        # The journal writes so only to files of its pool, which are synced when they are made.
        if any(written is None for _, written in self.pending):
            self.sync_data()
            return
        rest = []
        for start, written in self.pending:
            assert written is not None
            before, after = offset - start, offset + len(data) - start
            if after <= 0 or before >= len(written):
                rest.append((start, written))
                continue
            if before > 0:
                rest.append((start, written[:before]))
            if after < len(written):
                rest.append((start + after, written[after:]))
        self.pending = rest
        self.durable.write(offset, data)
        self.version += 1

    def left(self, how: str, rng: random.Random | None) -> tuple[object, Pages]:
        """Returns what a power loss leaves of the content, and a key that differs for other contents of this file."""
        if not self.pending or how == NOTHING:
            return self.version, self.durable
        if how == EVERYTHING:
            return (self.version, len(self.pending)), self.pages
        assert rng is not None
        # head: the first sectors of each write; tail: the last ones, as a disk may choose its own order; torn: any.
        kind = rng.choice(("nothing", "everything", "torn", "torn", "head", "tail"))
        if kind in (NOTHING, EVERYTHING):
            return self.left(kind, None)
        return (self.version, len(self.pending), how), self._torn(kind, rng)

    def _torn(self, kind: str, rng: random.Random) -> Pages:
        found = self.durable.copy()
        # Mostly all writes have begun; else only the first ones, as of a process that was slow.
        taken = len(self.pending) if rng.random() < 0.6 else rng.randrange(len(self.pending)) + 1
        split = rng.random()
        size = found.size
        for offset, data in self.pending[:taken]:
            if data is None:
                found.resize(offset)
                size = offset
                continue
            size = max(size, offset + len(data))
            sectors = _sectors(offset, data)
            for number, (start, part) in enumerate(sectors):
                early = number <= split * len(sectors)
                if (kind == "torn" and rng.random() < 0.5) or early is (kind == "head"):
                    found.write(start, part)
        if kind != "torn" or rng.random() < 0.7:  # else it ends with the last sector that is there
            found.resize(size if rng.random() < 0.7 else min(size, max(self.durable.size, rng.randrange(size + 1))))
        return found


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    first = _SECTOR - offset % _SECTOR
    starts = [0, *range(first, len(data), _SECTOR)]
    return [(offset + start, data[start:end]) for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


class Directory(Node):
    """entries: the names as they are now."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.changes: list[Change] = []

    @property
    def dirty(self) -> bool:
        return bool(self.changes or self.attribute_changes)

    def change(self, change: Change) -> None:
        self.changes.append(change)
        _change(self.entries, change)

    def entries_after(self, changes: int) -> dict[str, Node]:
        """Returns the names after the first `changes` changes that are not durable."""
        found = dict(self.durable)
        for change in self.changes[:changes]:
            _change(found, change)
        return found

    def sync_names(self, upto: int) -> None:
        """Makes durable all changes up to that number, and the changes in other directories that they need."""
        taken = sum(change.number <= upto for change in self.changes)
        self.durable, done = self.entries_after(taken), self.changes[:taken]
        self.changes = self.changes[taken:]
        for change in done:
            if change.needs is not None:
                change.needs[0].sync_names(change.needs[1])


def _change(entries: dict[str, Node], change: Change) -> None:
    if change.old is not None:
        entries.pop(change.old, None)
    entries.pop(change.name, None)
    if change.node is not None:
        entries[change.name] = change.node
