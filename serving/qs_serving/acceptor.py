"""Accepts clients up to a limit, serves them concurrently, and gives them some time to finish when the server stops."""

import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Generic, Protocol, TypeVar

import trio

from qs_schemas import Authenticate, Figure, Peer, errors
from qs_schemas.tls import TlsChannel

from .access.access import Access
from .access.caller import Caller
from .connection import Connection, Session
from .figures import RequestCounts, process_figures
from .handshakes import Handshakes
from .hub import Hub
from .logs import RareLine
from .options import ServerLimits
from .socket_transport import SocketTransport
from .strangers import Strangers
from .timers import Timers, within
from .tls import ServerTls
from .transport import Transport

S = TypeVar("S", bound=Session)
_logger = logging.getLogger(__name__)
_MOST_DESCRIBED = 1000
"""Connections of which one answer gives figures, so that an answer stays below 1 MB, whatever the number of clients."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept(2) that pass when others give something back."""
_RETRY, _LONGEST_RETRY = 0.1, 1.0
"""Seconds until accept(2) is tried again after such an error: at first, and when it has failed again and again."""
_LOGGED = 60.0
"""Seconds between two lines of the log about that."""


class Service(Protocol[S]):
    """Describes what the acceptor needs of a kind of server. Each method is called in the loop's thread and returns at
    once."""

    def new_peer(self) -> Peer:
        """Makes the protocol's side towards a new client."""

    def new_session(self, connection: Connection[S], peer: Peer, caller: Caller | None, tasks: trio.Nursery) -> S:
        """Makes the session of a new client. peer: this side's protocol state; caller: the client's identity, None
        without an access file; tasks: the nursery for waits that need a task."""

    def client_gone(self, session: S) -> None:
        """Called when a client whose connection counted has gone."""

    def own_figures(self) -> list[Figure]:
        """Returns the figures that only this kind of server has."""


Adopt = Callable[[trio.SocketStream, Hub, TlsChannel | None], Transport]
"""Makes a transport of an accepted stream, which cannot be used any more. The hub reads from it; the channel has
completed its handshake, None for no TLS."""


