"""What a queue in a directory tells whoever keeps a record of its messages' lives, if anybody does."""

from .files.directory import MessageDirectory
from .lifecycle import Event


class RecordingDirectory(MessageDirectory):
    """Knows what a record wants to know of a message."""

    def note(self, event: Event, mid: int, receives: int | None = None, *, peer: str | None = None) -> None:
        """Something has happened to a message that is here. receives: if they are at hand; peer: as for Lifecycle."""
        lifecycle = self._shared.lifecycle
        if lifecycle is not None:
            if receives is None:
                receives = self._receives(mid, self._index.expiry(mid) or 0)
            lifecycle.note(event, self.qid, mid, self._index.size(mid), receives, peer=peer)

    def _receives(self, mid: int, expiry: int) -> int | None:
        """How often a message was received; None when the disk does not say, which is no reason to fail."""
        try:
            return self._attributes.receives(self.name_path(mid, expiry), mid)
        except OSError:
            return None

    def remove(self, mid: int, expiry: int) -> bool:
        """As `unlink`, of a message that was visible to others: it is noted as deleted."""
        lifecycle = self._shared.lifecycle
        if lifecycle is None:
            return self.unlink(mid, expiry)
        if not self.load(mid):
            return False
        size, receives = self._index.size(mid), self._receives(mid, expiry)
        if not self.unlink(mid, expiry):
            return False
        lifecycle.note("deleted", self.qid, mid, size, receives)
        return True

    def note_removed(self) -> None:
        """The queue is gone with all that it holds. Sizes as far as they are known: the files are not looked at."""
        lifecycle = self._shared.lifecycle
        if lifecycle is not None:
            index = self._index
            for mid in index.messages.after(-1, len(index)):
                lifecycle.note("deleted", self.qid, mid, index.size(mid) if index.loaded(mid) else None, None)
