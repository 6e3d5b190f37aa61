"""The ASGI application: which address is answered by which function."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from . import monitoring
from .queue_list import show_queues
from .services import Services

Page = Callable[[Services, Request], Awaitable[Response]]


def make_app(services: Services) -> Starlette:
    """Makes the application."""

    def page(path: str, show: Page) -> Route:
        async def answer(request: Request) -> Response:
            return await show(services, request)

        return Route(path, answer)

    pages: list[BaseRoute] = [page("/", show_queues)]
    return Starlette(routes=[*monitoring.routes(services), Mount(services.options.path, routes=pages)])
