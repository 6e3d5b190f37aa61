"""The ASGI application: which address is answered by which function."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from . import monitoring
from .answering import Show, answer
from .assets import send_asset
from .dead_letters import move_back
from .guard import Guard
from .hosts import AllowedHosts
from .message_actions import act_on_messages
from .message_page import send_payload, show_message
from .problem import ProblemError
from .queue_actions import act_on_queues, make_queue, push_message, set_options
from .queue_list import show_queues
from .queue_page import show_queue
from .server_page import show_bus, show_server
from .services import Services
from .sign_in import show_sign_in, sign_out
from .visit import Visit

_PAGES: dict[str, Show] = {
    "/": show_queues,
    "/queue": show_queue,
    "/message": show_message,
    "/payload": send_payload,
    "/server": show_server,
    "/bus": show_bus,
}
_ACTIONS: dict[str, Show] = {
    "/queues": act_on_queues,
    "/new": make_queue,
    "/push": push_message,
    "/options": set_options,
    "/redrive": move_back,
    "/messages": act_on_messages,
}


async def _read_only(_: Visit) -> Response:
    raise ProblemError(403, "this page is read-only: it was started with --read-only")


async def _no_page(_: Visit) -> Response:
    raise ProblemError(404, "there is no such page")


def make_app(services: Services) -> Starlette:
    """Makes the application."""
    options = services.options

    def route(path: str, show: Show, *methods: str, public: bool = False) -> Route:
        async def respond(request: Request) -> Response:
            return await answer(services, request, show, public=public)

        return Route(path, respond, methods=methods)

    async def respond_to_nothing(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            return PlainTextResponse("not by this method\n", 405, error.headers)
        return await answer(services, request, _no_page, public=True)

    pages: list[BaseRoute] = [
        *(route(path, show, "GET") for path, show in _PAGES.items()),
        *(route(path, _read_only if options.read_only else show, "POST") for path, show in _ACTIONS.items()),
        route("/sign-in", show_sign_in, "GET", "POST", public=True),
        route("/sign-out", sign_out, "POST", public=True),
        Route("/static/{name}", send_asset, methods=["GET"]),
    ]

    async def add_slash(_: Request) -> Response:
        return RedirectResponse(services.links(""), 308)

    beside = [*monitoring.routes(services), *([Route(options.path, add_slash)] if options.path else [])]
    app = Starlette(
        routes=[*beside, Mount(options.path, routes=pages)],
        middleware=[Middleware(Guard, AllowedHosts(options.host, options.hosts))],
        exception_handlers={404: respond_to_nothing, 405: respond_to_nothing},
    )
    app.router.redirect_slashes = False  # it would name the scheme that a proxy has used
    return app
