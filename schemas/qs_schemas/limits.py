"""Defines the bounds that keep one peer from exhausting the other.

The peer chooses what it sends, so every size and count that it can choose has a bound. The bounds in `Limits` are
parameters with defaults; the other bounds are fixed.
"""

from dataclasses import dataclass

MIB = 1024 * 1024

DOCUMENT = 8 * MIB
"""Bytes of one document. Large enough for a scanned page, small enough that 1,000 half-sent ones fit in memory."""

DEPTH = 16
"""Elements inside one another. The contract itself needs 5; the rest is for inline XML in a payload."""

ATTRIBUTES = 32
"""Attributes of one element, namespace declarations included. The contract itself needs 18."""

ELEMENTS = 20_000
"""Elements, comments, CDATA sections and instructions of one document. A tree costs up to 100 times the bytes of the
smallest ones, and a parser cannot be interrupted. A list of 1000 messages needs 2000, 10,000 queues as many."""

TOKEN = 1024
"""Characters of a token."""

LIST = 1000
"""Messages in one list form, and ids in one answer."""

EARLY_LIST = 200
"""Ids in one answer to `list-messages` of an early client: such programs read into 16 KiB, and an id takes 27 bytes."""

COPIES = 3000
"""Copies that one `copy-message` makes: its ids times its queues. All copies of a message are made in one step, in some
10 to 15 us each, and nobody else is served meanwhile: so the longest step is some 40 ms."""

REQ = 128
"""Characters of a correlation id."""

QID = 200
"""Characters of a queue's name, and of the names of consumers, producers and durable subscriptions."""

KEY = 200
"""Characters of the key of a push."""

GROUP = 128
"""Characters of the name of a group."""

HEADERS = 32
"""Headers of one message."""

HEADER_BYTES = 8 * 1024
"""Bytes of the headers of one message in UTF-8, names and texts together: trace contexts, content types and ids of a
producer's, and not a second payload."""

REASON = 1024
"""Bytes of the reason of a release or a reject, in UTF-8: a line of a traceback, kept in memory with each message that
has one."""

VALUE = 4096
"""Characters of a value, the white space around it included: an attribute, a name, a number; not a payload, a header or
a token.
The longest one that is valid has 200. For each white space before a name, libxml2 keeps 50 bytes."""

_ENVELOPE = 3072
"""Bytes of a push without headers around its payload: the name of a queue and a key of the most characters, escaped,
and the tags."""


def binary_payload(document: int) -> int:
    """Returns how many bytes of a payload that is not text fit into one push. Such a payload travels as base64, four
    bytes for three. document: the bound of the document."""
    return max(document - _ENVELOPE, 0) // 4 * 3


ANSWER_FACTOR = 6
"""The factor by which a text can grow when it is written: `&` becomes `&amp;`. A client accepts that much more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits the documents that one side accepts from the other. All limits are at least 1."""

    document: int = DOCUMENT
    """Bytes from the first `<` to the last `>`."""
    depth: int = DEPTH
    """Elements inside one another."""
    attributes: int = ATTRIBUTES
    """Attributes of one element."""
    list_length: int = LIST
    """Messages or ids of one list form. Queues, parts, claims and figures may be ten times as many."""
    elements: int = ELEMENTS
    """Elements of the whole document, with comments, CDATA sections and instructions."""


CLIENT_LIMITS = Limits(document=ANSWER_FACTOR * DOCUMENT, list_length=10 * LIST, elements=50 * ELEMENTS)
"""The limits of the side that reads answers: the server may write longer what it took within its limits."""