class Acceptor(Generic[S]):
    """Serves clients, each with a connection of its own.

    Ensures that every accepted client is served or is told why not, and that `accept` returns only after all clients
    have gone. Assumes that the service makes a session for each connection. The acceptor must never wait for a client:
    a stop has a time limit, and ends with `cut_off`."""

    def __init__(
        self,
        service: Service[S],
        limits: ServerLimits,
        tls: ServerTls | None = None,
        access: Access | None = None,
        *,
        hub: Hub | None = None,
        adopt: Adopt = SocketTransport.adopt,
        on_count: Callable[[int], object] = lambda count: None,
    ) -> None:
        """tls: None to speak no TLS; access: None without an access file; on_count: called with the number of connected
        clients whenever that number changes."""
        self._service = service
        self._access = access
        if access is not None:
            access.changed = self._rights_changed
        self._limits = limits
        self._tls = tls
        self._handshakes = None if tls is None else Handshakes(tls, limits)
        self.hub = hub or Hub()
        """Reads from all clients."""
        self._adopt = adopt
        self._on_count = on_count
        self.connections: dict[Connection[S], None] = {}
        """The connections that count against the limit, the oldest first. Only the acceptor changes this."""
        self._open: set[Connection[S]] = set()  # also those of clients that are being told why they are refused
        self._gone = trio.Event()  # set when no connection is open
        self.timers = Timers()
        """Calls functions at a later time, while clients are served."""
        self.strangers = Strangers(limits)
        """The clients that have given no valid credential, on a port with an access file."""
        self.is_stopping = False
        """True once `stop` was called."""
        self._cannot_accept = RareLine(_logger, logging.ERROR, _LOGGED)
        self._listening: trio.CancelScope | None = None
        self._entering: trio.Nursery | None = None
        self._clients: trio.Nursery | None = None
        self._started = time.time()
        self._accepted = 0  # connections, since the start
        self.counts = RequestCounts()
        """The requests of all clients, and how long they took."""

    def _caller_of(self, stream: Transport) -> Caller | None:
        """Returns the identity of a new client, None without an access file."""
        return None if self._access is None else Caller(self._access, stream.peer, stream.peer_names)

    def _rights_changed(self) -> None:
        for connection in list(self.connections):
            connection.identify()
            connection.attempt(connection.session.rights_changed)

    def figures(self, connections: bool = False) -> list[Figure]:
        """Returns the figures that docs/protocol.md lists. connections: True to include those of each connection."""
        found = [*self._shared_figures(), *self._service.own_figures()]
        return [*found, *self._connection_figures()] if connections else found

    def _shared_figures(self) -> list[Figure]:
        """Returns the figures of the process, its clients and their requests."""
        found = [
            *process_figures(self._started),
            Figure("connections", len(self.connections)),
            Figure("connections_opened_total", self._accepted),
            Figure("bytes_received_total", self.hub.received),
            Figure("bytes_sent_total", self.hub.sent),
        ]
        failures = {
            "token": 0 if self._access is None else self._access.failures.total,
            "unauthenticated": self.counts.errors(errors.UNAUTHORIZED.code, but=Authenticate.op),
            "forbidden": self.counts.errors(errors.FORBIDDEN.code),
            "handshake": 0 if self._handshakes is None else self._handshakes.failed,
        }
        found += [Figure("auth_failures_total", count, {"reason": reason}) for reason, count in failures.items()]
        if self._tls is not None and self._tls.expires is not None:
            found.append(Figure("tls_certificate_expiry_time_seconds", self._tls.expires))
        return [*found, *self.counts.figures()]

    def _connection_figures(self) -> list[Figure]:
        """Returns the start time and the number of subscriptions of each connection; the oldest first, at most
        1,000."""
        found = []
        for each in islice(list(self.connections), _MOST_DESCRIBED):  # a copy: clients come and go meanwhile
            labels = {"peer": each.address, "principal": each.principal}
            found.append(Figure("connection_start_time_seconds", each.started, labels))
            found.append(Figure("connection_subscriptions", each.session.subscription_count, labels))
        return found

    async def accept(
        self, listeners: list[trio.SocketListener], at_end: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    ) -> None:
        """Serves clients until `stop` has been called and every client has gone. Closes the listeners. at_end: awaited
        after the last client has gone, while the hub still reads from its other descriptors."""
        async with trio.open_nursery() as reading:
            reading.start_soon(self.hub.serve)
            reading.start_soon(self.timers.serve)
            reading.start_soon(self.strangers.serve)
            if self._access is not None:
                reading.start_soon(self._access.failures.serve)
            try:
                async with trio.open_nursery() as self._clients:
                    async with trio.open_nursery() as self._entering:
                        with trio.CancelScope() as self._listening:
                            if self.is_stopping:  # a signal may come before anything is accepted
                                self._listening.cancel()
                            async with trio.open_nursery() as accepting:
                                for listener in listeners:
                                    accepting.start_soon(self._accept_from, listener, self._entering)
                        reading.start_soon(self._end_grace)
                    while self._open:
                        self._gone = trio.Event()
                        await self._gone.wait()
            finally:
                for connection in list(self._open):  # connections are left only if this task is cancelled
                    connection.cut_off()
            await at_end()
            reading.cancel_scope.cancel()
        self.hub.close()

    async def _accept_from(self, listener: trio.SocketListener, entering: trio.Nursery) -> None:
        retry = _RETRY
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in _NO_ROOM:
                        raise
                    text = "no client can connect: %s; those that are connected go on, and others wait"
                    self._cannot_accept.log(text, os.strerror(error.errno))
                    await trio.sleep(retry)
                    retry = min(2 * retry, _LONGEST_RETRY)
                else:
                    retry = _RETRY
                    if self._handshakes is None:
                        self.serve_client(self._adopt(stream, self.hub, None))
                    else:
                        entering.start_soon(self._shake_hands, self._handshakes, stream)

    async def _shake_hands(self, handshakes: Handshakes, stream: trio.SocketStream) -> None:
        try:
            channel = await handshakes.complete(stream)
            if channel is not None:
                self.serve_client(self._adopt(stream, self.hub, channel))
        finally:
            await trio.aclose_forcefully(stream)

    async def _end_grace(self) -> None:
        await within(self._limits.grace, trio.sleep_forever)
        self.cut_off()

    def stop(self) -> None:
        """Stops accepting connections and requests. Requests that have begun are finished and answered."""
        self.is_stopping = True
        if self._listening is not None:
            self._listening.cancel()
        if self._handshakes is not None:
            self._handshakes.stop()
        for connection in list(self.connections):
            connection.stop()

    def cut_off(self) -> None:
        """Disconnects all clients. Call it after `stop`."""
        if self._entering is not None:
            self._entering.cancel_scope.cancel()
        if self._open:
            _logger.warning("clients that did not read their answers in time were cut off")
        for connection in list(self._open):
            connection.cut_off()

    def serve_client(self, stream: Transport) -> None:
        """Serves one client until it has gone or the server stops. Returns at once."""
        if self._clients is None:
            raise RuntimeError("clients are served from within accept()")
        try:
            connection = self._connect(stream, self._clients)
        except Exception:  # it concerns this client alone
            _logger.exception("a connection is closed because of a fault of the server")
            stream.close()
            return
        self._open.add(connection)
        connection.attempt(lambda: self._welcome(connection))

    def _connect(self, stream: Transport, tasks: trio.Nursery) -> Connection[S]:
        """Makes the connection of a client, which has not begun to read."""
        peer, caller = self._service.new_peer(), self._caller_of(stream)
        return Connection(
            stream,
            peer,
            lambda connection: self._service.new_session(connection, peer, caller, tasks),
            limits=self._limits,
            nursery=tasks,
            timers=self.timers,
            counts=self.counts,
            strangers=self.strangers,
            caller=caller,
            closed=self._closed,
        )

    def _welcome(self, connection: Connection[S]) -> None:
        """Gives a client a place, or tells it that there is none."""
        if self._has_room():
            self._accepted += 1
            self.connections[connection] = None
            self._on_count(len(self.connections))
            connection.identify()
            if self.is_stopping:
                connection.stop()
        else:
            text = f"there are {self._limits.connections} connections already; try again later"
            self.strangers.turn_out(connection, errors.TOO_MANY, text)
        connection.begin()

    def _closed(self, connection: Connection[S]) -> None:
        self.strangers.forget(connection)
        self._open.discard(connection)
        if connection in self.connections:
            del self.connections[connection]
            try:
                self._service.client_gone(connection.session)
            except Exception:
                _logger.exception("a client has gone, and a fault of the server has kept what it had")
            self._on_count(len(self.connections))
        if not self._open:
            self._gone.set()

    def _has_room(self) -> bool:
        """Tells whether the limits allow one more client. If all connections are taken, tries to turn out the oldest
        stranger."""
        taken = len(self.connections)
        if taken >= self._limits.connections:
            taken -= sum(each in self.connections for each in self.strangers.leaving)
        return taken < self._limits.connections or self.strangers.make_room()
