"""Moves messages of a queue in a directory to its dead-letter queue and back, each by one rename, and keeps the reasons
with which they are given back."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .engine import NoSuchQueueError, Origin, Queue, StorageError
from .lifecycle import Event
from .message_state import MessageState
from .message_store import MessageMover, MessageStore
from .policy import DeadLetterMoves, is_exhausted, new_origin, other_storage
from .publisher import Publisher
from .recording import QueueRecorder


class DirectoryDeadLetters:
    """The Redrive of one queue. Messages move one by one: `move` ends at the first failure."""

    def __init__(
        self,
        store: MessageStore,
        mover: MessageMover,
        publisher: Publisher[Any],
        recorder: QueueRecorder,
        find: "Callable[[], DirectoryDeadLetters | None]",
    ) -> None:
        """find: returns those of the dead-letter queue, which it makes if needed; StorageError, OSError."""
        self._qid = recorder.qid
        self._options = publisher.options
        self._clock = recorder.shared.clock
        self._store = store
        self._mover = mover
        self._publisher = publisher
        self._recorder = recorder
        self._find = find
        self._moves = DeadLetterMoves(self._qid, self._options)

    def bury(self, mid: int, state: MessageState, receives: int, peer: str | None) -> bool:
        """Moves a message with so many receives to the dead-letter queue. Call it within `exclusive`, with its
        state. peer: see Lifecycle. Returns False if it is not exhausted, or cannot move."""
        return is_exhausted(self._options, receives) and self._moves.attempt(
            lambda: self._bury(mid, state, receives, peer)
        )

    def reject(self, mid: int, state: MessageState, reason: str | None) -> bool:
        """Moves a message to the dead-letter queue, whatever its count. Call it within `exclusive`, with its state.
        reason: see `giving`. Returns False if another process was faster. NoDeadLetterQueueError, StorageError,
        OSError: nothing has changed."""
        return self._moves.reject(mid, lambda: self._reject(mid, state, reason))

    def _reject(self, mid: int, state: MessageState, reason: str | None) -> bool:
        with self.giving(mid, state, reason):
            return self._bury(mid, state, state.receives, None, "rejected")

    @contextlib.contextmanager
    def giving(self, mid: int, state: MessageState, reason: str | None) -> Iterator[None]:
        """Writes why a message is given back, before the body does it: whoever sees the message then sees the reason
        too. If that raises, the reason before is written again. reason: None keeps the one before."""
        if reason is None:
            yield
            return
        before = self._mover.reasons.get(mid, "")
        self._mover.write_reason(mid, state, reason)
        try:
            yield
        except (OSError, StorageError):
            self._mover.write_reason(mid, state, before)
            raise

    def _bury(self, mid: int, state: MessageState, receives: int, peer: str | None, reason: str = "receives") -> bool:
        """reason: of the origin. Returns False if another process was faster. StorageError, OSError."""
        target = self._find()
        if target is None or target is self:
            raise StorageError("it is the same queue")
        target.require_room(1)
        before, pushed_at = self._mover.origins.get(mid), self._store.pushed_at(mid)
        origin = new_origin(self._qid, mid, receives, self._clock(), pushed_at=pushed_at, before=before, reason=reason)
        moved = self._move(mid, state, target, origin, peer) is not None
        self._publisher.counts.dead += moved
        self._publisher.counts.rejected += moved and reason == "rejected"
        return moved

    def _move(
        self, mid: int, state: MessageState, target: "DirectoryDeadLetters", origin: Origin | None, peer: str | None
    ) -> int | None:
        size = self._store.index.size(mid)
        new = self._mover.move(mid, state, target._mover, origin)
        if new is not None:
            event: Event = "redriven" if origin is None else "dead"
            receives = state.receives if origin is None else origin.receives
            self._recorder.note_gone(event, mid, size, receives, peer=peer)
            target._publisher.counts.pushed += 1
            target._recorder.note("pushed", new, 0, peer=peer)
        return new

    def require_room(self, count: int) -> None:
        self._publisher.require_room(count)

    def letters(self, mids: Sequence[int], count: int) -> list[tuple[int, str]]:
        """See Redrive."""
        self._publisher.publish()
        return [(mid, origin.qid) for mid, origin in self._mover.letters(mids, count)]

    def move(self, letters: Sequence[tuple[int, Queue]]) -> list[tuple[int, int]]:
        """See Redrive. Returns those that moved: without those taken by others, and those from the first failure on.
        QueueFullError, NoSuchQueueError, UnsupportedError, OSError: then nothing has changed."""
        targets = [self._target(queue) for _, queue in letters]
        for target in {id(target): target for target in targets}.values():
            if not target._store.in_place():
                raise NoSuchQueueError(f"there is no queue {target._qid!r} any more")
            target.require_room(targets.count(target))
        moved: list[tuple[int, int]] = []
        for (mid, _), target in zip(letters, targets, strict=True):
            try:
                new = self._redrive(mid, target)
            except (OSError, StorageError):
                if not moved:
                    raise
                break  # the next call says it again
            if new is not None:
                moved.append((mid, new))
        return moved

    def _target(self, queue: Queue) -> "DirectoryDeadLetters":
        target = queue.redrive
        if not isinstance(target, DirectoryDeadLetters) or queue.options.storage != self._options.storage:
            raise other_storage(self._options.storage, queue.options.storage)
        return target

    def _redrive(self, mid: int, target: "DirectoryDeadLetters") -> int | None:
        while True:
            with self._store.exclusive(mid) as state:
                if state is None or mid not in self._mover.origins:
                    return None
                new = self._move(mid, state, target, None, None)
                if new is not None:
                    return new
