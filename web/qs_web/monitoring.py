"""Addresses for programs that watch the server: metrics for Prometheus, and whether all is well."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import trio
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from qs_client import AsyncQueueClient, ServerError, ServerUnavailable
from qs_client.security import Token

from .health import check_server
from .metrics import bus_up, encode, of_figures, of_queues, up
from .queue_patterns import matching
from .services import Services
from .upstream import Upstream

_SECONDS = 4.0
"""Seconds that the server, and then the bus, may take to answer a scrape. Prometheus waits 10 seconds by default."""
_WRONG_TOKEN = frozenset({401, 501})
"""Codes for a token that the server does not take: a wrong one, or any, if it has no access file."""
_READY = 2.0
"""Seconds that the server may take to answer if it is ready."""
_QUEUES = 1000
"""Queues that one answer has at most."""

_AT_ONCE = trio.CapacityLimiter(8)
"""Scrapes that ask the queue server at the same time: nobody has to sign in to try a token here."""

_Answer = Callable[[Services, Request], Awaitable[Response]]


class _RefusedError(Exception):
    """There is nothing to show. The response says why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = PlainTextResponse(f"{text}\n", status)


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes."""

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
    """The server as the one who asks may see it: by the token in the header Authorization, else by the page's own,
    where nobody has to sign in."""
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
async def _asking(services: Services, request: Request) -> AsyncIterator[Upstream]:
    """Gives the server as the one who asks may see it, when it is this request's turn. A token that the server does not
    accept leaves nothing behind."""
    async with _AT_ONCE:
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
    async with _asking(services, request) as upstream:
        metrics = await _of_server(upstream)
        if upstream.bus is not None:
            metrics += await _of_bus(upstream.bus)
    return _encoded(request, metrics)


async def _of_server(upstream: Upstream) -> list[Metric]:
    try:
        with trio.fail_after(_SECONDS):
            figures = await upstream.client.server_stats()
    except ServerError as error:
        if error.code in _WRONG_TOKEN | {403}:  # it answers
            raise
        return [up(False)]
    except (ServerUnavailable, trio.TooSlowError):
        return [up(False)]
    return [up(True), *of_figures(figures)]


async def _of_bus(bus: AsyncQueueClient) -> list[Metric]:
    try:
        with trio.fail_after(_SECONDS):
            figures = await bus.server_stats()
    except (ServerError, ServerUnavailable, trio.TooSlowError):
        return [bus_up(False)]
    return [bus_up(True), *of_figures(figures, "bus_")]


async def _show_queues(services: Services, request: Request) -> Response:
    pattern = request.query_params.get("queue", ".*")
    try:
        with trio.fail_after(_SECONDS):
            async with _asking(services, request) as upstream:
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
    return _encoded(request, of_queues(found))


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
