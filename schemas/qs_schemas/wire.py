"""Holds the tables that say where each field of a message stands in its document.

The parser, the plain reader and the serializer all use these tables, so a field is read as it is written. An attribute
has the name of its field, with dashes: `max_bytes` is `max-bytes`. The one exception is `uncounted`, which is
`count="no"`. What a message to push is like stands in `op` of a single one; of a message that is there, in `mid`.
"""

from collections.abc import Callable
from typing import Any

from .messages import Message, PushMessage

NAMESPACE = "http://purl.oclc.org/DEFUZE/qs"
SERVER, BUS = "qs-server", "qs-bus"
"""The names by which the queue server and the bus answer to `ping`."""


_SPACE = " \t\r\n"


def strip(text: str) -> str:
    """Strips the white space of XML. Other spaces of Unicode are characters of a name like any other."""
    return text.strip(_SPACE)


def _truth(text: str) -> bool:
    return text == "yes"


def _number(value: int) -> str:
    return str(int(value))


LONGEST = 999_999_999.999999
"""The longest time in seconds. The server stores microseconds, so a greater value of as many digits before the point
would be rounded up to one of ten digits, which no document can have."""


def _duration(text: str) -> float:
    # Not refused: qs.xsd allows nine digits behind the point, and an older server or a person may have written this.
    return min(float(text), LONGEST)


def seconds(value: float) -> str:
    """Writes seconds without an exponent, to the nanosecond."""
    return str(value) if type(value) is int else f"{value:.9f}".rstrip("0").rstrip(".")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _denial(text: str) -> bool:
    return text == "no"


def _no(value: bool) -> str:
    return _yes(not value)


# The functions that read a value from an attribute and write it to one. None: the text is only escaped.
Kind = tuple[Callable[[str], Any], Callable[[Any], str] | None]
TEXT: Kind = (str, None)
WHOLE: Kind = (int, _number)
SECONDS: Kind = (_duration, seconds)
BOOLEAN: Kind = (_truth, _yes)
DENIAL: Kind = (_denial, _no)
YES_OR_NO: Kind = (_truth, _yes)
NUMBER: Kind = (float, seconds)
NAME: Kind = (strip, None)
"""False is written as YES_OR_NO only: for the others it is the same as no attribute."""

OP: dict[str, Kind] = {
    "force": BOOLEAN, "peek": BOOLEAN, "state": TEXT, "max": WHOLE, "after": WHOLE, "delay": SECONDS,
    "visibility": SECONDS, "wait": SECONDS, "prefetch": WHOLE, "subscription": TEXT, "ack": TEXT, "name": NAME,
    "seq": WHOLE, "max_bytes": WHOLE, "upto": WHOLE, "part": WHOLE, "parts": WHOLE, "batch": WHOLE, "attempt": WHOLE,
    "uncounted": DENIAL, "connections": BOOLEAN, "owner": TEXT, "more": BOOLEAN, "exist_ok": BOOLEAN,
    "order": TEXT, "where": TEXT, "match": TEXT,
}  # fmt: skip
DEAD: dict[str, Kind] = {
    "dead_from": NAME, "dead_mid": WHOLE, "dead_receives": WHOLE, "dead_at": WHOLE, "dead_reason": TEXT,
}  # fmt: skip
MID: dict[str, Kind] = {
    "status": TEXT, "receives": WHOLE, "pushed_at": WHOLE, "visible_at": WHOLE, "priority": WHOLE, "group": TEXT,
    "expires_at": WHOLE, **DEAD,
}  # fmt: skip
DRAFT: dict[str, Kind] = {
    "delay": SECONDS, "key": TEXT, "unique": BOOLEAN, "priority": WHOLE, "expires": SECONDS, "group": TEXT,
}  # fmt: skip
DELIVERY: dict[str, Kind] = {
    "qid": NAME, "mid": WHOLE, "status": TEXT, "receives": WHOLE, "pushed_at": WHOLE, "visible_at": WHOLE,
    "priority": WHOLE, "group": TEXT, "expires_at": WHOLE, "reason": TEXT, **DEAD,
}  # fmt: skip
QUEUE: dict[str, Kind] = {
    "new": WHOLE, "ready": WHOLE, "in_flight": WHOLE, "delayed": WHOLE, "bytes": WHOLE, "oldest": SECONDS,
    "pushed": WHOLE, "delivered": WHOLE, "expired": WHOLE, "deleted": WHOLE, "storage": TEXT, "dead": WHOLE,
    "retired": WHOLE, "paused": YES_OR_NO, "subscribers": WHOLE, "waiting": WHOLE,
    "dead_letter": NAME, "limited": TEXT, "schema": TEXT, "refused": WHOLE,
}  # fmt: skip
OPTIONS: dict[str, Kind] = {
    "storage": TEXT, "visibility": SECONDS, "capacity": WHOLE, "retention": SECONDS, "dead_letter": NAME,
    "max_receives": WHOLE, "backoff": SECONDS, "backoff_max": SECONDS, "group_in_flight": WHOLE, "fair": YES_OR_NO,
    "max_in_flight": WHOLE, "rate": NUMBER, "schema": TEXT, "where": TEXT,
}  # fmt: skip
CLAIM: dict[str, Kind] = {
    "seq": WHOLE, "count": WHOLE, "bytes": WHOLE, "first": WHOLE, "last": WHOLE, "checksum": TEXT,
    "consumer": NAME, "since": WHOLE, "owner": TEXT,
}  # fmt: skip
PART: dict[str, Kind] = {"number": WHOLE, "attempt": WHOLE}
ANSWERED = ("count", "principal", "claim", "claims", "figures")
"""The children of `qs` that only answers have, and the fields that carry them."""


def attribute(field: str) -> str:
    """Returns the name of the attribute that carries a field."""
    return "count" if field == "uncounted" else field.replace("_", "-")


def fields_of(cls: type[Message]) -> frozenset[str]:
    """Returns the names of the fields of a message class, also those of the envelope."""
    return frozenset(cls.__dataclass_fields__)


def attributes_of(cls: type[Message]) -> tuple[dict[str, Kind], dict[str, Kind]]:
    """Returns the attributes of `op` and of `mid` in the documents of a message class."""
    of_op, of_mid = (OP | DRAFT, {}) if cls is PushMessage else (OP, MID)
    fields = fields_of(cls)
    return (
        {field: kind for field, kind in of_op.items() if field in fields},
        {field: kind for field, kind in of_mid.items() if field in fields},
    )
