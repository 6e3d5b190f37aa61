"""Checks the headers of a message to push: text beside the payload, by name.

The bounds keep small what a server holds of each message, and leave names that HTTP, AMQP and SQS can carry. Answers
are not checked: the server's own headers, whose names begin with `qs-`, may stand there too.
"""

import re
from collections.abc import Iterable

from .limits import HEADER_BYTES, HEADERS

RESERVED = "qs-"
"""The beginning of the names that only the server gives, without regard to case."""
_NAME = re.compile("[A-Za-z0-9._-]{1,64}")


def checked_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the headers that a producer gives, in their order. headers: names and texts. Raises ValueError, which
    says which header is wrong and why: more than 32, more than 8 KiB, a name that is not allowed, or one name twice."""
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    size = 0
    for name, text in headers:
        if _NAME.fullmatch(name) is None:
            raise ValueError(
                f"the header {name[:100]!r} has a name that is not allowed: it has to be 1 to 64 of the characters "
                "A-Z, a-z, 0-9, '.', '_' and '-'"
            )
        folded = name.lower()
        if folded.startswith(RESERVED):
            raise ValueError(f"the header {name!r} has a name of the server's: those that begin with '{RESERVED}'")
        if folded in names:
            twice = "twice" if names[folded] == name else f"twice, also as {names[folded]!r}"
            raise ValueError(f"the header {name!r} is there {twice}: names differ without regard to case")
        names[folded] = name
        found[name] = text
        size += len(name) + len(text.encode())
    if len(found) > HEADERS:
        raise ValueError(f"there are {len(found)} headers, and at most {HEADERS} are kept")
    if size > HEADER_BYTES:
        raise ValueError(
            f"the headers have {size} bytes of UTF-8, names and texts together, and at most {HEADER_BYTES} are kept"
        )
    return found
