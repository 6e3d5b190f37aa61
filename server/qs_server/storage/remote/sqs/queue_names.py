"""Names of queues at SQS: 1 to 80 of A-Z, a-z, 0-9, hyphen and underscore (CreateQueue, QueueName).

Every other byte, in UTF-8, is `_xHH`, in capitals: `a/b` is `a_x2Fb`. The underscore of such a group in a name is
`_x5F`: `a_x2Fb` is `a_x5Fx2Fb`. So no two names become the same.
"""

import re

from ...engine import BadQueueNameError, StorageError

MOST = 80
_PREFIX = re.compile("[A-Za-z0-9_-]{0,79}")
_QID = re.compile("[^\x00-\x1f\x7f-\x9f]+")
_GROUP = re.compile(rb"_x([0-9A-F]{2})")
_ESCAPED = re.compile("_(?=x[0-9A-F]{2})|[^A-Za-z0-9_-]")


def check_prefix(prefix: str) -> None:
    """Raises StorageError unless names at SQS can begin like that."""
    if not _PREFIX.fullmatch(prefix):
        raise StorageError(
            f"the prefix of names at SQS is at most {MOST - 1} of A-Z, a-z, 0-9, '-' and '_'; this one is {prefix!r}"
        )


def name_at_sqs(qid: str, prefix: str) -> str:
    """Raises BadQueueNameError for a name that would be too long."""
    name = prefix + _ESCAPED.sub(_escape, qid)
    if len(name) > MOST:
        raise BadQueueNameError(
            f"at SQS, queue {qid!r} would need the name {name!r} of {len(name)} characters; {MOST} is the most: "
            "shorten its name, or use fewer characters other than A-Z, a-z, 0-9, '-' and '_'"
        )
    return name


def qid_of(name: str, prefix: str) -> str | None:
    """Returns None for a name that no queue of this prefix has."""
    if not name.startswith(prefix):
        return None
    raw = _GROUP.sub(lambda match: bytes.fromhex(match[1].decode()), name[len(prefix) :].encode())
    try:
        qid = raw.decode()
        return qid if _QID.fullmatch(qid) and name_at_sqs(qid, prefix) == name else None
    except (UnicodeDecodeError, BadQueueNameError):
        return None


def _escape(match: re.Match[str]) -> str:
    return "".join(f"_x{byte:02X}" for byte in match.group().encode())
