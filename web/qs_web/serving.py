"""Runs the page: puts its parts together, listens, and stops on signals."""

import socket
import time
from collections.abc import Callable, Sequence

from qs_client.place import endpoint
from qs_serving.guards import is_loopback
from qs_serving.listening import Announce, open_listeners, raise_descriptor_limit
from qs_serving.service_manager import ServiceManager, inherited_sockets
from qs_serving.stopping import Reloadable, serve_until_signalled
from qs_serving.tls import ServerTls

from .app import make_app
from .history import History
from .http_server import HttpServer
from .options import WebOptions
from .services import Links, Services, Sessions
from .upstream import Identity, Upstreams

_DESCRIPTORS = 4096
"""Open files that are asked for. Browsers keep a connection for ten seconds, and each of 64 principals has some to the
queue server."""


def _is_here(options: WebOptions, sockets: Sequence[socket.socket] = ()) -> bool:
    """Tells whether only this machine reaches the page. Raises StartError if the host cannot be found."""
    # Sockets of the service manager decide, if there are any: --host is not used then.
    return all(map(is_loopback, [each.getsockname()[0] for each in sockets] or [options.host]))


def _must_sign_in(options: WebOptions, identity: Identity, *, is_here: bool) -> bool:
    """Tells whether visitors have to sign in before they see anything."""
    # Visitors who need not sign in are clients that say nothing. On this machine any program may be that already, so
    # the page adds nothing. For visitors of other machines, or beside rights of its own, it would.
    return not options.open and (identity.has_credentials or not is_here)


def describe(options: WebOptions) -> list[str]:
    """Returns lines about who reaches the page, and how the page reaches the queue server. Raises StartError if a file
    cannot be used."""
    identity = Identity(options.security, shows_certificate=options.shows_certificate)
    is_here = _is_here(options)
    reach = "only this machine can connect" if is_here else "other machines can connect"
    tls = "no TLS: everything is sent in the clear" if options.tls is None else f"TLS: {ServerTls(options.tls).about}"
    must = _must_sign_in(options, identity, is_here=is_here)
    return [
        f"host {options.host}: {reach}",
        tls,
        "visitors have to sign in" if must else "nobody has to sign in",
        f"queue server {endpoint(*options.server)}: {identity.about}",
    ]


def make_services(
    options: WebOptions, identity: Identity, *, sign_in: bool, clock: Callable[[], float] = time.monotonic
) -> Services:
    """Makes the parts that requests share. sign_in: see `Services`."""
    history = History()
    upstreams = Upstreams(options.server, options.bus, identity, clock, history)
    return Services(options, upstreams, Sessions(clock), history, Links(options.path), clock, sign_in)


async def run_web(options: WebOptions, announce: Announce, manager: ServiceManager) -> None:
    """Runs the page until it is told to stop. Raises StartError if it cannot start."""
    raise_descriptor_limit(_DESCRIPTORS)
    inherited = inherited_sockets(manager.environ, manager.pid)
    identity = Identity(options.security, shows_certificate=options.shows_certificate)
    tls = None if options.tls is None else ServerTls(options.tls)
    sign_in = _must_sign_in(options, identity, is_here=_is_here(options, inherited))
    services = make_services(options, identity, sign_in=sign_in)
    listeners = await open_listeners(options.host, options.port, inherited)
    web = HttpServer(make_app(services), listeners, tls, options.grace)
    reloads: list[Reloadable] = [identity] if tls is None else [identity, tls]
    try:
        await serve_until_signalled(
            web, web.serve, listeners, announce, options.grace, reloads=reloads, manager=manager
        )
    finally:
        await services.upstreams.close()
