"""Addresses for programs that watch the server: `/metrics`, `/metrics/queues`, `/livez` and `/readyz`.

A program has no session: it shows a token in each request, or none. So anybody who reaches the page may try tokens and
patterns here, and what that costs is bounded: eight scrapes at a time, a pattern of 0.1 s, a thousand queues.
`/metrics` asks for the sums over all queues only, so its cost hardly depends on their number.
"""

import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import regex
import trio
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from qs_client import AsyncQueueClient, Figure, QueueInfo, ServerError, ServerUnavailable
from qs_client.security import Token

from .metrics import bus_up, encode, queue_metrics, server_metrics, up
from .services import Services
from .upstream import Upstream

_SECONDS = 4.0
"""Seconds that the server, and then the bus, may take to answer a scrape. Prometheus waits 10 seconds by default."""
_WRONG_TOKEN = frozenset({401, 501})
"""Codes for a token that the server does not accept: 401 for a wrong one, 501 if the server has no access file."""
_READY = 2.0
"""Seconds in which a server that is ready answers."""
_QUEUES = 1000
"""Queues that one answer has at most."""
_AT_ONCE = trio.CapacityLimiter(8)
"""Scrapes that ask the queue server at the same time: a client can try a token here without signing in."""

_MOST = 256
"""Characters of a pattern."""
_MATCHING = 0.1
"""Seconds that a pattern may take for all queues together."""
_COPIES = 1000
"""The most copies of one part that repetitions may ask for. The library makes all copies: 253 characters took
gigabytes."""
_COUNTS = re.compile(r"\\.|\{([^{}]*)", re.DOTALL)
"""Matches an escaped character, or a place where the counts of a repetition may stand."""

_DISK = 1 << 30
"""Bytes that have to be free on the disk of the queues."""
_DAY = 86400
"""Seconds for which the server's certificate must still be valid."""

_Answer = Callable[[Services, Request], Awaitable[Response]]


# -- queues that a regular expression chooses -------------------------------------------------------------------------


def matching(pattern: str, queues: Iterable[QueueInfo]) -> list[QueueInfo]:
    """Returns the queues whose whole names match the regular expression. Raises ValueError, with a line for people, if
    the pattern is not a regular expression, is too long, or takes too long."""
    if len(pattern) > _MOST:
        raise ValueError(f"the regular expression has more than {_MOST} characters")
    if most_copies(pattern) > _COPIES:
        raise ValueError(f"the regular expression repeats a part more than {_COPIES} times")
    until = trio.current_time() + _MATCHING
    try:
        # `regex` and not `re`: its matches can be given a time, which a pattern like (a+)+b would otherwise take.
        matches = regex.compile(pattern).fullmatch
        return [each for each in queues if matches(each.qid, timeout=max(until - trio.current_time(), 1e-6))]
    except regex.error as error:
        raise ValueError(f"?queue= is not a regular expression: {error}") from None
    except TimeoutError:
        raise ValueError("the regular expression takes too long: make it simpler") from None


def most_copies(pattern: str) -> int:
    """Returns a bound on the copies of the most repeated part of a pattern, as if each repetition were inside all
    others."""
    # Only the digits of a count are looked at: with the flag (?x), white space and comments may stand between them.
    counts = [part for match in _COUNTS.finditer(pattern) for part in (match[1] or "").split(",")]
    return math.prod(max(int("".join(filter(str.isdecimal, part)) or 1), 1) for part in counts)


# -- checks -----------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """The result of one check. text: what was found, and after a failure what to do."""

    name: str
    passed: bool
    text: str


async def check_server(server: Upstream) -> list[Check]:
    """Checks whether the queue server can do its work. A check that could not be made has not passed."""
    try:
        figures = await server.client.server_stats()
    except ServerUnavailable as error:
        return [Check("server", False, str(error))]
    except ServerError as error:
        help_text = "; give the token of the page the right to monitor" if error.code in {401, 403} else ""
        return [Check("server", False, f"{error}{help_text}")]
    found = {figure.name: figure.value for figure in figures if not figure.labels}
    checks = [Check("server", True, "answers"), _journal(found), _disk(found)]
    expiry = _first_expiry(figures)
    return checks if expiry is None else [*checks, _certificate(expiry)]


def _journal(found: dict[str, float]) -> Check:
    if not found.get("journal_failed"):
        return Check("journal", True, "takes messages")
    return Check("journal", False, "the disk has failed: look at the server's log, and start it again")


def _disk(found: dict[str, float]) -> Check:
    free = found.get("disk_free_bytes")
    if free is None:
        return Check("disk", False, "the server does not say how much is free")
    text = f"{free / _DISK:.1f} GiB free"
    return Check("disk", free >= _DISK, text if free >= _DISK else f"{text}, less than 1 GiB")


def _first_expiry(figures: list[Figure]) -> float | None:
    return min((each.value for each in figures if each.name == "tls_certificate_expiry_time_seconds"), default=None)


