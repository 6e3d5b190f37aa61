"""Opens connections of the async clients: connects, begins TLS, authenticates."""

import math

import anyio

from qs_schemas import CLIENT_LIMITS, Authenticate, Error, Limits

from .async_connection import AsyncConnection
from .async_wire import Connecting
from .errors import exception_for
from .place import Place
from .security import PLAIN, Security
from .waiting import Pending


class Opening:
    """An attempt to open a connection. seconds: for the lookup, for each address of the host, TLS included, and for the
    answer to the token.

    Ensures: a cancelled attempt continues and can be awaited again, by any task, with the same deadline, see
    `Connecting`; nothing but the token is sent until the server has accepted it. An attempt that nobody awaits any more
    has to be closed with `close`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        place: Place,
        seconds: float | None,
        limits: Limits = CLIENT_LIMITS,
        *,
        security: Security = PLAIN,
    ) -> None:
        self._place = place
        self._seconds = seconds
        self._limits = limits
        self._security = security
        self._connecting = Connecting(host, port, place, seconds, security=security)
        self._authenticating: tuple[AsyncConnection, Pending] | None = None
        self._deadline = math.inf  # for the answer to the token

    def matches(self, place: Place, security: Security) -> bool:
        """Tells whether the attempt leads to this place with this security, and has time left. The settings of a client
        may have changed since the attempt began."""
        if (self._place, self._security) != (place, security):
            return False
        if self._authenticating is not None:
            return self._authenticating[0].usable
        return self._connecting.in_time

    async def opened(self) -> AsyncConnection:
        """Returns the connection. Raises ServerUnavailable if nothing answers, or TLS cannot begin; ServerError if the
        server refuses the token."""
        if self._authenticating is None:
            connection = AsyncConnection(await self._connecting.connected(), self._place, self._limits)
            if self._security.token is None:
                return connection
            asked = connection.session.ask(Authenticate(self._security.token.reveal()))
            self._authenticating = connection, asked
            self._deadline = math.inf if self._seconds is None else anyio.current_time() + self._seconds
        connection, asked = self._authenticating
        try:
            answer = await connection.answered(asked, self._deadline, self._seconds)
        except OSError:
            self.close()
            raise
        self._authenticating = None
        if isinstance(answer, Error):
            connection.close()
            raise exception_for(answer)
        return connection

    def close(self) -> None:
        """Gives up the attempt."""
        self._connecting.close()
        if self._authenticating is not None:
            self._authenticating[0].close()
            self._authenticating = None


async def open_async_connection(
    host: str,
    port: int,
    place: Place,
    seconds: float | None,
    limits: Limits = CLIENT_LIMITS,
    *,
    security: Security = PLAIN,
) -> AsyncConnection:
    """Opens a connection. The arguments and errors are those of `Opening`."""
    opening = Opening(host, port, place, seconds, limits, security=security)
    try:
        return await opening.opened()
    finally:
        opening.close()
