"""Addresses for programs that watch the server: they are not under the page's path, and nobody signs in for them."""

from starlette.routing import BaseRoute

from .services import Services


def routes(services: Services) -> list[BaseRoute]:
    """Returns the routes."""
    return []
