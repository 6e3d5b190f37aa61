"""Names of the queues that a bus keeps on the server, for durable names and for itself.

The queue of a durable name says whose it is, so that a name still belongs to its principal after the bus and the server
have been started again.
"""

from typing import NamedTuple

_PREFIX = "bus:"


class DurableName(NamedTuple):
    """A durable name of a queue. owner: the principal that it belongs to; None for a name that belongs to nobody: one
    that was made without an access file, or by an anonymous client."""

    qid: str
    name: str
    owner: str | None = None


def queue_of(name: DurableName) -> str:
    """Returns the queue that stores messages for a durable name."""
    parts = (name.qid, name.name) if name.owner is None else (name.qid, name.owner, name.name)
    return _PREFIX + ":".join(map(_quoted, parts))


def name_in(qid: str) -> DurableName | None:
    """Returns the durable name for which a queue stores messages, or None if it stores none."""
    parts = [_plain(part) for part in qid.removeprefix(_PREFIX).split(":")]
    if not qid.startswith(_PREFIX) or not all(parts):
        return None
    if len(parts) == 2:
        return DurableName(parts[0], parts[1])
    return DurableName(parts[0], parts[2], parts[1]) if len(parts) == 3 else None


def counts_queue_of(host: str, port: int) -> str:
    """Returns the queue in which the bus at this address counts its subscribers. No durable name has this queue."""
    return f"{_PREFIX}:{_quoted(host)}:{port}"


def is_of_bus(qid: str) -> bool:
    """Tells whether a bus keeps the queue, for a name or for itself."""
    return qid.startswith(_PREFIX)


def _quoted(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def _plain(text: str) -> str:
    return text.replace("%3A", ":").replace("%25", "%")
