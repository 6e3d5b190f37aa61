"""Removes messages from a queue's directory that are older than its retention."""

from .engine import Options, Stats
from .message_state import MessageState
from .message_store import MessageStore
from .policy import end_of, too_old_since
from .recording import QueueRecorder


class DirectoryRetirement:
    def __init__(self, options: Options, store: MessageStore, recorder: QueueRecorder, counts: Stats) -> None:
        """counts: of the queue; counts `retired`."""
        self._options = options
        self._clock = recorder.shared.clock
        self._store = store
        self._recorder = recorder
        self._counts = counts
        # That of which all hidden messages are loaded: only the disk knows the delayed ones.
        self._listing: object = None

    def upto(self) -> int:
        """Returns the greatest id that is too old, -1: none. Such messages are given out to nobody."""
        time = too_old_since(self._options, self._clock())
        return -1 if time is None else self._store.last_at(time)

    def next_due(self) -> int | None:
        """Returns when a window, a delay or a retention ends. OSError."""
        due = self._store.next_expiry()
        if self._options.retention is None:
            return due
        self._load_hidden()
        oldest = self._store.index.oldest()
        end = None if oldest is None else end_of(self._options, self._store.pushed_at(oldest))
        return end if due is None or (end is not None and end < due) else due

    def _load_hidden(self) -> None:
        index = self._store.index
        if self._listing is not index.messages:
            for mid in index.hidden.after(-1, len(index.hidden)):
                self._store.load(mid)
            self._listing = index.messages

    def retire(self, count: int) -> int:
        """Removes at most count old messages that are visible or delayed, oldest first. Returns how many it looked
        at. A failure holds up no others; OSError if there are none."""
        upto = self.upto()
        mids = self._store.index.old(upto, count) if upto >= 0 else []
        failure: OSError | None = None
        done = 0
        for mid in mids:
            try:
                with self._store.exclusive(mid, removing=True) as state:
                    if state is not None and (not state.hidden or state.delayed):
                        self.remove(mid, state, "")
                done += 1
            except OSError as error:
                failure = error
        if failure is not None and not done:
            raise failure
        return done

    def remove(self, mid: int, state: MessageState, peer: str | None) -> bool:
        """Removes a message, within `exclusive`. peer: see Lifecycle. False if another process was faster."""
        size = self._store.index.size(mid)
        removed = self._store.remove(mid, state)
        if removed:
            self._counts.retired += 1
            self._recorder.note_gone("retired", mid, size, None if state.receives < 0 else state.receives, peer=peer)
        return removed
