"""Turns files that other programs put into the directory of a log's queue into messages, for its `Door`."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import itemgetter

from ...engine import Clock
from ...names import MAX_MID
from ..log import records
from ..upkeep.intake import File
from .store import Store
from .table import MessageTable

_AppendRun = Callable[[Sequence[int], Sequence[bytes], int], None]


class ForeignFiles:
    """The files of one queue's directory that become messages."""

    __slots__ = ("_append_run", "_clock", "_store", "_table", "taken", "unbounded")

    def __init__(
        self,
        table: MessageTable,
        taken: dict[int, int],
        append_run: _AppendRun,
        store: Store,
        clock: Clock,
    ) -> None:
        """taken: the places of TAKEN records, by token, whose files may still exist; append_run: stores messages of
        these ids, payloads, and time."""
        self._table = table
        self.taken = taken
        self._append_run = append_run
        self._store = store
        self._clock = clock
        self.unbounded = False
        """True to ignore the queue's capacity."""

    def room(self) -> int:
        capacity = self._table.options.capacity
        return MAX_MID if capacity is None or self.unbounded else capacity - len(self._table)

    def take_in_files(self, files: Sequence[File], token: int) -> None:
        """Stores the messages of files: each keeps its id where that is free. OSError: nothing has changed."""
        now = self._clock()
        table, log = self._table, self._store.log
        beside = records.PUSH_SIZE + records.SMALL
        size = sum(len(file.payload) + beside + len(file.reason.encode()) for file in files) + records.SMALL
        log.reserve(size, push=True)  # all of it in one frame
        kept: dict[int, File] = {}
        others: list[File] = []
        for file in sorted(files, key=itemgetter(1)):
            if file.mid in kept or file.mid in table.index.messages:
                others.append(file)
            else:
                kept[file.mid] = file
        self._take_in_run(list(kept), list(kept.values()), now)
        self._take_in_run(table.free_ids(len(others), now), others, now)
        self.taken[token] = log.append(records.taken(table.number, token))
        self._store.undo.append((self.taken.pop, token))

    def _take_in_run(self, mids: Sequence[int], files: Sequence[File], now: int) -> None:
        if not files:
            return
        self._append_run(mids, [file.payload for file in files], now)
        self._table.saw(mids[-1])
        for mid, file in zip(mids, files, strict=True):
            if file.reason:
                self._store.log.append(records.reason(self._table.number, mid, *file.state, file.reason))
                self._table.restore_reason(mid, file.reason)
            elif any(file.state):
                self._store.log.append(records.state(self._table.number, mid, *file.state))
            if any(file.state):
                self._table.restore_state(mid, file.state)

    def note_unlinked(self, tokens: Iterable[int]) -> None:
        """Notes that the files of these tokens are removed. The note may be lost: a start finds no such file."""
        for token in tokens:
            del self.taken[token]
            with suppress(OSError):  # it concerns earlier changes: their batch will fail
                self._store.make_room_for_notes()
            self._store.log.note(records.unlinked(self._table.number, token))
