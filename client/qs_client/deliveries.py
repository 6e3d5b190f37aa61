"""A subscription of the sync client as an iterator. What belongs to it, the session knows; here is its life."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from qs_schemas import GetMessage, Subscribe

from .connection import Connection
from .errors import OtherProcess, ServerError
from .forks import tell_after_fork
from .waiting import Subscription

if TYPE_CHECKING:
    from .client import QueueClient


class Deliveries:
    """Iterates over the messages of a subscription. It ends with `close()`, also in another thread or in the handler of
    a signal, with a `with` block that it is the subject of, or when nobody refers to it any more, as after a
    `break`."""

    def __init__(self, client: "QueueClient", request: Subscribe) -> None:
        self._client = client
        self._request = request
        self._open: tuple[Connection, Subscription] | None = None
        self._closed = self._inherited = False
        tell_after_fork(self)

    def after_fork(self) -> None:
        """The subscription is the parent's: nothing is asked for it here. For `forks`."""
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
                self._client._subscribe(self._request, self._begun)
            message = None if self._open is None else self._client._delivery(*self._open)
        except (ServerError, OSError):
            if self._closed:  # by another thread
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
        """Ends the subscription, and gives back what was sent ahead; as far as the server can be reached. A loop that
        waits in another thread ends."""
        self._closed = True
        if self._open is not None:
            self._client._unsubscribe(*self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
