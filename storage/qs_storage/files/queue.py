"""A queue of the vsqs layout, with dead letters.

A file without extension is ready, with a number hidden until then (in flight or delayed), with `.new` being written.
Any number of processes may share the directory, also the original vsqs: a rename succeeds for one of them.

A message moves to another queue's directory, as a dead letter or back, by one rename. A `.new` file reserves the new
id; attributes that hold after the move are written and synced; the file is renamed; the `.new` file is removed. So a
message is always in one of the directories, and a failure before the rename changes nothing.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from ..directory_queue import DirectoryQueue
from ..disk import READ
from ..engine import Draft, NoSuchQueueError, Options, Origin, Queue, Receipt, Redrive, StorageError
from ..message_store import MessageState, PendingMessage
from ..metadata import StoredHeaders
from ..names import message_name
from ..policy import DeadLetterMoves, dead_letter_queue, is_exhausted, new_origin, other_storage
from ..shared import EngineContext
from ..watch import MOVED_FROM, MOVED_TO
from .listing import WatchedDirectory
from .writer import FileWriter

_AT_ONCE = 1000


class FilesQueue(DirectoryQueue):
    """A queue in the vsqs layout, with dead letters and reasons, and its Redrive.

    Ensures that a message that moves is in one of the two directories at any moment: the move is one rename. Messages
    move one by one, so `move` ends at the first failure, and what has moved stays. Assumes that both directories are in
    one file system, as a rename needs."""

    has_dead_letters = True

    def __init__(
        self, path: str, qid: str, options: Options, context: EngineContext, *, clears_unfinished: bool = True
    ) -> None:
        """clears_unfinished: True to remove the files of crashed writers. OSError."""
        self._directory = WatchedDirectory(path, qid, options, context, clears=clears_unfinished)
        self._files = FileWriter(self._directory)
        self._moves = DeadLetterMoves(qid, options)
        super().__init__(self._directory, self._files)

    @property
    def redrive(self) -> Redrive:
        return self

    # -- dead letters ---------------------------------------------------------------------------------------------

    def _move_if_exhausted(self, mid: int, state: MessageState, receives: int, peer: str | None) -> bool:
        return is_exhausted(self.options, receives) and self._moves.attempt(
            lambda: self._make_dead_letter(mid, state, receives, peer)
        )

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        mid = receipt.mid
        rejected = False
        while not rejected:
            self.expire()
            with self._held(receipt) as state:
                rejected = self._moves.reject(mid, lambda: self._reject(mid, state, reason))

    def _reject(self, mid: int, state: MessageState, reason: str | None) -> bool:
        with self._noting_reason(mid, state, reason):
            return self._make_dead_letter(mid, state, state.receives, None, "rejected")

    @contextlib.contextmanager
    def _noting_reason(self, mid: int, state: MessageState, reason: str | None) -> Iterator[None]:
        """Writes why a message is given back, before the body of the with statement gives it back: so a process that
        sees the message sees the reason too. If the body raises, writes the earlier reason again. reason: None keeps
        the earlier one."""
        if reason is None:
            yield
            return
        before = self._directory.reasons.get(mid, "")
        self._directory.write_reason(mid, state.hidden, reason)
        try:
            yield
        except (OSError, StorageError):
            self._directory.write_reason(mid, state.hidden, before)
            raise

    def _make_dead_letter(
        self, mid: int, state: MessageState, receives: int, peer: str | None, reason: str = "receives"
    ) -> bool:
        """Moves a message to the dead-letter queue. reason: see Origin. Returns False if another process was faster.
        StorageError, OSError."""
        target = dead_letter_queue(self._context.find_or_make, self.options, FilesQueue)
        if target is self:
            raise StorageError("it is the same queue")
        target.require_room(1)
        before, pushed_at = self._directory.origins.get(mid), self._directory.pushed_at(mid)
        origin = new_origin(self.qid, mid, receives, self._clock(), pushed_at=pushed_at, before=before, reason=reason)
        moved = self._move(mid, state, target, origin, peer) is not None
        self.counts.dead += moved
        self.counts.rejected += moved and reason == "rejected"
        return moved

    # -- redriving ------------------------------------------------------------------------------------------------

    def letters(self, mids: Sequence[int], count: int) -> list[tuple[int, str]]:
        """Returns at most count dead letters, oldest first: see Redrive."""
        self.publish()
        directory, origins = self._directory, self._directory.origins
        candidates: Iterator[int]
        if mids:
            candidates = iter(sorted(set(mids)))
        elif not self._index.unloaded and len(origins) <= _AT_ONCE:
            candidates = iter(sorted(origins))
        else:
            candidates = self._all()
        loaded = (mid for mid in candidates if directory.load(mid) and mid in origins)
        return [(mid, origins[mid].qid) for mid in islice(loaded, count)]

    def _all(self) -> Iterator[int]:
        after = -1
        while block := self._index.messages.after(after, _AT_ONCE):
            yield from block
            after = block[-1]

    def move(self, letters: Sequence[tuple[int, Queue]]) -> list[tuple[int, int]]:
        """Moves dead letters to other queues. Returns those that moved: ends at the first failure, and leaves out those
        that another process took. If it raises, none has moved: QueueFullError, NoSuchQueueError, UnsupportedError,
        OSError."""
        targets = [self._target(queue) for _, queue in letters]
        for target in {id(target): target for target in targets}.values():
            if not target.in_place():
                raise NoSuchQueueError(f"there is no queue {target.qid!r} any more")
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

    def _target(self, queue: Queue) -> "FilesQueue":
        target = queue.redrive
        if not isinstance(target, FilesQueue) or queue.options.storage != self.options.storage:
            raise other_storage(self.options.storage, queue.options.storage)
        return target

    def _redrive(self, mid: int, target: "FilesQueue") -> int | None:
        while True:
            with self._directory.exclusive(mid) as state:
                if state is None or mid not in self._directory.origins:
                    return None
                new = self._move(mid, state, target, None, None)
                if new is not None:
                    return new

    # -- moving ---------------------------------------------------------------------------------------------------

    def _move(
        self, mid: int, state: MessageState, target: "FilesQueue", origin: Origin | None, peer: str | None
    ) -> int | None:
        """Moves a message to the end of another queue, visible and never received, with its reason. origin: for a
        message that becomes a dead letter. Returns the new id; None if another process was faster. QueueFullError,
        NoSuchQueueError, OSError."""
        source, into = self._directory, target._directory
        before, size = source.origins.get(mid), self._index.size(mid)
        pending = target._reserve((mid,) if before is None else (mid, before.mid))
        new = pending.mid
        try:
            moved = self._rename(mid, state, into, new, origin)
        except BaseException:
            target._give_up(pending, source.stored_headers(mid))
            raise
        if not moved:
            target._give_up(pending, source.stored_headers(mid))
            return None
        watch = self._context.watch
        watch.expect(source.watch, MOVED_FROM, message_name(mid, state.hidden))
        watch.expect(into.watch, MOVED_TO, message_name(new, 0))
        reason, headers = source.reasons.get(mid), source.stored_headers(mid)
        source.forget_attributes(mid)
        source.drop(mid)
        source.touch()
        into.receive(new, size, origin, reason, headers)
        target._files.discard([pending])
        if origin is None:
            self._note_gone("redriven", mid, size, state.receives, peer=peer)
        else:
            self._note_gone("dead", mid, size, origin.receives, peer=peer)
        target.counts.pushed += 1
        target._note("pushed", new, 0, peer=peer)
        return new

    def _reserve(self, avoid: Collection[int]) -> PendingMessage:
        """Reserves an id for a message that moves here. avoid: former ids of the message, under which its attributes
        count. QueueFullError, OSError."""
        # An empty `.new` file keeps the id from everybody else, until the message has it.
        while (pending := self._files.write(Draft(b""))).mid in avoid:
            self._files.discard([pending])
        return pending

    def _give_up(self, pending: PendingMessage, headers: StoredHeaders | None) -> None:
        self._files.discard([pending])
        self._directory.forget_attributes(pending.mid, headers)

    def _rename(self, mid: int, state: MessageState, into: WatchedDirectory, new: int, origin: Origin | None) -> bool:
        source = self._directory
        path = source.name_path(mid, state.hidden)
        try:
            # The receives are in an attribute that goes with the file: bound to the old id, they do not count for the
            # new one.
            changed = source.attributes.bind(path, mid)
            if origin is not None:
                into.letters.write_move(path, mid, new, origin)
                changed = True
            if (reason := source.reasons.get(mid)) is not None:
                into.attributes.reasons.write(path, new, reason)  # an attribute that is there already, or a hidden file
            if (headers := source.stored_headers(mid)) is not None and headers.is_file:
                source.attributes.headers.move(mid, into.attributes.headers, path, new)
                changed = True
            # Before the rename: after a power loss, what is in the new directory has its origin.
            if changed and self._context.always:
                self._context.disk.sync_file(path, READ)
            self._context.disk.rename(path, into.name_path(new, 0))
        except FileNotFoundError:
            if not into.in_place():
                raise NoSuchQueueError(f"there is no queue {into.qid!r} any more") from None
            source.lost(mid, state.hidden)
            return False
        return True
