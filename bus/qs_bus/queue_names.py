"""Names the queues that a bus makes on the server. The bus finds durable names and patterns again by these names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .feeds import DurableName

_PREFIX = "bus:"
"""The beginning of the names of all queues that a bus makes: docs/bus.md has rights of the bus to `bus:*`."""
_MATCH = "match"


class NamePattern(NamedTuple):
    """Identifies a pattern that gives each matching queue a durable name. owner: as in `DurableName`."""

    pattern: str
    name: str
    owner: str | None = None

    def name_of(self, qid: str) -> DurableName:
        """Returns the durable name of a matching queue."""
        return DurableName(qid, self.name, self.owner)


def queue_of(name: DurableName) -> str:
    """Returns the name of the queue that stores messages for a durable name."""
    parts = (name.qid, name.name) if name.owner is None else (name.qid, name.owner, name.name)
    return _PREFIX + ":".join(map(_quoted, parts))


def name_in(qid: str) -> DurableName | None:
    """Returns the durable name for which a queue stores messages, or None for any other queue."""
    parts = [_unquoted(part) for part in qid.removeprefix(_PREFIX).split(":")]
    if not qid.startswith(_PREFIX) or not all(parts):
        return None
    if len(parts) == 2:
        return DurableName(parts[0], parts[1])
    return DurableName(parts[0], parts[2], parts[1]) if len(parts) == 3 else None


def queue_of_pattern(pattern: NamePattern) -> str:
    """Returns the name of the queue that keeps a pattern of a durable name. It has an empty first part, so no durable
    name has the same queue, and more parts than the queue of `counts_queue_of`."""
    parts = (pattern.name,) if pattern.owner is None else (pattern.owner, pattern.name)
    return f"{_PREFIX}:{_MATCH}:" + ":".join(map(_quoted, (pattern.pattern, *parts)))


def pattern_in(qid: str) -> NamePattern | None:
    """Returns the pattern that a queue keeps, or None for any other queue."""
    start = f"{_PREFIX}:{_MATCH}:"
    parts = [_unquoted(part) for part in qid.removeprefix(start).split(":")]
    if not qid.startswith(start) or not all(parts):
        return None
    if len(parts) == 2:
        return NamePattern(parts[0], parts[1])
    return NamePattern(parts[0], parts[2], parts[1]) if len(parts) == 3 else None


def counts_queue_of(host: str, port: int) -> str:
    """Returns the name of the queue in which the bus at this address counts its subscribers. The name has an empty
    first part, so no durable name has the same queue."""
    return f"{_PREFIX}:{_quoted(host)}:{port}"


def is_of_bus(qid: str) -> bool:
    """Tells whether the queue belongs to a bus, for a durable name, a pattern or counts of subscribers."""
    return qid.startswith(_PREFIX)


def _quoted(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def _unquoted(text: str) -> str:
    return text.replace("%3A", ":").replace("%25", "%")


def names_in(existing: Iterable[str]) -> list[DurableName]:
    """Returns the durable names whose queues are among the existing ones."""
    return [name for name in map(name_in, existing) if name is not None]
