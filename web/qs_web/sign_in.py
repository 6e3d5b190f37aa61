"""Signing in with a token of the queue server's access file, and signing out.

Only the queue server knows which tokens are good: the page has no access file of its own, and asks with `authenticate`.
"""

import trio
from starlette.responses import RedirectResponse, Response

from qs_client import AsyncQueueClient, ServerUnavailable
from qs_client.security import Token
from qs_schemas import Authenticate, Error

from .forms import read_form
from .visit import Visit

_FORM = 16 * 1024
"""Bytes of a form with a token."""
_AT_ONCE = trio.CapacityLimiter(8)
"""Tokens that are tried at the same time at most, so that guesses leave connections of the queue server for others."""


async def show_sign_in(visit: Visit) -> Response:
    """Answers with the form, or tries the token in it."""
    if visit.request.method != "POST":
        return _again(visit, "", visit.link(""), 200)
    form = await read_form(visit.request, _FORM)
    after = form.one("after")
    # A link to the sign-in that somebody else has made must not lead to a copy of this page elsewhere afterwards.
    after = after if visit.services.links.is_local(after) else visit.link("")
    try:
        token = Token(form.one("token").strip())
    except ValueError:
        return _again(visit, "That is no token: a line of text without spaces.", after, 401)
    principal = await _principal(visit, token)
    if isinstance(principal, Error):
        text = "The queue server does not know this token." if principal.code == 401 else f"{principal.text}."
        # 429: the queue server has had too many wrong tokens, and here too that is a sign-in that failed.
        return _again(visit, text[:1].upper() + text[1:], after, 401 if principal.code in {401, 429} else 400)
    return _begun(visit, token, principal, after)


async def _principal(visit: Visit, token: Token) -> str | Error:
    """Asks the queue server for the principal of a token. Returns the server's error if it refuses. Raises
    ServerUnavailable."""
    options = visit.services.options
    # A connection of its own, closed at once: a guess must not take the place of a principal in `Upstreams`.
    security = visit.services.upstreams.security(None)
    async with _AT_ONCE, AsyncQueueClient(*options.server, timeout=5, tls=security.context) as client:
        await client.send(Authenticate(token=token.reveal()))
        answer = await client.recv()
    if isinstance(answer, Error):
        return answer
    if not isinstance(answer, Authenticate):
        raise ServerUnavailable("the queue server did not answer to a token")
    return answer.principal or ""


def _again(visit: Visit, why: str, after: str, status: int) -> Response:
    return visit.page("sign-in", status, why=why, after=after, can_sign_in=False)


def _begun(visit: Visit, token: Token, principal: str, after: str) -> Response:
    """Begins a session under an id that no browser has known before, and ends the browser's earlier session."""
    services, request = visit.services, visit.request
    services.sessions.end(request.cookies.get(services.cookie))
    response = RedirectResponse(after, 303)
    # No script reads the cookie, and no other site has a browser send it, not even with a link to the page.
    response.set_cookie(
        services.cookie,
        services.sessions.begin(token, principal),
        path=services.options.path or "/",
        httponly=True,
        samesite="strict",
        secure=is_secure(visit),
    )
    return response


def is_secure(visit: Visit) -> bool:
    """Tells whether the browser has reached the page by TLS. A proxy says so in a header. A browser that lies in this
    header gets a cookie that it will not send back, and so loses its own session only."""
    request = visit.request
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "").lower() == "https"


async def sign_out(visit: Visit) -> Response:
    """Ends the session, and removes the cookie."""
    services = visit.services
    services.sessions.end(visit.request.cookies.get(services.cookie))
    response = RedirectResponse(visit.link(""), 303)
    response.delete_cookie(services.cookie, path=services.options.path or "/", httponly=True, samesite="strict")
    return response
