"""What the directory of a queue does not show yet, message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..attributes import Attributes, AttributeStore
from .ledger import OVERHEAD, Ledger

NOWHERE = -1
"""The state of the file of a message that has none."""
IN_FILE = -1
"""The receives of a message whose file says them."""
CLEAN = -1
"""The segment of an entry that no segment is needed for."""


class Entry(NamedTuple):
    """payload: None when the file has it; receives: or IN_FILE; disk: the extension of its file's name (0: none), or
    NOWHERE; segment: the oldest one that says what the directory does not, or CLEAN; since: when that began; held: it
    is hidden for a subscriber only, and so is ready for the journal and the directory."""

    payload: bytes | None
    receives: int
    disk: int
    segment: int
    since: int
    held: bool = False


class Entries:
    """Of one queue. In the order of their segments, but for those that are CLEAN."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._entries: dict[int, Entry] = {}
        self.gone: dict[int, Entry] = {}
        """Messages that are deleted, and whose files are there still."""
        self.pinned: int | None = None
        """The first segment of what is being stored, and has no entries yet."""
        self.get = self._entries.get
        self.values = self._entries.values
        self.items = self._entries.items

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, mid: int, entry: Entry) -> None:
        """For a message that has none."""
        self._entries[mid] = entry
        if entry.payload is not None:
            self._ledger.memory += len(entry.payload) + OVERHEAD
        if self._ledger.due is None:
            self._ledger.behind(entry.since)

    def add_run(self, mids: range, payloads: Sequence[bytes], size: int, segment: int, since: int) -> None:
        """For new messages that have none. size: of all payloads."""
        new = tuple.__new__  # half the time of the call
        self._entries.update(
            zip(mids, [new(Entry, (payload, 0, NOWHERE, segment, since, False)) for payload in payloads], strict=True)
        )
        self._ledger.memory += size + OVERHEAD * len(payloads)
        if self._ledger.due is None:
            self._ledger.behind(since)

    def replace(self, mid: int, entry: Entry) -> None:
        """For a message that has one. It keeps its place, unless a segment needs it from now on."""
        old = self._entries[mid]
        if old.segment == CLEAN and entry.segment != CLEAN:
            del self._entries[mid]
        self._entries[mid] = entry
        if old.payload is not None and entry.payload is None:
            self._ledger.memory -= len(old.payload) + OVERHEAD
        if self._ledger.due is None:
            self._ledger.behind(entry.since)

    def change(self, mid: int, entry: Entry) -> None:
        """As `replace`, where neither the payload nor the segment is another one."""
        self._entries[mid] = entry

    def pop(self, mid: int) -> Entry | None:
        """The directory shows everything of the message, or it is gone."""
        entry = self._entries.pop(mid, None)
        if entry is not None and entry.payload is not None:
            self._ledger.memory -= len(entry.payload) + OVERHEAD
        return entry

    def bury(self, mid: int, entry: Entry) -> None:
        """The message is deleted, and its file is to be."""
        self.gone[mid] = entry
        if self._ledger.due is None:
            self._ledger.behind(entry.since)

    def restore(self, mid: int, entry: Entry | None) -> None:
        """As it was. A message that was there had no file to bury."""
        self.pop(mid)
        self.gone.pop(mid, None)
        if entry is not None:
            self.add(mid, entry)

    def sort(self) -> None:
        """After `restore`: puts them in order again."""
        in_order = sorted(self._entries.items(), key=lambda item: item[1].segment)
        self._entries.clear()
        self._entries.update(in_order)

    def oldest_segment(self) -> int | None:
        """The oldest segment that any of them needs."""
        first = next((entry.segment for entry in self._entries.values() if entry.segment != CLEAN), None)
        needed = [entry.segment for entry in self.gone.values() if entry.segment != CLEAN]
        needed += [segment for segment in (first, self.pinned) if segment is not None]
        return min(needed, default=None)

    def since(self) -> int | None:
        """Since when the directory is behind."""
        first = next((e.since for e in self._entries.values() if not (e.held and e.segment == CLEAN)), None)
        buried = next((entry.since for entry in self.gone.values()), None)
        return min((since for since in (first, buried) if since is not None), default=None)

    def clear(self) -> None:
        """The queue is gone."""
        for mid in list(self._entries):
            self.pop(mid)
        self.gone.clear()


class OverlaidAttributes(AttributeStore):
    """Those of the files, but for messages whose entries know better."""

    def __init__(self, files: AttributeStore, entries: Entries) -> None:
        super().__init__()
        self.files = files
        self._entries = entries

    def read(self, path: str, mid: int) -> Attributes:
        entry = self._entries.get(mid)
        if entry is None or entry.receives == IN_FILE:
            return self.files.read(path, mid)
        return Attributes(entry.receives)

    def receives(self, path: str, mid: int) -> int:
        entry = self._entries.get(mid)
        if entry is None or entry.receives == IN_FILE:
            return self.files.receives(path, mid)
        return entry.receives

    def write(self, path: str, mid: int, attributes: Attributes, *, or_fail: bool = False) -> None:
        self.files.write(path, mid, attributes, or_fail=or_fail)

    def forget(self, mid: int) -> None:
        self.files.forget(mid)

    def clear(self, names: Iterable[str], known: Callable[[int], bool]) -> None:
        self.files.clear(names, known)

    def _read(self, path: str, mid: int) -> Attributes:
        raise NotImplementedError

    def _write(self, path: str, mid: int, attributes: Attributes) -> None:
        raise NotImplementedError
