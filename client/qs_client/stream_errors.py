"""Exceptions by which a session tells its connection why it cannot go on. They never leave this package: `place` turns
them into errors that name the server."""
# ruff: noqa: N818 - internal, named after what happened


class Unexpected(Exception):
    """The data is not of this protocol, or does not belong to any request of this connection."""


class TooLong(Unexpected):
    """A document is over the client's bound."""


class SpeaksTls(Unexpected):
    """The data is TLS, on a connection without."""


class SpeaksHttp(Unexpected):
    """The data is what an HTTP server answers."""


class OtherProgram(Unexpected):
    """The other side is another program than the one expected. The text is its name."""


class Cut(Unexpected):
    """The server received only a part of a request: the network has cut it off."""


class Ended(Exception):
    """Raised when this side has ended the subscription and all its messages have been handed out."""


class TlsFailed(ConnectionError):
    """The TLS session cannot begin, or cannot go on. The text says what is wrong."""
