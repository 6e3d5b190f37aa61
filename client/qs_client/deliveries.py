"""A subscription of the sync client as an iterator.

The session knows which messages belong to it. The client, which shares the connection between threads, gives the
iterator three functions: begin, next delivery, end.
"""

from collections.abc import Callable
from typing import Self, TypeAlias

from qs_schemas import GetMessage, Subscribe

from .closing import Closing
from .connection import Connection
from .errors import OtherProcess, ServerError
from .forks import call_after_fork
from .waiting import Subscription

Begun: TypeAlias = Callable[[Connection, Subscription], None]
"""Called with the connection and the subscription when the subscribe request is sent, before its answer has come."""


class Deliveries(Closing):
    """Iterates over the messages of a subscription. It ends with `close()`, also in another thread or in a signal
    handler, at the end of its `with` block, or when it is no longer referenced, as after a `break`."""

    def __init__(
        self,
        request: Subscribe,
        *,
        begin: Callable[[Subscribe, Begun], None],
        next_delivery: Callable[[Connection, Subscription], GetMessage | None],
        end: Callable[[Connection, Subscription], None],
    ) -> None:
        """begin: sends the request and waits until the server has accepted it; next_delivery: waits for a message,
        returns None when this side has ended the subscription; end: ends the subscription without waiting for a thread
        that reads."""
        self._request = request
        self._begin = begin
        self._next_delivery = next_delivery
        self._end = end
        self._open: tuple[Connection, Subscription] | None = None
        self._closed = self._inherited = False
        call_after_fork(self)

    def after_fork(self) -> None:
        """Ends the iterator in a child process, see `forks`."""
        self._inherited = self._closed = True
        self._open = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GetMessage:
        if self._inherited:
            raise OtherProcess
        if self._closed:
            raise StopIteration
        try:
            if self._open is None:
                self._begin(self._request, self._begun)
            message = None if self._open is None else self._next_delivery(*self._open)
        except (ServerError, OSError):
            if self._closed:  # closed by another thread
                raise StopIteration from None
            self.close()
            raise
        except BaseException:
            self.close()
            raise
        if message is None:
            raise StopIteration
        return message

    def _begun(self, connection: Connection, subscription: Subscription) -> None:
        self._open = connection, subscription
        if self._closed:
            connection.session.end(subscription)

    def close(self) -> None:
        """Ends the subscription and releases messages that were sent ahead, if the server can be reached. A loop that
        waits in another thread ends."""
        self._closed = True
        if self._open is not None:
            self._end(*self._open)

    def __del__(self) -> None:
        self.close()
