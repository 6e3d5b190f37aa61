"""Refuses requests before the application sees them, and adds the security headers to every answer.

The page acts with the rights of the person at the browser. So other sites must neither read it nor send its forms:

- A name of another site that its owner has lead to this machine (DNS rebinding) is refused by its Host header.
- A form that a page of another site sends is refused by `Sec-Fetch-Site`, or by `Origin` where that is missing.
- A request that a proxy and this server might read in two ways is refused, so that none is smuggled in behind it.
"""

import ipaddress
import socket
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
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
"""Bytes of a refused form that are still read, so that its connection can be used again."""
_WITHIN = 1
"""Seconds in which these bytes have to come."""


def _is_address(name: str) -> bool:
    """Tells whether a host is an address. No other site's name can be one."""
    with suppress(ValueError):
        ipaddress.ip_address(name.strip("[]"))
        return True
    return False


def split_host(value: str) -> tuple[str, str]:
    """Splits what a Host header says into name and port, "" for none."""
    name, _, port = value.rpartition(":") if not value.endswith("]") else (value, "", "")
    return (name, port) if name else (port, "")


class AllowedHosts:
    """Decides by the Host header which requests are answered.

    Allows the name or address that the page listens on, and the names of --allow-host; where the page listens on
    loopback, also `localhost`; where it listens on all addresses, also this machine's name and any address. It must
    never allow another name: its owner can have it lead here.
    """

    def __init__(self, host: str, also: Iterable[str]) -> None:
        """host: the address that the page listens on; also: further names, with or without a port."""
        named = f"[{host}]" if ":" in host else host.lower()
        self._any_address = host in {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not listened on
        self._names = {named, *also}
        if self._any_address:
            self._names |= _LOCAL | {socket.gethostname().lower()}
        elif named in _LOCAL or (_is_address(host) and ipaddress.ip_address(host).is_loopback):
            self._names |= _LOCAL

    def allows(self, value: str) -> bool:
        """Tells whether requests with this Host header are answered."""
        value = value.lower()
        name, port = split_host(value)
        if port and not (port.isascii() and port.isdigit()):  # `localhost:1@evil.example` leads to evil.example
            return False
        return name in self._names or value in self._names or (self._any_address and _is_address(name))


def is_cross_site(headers: Headers) -> bool:
    """Tells whether the headers say that a page of another site has made this request. Only browsers send them; other
    programs have no cookies that another site could use."""
    site = headers.get("sec-fetch-site")  # browsers leave it out without TLS, except towards loopback
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
    """Counts the bytes of the first line and the headers of a request, without the protocol's version in the line."""
    line = len(scope["method"]) + len(scope["raw_path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])


def _ambiguous(scope: MutableMapping[str, Any], headers: Headers) -> tuple[str, int] | None:
    """Returns text and status of the answer to a request that is not to be read any further, None for others. The
    connection is closed after the answer, because nobody can be sure where the next request begins."""
    if not scope["http_version"].startswith("1"):
        return "this page speaks HTTP/1.1", 505
    if _head_size(scope) > MOST_HEADERS:  # h11 bounds only headers that are incomplete: one read may bring more
        return f"the first line and the headers of a request have at most {MOST_HEADERS} bytes", 431
    # A proxy may take the one length where h11 takes the other, and then sees another request behind the body.
    if "transfer-encoding" in headers and "content-length" in headers:
        return "two lengths of one body", 400
    return None


class Body:
    """The body of one request, on its way to the application. Knows whether all of it has been read."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        headers = Headers(scope=scope)
        self._is_over: bool = "content-length" not in headers and "transfer-encoding" not in headers

    async def receive(self) -> Message:
        """Receives the next ASGI message."""
        message = await self._receive()
        self._is_over = not message.get("more_body", False)
        return message

    async def read_rest(self) -> bool:
        """Reads what the application has not asked for, if it is little and comes soon. Returns True if the body is
        over, and False if the connection cannot be used for another request."""
        size = 0
        with trio.move_on_after(_WITHIN):
            while not self._is_over and size <= _UNREAD:
                size += len((await self.receive()).get("body", b""))
        return self._is_over


class Guard:
    """Middleware: refuses requests, or passes them on, and adds headers to all answers.

    1. The application never sees a request for a host that is not allowed, a form of another site, another method than
       GET, HEAD and POST, or a request that could be read in two ways.
    2. Every answer has the security headers, also one that refuses, and is not cached unless it says otherwise.
    3. The body of a request has been read when its answer begins, or the connection is closed behind the answer: a
       browser whose form is refused half-way would see a reset instead of the answer.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses a request with an answer, or passes it to the application."""
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

        respond: ASGIApp = self._refusal(scope) or self._app
        await respond(scope, body.receive, send_guarded)

    def _refusal(self, scope: MutableMapping[str, Any]) -> PlainTextResponse | None:
        """Returns the answer to a request that is refused, None for one that is passed on."""
        headers = Headers(scope=scope)
        if ambiguous := _ambiguous(scope, headers):
            text, status = ambiguous
            return PlainTextResponse(f"{text}\n", status, {"connection": "close"})
        if not self._hosts.allows(headers.get("host", "")):
            text = "this page is not known by this name: start queue-web.py with --allow-host NAME\n"
            return PlainTextResponse(text, 421)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("GET, HEAD or POST\n", 405, {"allow": "GET, HEAD, POST"})
        if scope["method"] == "POST" and is_cross_site(headers):
            return PlainTextResponse("a page of another site has sent this form\n", 403)
        return None
