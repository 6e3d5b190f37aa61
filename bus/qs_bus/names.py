"""Durable names: the queue on the server in which a name's messages are kept, and back from its name."""

_PREFIX = "bus:"


def queue_of(qid: str, name: str) -> str:
    """The queue that keeps what the name is to get of a queue."""
    return f"{_PREFIX}{_quoted(qid)}:{_quoted(name)}"


def name_in(qid: str) -> tuple[str, str] | None:
    """Queue and name, of a queue that keeps something for a name; None for any other queue."""
    parts = qid.removeprefix(_PREFIX).split(":")
    if not qid.startswith(_PREFIX) or len(parts) != 2 or not all(parts):
        return None
    return _plain(parts[0]), _plain(parts[1])


def roll_of(host: str, port: int) -> str:
    """The queue in which the bus that listens there notes its subscribers. No name can have it."""
    return f"{_PREFIX}:{_quoted(host)}:{port}"


def is_of_bus(qid: str) -> bool:
    """Whether the queue is one that a bus keeps for itself."""
    return qid.startswith(_PREFIX)


def _quoted(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def _plain(text: str) -> str:
    return text.replace("%3A", ":").replace("%25", "%")
