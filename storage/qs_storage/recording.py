"""Reports the events of a directory queue's messages."""

from .index.message_index import Index
from .lifecycle import Event
from .shared import Shared


class QueueRecorder:
    """Reports to the lifecycle record, if there is one."""

    def __init__(self, qid: str, index: Index, shared: Shared) -> None:
        """index: knows the sizes of messages."""
        self.shared = shared
        self.qid = qid
        self._index = index

    def note(self, event: Event, mid: int, receives: int | None, *, peer: str | None = None) -> None:
        """Reports an event of a loaded message. See Lifecycle."""
        if self.shared.lifecycle is not None:
            self.shared.lifecycle.note(event, self.qid, mid, self._index.size(mid), receives, peer=peer)

    def note_gone(
        self, event: Event, mid: int, size: int | None, receives: int | None, *, peer: str | None = None
    ) -> None:
        """Reports why a message is gone. See Lifecycle."""
        if self.shared.lifecycle is not None:
            self.shared.lifecycle.note(event, self.qid, mid, size, receives, peer=peer)

    def note_all_deleted(self) -> None:
        """Reports all messages deleted with the queue, with sizes as far as known."""
        if self.shared.lifecycle is not None:
            for mid in self._index.messages.after(-1, len(self._index)):
                self.note_gone("deleted", mid, self._index.known_size(mid), None)
