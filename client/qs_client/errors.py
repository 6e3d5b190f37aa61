"""Exceptions of the clients' methods: the server's errors by kind, and those of the connection.

`recv()` raises none of the server's errors: it returns the `Error` message, as bucker's client does.
"""
# ruff: noqa: N818 - internal, named after what happened
# ruff: noqa: N818 - named after the protocol's errors

from typing import TYPE_CHECKING

from qs_schemas import TABLE, Error

from .bounds import seconds

if TYPE_CHECKING:
    from typing import Literal

UNREADABLE = "unreadable"
"""The kind of an `Error` that the client makes in place of an answer that it cannot read. Its code is 500."""


class ServerUnavailable(ConnectionError):
    """Not now, perhaps later: the server cannot be reached, the connection was lost, something else answers there, or
    the server itself says that it stops, is full of connections or waited too long (503, 429, 408), or that another
    server which keeps the queue cannot be asked (`Unavailable`, `NotKnown`).

    The text says what to do. The connection is closed, except after the last two; the next call opens a new one.
    Everything that repeats a request
    repeats it after this class, but for the two subclasses that waiting does not cure: `ProtocolMismatch` and
    `Disconnected`.
    """


class ServerError(Exception):
    """The server answered with an error; the request has changed nothing, except maybe after `NotKnown`.

    code and type: the row of the protocol's error table (404, "not-found"); text: for people; resp: the answer's id,
    which the server's log has for its own faults.
    """

    def __init__(self, code: int, kind: str, text: str, resp: str | None = None) -> None:
        super().__init__(code, kind, text, resp)  # all arguments, for pickling
        self.code = code
        self.type = kind
        self.text = text
        self.resp = resp

    def __str__(self) -> str:
        return f"{self.code} {self.type}: {self.text}"


class BadRequest(ServerError):
    """400: the request is not valid; the text says what and where."""


class Unauthorized(ServerError):
    """401: authentication is needed, or failed."""


class Forbidden(ServerError):
    """403: this principal may not do this to this queue."""


class NotFound(ServerError):
    """404: no such queue, or no such message; the text says which."""


class RequestTimeout(ServerError, ServerUnavailable):
    """408: the end of a document came too late; the server has closed the connection."""


class Conflict(ServerError):
    """409: a queue of this name exists, or a message of this id. Subclasses are the other conflicts."""


class NotEmpty(Conflict):
    """409: the queue to delete holds messages."""


class Stale(Conflict):
    """409: the message has been received again since, or is no longer in flight: the caller does not hold it any
    more."""


class TooLarge(ServerError):
    """413: the document exceeds the server's limit; the server has closed the connection."""


class Invalid(ServerError):
    """422: the payload is not valid by the queue's schema; the text says line, element and reason. Nothing was
    pushed."""


class TooMany(ServerError, ServerUnavailable):
    """429: the server has as many connections as it accepts; it has closed this one."""


class InternalError(ServerError):
    """500: a fault of the server, logged there with the answer's resp."""

    def __str__(self) -> str:
        return super().__str__() if self.resp is None else f"{super().__str__()} (in the server's log: {self.resp})"


class NotImplementedByServer(ServerError):
    """501: the server does not know the operation, or the queue's storage cannot do it."""


class ShuttingDown(ServerError, ServerUnavailable):
    """503: the server is stopping; it has closed the connection."""


class Unavailable(ServerError, ServerUnavailable):
    """503: another server, which keeps the queue, cannot be asked now. Nothing was changed, and the connection is
    open."""


class NotKnown(ServerError, ServerUnavailable):
    """503: another server, which keeps the queue, may or may not have done the request. The connection is open."""


class Full(ServerError):
    """507: the queue's capacity or the server's disk is exhausted."""


