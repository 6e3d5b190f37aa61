"""A queue whose changes are records in a journal: made, taken back when a commit fails, and replayed at a start."""

from ..directory import Shared
from ..engine import Options
from . import records
from .backed import BackedQueue
from .entries import CLEAN, NOWHERE, Entry
from .keys import Keys
from .ledger import Ledger

ANNOUNCE = records.SMALL + 1000
"""Bytes that the record which names the queue takes at most."""
CHANGE = records.SMALL + ANNOUNCE
"""Bytes that a change of a message takes at most."""


_Before = tuple[Entry | None, int, bool, bool]
"""A message as it was: its entry, its expiry in the index, whether it was new, whether it was delayed."""


class RecordedQueue(BackedQueue):
    """Knows how every message was before the batch that is under way."""

    def __init__(self, path: str, qid: str, options: Options, shared: Shared, ledger: Ledger) -> None:
        """As FileQueue. What the journal holds of it is to be replayed then."""
        self.journal_number = ledger.new_number()
        self.keys = Keys()
        self._journal = ledger.journal
        self._announced = 0  # the segment that says what the number means
        self._undo: dict[int, _Before | None] = {}
        self._facts: dict[int, int] = {}  # of messages that it has deleted, as the index had them
        self._undo_keys: list[bytes] = []
        self._undo_carried: list[tuple[bytes, int, int, int]] = []  # keys as they were: and the segment that has them
        self._dug_up: dict[int, Entry] = {}  # files that were to be removed, and are a message's again
        super().__init__(path, qid, options, shared, ledger)

    def close(self) -> list[int]:
        self.ledger.changed.discard(self)
        self.committed()
        return super().close()

    # -- records --------------------------------------------------------------------------------------------------

    def record(self) -> bytes:
        """What a segment has to say of the queue before anything else."""
        return records.queue(self.journal_number, self.last_mid, self.qid)

    def recorded_in(self, segment: int) -> None:
        """A segment has begun with that."""
        self._announced = segment

    def _append(self, body: bytes, payload: bytes | None = None) -> None:
        if self._announced < self._journal.number:
            self._announce()
        self.ledger.changed.add(self)
        self._journal.append(body, payload)

    def _announce(self) -> None:
        self._announced = self._journal.number
        self._journal.append(self.record())

    def _reserve(self) -> None:
        if self._journal.left < CHANGE:
            self.ledger.reserve(CHANGE)

    def _remember(self, mid: int, entry: Entry | None, expiry: int, *, delayed: bool = False) -> None:
        """How the message, which is there, is before this batch changes it. expiry: as the index has it; delayed:
        whether that is a delay."""
        self.ledger.changed.add(self)
        if mid not in self._undo:
            new = mid in self._index.new if entry is None or entry.receives < 0 else entry.receives == 0
            self._undo[mid] = entry, expiry, new, delayed

    def committed(self) -> None:
        """What was changed is in the journal."""
        self._undo.clear()
        self._facts.clear()
        self._undo_keys.clear()
        self._undo_carried.clear()
        self._dug_up.clear()

    def roll_back(self) -> None:
        """What was changed is not in the journal, and has not happened."""
        self._announced = 0
        for mid, before in self._undo.items():
            facts = self._facts.get(mid)
            if self._index.expiry(mid) is not None:
                facts = self._index.remove(mid)
            entry, expiry, new, delayed = before or (None, 0, False, False)
            self.entries.restore(mid, entry)
            if before is not None:
                self._index.restore(mid, expiry, facts or 0, new=new, delayed=delayed)
                if expiry:
                    self.hidden(expiry)
                else:
                    self.arrived()
            if mid in self._dug_up:
                self.entries.bury(mid, self._dug_up[mid])
        self.entries.sort()
        for key in self._undo_keys:
            self.keys.forget(key)
        for carried in self._undo_carried:
            self.keys.note(*carried)
        self.committed()

    def is_written(self, mid: int, disk: int, *, synced: bool) -> None:
        """While a batch is under way that has changed the message: should it fail, the file is there all the same."""
        before = self._undo.get(mid)
        if before is not None and before[0] is not None:
            entry = before[0]._replace(disk=disk, payload=None if synced else before[0].payload)
            self._undo[mid] = entry, *before[1:]

    def is_uncommitted(self, mid: int) -> bool:
        """Whether the batch that is under way has changed the message."""
        return mid in self._undo

    # -- changes --------------------------------------------------------------------------------------------------

    def _change(
        self,
        mid: int,
        entry: Entry | None,
        expiry: int,
        receives: int,
        visible: int,
        *,
        delayed: bool,
        held: bool = False,
    ) -> None:
        """A message's state has another record: how often it was received, and until when it is hidden. entry, expiry:
        as they are now."""
        self._reserve()
        self._remember(mid, entry, expiry, delayed=expiry != 0 and self._index.is_delayed(mid))
        self._append(records.state(self.journal_number, mid, receives, visible, delayed))
        if entry is None:
            disk = self._disk_of(expiry)
            self.entries.add(mid, Entry(None, receives, disk, self._journal.number, self._clock(), held))
        elif entry.segment == CLEAN:
            changed = Entry(entry.payload, receives, entry.disk, self._journal.number, self._clock(), held)
            self.entries.replace(mid, changed)
        else:
            payload, _, disk, segment, since, _ = entry
            self.entries.replace(mid, Entry(payload, receives, disk, segment, since, held))

    # -- keys -----------------------------------------------------------------------------------------------------

    def carry_keys(self, segment: int, now: int) -> None:
        """Says again what only segments before that one say. OSError when there is no room."""
        for key, mid, at, where in self.keys.before(segment, now):
            self._reserve()
            self._append(records.key_of(self.journal_number, mid, key, at))
            self._undo_carried.append((key, mid, at, where))
            self.keys.note(key, mid, at, self._journal.number)

    def key_records(self, now: int) -> list[bytes]:
        """Those that count still."""
        return [records.key_of(self.journal_number, mid, key, at) for key, mid, at, _ in self.keys.before(1 << 62, now)]

    # -- replaying ------------------------------------------------------------------------------------------------

    def replay_push(self, record: records.Push, segment: int) -> None:
        """Whatever the file says, if there is one: it may not have been synced."""
        mid = record.mid
        disk = self._index.expiry(mid)
        if disk is not None:
            self._index.remove(mid)
        self.entries.pop(mid)
        buried = self.entries.gone.pop(mid, None)
        if disk is None and buried is not None:
            disk = buried.disk  # a copy of a message that was deleted, and whose file is there still
        self.entries.add(mid, Entry(record.payload, 0, NOWHERE if disk is None else disk, segment, 0))
        self._index.add(mid, record.visible, len(record.payload))
        self._saw(mid)
        if record.key is not None:
            self.keys.note(record.key, mid, record.at, segment)

    def replay_state(self, record: records.State, segment: int) -> None:
        """Of a message that is gone, a later record says so, or somebody has taken it."""
        mid = record.mid
        self._saw(mid)
        if not self._load_as(mid, retrieved=record.receives > 0):
            return
        entry, index = self.entries.get(mid), self._index
        if entry is None:
            self.entries.add(mid, Entry(None, record.receives, index.expiry(mid) or 0, segment, 0))
        else:
            self.entries.replace(mid, entry._replace(receives=record.receives))
        if record.delayed or record.visible:
            index.hide(mid, record.visible, delayed=record.delayed)
        elif index.expiry(mid):
            index.show(mid)
        if record.receives:
            index.new.discard(mid)

    def _load_as(self, mid: int, *, retrieved: bool) -> bool:
        """As `load`, but the journal knows what the file's attributes may not say yet."""
        expiry = self._index.expiry(mid)
        if expiry is None:
            return False
        if not self._index.loaded(mid):
            try:
                status = self._disk.lstat(self.name_path(mid, expiry))
            except FileNotFoundError:
                self._give_up(mid)
                return False
            self._index.load(mid, status.st_size, retrieved=retrieved, delayed=False)
        return True

    def replay_delete(self, record: records.Delete, segment: int) -> None:
        """Its file may be gone, or not yet."""
        self._saw(record.mid)
        disk = self._index.expiry(record.mid)
        if disk is None:
            return
        entry = self.entries.pop(record.mid)
        if entry is not None:
            disk = entry.disk
        if disk != NOWHERE:
            self.entries.bury(record.mid, Entry(None, 0, disk, segment if entry is None else entry.segment, 0))
        self._index.remove(record.mid)

    def replayed(self) -> None:
        """Everything has been."""
        if self._index.ready:
            self.arrived()
        due = self._index.next_expiry()
        if due is not None:
            self.hidden(due)

    def forget_replayed(self) -> None:
        """What was replayed belongs to a queue of the same name that has been removed since."""
        self.entries.clear()
        self.keys = Keys()
        self._listed = False
        self.rescan()
        self._listed = True
