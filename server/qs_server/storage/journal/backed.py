"""A queue of which the directory does not show everything: what is in memory, and where its files are meanwhile.

The index says what is true. For each message of which the directory says something else, there is an entry: what is in
memory of it and what the directory has. A message without one is on disk as the index has it.

This process is the only consumer. What others put into the directory is taken up, what they take away is given up.
"""

import logging
import os
from contextlib import suppress

from ..attributes import Attributes
from ..directory import Shared
from ..engine import Options, Receipt, StaleReceiptError
from ..filequeue import FileQueue
from ..names import NEW, WITHHELD, message_name, parse_message
from .entries import IN_FILE, NOWHERE, Entries, Entry, OverlaidAttributes
from .ledger import Ledger

_logger = logging.getLogger(__name__)


class BackedQueue(FileQueue):
    """Reads, and follows what others do."""

    def __init__(self, path: str, qid: str, options: Options, shared: Shared, ledger: Ledger) -> None:
        """As FileQueue."""
        self.ledger = ledger
        self.entries = Entries(ledger)
        self.writing: set[int] = set()
        """Messages whose files are being changed by us just now, in another thread."""
        self.hides_withheld = False
        """Whether files of withheld messages are named as those of ready ones: while no other program consumes, so that
        a claim renames nothing. Not before what a start finds has been settled, and not at rest."""
        self.is_closed = False
        self._listed = False
        super().__init__(path, qid, options, shared)
        self.files = self._attributes
        """The attributes of the files."""
        self._attributes = OverlaidAttributes(self.files, self.entries)
        self._listed = True

    def close(self) -> list[int]:
        self.is_closed = True
        self.entries.clear()
        super().close()
        return []

    def _held(self, receipt: Receipt) -> tuple[int, Attributes]:
        entry = self.entries.get(receipt.mid)
        if entry is None or entry.receives == IN_FILE:
            return super()._held(receipt)
        if receipt.receives not in (None, entry.receives):
            raise StaleReceiptError(
                f"message {receipt.mid} of queue {self.qid!r} has been received {entry.receives} times by now, "
                f"not {receipt.receives}"
            )
        return self._found(receipt.mid), Attributes(entry.receives)

    def _content(self, mid: int, expiry: int, max_bytes: int | None) -> bytes | None:
        entry = self.entries.get(mid)
        if entry is None or entry.payload is None:
            return super()._content(mid, expiry, max_bytes)
        return entry.payload if max_bytes is None or len(entry.payload) <= max_bytes else None

    def name_path(self, mid: int, expiry: int) -> str:
        """Where the file is, whatever state the message is in. While it is just being given another name, that is
        waited for: the entry may be another one afterwards."""
        if mid in self.writing:
            self.ledger.wait_for_spill()
        entry = self.entries.get(mid)
        return self.file_path(mid, self._disk_of(expiry) if entry is None or entry.disk == NOWHERE else entry.disk)

    def file_path(self, mid: int, disk: int) -> str:
        """Of a file with that extension."""
        return f"{self.path}/{message_name(mid, disk)}"

    def target(self, mid: int, entry: Entry) -> tuple[int, Attributes]:
        """What the directory should show of a message: its extension, and its attributes."""
        expiry = 0 if entry.held else self.shows(mid) or 0
        delayed = expiry if expiry and self._index.is_delayed(mid) else 0
        return expiry, Attributes(max(entry.receives, 0), delayed)

    # -- what others do -------------------------------------------------------------------------------------------

    def rescan(self) -> None:
        if not self._listed:
            super().rescan()
            return
        found = {
            parsed: name for name in self._disk.files_in(self.path) if (parsed := parse_message(os.fsencode(name)))
        }
        for mid in self._index.messages.after(-1, len(self._index)):
            disk = self._on_disk(mid)
            if disk is not None and disk != NOWHERE and (mid, disk) not in found:
                self.changed(message_name(mid, disk).encode(), appeared=False)
        for name in found.values():
            self.changed(os.fsencode(name), appeared=True)

    def changed(self, name: bytes, *, appeared: bool) -> None:
        parsed = parse_message(name)
        if parsed is None:
            self._foreign.note(os.fsdecode(name))
            return
        mid, expiry = parsed
        if expiry == NEW or mid in self.writing:
            return
        self._saw(mid)
        if appeared is (self._on_disk(mid) == expiry) or os.path.lexists(self.file_path(mid, expiry)) is not appeared:
            return
        if not appeared:
            if mid in self.entries.gone:
                del self.entries.gone[mid]  # what we would have removed
            else:
                self._give_up(mid)
        elif self._index.expiry(mid) is None:
            self.entries.gone.pop(mid, None)
            self._adopt(mid, expiry)
        elif self._on_disk(mid) == NOWHERE:
            self._give_another_id(mid, expiry)
        else:
            self._give_up(mid)
            self._adopt(mid, expiry)

    def _on_disk(self, mid: int) -> int | None:
        """The extension of the file of a message, NOWHERE when it has none, None when it is not known."""
        entry = self.entries.get(mid) or self.entries.gone.get(mid)
        return self.shows(mid) if entry is None else entry.disk

    def _give_up(self, mid: int) -> None:
        """Somebody has taken the file of a message."""
        if self._index.expiry(mid) is not None:
            self._index.remove(mid)
        self.entries.pop(mid)

    def _give_another_id(self, mid: int, expiry: int) -> None:
        """Somebody has published a message under the id of one that has no file yet. Ours has been answered for."""
        other = max(self.number(self._clock()), self.last_mid + 1)
        try:
            self._disk.rename(self.file_path(mid, expiry), self.file_path(other, expiry))
        except FileNotFoundError:
            return
        _logger.warning("%s has another message of the id %d; the one that just came is %d now", self.path, mid, other)
        self._saw(other)
        self._adopt(other, expiry)

    def lost(self, mid: int, expiry: int) -> None:
        self._watch.refresh()
        entry = self.entries.get(mid)
        if entry is not None and entry.payload is not None:
            return
        if self._index.expiry(mid) is not None and not os.path.lexists(self.name_path(mid, expiry)):
            self._give_up(mid)

    def disown(self, mid: int, path: str) -> None:
        super().disown(mid, path)
        self.entries.pop(mid)

    def touch(self, mid: int | None = None) -> None:
        """The journal is what a commit makes durable."""

    def _free_orphans(self) -> None:
        """What a process held that was killed is ready in the journal, and on disk."""

    def clear_directory(self) -> None:
        """Removes the files of messages that are deleted. OSError."""
        for mid, entry in list(self.entries.gone.items()):
            with suppress(FileNotFoundError):
                self._disk.unlink(self.file_path(mid, entry.disk))
            del self.entries.gone[mid]

    # -- for writing back -----------------------------------------------------------------------------------------

    @property
    def device(self) -> int:
        """The file system that the directory is on."""
        return self._identity[0]

    def is_at(self, path: str) -> bool:
        """Whether that is its directory now."""
        try:
            status = self._disk.lstat(path)
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def is_known(self, mid: int) -> bool:
        """Whether there is such a message."""
        return self._index.expiry(mid) is not None

    def shows(self, mid: int) -> int | None:
        """The extension that the file of a message ought to have."""
        expiry = self._index.expiry(mid)
        return None if expiry is None else self._disk_of(expiry)

    def _disk_of(self, expiry: int) -> int:
        """The extension of the file of a message in that state, as long as there is no entry that says another one."""
        return 0 if expiry == WITHHELD and self.hides_withheld else expiry