# Those that say "not now, perhaps later" are ServerUnavailable as well: a caller that waits and tries again has one
# class to catch, whether the server said so or could not.
_BY_CODE: dict[int, type[ServerError]] = {
    400: BadRequest, 401: Unauthorized, 403: Forbidden, 404: NotFound, 408: RequestTimeout, 409: Conflict,
    413: TooLarge, 422: Invalid, 429: TooMany, 500: InternalError, 501: NotImplementedByServer,
    503: ShuttingDown, 507: Full,
}  # fmt: skip
_BY_ROW: dict[tuple[int, str], type[ServerError]] = {
    (409, "not-empty"): NotEmpty, (409, "stale"): Stale,
    (503, "unavailable"): Unavailable, (503, "not-known"): NotKnown,
}  # fmt: skip
_CLOSING = frozenset(row.code for row in TABLE if row.closes and row.code != 400)
_OPEN = frozenset((row.code, row.kind) for row in TABLE if not row.closes)


def exception_for(error: Error) -> ServerError:
    """Returns the exception for an error of the server; a plain ServerError for an unknown code."""
    # A server of a later version may have codes that are not known here.
    cls = _BY_ROW.get((error.code, error.kind)) or _BY_CODE.get(error.code, ServerError)
    return cls(error.code, error.kind, error.text, error.resp)


def always_closes(code: int, kind: str) -> bool:
    """Tells whether the server closes the connection after each such error. After a 400 it may."""
    return code in _CLOSING and (code, kind) not in _OPEN


def closes(error: Error) -> bool:
    """Tells whether the server closes the connection after this error. A 400 does when not even the `req` could be
    read."""
    return error.req is None or always_closes(error.code, error.kind)


class ProtocolMismatch(ServerUnavailable):
    """The other side does not speak this protocol, or sends more than the client takes. Do not try again."""


class WrongProgram(ProtocolMismatch):
    """Another program listens at the address: a bus instead of the queue server, the other way round, or an HTTP
    server. The text says which, and where to look."""


class Disconnected(ServerUnavailable):
    """This program has closed the connection, with `disconnect()`, while a call waited for its answer."""


class NoAnswer(ServerUnavailable, TimeoutError):
    """No answer came within the client's timeout. Whether the request was carried out is not known."""


def passes_by_itself(error: BaseException) -> bool:
    """Tells whether the same request may succeed later: the one rule by which clients repeat and reconnect."""
    return isinstance(error, ServerUnavailable) and not isinstance(error, ProtocolMismatch | Disconnected)


class Reject(Exception):
    """Raised by a job, inside `handling`: never try this message again. It becomes a dead letter at once, with the text
    as the reason."""


class Retry(Exception):
    """Raised by a job, inside `handling`: try this message again later. It is released, with the text as the reason.

    delay: seconds until then, from 0; None for the back-off of the queue, as after any other exception. The receive
    counts, so that after `max-receives` of them the message is a dead letter. Raises ValueError, TypeError for a bad
    delay."""

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = seconds(delay, "delay")


class OtherProcess(RuntimeError):
    """The subscription was made before a fork and belongs to the parent: subscribe again in this process."""

    def __init__(self) -> None:
        super().__init__("this subscription belongs to the process that was forked: subscribe again in this one")


def log(level: "Literal['info', 'warning']", text: str) -> None:
    """Logs a line of the client, to the logger `qs_client`."""
    import logging  # noqa: PLC0415 - a third of the start of a short command, which has nothing to log

    getattr(logging.getLogger("qs_client"), level)("%s", text)


# -- inside this package ----------------------------------------------------------------------------------------------


class Unexpected(Exception):
    """The data is not of this protocol, or does not belong to any request of this connection."""


class TooLong(Unexpected):
    """A document exceeds the client's bound."""


class SpeaksTls(Unexpected):
    """The data is TLS, on a connection without."""


class SpeaksHttp(Unexpected):
    """The data is an HTTP server's answer."""


class OtherProgram(Unexpected):
    """The other side is another program than the expected one. The text is its name."""


class Cut(Unexpected):
    """The server received only a part of a request: the network has cut it off."""


class Ended(Exception):
    """Raised when this side has ended the subscription and all its messages have been handed out."""


class TlsFailed(ConnectionError):
    """The TLS session cannot begin, or cannot go on. The text says what is wrong."""
