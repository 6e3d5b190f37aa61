"""The error table of the protocol, and the one exception that bad input raises in this package.

A row is a code, which groups errors as HTTP does, and a type, by which programs tell errors of one code apart. Clients
match on both, so a row may be added and never changed. A test compares the table with docs/protocol.md.
"""

from typing import NamedTuple


class ErrorCode(NamedTuple):
    """A row of the table of errors."""

    code: int
    kind: str
    """The `type` of the element `error`."""
    closes: bool
    """True if the stream cannot be read any further after this error, or must not be."""
    when: str
    """The case in which a peer is sent this error."""


BAD_REQUEST = ErrorCode(400, "bad-request", False, "the document is not valid: it says what, where and why")
MALFORMED = ErrorCode(400, "bad-request", True, "the bytes are not well-formed XML in UTF-8")
UNAUTHORIZED = ErrorCode(401, "unauthorized", False, "authentication needed or failed")
FORBIDDEN = ErrorCode(403, "forbidden", False, "this principal may not do this to this queue")
NOT_FOUND = ErrorCode(404, "not-found", False, "no such queue, or no such message; the text says which")
TIMEOUT = ErrorCode(408, "timeout", True, "a document was not completed, or a client not authenticated, in time")
CONFLICT = ErrorCode(409, "conflict", False, "a queue of that name exists already, or another message of that id")
NOT_EMPTY = ErrorCode(409, "not-empty", False, "the queue to delete still holds messages")
STALE = ErrorCode(409, "stale", False, "the message has been received again since, or is no longer in flight")
TOO_LARGE = ErrorCode(413, "too-large", True, "a document over the limit")
INVALID = ErrorCode(422, "invalid", False, "the payload is not valid by the queue's schema: line, element and reason")
TOO_MANY = ErrorCode(429, "too-many", True, "too many connections, or too many wrong tokens on one")
INTERNAL = ErrorCode(500, "internal", False, "a fault of the server, logged with the answer's resp")
NOT_IMPLEMENTED = ErrorCode(501, "not-implemented", False, "unknown operation, or one that the storage cannot do")
SHUTTING_DOWN = ErrorCode(503, "shutting-down", True, "the server is stopping")
UNAVAILABLE = ErrorCode(
    503, "unavailable", False, "another server that keeps the queue cannot be asked now; nothing was changed"
)
NOT_KNOWN = ErrorCode(503, "not-known", False, "whether it was done is not known; repeating a push is safe with a key")
FULL = ErrorCode(507, "full", False, "the queue's capacity or the disk is exhausted")

TABLE: tuple[ErrorCode, ...] = (
    BAD_REQUEST, MALFORMED, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TIMEOUT, CONFLICT, NOT_EMPTY, STALE,
    TOO_LARGE, INVALID, TOO_MANY, INTERNAL, NOT_IMPLEMENTED, SHUTTING_DOWN, UNAVAILABLE, NOT_KNOWN, FULL,
)  # fmt: skip
"""Every error that a peer can be sent, in order of code."""


class ProtocolError(Exception):
    """Reports that the peer has sent something that breaks the contract. error: the row of the table; text: says what
    is wrong, where, and what to do; req: the correlation id of the document, None if it could not be read."""

    def __init__(self, error: ErrorCode, text: str, req: str | None = None) -> None:
        super().__init__(text)
        self.error = error
        self.text = text
        self.req = req
