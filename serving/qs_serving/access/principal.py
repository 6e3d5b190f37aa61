"""Holds principals, and decides what each may do with which queue.

Rights are given to patterns over the names of queues: `*` stands for any characters, `?` for one, every other character
for itself. Every request asks for a decision, so decisions are remembered by the name of the queue.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

_DECISIONS = 4096
"""Queue names for which a principal's decisions are kept, for each right: some 0.5 MB, as clients choose the names."""
_SPECIAL = re.compile(r"\*+|\?")


class Right(StrEnum):
    """Names a right that a request needs to a queue."""

    READ = "read"
    """See and consume its messages."""
    WRITE = "write"
    """Add messages."""
    CONFIGURE = "configure"
    """Make, change, empty and delete it."""
    STATS = "read or monitor"
    """See its figures. Principals with READ may, and those with `monitor`."""
    MONITOR = "monitor"
    """See the figures of the server: a right to all queues or to none."""


_LISTED = (Right.READ, Right.WRITE, Right.CONFIGURE)
"""The rights that an access file lists with patterns."""


def compile_patterns(patterns: Iterable[str]) -> re.Pattern[str] | None:
    """Returns a regular expression whose `fullmatch` accepts every name that at least one pattern accepts; None if
    there are no patterns.

    The time of a match grows with the length of the name times the length of the patterns, however many `*` they have:
    clients choose the names.
    """
    written = "|".join(f"(?:{_translated(pattern)})" for pattern in patterns)
    return re.compile(written, re.DOTALL) if written else None


def _translated(pattern: str) -> str:
    """Returns the regular expression of one pattern."""
    # A name that a pattern accepts is also accepted with each part between two `*` at the first place where it fits. So
    # the groups are atomic, and the matcher tries no other place: with a plain `.*` for each `*`, the tries multiply.
    first, *rest = _SPECIAL.sub(lambda found: "*" if found[0][0] == "*" else "?", pattern).split("*")
    if not rest:
        return _literal(first)
    *middle, last = rest
    return _literal(first) + "".join(f"(?>.*?{_literal(part)})" for part in middle) + ".*" + _literal(last)


def _literal(part: str) -> str:
    """Returns the expression of a part without `*`."""
    return ".".join(map(re.escape, part.split("?")))


class Principal:
    """Describes one principal of the access file, or all clients that have given no credential.

    1. A principal never changes: a file that is read again makes new ones. So threads share a principal without a lock.
    2. A decision depends on the name of a queue alone, not on whether that queue exists: a refusal tells nobody which
       queues exist.
    """

    __slots__ = ("admin", "decisions", "has_rights", "monitor", "name")

    def __init__(
        self,
        name: str | None,
        patterns: Mapping[Right, Iterable[str]] | None = None,
        *,
        admin: bool = False,
        monitor: bool = False,
    ) -> None:
        """name: None for clients that have given no credential; patterns: the names of queues for READ, WRITE and
        CONFIGURE, see `compile_patterns`; admin: True if the principal may do everything; monitor: True if it may see
        figures."""
        self.name = name
        self.admin = admin
        self.monitor = monitor or admin
        patterns = patterns or {}
        self.has_rights = self.monitor or any(patterns.values())
        """True if the principal has any right at all."""
        self.decisions = {right: _Decisions(patterns.get(right, ()), always=admin) for right in _LISTED}
        """Right -> decision by the name of a queue. The check of each request reads it, and saves the call of `may`."""
        self.decisions[Right.STATS] = _Decisions(patterns.get(Right.READ, ()), always=self.monitor)
        self.decisions[Right.MONITOR] = _Decisions((), always=self.monitor)  # whatever the name: see `MONITOR`

    def may(self, right: Right, qid: str) -> bool:
        """Tells whether the principal has a right to the queue of this name, whether or not that queue exists."""
        return self.decisions[right][qid]

    def may_somewhere(self, right: Right) -> bool:
        """Tells whether the principal has a right to some queues, whether or not these exist."""
        return self.decisions[right].is_ever

    def may_see(self, qid: str) -> bool:
        """Tells whether the principal may know that the queue exists, because it has one of the listed rights to that
        queue."""
        return any(self.decisions[right][qid] for right in _LISTED)


class _Decisions(dict[str, bool]):
    """Remembers to which queues one right is given: name of a queue -> decision. A dict, so that a remembered name
    costs no call of a Python function."""

    __slots__ = ("_always", "_match")

    def __init__(self, patterns: Iterable[str], *, always: bool) -> None:
        super().__init__()
        compiled = compile_patterns(patterns)
        self._match = None if compiled is None else compiled.fullmatch
        self._always = always

    @property
    def is_ever(self) -> bool:
        """True if there may be a queue to which the right is given."""
        return self._always or self._match is not None

    def __missing__(self, qid: str) -> bool:
        if len(self) >= _DECISIONS:  # clients choose the names; rarely so many names are in use
            self.clear()
        decision = self[qid] = self._always or (self._match is not None and self._match(qid) is not None)
        return decision
