"""Moves messages of the vsqs layout between directories, each by one rename.

A `.new` file reserves the new id; attributes that hold after the move are written and synced; the file is renamed;
the `.new` file is removed. So a message is always in one of the directories, and a failure before the rename changes
nothing.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from .. import inotify
from ..disk import READ
from ..engine import Draft, NoSuchQueueError, Origin
from ..message_state import MessageState
from ..names import message_name
from .directory import MessageDirectory
from .writer import FileWriter, Staged

_AT_ONCE = 1000


class FileMover:
    """See MessageMover."""

    def __init__(self, directory: MessageDirectory, writer: FileWriter) -> None:
        """writer: of the same directory."""
        self._directory = directory
        self._writer = writer
        self._shared = directory.shared
        self._disk = directory.shared.disk

    @property
    def origins(self) -> Mapping[int, Origin]:
        return self._directory.origins

    @property
    def reasons(self) -> Mapping[int, str]:
        return self._directory.reasons

    def write_reason(self, mid: int, state: MessageState, reason: str) -> None:
        self._directory.write_reason(mid, state.hidden, reason)

    def letters(self, mids: Collection[int], count: int) -> list[tuple[int, Origin]]:
        directory = self._directory
        if not mids and not directory.index.unloaded and len(directory.origins) <= _AT_ONCE:
            return [(mid, directory.origins[mid]) for mid in sorted(directory.origins)[:count]]
        candidates = iter(sorted(set(mids)) if mids else self._all())
        loaded = (mid for mid in candidates if directory.load(mid) and mid in directory.origins)
        return [(mid, directory.origins[mid]) for mid in islice(loaded, count)]

    def _all(self) -> Iterator[int]:
        after = -1
        while block := self._directory.index.messages.after(after, _AT_ONCE):
            yield from block
            after = block[-1]

    def move(self, mid: int, state: MessageState, target: "FileMover", origin: Origin | None) -> int | None:
        before = self.origins.get(mid)
        staged = target._reserve((mid,) if before is None else (mid, before.mid))
        try:
            moved = self._rename(mid, state, target, staged.mid, origin)
        except BaseException:
            target._give_up(staged)
            raise
        if not moved:
            target._give_up(staged)
            return None
        self._note_move(mid, state, target, staged.mid, origin)
        target._writer.discard([staged])
        self._directory.forget_attributes(mid)
        return staged.mid

    def _reserve(self, avoid: Collection[int]) -> Staged:
        """Reserves an id. avoid: former ids, for which the message's attributes hold. QueueFullError, OSError."""
        while (staged := self._writer.stage(Draft(b""))).mid in avoid:
            self._writer.discard([staged])
        return staged

    def _give_up(self, staged: Staged) -> None:
        self._writer.discard([staged])
        self._directory.forget_attributes(staged.mid)

    def _rename(self, mid: int, state: MessageState, target: "FileMover", new: int, origin: Origin | None) -> bool:
        source, into = self._directory, target._directory
        path = source.name_path(mid, state.hidden)
        try:
            changed = source.attributes.bind(path, mid)
            if origin is not None:
                into.letters.write(path, mid, new, origin)
                changed = True
            if (reason := source.reasons.get(mid)) is not None:
                into.attributes.reasons.write(path, new, reason)  # an attribute that is there already, or a hidden file
            if changed and self._shared.always:
                self._disk.sync_file(path, READ)
            self._disk.rename(path, into.name_path(new, 0))
        except FileNotFoundError:
            if not into.in_place():
                raise NoSuchQueueError(f"there is no queue {into.qid!r} any more") from None
            source.lost(mid, state.hidden)
            return False
        return True

    def _note_move(self, mid: int, state: MessageState, target: "FileMover", new: int, origin: Origin | None) -> None:
        source, into = self._directory, target._directory
        watch = self._shared.watch
        watch.expect(source.watch, inotify.MOVED_FROM, message_name(mid, state.hidden))
        watch.expect(into.watch, inotify.MOVED_TO, message_name(new, 0))
        size, reason = source.index.size(mid), source.reasons.get(mid)
        source.drop(mid)
        source.touch()
        into.receive(new, size, origin, reason)
