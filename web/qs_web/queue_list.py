"""The page of all queues."""

from starlette.requests import Request
from starlette.responses import Response

from .rendering import render
from .services import Services


async def show_queues(services: Services, request: Request) -> Response:
    """Answers with the table of the queues."""
    queues = await services.upstreams.of_visitor(None).stats()
    return render("queues", {"queues": queues, "path": services.options.path})
