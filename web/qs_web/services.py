"""The parts of the page that its requests share: addresses, sessions, and the connections to the queue server."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from qs_client.security import Token

from .history import History
from .options import WebOptions
from .upstream import Upstreams

_MOST = 1000
"""Sessions that are kept. A sign-in beyond them ends the oldest one."""
_SECONDS = 12 * 3600.0
"""Seconds that a session lasts after the sign-in."""


class Links:
    """Makes the addresses of the page. Names of queues are in the query, never in the path: a queue may be named `..`
    or `a/b`, which browsers and proxies would rewrite."""

    def __init__(self, path: str) -> None:
        """path: the beginning of all addresses, "" or "/…"."""
        self.path = path

    def __call__(self, page: str, /, **query: object) -> str:
        """Returns the path of a page with a query. page: "" for the queues, else a name; query: None leaves a name
        out."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        return f"{self.path}/{page}" + (f"?{urlencode(given)}" if given else "")

    def is_local(self, address: str) -> bool:
        """Tells whether an address that a browser has sent leads to a page of this site."""
        # `//evil.example/` is an address of another site, and so is `/\evil.example/` for browsers.
        return (
            address.startswith(f"{self.path}/")
            and not address.startswith("//")
            and "\\" not in address
            and address.isprintable()
        )


@dataclass(frozen=True, slots=True)
class Session:
    """A visitor who has signed in. principal: its name in the access file of the server; ends: a time of the clock of
    `Sessions`."""

    token: Token
    principal: str
    ends: float


class Sessions:
    """Keeps the sessions of visitors by the random ids in their cookies.

    1. The token of a visitor stays in this process. The browser has the id only.
    2. An id is made here by a sign-in and never taken from a browser, so nobody can prepare a session for somebody
       else (session fixation).
    3. A session ends after 12 hours, by `end`, or with the process. There are at most a thousand.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: seconds that only grow."""
        self._clock = clock
        self._by_id: dict[str, Session] = {}  # the oldest one first

    def __len__(self) -> int:
        return len(self._by_id)

    def begin(self, token: Token, principal: str) -> str:
        """Makes a session, and returns its id: 43 characters for a cookie."""
        self._drop_old()
        name = secrets.token_urlsafe(32)
        self._by_id[name] = Session(token, principal, self._clock() + _SECONDS)
        return name

    def find(self, name: str | None) -> Session | None:
        """Returns the session of an id, None for an unknown id or a session that has ended."""
        self._drop_old(0)  # a token does not stay in memory because nobody signs in any more
        return None if name is None else self._by_id.get(name)

    def end(self, name: str | None) -> None:
        """Ends a session. Does nothing for an unknown id."""
        if name is not None:
            self._by_id.pop(name, None)

    def _drop_old(self, room: int = 1) -> None:
        now = self._clock()
        # All last equally long, so those that have ended are the oldest, and the first of the dict.
        for name in list(self._by_id):
            if self._by_id[name].ends > now and len(self._by_id) + room <= _MOST:
                break
            del self._by_id[name]


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that requests share."""

    options: WebOptions
    upstreams: Upstreams
    sessions: Sessions
    history: History
    """Samples of every queue, whichever visitor asked for them. A page shows only queues that its visitor may see."""
    links: Links
    clock: Callable[[], float]
    """Returns seconds that only grow."""
    sign_in: bool
    """Nobody sees anything before a sign-in."""
    patience: float = 1.5
    """Seconds in which the queue server has to answer a page's requests: a page says within 2 s that the server does
    not answer."""
    cookie: str = field(default="qs-session")
    """The name of the cookie that has the id of a session."""
