"""Refuses requests for other host names or from other sites, and adds the security headers to every answer."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .hosts import AllowedHosts

Respond = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY = "; ".join(
    [
        "default-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": browsers then send `Origin: null` with our own forms too, and without TLS nothing else says
    # where a form comes from.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_METHODS = frozenset({"GET", "HEAD", "POST"})
MOST_HEADERS = 16 * 1024
"""Bytes that the first line and the headers of a request may have: those of a browser with many cookies of other
pages on the same host have some 8 KiB."""
_UNREAD = 64 * 1024
"""Bytes of a form that are read though it is refused."""
_WITHIN = 1
"""Seconds in which these bytes have to come."""


def is_cross_site(headers: Headers) -> bool:
    """Tells whether a browser says that a page of another site has made this request. Programs that are no browsers say
    nothing, and have no cookies that another site could use."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site != "same-origin"
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:  # the brackets enclose no address
        return True


def _head_size(scope: MutableMapping[str, Any]) -> int:
    """Counts the bytes of the first line and the headers of a request, without what the line says of the protocol."""
    line = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])


def _unreadable(scope: MutableMapping[str, Any], headers: Headers) -> tuple[str, int] | None:
    """Returns text and status of the answer to a request after which the connection is not used any more."""
    if not scope["http_version"].startswith("1"):
        return "this page speaks HTTP/1.1", 505
    if _head_size(scope) > MOST_HEADERS:
        return f"the first line and the headers of a request have at most {MOST_HEADERS} bytes", 431
    if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may read it differently
        return "two lengths of one body", 400
    return None


class Body:
    """The body of one request, on its way to the application."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        headers = Headers(scope=scope)
        self._is_over: bool = "content-length" not in headers and "transfer-encoding" not in headers

    async def receive(self) -> Message:
        """Receives the next message."""
        message = await self._receive()
        self._is_over = not message.get("more_body", False)
        return message

    async def read_rest(self) -> bool:
        """Reads what the application has not asked for, if it is little and comes soon. Returns True when the body is
        over: otherwise the connection cannot be used for another request."""
        size = 0
        with trio.move_on_after(_WITHIN):
            while not self._is_over and size <= _UNREAD:
                size += len((await self.receive()).get("body", b""))
        return self._is_over


class Guard:
    """Middleware: refuses requests, or passes them on and adds the headers to their answers."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        body = Body(scope, receive)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if not await body.read_rest():
                    headers["connection"] = "close"
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        respond: Respond = self._refusal(scope) or self._app
        await respond(scope, body.receive, send_guarded)

    def _refusal(self, scope: MutableMapping[str, Any]) -> PlainTextResponse | None:
        """Returns the answer to a request that does not pass."""
        headers = Headers(scope=scope)
        if unreadable := _unreadable(scope, headers):
            text, status = unreadable
            return PlainTextResponse(f"{text}\n", status, {"connection": "close"})
        if not self._hosts.allows(headers.get("host", "")):
            text = "this page is not known by this name: start queue-web.py with --allow-host NAME\n"
            return PlainTextResponse(text, 421)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("GET, HEAD or POST\n", 405, {"allow": "GET, HEAD, POST"})
        if scope["method"] == "POST" and is_cross_site(headers):
            return PlainTextResponse("a page of another site has sent this form\n", 403)
        return None
