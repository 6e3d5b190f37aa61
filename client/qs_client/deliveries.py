"""A subscription of the sync client as an iterator. What belongs to it, the session knows; here is its life."""

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Self

from qs_schemas import GetMessage, Subscribe

from .connection import Connection
from .errors import ServerError
from .session import Subscription

if TYPE_CHECKING:
    from .client import QueueClient


class Deliveries:
    """Iterates over the messages of a subscription. It ends with `close()`, with a `with` block that it is the subject
    of, or when nobody refers to it any more, as after a `break`."""

    def __init__(self, client: "QueueClient", request: Subscribe) -> None:
        self._client = client
        self._request = request
        self._open: tuple[Connection, Subscription] | None = None
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GetMessage:
        if self._closed:
            raise StopIteration
        try:
            if self._open is None:
                self._open = self._client._subscribe(self._request)
            return self._client._delivery(*self._open)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the subscription, and gives back what was sent ahead; as far as the server can be reached."""
        self._closed = True
        opened, self._open = self._open, None
        if opened is not None:
            with contextlib.suppress(ServerError, OSError):
                self._client._unsubscribe(*opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
