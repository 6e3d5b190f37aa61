"""Serves the application over HTTP: sockets, TLS, limits, and how it stops. Hypercorn's trio worker does the rest."""

import logging
import os
import ssl
import time
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette

from qs_client import QueueInfo
from qs_client.place import endpoint
from qs_serving.guards import is_loopback
from qs_serving.listening import Announce, open_listeners
from qs_serving.service_manager import ServiceManager
from qs_serving.stopping import Reloadable, serve_until_signalled
from qs_serving.tls import ServerTls

from .app import make_app
from .history import History, figures_of
from .identity import Identity
from .links import Links
from .options import WebOptions
from .services import Services
from .sessions import Sessions
from .upstreams import Upstreams

_HEADERS = 16 * 1024
"""Bytes that the first line and the headers of a request may have."""
_IDLE = 10
"""Seconds in which the headers of the next request have to be there."""
_SILENT = 60
"""Seconds after which a connection is closed on which nothing comes, an answer under way or not."""


class _Config(Config):
    """Hypercorn's settings, with a TLS context of our own, which can be replaced."""

    def __init__(self, tls: ServerTls | None, grace: float) -> None:
        super().__init__()
        self._tls = tls
        self.h11_max_incomplete_size = _HEADERS
        self.keep_alive_timeout = _IDLE
        self.read_timeout = _SILENT
        self.graceful_timeout = grace
        self.ssl_handshake_timeout = _IDLE
        self.include_server_header = False
        self.alpn_protocols = ["http/1.1"]
        self.errorlog = logging.getLogger("qs_web.http")
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


class _Web:
    """Runs the application until it is stopped."""

    def __init__(self, app: Starlette, config: Config) -> None:
        self._app = app
        self._config = config
        self._stopping = trio.Event()
        self._scope = trio.CancelScope()

    async def serve(self) -> None:
        with self._scope:
            await serve(self._app, self._config, shutdown_trigger=self._stopping.wait, mode="asgi")  # type: ignore[arg-type]

    def stop(self) -> None:
        """Stops gently."""
        self._stopping.set()

    def cut_off(self) -> None:
        """Disconnects browsers at once."""
        self._scope.cancel()


def _must_sign_in(options: WebOptions, identity: Identity) -> bool:
    """Tells whether visitors have to sign in before they see anything. StartError if the host cannot be found.

    Otherwise they are what the queue server takes a client for that says nothing: on this machine, that is what any
    program here may do.
    """
    return not options.open and (identity.is_somebody or not is_loopback(options.host))


def describe(options: WebOptions) -> list[str]:
    """Returns lines about who reaches the page, and how it reaches the queue server. StartError if a file cannot be
    used."""
    identity = Identity(options.security, shows_certificate=options.shows_certificate)
    reach = "only this machine can connect" if is_loopback(options.host) else "other machines can connect"
    tls = "no TLS: everything is sent in the clear" if options.tls is None else f"TLS: {ServerTls(options.tls).about}"
    who = "visitors have to sign in" if _must_sign_in(options, identity) else "nobody has to sign in"
    return [
        f"host {options.host}: {reach}", tls, who,
        f"queue server {endpoint(*options.server)}: {identity.about}",
    ]  # fmt: skip


async def run_web(options: WebOptions, announce: Announce, manager: ServiceManager) -> None:
    """Runs the page until it is told to stop. StartError if it cannot start."""
    identity = Identity(options.security, shows_certificate=options.shows_certificate)
    tls = None if options.tls is None else ServerTls(options.tls)
    history = History()

    def observe(now: float, queues: list[QueueInfo]) -> None:
        history.observe(now, ((info.qid, figures_of(info)) for info in queues))

    upstreams = Upstreams(options.server, identity, time.monotonic, observe)
    services = Services(
        options, upstreams, Sessions(time.monotonic), history, Links(options.path), time.monotonic,
        sign_in=_must_sign_in(options, identity),
    )  # fmt: skip
    config = _Config(tls, options.grace)
    listeners = await open_listeners(options.host, options.port)
    config.bind = [f"fd://{os.dup(each.socket.fileno())}" for each in listeners]
    web = _Web(make_app(services), config)
    reloads: list[Reloadable] = [identity] if tls is None else [identity, tls]
    try:
        await serve_until_signalled(
            web, web.serve, listeners, announce, options.grace, reloads=reloads, manager=manager
        )
    finally:
        await upstreams.close()
