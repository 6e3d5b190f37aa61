"""The ASGI application: which address is answered by which function, and how errors become pages.

Each page and each form has one handler. `answer` finds out who asks, calls the handler, and turns what it raises into a
page, so handlers raise and never format errors. An exception that no page is for is a fault of this program: it goes up
to the HTTP server, which logs it with its traceback.
"""

from collections.abc import Awaitable, Callable

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from qs_client import ServerError, ServerUnavailable, Unauthorized
from qs_client.place import endpoint

from . import monitoring
from .dead_letters import move_back
from .guard import AllowedHosts, Guard
from .message_page import act_on_messages, send_payload, show_message
from .queue_list import show_queues
from .queue_page import act_on_queues, make_queue, push_message, set_options, show_queue
from .rendering import send_asset
from .server_page import show_bus, show_server
from .services import Services
from .sign_in import show_sign_in, sign_out
from .visit import ProblemError, Visit

Handler = Callable[[Visit], Awaitable[Response]]
"""Answers a request. May raise what the client and `read_form` raise."""

_ACTION_SECONDS = 30.0
"""Seconds that an action may take. The form has 20 of them to arrive, and a redrive moves dead letters for 20."""
_SAME_IN_HTTP = frozenset({400, 403, 404, 409, 413, 422, 501, 507})
"""Codes of the queue server that mean the same in HTTP. Any other is 502: the fault is behind this server."""
_TRANSIENT = frozenset({408, 429, 503})
"""Codes of the queue server after which a later try may succeed."""


async def answer(services: Services, request: Request, handler: Handler, *, public: bool = False) -> Response:
    """Answers a request with what the handler returns, or with a page about its error.

    public: visitors who have to sign in get this page before they have.
    """
    session = services.sessions.find(request.cookies.get(services.cookie))
    visit = Visit(services, request, session)
    if services.sign_in and session is None and not public:
        return _ask_to_sign_in(visit, "")
    is_action = request.method == "POST"
    # A page that shows nothing for long says less than one that says that the server does not answer: it asks again by
    # itself. An action is not repeated, so it gets the time that it needs.
    seconds = _ACTION_SECONDS if is_action else services.patience
    try:
        with trio.fail_after(seconds):
            return await handler(visit)
    except Exception as error:
        return _error_page(visit, error, is_action)
    finally:  # after each request: what was dropped and not closed would grow without end
        await services.upstreams.close_unused()


def _error_page(visit: Visit, error: Exception, is_action: bool) -> Response:
    """Returns the page about an error. Raises the error again if it is a fault of this program."""
    match error:
        case trio.TooSlowError():
            text = f"The queue server at {endpoint(*visit.services.options.server)} does not answer."
            return _unavailable_page(visit, text, is_action)
        case ServerError():
            return _server_error_page(visit, error, is_action)
        case ServerUnavailable():
            return _unavailable_page(visit, _sentence(str(error)), is_action)
        case ProblemError():
            return visit.page("problem", error.status, text=_sentence(str(error)))
        case ValueError() | TypeError():  # the client checks names and numbers before it sends them
            return visit.page("problem", 400, text=_sentence(str(error)))
    raise error


def _server_error_page(visit: Visit, error: ServerError, is_action: bool) -> Response:
    if isinstance(error, Unauthorized):
        if visit.session is None:
            return _ask_to_sign_in(visit, "")
        # The token was taken out of the access file. A session that is worth nothing must not come back with it.
        visit.services.sessions.end(visit.request.cookies.get(visit.services.cookie))
        return _ask_to_sign_in(visit, "The queue server does not accept your token any more.")
    if error.code in _TRANSIENT:
        return _unavailable_page(visit, f"The queue server says: {error.text}.", is_action)
    status = error.code if error.code in _SAME_IN_HTTP else 502
    return visit.page("problem", status, text=_sentence(error.text), code=f"{error.code} {error.type}")


def _ask_to_sign_in(visit: Visit, why: str) -> Response:
    request = visit.request
    wanted = str(request.url.path) + (f"?{request.url.query}" if request.url.query else "")
    # The address of a form is not shown after a sign-in: it answers POST only.
    after = wanted if request.method != "POST" and visit.services.links.is_local(wanted) else visit.link("")
    return visit.page("sign-in", 401, why=why, after=after, can_sign_in=False, principal=None)


def _unavailable_page(visit: Visit, text: str, is_action: bool) -> Response:
    """Answers that the queue server cannot be asked now. A page asks again by itself. An action does not: nobody knows
    whether the queue server has done it."""
    response = visit.page("trouble", 503, trouble=text, again=not is_action)
    response.headers["retry-after"] = "2"
    return response


def _sentence(text: str) -> str:
    """Makes a sentence of an error's text."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


_PAGES: dict[str, Handler] = {
    "/": show_queues,
    "/queue": show_queue,
    "/message": show_message,
    "/payload": send_payload,
    "/server": show_server,
    "/bus": show_bus,
}
_ACTIONS: dict[str, Handler] = {
    "/queues": act_on_queues,
    "/new": make_queue,
    "/push": push_message,
    "/options": set_options,
    "/redrive": move_back,
    "/messages": act_on_messages,
}


# The address that each form is sent to. None of these answers GET, so no link can change anything.
async def _read_only(_: Visit) -> Response:
    raise ProblemError(403, "this page is read-only: it was started with --read-only")


async def _no_page(_: Visit) -> Response:
    raise ProblemError(404, "there is no such page")


def make_app(services: Services) -> Starlette:
    """Makes the application. Addresses for programs are outside of the path of the page, so a proxy that passes on the
    page alone does not publish the metrics."""
    options = services.options

    def route(path: str, handler: Handler, *methods: str, public: bool = False) -> Route:
        async def respond(request: Request) -> Response:
            return await answer(services, request, handler, public=public)

        return Route(path, respond, methods=methods)

    async def respond_to_nothing(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            return PlainTextResponse("not by this method\n", 405, error.headers)
        return await answer(services, request, _no_page, public=True)

    pages: list[BaseRoute] = [
        *(route(path, handler, "GET") for path, handler in _PAGES.items()),
        *(route(path, _read_only if options.read_only else handler, "POST") for path, handler in _ACTIONS.items()),
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
    # A redirect of Starlette has a whole URL with the scheme of this connection, and behind a proxy that is http.
    app.router.redirect_slashes = False
    return app
