"""What the queues of one journal have in common: what of them is not in the directories yet, and how to take back.

A batch of changes is either in the journal as a whole or, when the commit fails, taken back as a whole: what was
answered is true, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..disk import has_no_room
from ..engine import SECOND
from .journal import Journal

OVERHEAD = 400
"""Bytes that a message in memory takes beside its payload, about."""


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """When messages are written to files. age: microseconds that one stays in memory when there is time; memory: bytes
    of messages in memory, and journal: bytes of segments, above which it is done at once."""

    age: int = 1 * SECOND
    memory: int = 256 << 20
    journal: int = 1 << 30


class Reversible(Protocol):
    """A queue with changes that are not committed."""

    def roll_back(self) -> None: ...
    def committed(self) -> None: ...


class Ledger:
    """Counts and collects; decides nothing."""

    def __init__(self, journal: Journal, limits: SpillLimits) -> None:
        self.journal = journal
        self.limits = limits
        self.memory = 0
        """Bytes of the messages that are in memory."""
        self.changed: set[Reversible] = set()
        self.due: int | None = None
        """When something should be written to the directories; None: nothing is to be."""
        self.refusal: OSError | None = None
        """Why the last files could not be written, if so."""
        self.wait_for_spill: Callable[[], None] = lambda: None
        """Returns when no file is being changed in another thread."""
        self.relieve: Callable[[], None] = lambda: None
        """Has less in memory, if it is far too much. Nothing is uncommitted."""
        self.make_room: Callable[[], bool] = lambda: False
        """Gives up what is not needed any more. Whether there was anything."""
        self._numbers = 0
        self._failure: OSError | None = None

    def new_number(self) -> int:
        """For a queue, and no other one."""
        self._numbers += 1
        return self._numbers

    def skip_numbers(self, upto: int) -> None:
        """Those are taken."""
        self._numbers = max(self._numbers, upto)

    def behind(self, since: int) -> None:
        """The directories do not show everything any more since then."""
        if self.due is None:
            self.due = since + self.limits.age

    @property
    def urgent(self) -> bool:
        """Whether there is too much in memory, or in the journal."""
        return self.memory > self.limits.memory or self.journal.size > self.limits.journal

    @property
    def overloaded(self) -> bool:
        """Whether writing back is left so far behind that requests have to wait for it."""
        return self.memory > 2 * self.limits.memory

    def reserve(self, size: int, *, push: bool = False) -> None:
        """See Journal.reserve. A batch that grows too long is committed up to here. Pushes are refused while there is
        no room for what is in memory already."""
        if push and self.refusal is not None and self.overloaded:
            raise OSError(self.refusal.errno, self.refusal.strerror)
        if self.journal.overflows:
            self.commit_early()
            self.relieve()
        try:
            self.journal.reserve(size, push=push)
        except OSError as error:
            if not has_no_room(error) or not self.make_room():
                raise
            self.journal.reserve(size, push=push)

    def commit_early(self) -> None:
        """In the middle of a batch. When it fails, and anything was asked for before, the batch's own commit will fail
        too."""
        changed = bool(self.changed)
        try:
            self._commit()
        except OSError as error:
            self._failure = error if changed else None
            raise

    def commit(self) -> None:
        """Everything that was changed since the last one. OSError: all of it has been taken back."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._roll_back()
            raise failure
        self._commit()

    def abandon(self) -> None:
        """What was changed since the last commit has not happened."""
        self._failure = None
        self._roll_back()

    def _commit(self) -> None:
        try:
            self.journal.commit()
        except OSError:
            self._roll_back()
            raise
        if self.changed:
            for queue in self.changed:
                queue.committed()
            self.changed.clear()

    def _roll_back(self) -> None:
        self.journal.discard()
        changed, self.changed = self.changed, set()
        for queue in changed:
            queue.roll_back()