def _certificate(expiry: float) -> Check:
    ends = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expiry))
    if expiry - time.time() >= _DAY:
        return Check("certificate", True, f"ends {ends}")
    return Check("certificate", False, f"ends {ends}: replace the file and send the server a SIGHUP")


# -- the addresses ----------------------------------------------------------------------------------------------------


class _RefusedError(Exception):
    """A request without an answer of figures. Its response says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = PlainTextResponse(f"{text}\n", status)


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes of all addresses for programs."""

    def route(path: str, answer: _Answer) -> Route:
        async def respond(request: Request) -> Response:
            try:
                return await answer(services, request)
            except _RefusedError as error:
                return error.response

        return Route(path, respond, methods=["GET", "HEAD"])

    return [
        route("/metrics", _show_metrics),
        route("/metrics/queues", _show_queues),
        route("/livez", _show_life),
        route("/readyz", _show_readiness),
    ]


def _server(services: Services, request: Request) -> Upstream:
    """Returns the queue server with the rights of a request: by the token in the header Authorization, else by the
    page's own token where nobody has to sign in."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if not scheme:
        if services.sign_in:
            raise _RefusedError(401, "send a token that may monitor the server: Authorization: Bearer TOKEN")
        return services.upstreams.own
    if scheme.lower() != "bearer":
        raise _RefusedError(401, "the header Authorization has to be: Bearer TOKEN")
    try:
        return services.upstreams.of_visitor(Token(text.strip()))
    except ValueError as error:
        raise _RefusedError(401, str(error)) from None


@asynccontextmanager
async def _upstream_for(services: Services, request: Request) -> AsyncIterator[Upstream]:
    """Yields the queue server with the rights of a request, when fewer than eight other requests ask. A token that the
    server does not accept leaves nothing behind."""
    async with _AT_ONCE:  # before the token is looked at: guesses wait for one another
        upstream = _server(services, request)
        try:
            yield upstream
        except ServerError as error:
            if error.code in _WRONG_TOKEN:
                services.upstreams.drop(upstream)
            hint = " (send a token that may monitor: Authorization: Bearer TOKEN, or give one to the page)"
            raise _RefusedError(error.code, error.text + (hint if error.code in {401, 403} else "")) from None
        finally:
            await services.upstreams.close_unused()


async def _show_metrics(services: Services, request: Request) -> Response:
    async with _upstream_for(services, request) as upstream:
        metrics = await _of_server(upstream)
        if upstream.bus is not None:
            metrics += await _of_bus(upstream.bus)
    return _encoded(request, metrics)


async def _of_server(upstream: Upstream) -> list[Metric]:
    try:
        with trio.fail_after(_SECONDS):
            figures = await upstream.client.server_stats()
    except ServerError as error:
        if error.code in _WRONG_TOKEN | {403}:  # the server is up, and qs_up 0 would wake somebody for nothing
            raise
        return [up(False)]
    except (ServerUnavailable, trio.TooSlowError):
        return [up(False)]
    return [up(True), *server_metrics(figures)]


async def _of_bus(bus: AsyncQueueClient) -> list[Metric]:
    try:
        with trio.fail_after(_SECONDS):
            figures = await bus.server_stats()
    except (ServerError, ServerUnavailable, trio.TooSlowError):
        return [bus_up(False)]
    return [bus_up(True), *server_metrics(figures, "bus_")]


async def _show_queues(services: Services, request: Request) -> Response:
    pattern = request.query_params.get("queue", ".*")
    try:
        with trio.fail_after(_SECONDS):
            async with _upstream_for(services, request) as upstream:
                queues = await upstream.fresh_stats()
    except ServerUnavailable as error:
        raise _RefusedError(503, str(error)) from None
    except trio.TooSlowError:
        raise _RefusedError(503, f"the queue server has not answered within {_SECONDS:.0f} s") from None
    try:
        found = matching(pattern, queues)
    except ValueError as error:
        raise _RefusedError(400, str(error)) from None
    if len(found) > _QUEUES:
        raise _RefusedError(400, f"{len(found)} queues match, and at most {_QUEUES} are shown: narrow ?queue=REGEX")
    return _encoded(request, queue_metrics(found))


def _encoded(request: Request, metrics: Iterable[Metric]) -> Response:
    body, content_type = encode(metrics, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


async def _show_life(services: Services, request: Request) -> Response:
    return PlainTextResponse("ok: the page answers\n")


async def _show_readiness(services: Services, request: Request) -> Response:
    with trio.move_on_after(_READY) as waiting:
        checks = await check_server(services.upstreams.own)
    if waiting.cancelled_caught:
        raise _RefusedError(503, f"failed: server: has not answered within {_READY:.0f} s")
    lines = [f"{'ok' if each.passed else 'failed'}: {each.name}: {each.text}" for each in checks]
    return PlainTextResponse("\n".join(lines) + "\n", 200 if all(each.passed for each in checks) else 503)
