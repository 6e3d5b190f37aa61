"""Principals: those who may do something, and what each may do with which queue."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from .patterns import compile_patterns

_DECISIONS = 4096
"""Queue names for which a principal's decisions are kept, for each right: some 0.5 MB, as clients choose the names."""


class Right(StrEnum):
    """Names a right that a request needs to a queue. READ: see and consume its messages; WRITE: add messages;
    CONFIGURE: make, change, empty and delete it; STATS: see its figures, which those with READ may, and monitors.
    MONITOR: see the figures of the server; of all queues or of none."""

    READ = "read"
    WRITE = "write"
    CONFIGURE = "configure"
    STATS = "read or monitor"
    MONITOR = "monitor"


_LISTED = (Right.READ, Right.WRITE, Right.CONFIGURE)


class Principal:
    """One principal of the access file, or everybody who has said nothing. Does not change: a file that is read again
    makes new ones."""

    __slots__ = ("admin", "decisions", "has_rights", "monitor", "name")

    def __init__(
        self,
        name: str | None,
        patterns: Mapping[Right, Iterable[str]] | None = None,
        *,
        admin: bool = False,
        monitor: bool = False,
    ) -> None:
        """name: None for clients that have said nothing; patterns: for READ, WRITE and CONFIGURE the names of queues,
        see `compile_patterns`; admin: may do everything; monitor: may see figures."""
        self.name = name
        self.admin = admin
        self.monitor = monitor or admin
        patterns = patterns or {}
        self.has_rights = self.monitor or any(patterns.values())
        """True if there is anything that it may do."""
        self.decisions = {right: _Decisions(patterns.get(right, ()), always=admin) for right in _LISTED}
        """For each right, the decision by the name of a queue. What `may` returns, without a call."""
        self.decisions[Right.STATS] = _Decisions(patterns.get(Right.READ, ()), always=self.monitor)
        self.decisions[Right.MONITOR] = _Decisions((), always=self.monitor)

    def may(self, right: Right, qid: str) -> bool:
        """Returns whether the principal has this right to the queue of this name, whether there is such a queue or
        not."""
        return self.decisions[right][qid]

    def may_see(self, qid: str) -> bool:
        """Returns whether the principal may know that the queue exists: it has one of the listed rights to it."""
        return any(self.decisions[right][qid] for right in _LISTED)


class _Decisions(dict[str, bool]):
    """Remembers for which queues one right is there."""

    __slots__ = ("_always", "_match")

    def __init__(self, patterns: Iterable[str], *, always: bool) -> None:
        super().__init__()
        compiled = compile_patterns(patterns)
        self._match = None if compiled is None else compiled.fullmatch
        self._always = always

    def __missing__(self, qid: str) -> bool:
        if len(self) >= _DECISIONS:
            self.clear()
        decision = self[qid] = self._always or (self._match is not None and self._match(qid) is not None)
        return decision
