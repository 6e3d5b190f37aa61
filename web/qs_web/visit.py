"""One request of a visitor: who it is, what of the queue server the visitor sees, and the answer as a page."""

import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from qs_client import AsyncQueueClient, QueueInfo
from qs_client.place import endpoint

from . import amounts
from .rendering import asset, notice, render
from .services import Services, Session
from .upstream import Upstream

LIVE = 2000
"""Milliseconds after which an open page asks for itself again."""


class ProblemError(Exception):
    """A request that is refused with a page. status: its HTTP status; the text tells the visitor what is wrong, and
    what to do."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a visitor. session: None for a visitor who has not signed in.

    1. What a handler asks the queue server through `client`, it asks with the rights of this visitor: by the token of
       the session, or else as a client that says nothing. The page lends its own rights to nobody, except with --open.
    2. Every page is made by `page`, and every answer to a form by `redirect`, so that a reload of the browser does not
       send the form again.
    """

    services: Services
    request: Request
    session: Session | None

    @property
    def upstream(self) -> Upstream:
        """The queue server with this visitor's rights."""
        upstreams = self.services.upstreams
        if self.session is None and self.services.options.open:
            return upstreams.own
        return upstreams.of_visitor(None if self.session is None else self.session.token)

    @property
    def client(self) -> AsyncQueueClient:
        """A client with the visitor's rights."""
        return self.upstream.client

    def query(self, name: str, default: str = "") -> str:
        """Returns a value of the address's query."""
        return self.request.query_params.get(name, default)

    def query_number(self, name: str, default: int, most: int = 10**18) -> int:
        """Returns a whole number of the address's query, the default for a missing one."""
        text = self.query(name)
        # Anybody can write an address: a wrong number means the default, and a large one no more digits than an id has.
        return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 20 else default

    @property
    def queue_name(self) -> str:
        """The queue that the address names. Raises ProblemError if it names none."""
        name = self.query("q")
        if not name:
            raise ProblemError(400, "the address names no queue")
        return name

    async def figures(self, qid: str) -> QueueInfo:
        """Returns the figures of a queue. Raises NotFound or Forbidden."""
        return (await self.client.stats(qid))[0]

    async def stats(self) -> list[QueueInfo]:
        """Returns the figures of all queues, at most a second old. Do not change the list."""
        return await self.upstream.stats()

    def link(self, page: str, /, **query: object) -> str:
        """Returns an address within the page."""
        return self.services.links(page, **query)

    def page(self, template: str, /, status: int = 200, **values: Any) -> Response:
        """Answers with a page. values: those of the template; `live` among them has the milliseconds after which the
        open page asks for itself again, 0 for never."""
        return render(template, {**self._layout(), "page": template, **values}, status)

    def redirect(self, page: str, done: str, number: int | None = None, /, **query: object) -> Response:
        """Answers a form by sending the browser to another page. done: the key of the notice to show there; number: the
        number in the notice."""
        # 303 makes the browser ask with GET. A reload of that page then repeats no action.
        return RedirectResponse(self.link(page, **query, done=done, n=number), 303)

    def _layout(self) -> dict[str, Any]:
        options = self.services.options
        return {
            "link": self.services.links,
            "asset": lambda name: f"{options.path}/{asset(name)}",
            "fmt": amounts,
            "principal": None if self.session is None else self.session.principal,
            "can_sign_in": self.session is None and not options.open,
            "read_only": options.read_only,
            "has_bus": options.bus is not None,
            "server": endpoint(*options.server),
            "now": time.strftime("%H:%M:%S UTC", time.gmtime()),
            "notice": notice(self.query("done"), self.query("n")),
            "trouble": "",
            "live": 0,
        }
