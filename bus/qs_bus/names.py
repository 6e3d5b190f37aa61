"""Names of the queues that a bus keeps on the server, for durable names and for itself."""

_PREFIX = "bus:"


def queue_of(qid: str, name: str) -> str:
    """Returns the queue that stores a queue's messages for a durable name."""
    return f"{_PREFIX}{_quoted(qid)}:{_quoted(name)}"


def name_in(qid: str) -> tuple[str, str] | None:
    """Returns the queue and the durable name for which a queue stores messages, or None if it stores none."""
    parts = qid.removeprefix(_PREFIX).split(":")
    if not qid.startswith(_PREFIX) or len(parts) != 2 or not all(parts):
        return None
    return _plain(parts[0]), _plain(parts[1])


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
