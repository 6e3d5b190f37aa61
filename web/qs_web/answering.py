"""Answers requests with pages: finds out who asks, and turns what goes wrong into pages too."""

import logging
from collections.abc import Awaitable, Callable

import trio
from starlette.requests import Request
from starlette.responses import Response

from qs_client import ServerError, ServerUnavailable, Unauthorized
from qs_client.place import endpoint

from .problem import ProblemError
from .services import Services
from .visit import Visit

_logger = logging.getLogger(__name__)

Show = Callable[[Visit], Awaitable[Response]]
"""Answers a request with a page. May raise what the client and `read_form` raise."""

_ACTION_SECONDS = 30.0
"""Seconds that an action may take, the sending of its form included."""
_AS_THEY_ARE = frozenset({400, 403, 404, 409, 413, 501, 507})
"""Codes of the queue server that have the same meaning in HTTP."""
_NOT_NOW = frozenset({408, 429, 503})
"""Codes of the queue server after which a later try may succeed."""


async def answer(services: Services, request: Request, show: Show, *, public: bool = False) -> Response:
    """Answers a request by `show`. public: also for those who have to sign in first."""
    session = services.sessions.find(request.cookies.get(services.cookie))
    visit = Visit(services, request, session)
    if services.sign_in and session is None and not public:
        return _ask_to_sign_in(visit, "")
    is_action = request.method == "POST"
    seconds = _ACTION_SECONDS if is_action else services.patience
    try:
        with trio.fail_after(seconds):
            return await show(visit)
    except Exception as error:
        return _answer_to(visit, error, is_action)
    finally:
        await services.upstreams.close_unused()


def _answer_to(visit: Visit, error: Exception, is_action: bool) -> Response:
    """Returns the page about an error. Raises the error if it is a fault of this program."""
    match error:
        case trio.TooSlowError():
            text = f"The queue server at {endpoint(*visit.services.options.server)} does not answer."
            return _trouble(visit, text, is_action)
        case ServerError():
            return _of_server(visit, error, is_action)
        case ServerUnavailable():
            return _trouble(visit, _sentence(str(error)), is_action)
        case ProblemError():
            return visit.page("problem", error.status, text=_sentence(str(error)))
        case ValueError() | TypeError():  # the client refuses a name or a number
            return visit.page("problem", 400, text=_sentence(str(error)))
    raise error


def _of_server(visit: Visit, error: ServerError, is_action: bool) -> Response:
    if isinstance(error, Unauthorized):
        if visit.session is None:
            return _ask_to_sign_in(visit, "")
        visit.services.sessions.end(visit.request.cookies.get(visit.services.cookie))
        return _ask_to_sign_in(visit, "The queue server does not accept your token any more.")
    if error.code in _NOT_NOW:
        return _trouble(visit, f"The queue server says: {error.text}.", is_action)
    status = error.code if error.code in _AS_THEY_ARE else 502
    return visit.page("problem", status, text=_sentence(error.text), code=f"{error.code} {error.type}")


def _ask_to_sign_in(visit: Visit, why: str) -> Response:
    request = visit.request
    wanted = str(request.url.path) + (f"?{request.url.query}" if request.url.query else "")
    after = wanted if request.method != "POST" and visit.services.links.is_local(wanted) else visit.link("")
    return visit.page("sign-in", 401, why=why, after=after, can_sign_in=False, principal=None)


def _trouble(visit: Visit, text: str, is_action: bool) -> Response:
    """Answers that the queue server cannot be asked now. A page asks again by itself; an action does not."""
    response = visit.page("trouble", 503, trouble=text, again=not is_action)
    response.headers["retry-after"] = "2"
    return response


def _sentence(text: str) -> str:
    """Makes a sentence of an error's text."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
