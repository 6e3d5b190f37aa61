"""Serves an application over HTTP with Hypercorn's trio worker: limits, TLS, and how it stops."""

import logging
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Any

import h11
import hypercorn.protocol
import trio
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio import serve
from starlette.types import ASGIApp

from qs_serving.logs import RareLine
from qs_serving.tls import ServerTls

from .guard import MOST_HEADERS

_IDLE = 10
"""Seconds in which the headers of the next request have to be there."""
_SILENT = 60
"""Seconds after which a connection is closed on which nothing comes, an answer under way or not."""
_UNREAD = 10
"""Seconds after which a connection is closed whose other side takes nothing of an answer."""
_LOGGED = 60.0
"""Seconds between two lines of the log that say that no browser can connect."""
_cannot_accept = RareLine(logging.getLogger(__name__), logging.ERROR, _LOGGED)


class _Http1(H11Protocol):
    """Speaks HTTP/1.1 alone. By itself, Hypercorn changes to HTTP/2 when a client begins with its preface or asks for
    an upgrade, with or without TLS, and no setting prevents that: `alpn_protocols` is only what it offers."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Changes to no other protocol: a preface is refused by `Guard`, the wish for an upgrade is ignored."""


setattr(hypercorn.protocol, H11Protocol.__name__, _Http1)


def _is_news(record: logging.LogRecord) -> bool:
    """Tells whether a line of Hypercorn is worth reading: when a browser goes away in the middle of a form, Hypercorn
    may answer that while we answer the form, and calls the collision an error of ours."""
    return record.exc_info is None or not isinstance(record.exc_info[1], trio.BusyResourceError)


def _log_rarely(record: logging.LogRecord) -> bool:
    """Says in one line what trio would log ten times a second, with a traceback: there is no descriptor for another
    browser."""
    reason = record.args[1] if isinstance(record.args, tuple) and len(record.args) > 1 else record.getMessage()
    _cannot_accept.log("no browser can connect: %s; requests that have begun go on, and others wait", reason)
    return False


class _Config(Config):
    """Hypercorn's settings, with a TLS context of our own, which can be replaced while it serves."""

    def __init__(self, tls: ServerTls | None, grace: float) -> None:
        super().__init__()
        self._tls = tls
        self.h11_max_incomplete_size = (
            MOST_HEADERS  # of a request that is incomplete; `Guard` bounds those that came in one read
        )
        self.keep_alive_timeout = _IDLE
        self.read_timeout = _SILENT
        self.graceful_timeout = grace
        self.ssl_handshake_timeout = _IDLE
        self.include_server_header = False
        self.alpn_protocols = ["http/1.1"]
        self.errorlog = logging.getLogger("qs_web.http")
        self.errorlog.setLevel(logging.WARNING)  # this line announces the address
        self.errorlog.addFilter(_is_news)
        self.accesslog = None

    @property
    def ssl_enabled(self) -> bool:
        return self._tls is not None

    def create_ssl_context(self) -> ssl.SSLContext | None:
        tls = self._tls
        if tls is None:
            return None

        def choose(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = tls.context  # the files may have been read again

        context = tls.context
        context.sni_callback = choose
        context.set_alpn_protocols(self.alpn_protocols)
        return context


class HttpServer:
    """Serves an application until it is stopped."""

    def __init__(
        self, app: ASGIApp, listeners: Sequence[trio.SocketListener], tls: ServerTls | None, grace: float
    ) -> None:
        """listeners: stay the caller's; grace: seconds that a stop leaves for begun requests."""
        logging.getLogger("trio.serve_listeners").addFilter(_log_rarely)
        self._app = app
        self._config = _Config(tls, grace)
        self._config.bind = [f"fd://{os.dup(each.socket.fileno())}" for each in listeners]
        for each in listeners:  # its connections copy this
            each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD * 1000)
            each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stopping = trio.Event()
        self._scope = trio.CancelScope()

    async def serve(self) -> None:
        """Serves until `stop`, and what is begun then."""
        app: Any = self._app
        with self._scope:
            await serve(app, self._config, shutdown_trigger=self._stopping.wait, mode="asgi")

    def stop(self) -> None:
        """Stops gently."""
        self._stopping.set()

    def cut_off(self) -> None:
        """Disconnects browsers at once."""
        self._scope.cancel()
