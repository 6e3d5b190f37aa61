"""What a queue in a directory tells the lifecycle record."""

from .index.message_index import Index
from .lifecycle import Event, Lifecycle


class QueueRecorder:
    """Tells the lifecycle record, if there is one, what happens to the messages of one queue."""

    def __init__(self, qid: str, index: Index, lifecycle: Lifecycle | None) -> None:
        """index: knows the sizes of the messages."""
        self.lifecycle = lifecycle
        self._qid = qid
        self._index = index

    @property
    def peer(self) -> str:
        """Whose request is being done, see Lifecycle; nothing without a record."""
        return "" if self.lifecycle is None else self.lifecycle.peer

    def note(self, event: Event, mid: int, receives: int | None, *, peer: str | None = None) -> None:
        """Notes what has happened to a message that is here and loaded. See Lifecycle."""
        if self.lifecycle is not None:
            self.lifecycle.note(event, self._qid, mid, self._index.size(mid), receives, peer=peer)

    def note_deleted(self, mid: int, size: int | None, receives: int | None) -> None:
        """Notes that a message is gone."""
        if self.lifecycle is not None:
            self.lifecycle.note("deleted", self._qid, mid, size, receives)

    def note_all_deleted(self) -> None:
        """Notes that the queue is gone with all its messages. Their sizes as far as they are known."""
        if self.lifecycle is not None:
            index = self._index
            for mid in index.messages.after(-1, len(index)):
                self.note_deleted(mid, index.known_size(mid), None)
