"""Names of queues' directories and of messages' files."""

import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

from .engine import BadQueueNameError

JOURNAL = ".journal"
"""A root's directory of the log: no queue can have the name."""
MAX_QID = 200
_MAX_DIRECTORY = 255  # bytes: NAME_MAX of every file system in use
_SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."
# Control characters, and characters that XML cannot carry (production 2, Char).
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# No leading zeros: a number that was read from a name has to be written back as the same name.
_MESSAGE = re.compile(rb"(0|[1-9][0-9]{0,17})(?:\.([1-9][0-9]{0,17}|new))?")

_TAKEN = re.compile(rb"\.taken-([0-9a-f]{16})-.+", re.DOTALL)

_MID_DIGITS = 18
MAX_MID = 10**18 - 1
FAR = MAX_MID // 10
"""Ids from here on (the year 5138 in microseconds) are mistakes: new ids do not follow them, or none would be left."""
WITHHELD = MAX_MID - 1
"""The expiry of a claimed message: every program that knows the layout takes the message for hidden for ever."""
PRIVATE = ".taken-"
"""Begins the name of a file that a journal is ingesting."""
NEW = -1
"""The expiry of a file that is still being written."""
_OWNER_END = "\x1f"
"""Stands between a principal and a name in `owned_name`. XML cannot carry this character, and neither a principal's
name nor a checked name has it, so no two principals have a name in common."""


def check_qid(qid: str) -> None:
    """Checks that a queue's name has 1 to 200 characters, without control characters. BadQueueNameError."""
    if not 1 <= len(qid) <= MAX_QID:
        raise BadQueueNameError(f"a queue's name has 1 to {MAX_QID} characters; this one has {len(qid)}")
    if _CONTROL.search(qid):
        raise BadQueueNameError(f"a queue's name has no control characters: {qid!r}")


def directory_of(qid: str) -> str:
    """Returns the name of a queue's directory: every byte outside A-Za-z0-9_-. and a leading dot are
    percent-encoded."""
    check_qid(qid)
    try:
        name = "".join(c if c in _SAFE else quote_from_bytes(c.encode(), safe="").replace("~", "%7E") for c in qid)
    except UnicodeEncodeError:
        raise BadQueueNameError(f"a queue's name is Unicode text; {qid!r} is not") from None
    if name.startswith("."):
        # Names with a leading dot are the server's own.
        name = "%2E" + name[1:]
    if len(name) > _MAX_DIRECTORY:
        raise BadQueueNameError(
            f"the directory of queue {qid!r} would need a name of {len(name)} bytes; {_MAX_DIRECTORY} is the most"
        )
    return name


def owned_name(owner: str | None, name: str) -> str:
    """Returns the name under which the storage has a key, producer or consumer. owner: the principal that the name
    belongs to, None for a client without one, whose names stay as they are; name: the client's name for it."""
    return name if owner is None else f"{owner}{_OWNER_END}{name}"


def split_name(owned: str) -> tuple[str | None, str]:
    """Returns (owner, name) of a result of `owned_name`."""
    owner, end, name = owned.partition(_OWNER_END)
    return (owner, name) if end else (None, owner)


def quoted(owned: str) -> str:
    """Returns the client's part of an owned name, in quotes, for the text of an error."""
    return repr(split_name(owned)[1])


def check_name(kind: str, owned: str) -> None:
    """Checks the name of a consumer or producer (kind), which has to be a possible name of a queue. owned: see
    `owned_name`. BadQueueNameError."""
    _, name = split_name(owned)
    try:
        directory_of(name)
    except BadQueueNameError as error:
        raise BadQueueNameError(f"the {kind} {name!r} has a name that no queue could have: {error}") from None


def qid_of(directory: str) -> str | None:
    """Returns the name of the queue with a directory of that name, None if no queue has one."""
    try:
        qid = unquote_to_bytes(directory).decode()
        # Only the name that this server would have given: two directories must not be one queue.
        return qid if directory_of(qid) == directory else None
    except (UnicodeError, BadQueueNameError):
        return None


def token_of(name: bytes) -> int | None:
    """Returns the token in the name of a file that a journal is ingesting, None for any other name."""
    private = _TAKEN.fullmatch(name)
    return None if private is None else int(private[1], 16)


def parse_message(name: bytes) -> tuple[int, int] | None:
    """Parses the name of a message's file. Returns (mid, expiry), None for any other name. expiry: 0 for a ready
    message, NEW while it is written."""
    match = _MESSAGE.fullmatch(name)
    if match is None:
        return None
    mid, extension = match.groups()
    if extension is None:
        return int(mid), 0
    return int(mid), NEW if extension == b"new" else int(extension)


def ready_among(names: list[bytes]) -> tuple[list[int], list[bytes]]:
    """Returns the sorted ids of ready messages, and the names that have to be parsed one by one: all names if the ids
    differ in length. Takes a fifth of the time of `parse_message`."""
    mids = _mids(names)
    if mids is not None:
        return mids, []
    mids = _mids([name for name in names if name.isdigit()])
    return ([], names) if mids is None else (mids, [name for name in names if not name.isdigit()])


def _mids(names: list[bytes]) -> list[int] | None:
    """Returns sorted ids if all names are ids of one length without leading zeros, else None."""
    joined = b"".join(names)
    if not joined.isdigit():
        return None
    mids = sorted(map(int, names))
    digits = len(str(mids[0]))
    # The same length for all, and as many digits as there are characters: then no name has a leading zero.
    fit = digits == len(str(mids[-1])) <= _MID_DIGITS and len(joined) == digits * len(names)
    return mids if fit else None


def message_name(mid: int, expiry: int) -> str:
    """Returns the name of a message's file. expiry: 0 for a ready message."""
    return f"{mid}.{expiry}" if expiry else str(mid)
