"""The sessions of visitors: a random id in the browser's cookie, and the token that belongs to it, only in memory."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from qs_client.security import Token

_MOST = 1000
"""Sessions that are kept. The oldest one gives way."""
_SECONDS = 12 * 3600.0
"""Seconds that a session lasts after the sign-in."""


@dataclass(frozen=True, slots=True)
class Session:
    """A visitor who has signed in. principal: the name in the access file of the server; ends: on the clock of the
    sessions."""

    token: Token
    principal: str
    ends: float


class Sessions:
    """The sessions by the ids in the cookies. An id is never taken from a browser: only a sign-in makes one."""

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
        """Returns the session of an id, None if there is none or it has ended."""
        self._drop_old(0)
        return None if name is None else self._by_id.get(name)

    def end(self, name: str | None) -> None:
        """Ends a session, if it is there."""
        if name is not None:
            self._by_id.pop(name, None)

    def _drop_old(self, room: int = 1) -> None:
        now = self._clock()
        for name in list(self._by_id):
            if self._by_id[name].ends > now and len(self._by_id) + room <= _MOST:
                break
            del self._by_id[name]
