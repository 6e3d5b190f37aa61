"""Converts between queues and the names of their directories, and between messages and the names of their files."""

import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

from .engine import BadQueueNameError

JOURNAL = ".journal"
"""The directory of a root that holds the log: no queue can have the name."""
MAX_QID = 200
_MAX_DIRECTORY = 255  # bytes: NAME_MAX of every file system in use
_SAFE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."
# Control characters, and characters that XML cannot carry (production 2, Char).
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# No leading zeros: a number that was read from a name has to be written back as the same name.
_MESSAGE = re.compile(rb"(0|[1-9][0-9]{0,17})(?:\.([1-9][0-9]{0,17}|new))?")

_MID_DIGITS = 18
MAX_MID = 10**18 - 1
FAR = MAX_MID // 10
"""Ids from here on (the year 5138 in microseconds) are taken for a mistake of the program that made the file."""
WITHHELD = MAX_MID - 1
"""The expiry of a message that is in a claim: hidden without a time limit from every program that knows the layout."""
PRIVATE = ".taken-"
"""The prefix of the name of a file that a journal is taking in."""
NEW = -1
"""The expiry that `parse_message` gives for a file that is still being written."""


def check_qid(qid: str) -> None:
    """Raises BadQueueNameError unless the name is 1 to 200 characters, none of them a control character."""
    if not 1 <= len(qid) <= MAX_QID:
        raise BadQueueNameError(f"a queue's name has 1 to {MAX_QID} characters; this one has {len(qid)}")
    if _CONTROL.search(qid):
        raise BadQueueNameError(f"a queue's name has no control characters: {qid!r}")


def directory_of(qid: str) -> str:
    """Returns the directory name of a queue: every byte outside A-Za-z0-9_-. and a leading dot percent-encoded."""
    check_qid(qid)
    try:
        name = "".join(c if c in _SAFE else quote_from_bytes(c.encode(), safe="").replace("~", "%7E") for c in qid)
    except UnicodeEncodeError:
        raise BadQueueNameError(f"a queue's name is Unicode text; {qid!r} is not") from None
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _MAX_DIRECTORY:
        raise BadQueueNameError(
            f"the directory of queue {qid!r} would need a name of {len(name)} bytes; {_MAX_DIRECTORY} is the most"
        )
    return name


def check_name(kind: str, name: str) -> None:
    """Raises BadQueueNameError unless the name of a consumer or a producer (kind) could be that of a queue."""
    try:
        directory_of(name)
    except BadQueueNameError as error:
        raise BadQueueNameError(f"the {kind} {name!r} has a name that no queue could have: {error}") from None


def qid_of(directory: str) -> str | None:
    """Returns the queue that a directory holds, or None when no queue's directory has that name."""
    try:
        qid = unquote_to_bytes(directory).decode()
        return qid if directory_of(qid) == directory else None
    except (UnicodeError, BadQueueNameError):
        return None


def parse_message(name: bytes) -> tuple[int, int] | None:
    """Returns (mid, expiry) from a message's file name: expiry 0 for a ready one, NEW for one being written. None if
    the name is not a message's."""
    match = _MESSAGE.fullmatch(name)
    if match is None:
        return None
    mid, extension = match.groups()
    if extension is None:
        return int(mid), 0
    return int(mid), NEW if extension == b"new" else int(extension)


def ready_among(names: list[bytes]) -> tuple[list[int], list[bytes]]:
    """Returns the ids of ready messages among these file names, in increasing order, and the names that have to be
    parsed one by one: all of them if the ids differ in length. Takes a fifth of the time of `parse_message`."""
    mids = _mids(names)
    if mids is not None:
        return mids, []
    mids = _mids([name for name in names if name.isdigit()])
    return ([], names) if mids is None else (mids, [name for name in names if not name.isdigit()])


def _mids(names: list[bytes]) -> list[int] | None:
    """Returns the sorted ids if all names are ids of one length without leading zeros, else None."""
    joined = b"".join(names)
    if not joined.isdigit():
        return None
    mids = sorted(map(int, names))
    digits = len(str(mids[0]))
    fit = digits == len(str(mids[-1])) <= _MID_DIGITS and len(joined) == digits * len(names)
    return mids if fit else None


def message_name(mid: int, expiry: int) -> str:
    """Returns the file name of a message: ready when expiry is 0, else hidden until then."""
    return f"{mid}.{expiry}" if expiry else str(mid)
