"""Serves an application over HTTP with Hypercorn's trio worker: limits, TLS, and how it stops.

Hypercorn does the HTTP. This module has what the page needs otherwise than Hypercorn does it: HTTP/1.1 alone, a TLS
context that is replaced while it serves, and a log without lines that mean nothing.
"""

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
"""Seconds in which the headers of the next request have to arrive, and for a TLS handshake."""
_SILENT = 60
"""Seconds after which a connection is closed on which nothing arrives, also while an answer is under way."""
_UNREAD = 10
"""Seconds after which a connection is closed whose other side takes nothing of an answer: such a connection would hold
up a stop."""
_LOGGED = 60.0
"""Seconds between two lines of the log that say that no browser can connect."""
_cannot_accept = RareLine(logging.getLogger(__name__), logging.ERROR, _LOGGED)


class _Http1(H11Protocol):
    """Speaks HTTP/1.1 alone, so that every request passes the limits of `Guard`, and a proxy sees what this server
    sees."""

    # By itself, Hypercorn changes to HTTP/2 when a client begins with its preface or asks for an upgrade, with or
    # without TLS, and no setting prevents that: `alpn_protocols` is only what it offers.
    async def _check_protocol(self, event: h11.Request) -> None:
        """Changes to no other protocol: a preface is refused by `Guard`, the wish for an upgrade is ignored."""


# Hypercorn looks the class up in its own module, and has no parameter for it.
setattr(hypercorn.protocol, H11Protocol.__name__, _Http1)


def _is_news(record: logging.LogRecord) -> bool:
    """Tells whether a line of Hypercorn is worth reading."""
    # When a browser goes away in the middle of a form, Hypercorn may write its answer to that while the application
    # writes its own. trio refuses the second writer, and Hypercorn logs that as an error of the application.
    return record.exc_info is None or not isinstance(record.exc_info[1], trio.BusyResourceError)


def _log_rarely(record: logging.LogRecord) -> bool:
    """Logs at most once a minute that there is no descriptor for another browser. trio would log it ten times a second,
    with a traceback. Returns False, so that the line of trio is dropped."""
    reason = record.args[1] if isinstance(record.args, tuple) and len(record.args) > 1 else record.getMessage()
    _cannot_accept.log("no browser can connect: %s; requests that have begun go on, and others wait", reason)
    return False


class _Config(Config):
    """Hypercorn's settings, with a TLS context that can be replaced while it serves."""

    def __init__(self, tls: ServerTls | None, grace: float) -> None:
        super().__init__()
        self._tls = tls
        self.h11_max_incomplete_size = MOST_HEADERS  # headers that are incomplete; `Guard` bounds the others
        self.keep_alive_timeout = _IDLE
        self.read_timeout = _SILENT
        self.graceful_timeout = grace
        self.ssl_handshake_timeout = _IDLE
        self.include_server_header = False  # strangers need not know which version they meet
        self.alpn_protocols = ["http/1.1"]
        self.errorlog = logging.getLogger("qs_web.http")
        self.errorlog.setLevel(logging.WARNING)  # its line of level INFO says where it listens, which we say ourselves
        self.errorlog.addFilter(_is_news)
        self.accesslog = None  # an open page asks every two seconds

    @property
    def ssl_enabled(self) -> bool:
        return self._tls is not None

    def create_ssl_context(self) -> ssl.SSLContext | None:
        tls = self._tls
        if tls is None:
            return None

        def choose(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = tls.context

        # Hypercorn asks for a context once, when it starts. The callback is called in each handshake, with or without a
        # name, and exchanges it for the one that was read last.
        context = tls.context
        context.sni_callback = choose
        context.set_alpn_protocols(self.alpn_protocols)
        return context


class HttpServer:
    """Serves an application until it is stopped.

    1. After `stop` no browser is accepted, and requests that have begun have `grace` seconds.
    2. After `cut_off` `serve` returns at once.
    3. It never closes the listeners: it serves on copies of them, and they stay the caller's.
    """

    def __init__(
        self, app: ASGIApp, listeners: Sequence[trio.SocketListener], tls: ServerTls | None, grace: float
    ) -> None:
        """grace: seconds that a stop leaves for requests that have begun."""
        logging.getLogger("trio.serve_listeners").addFilter(_log_rarely)  # Hypercorn serves with it
        self._app = app
        self._config = _Config(tls, grace)
        self._config.bind = [f"fd://{os.dup(each.socket.fileno())}" for each in listeners]
        for each in listeners:  # its connections copy this
            each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD * 1000)
            each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stopping = trio.Event()
        self._scope = trio.CancelScope()

    async def serve(self) -> None:
        """Serves until `stop`, and then finishes the requests that have begun."""
        app: Any = self._app
        with self._scope:
            await serve(app, self._config, shutdown_trigger=self._stopping.wait, mode="asgi")

    def stop(self) -> None:
        """Makes `serve` return once the requests that have begun are finished."""
        self._stopping.set()

    def cut_off(self) -> None:
        """Makes `serve` return at once, and disconnects browsers."""
        self._scope.cancel()
