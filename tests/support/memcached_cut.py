"""Calls to memcached that fail, or whose answers are lost."""

from collections.abc import Callable
from typing import Any

import pytest

from qs_storage.remote.memcached_servers import MemcachedServer


class Cut:
    """Lets the n-th call to memcached be made, or not be made, and then fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = self.calls = 0
        self.error: type[BaseException] = ConnectionResetError
        self.done = True
        self.only: str | None = None
        """A method: other calls are neither counted nor fail."""
        self.late: Callable[[], object] | None = None
        """A call that was sent, and is made when the next one of its kind comes."""
        original = MemcachedServer._take
        cut = self

        def take(server: MemcachedServer) -> Any:
            return _CutClient(original(server), cut)

        monkeypatch.setattr(MemcachedServer, "_take", take)

    def arm(self, at: int, error: type[BaseException], *, done: bool) -> None:
        self.at, self.error, self.done, self.calls = at, error, done, 0

    def disarm(self) -> bool:
        """Tells whether it has happened."""
        happened = 0 < self.at <= self.calls
        self.at = 0
        return happened


class _CutClient:
    def __init__(self, client: Any, cut: Cut) -> None:
        while isinstance(client, _CutClient):
            client = client._client
        self._client = client
        self._cut = cut

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name == "close":
            return method

        def call(*args: Any, **named: Any) -> Any:
            cut = self._cut
            if cut.only not in (None, name):
                return method(*args, **named)
            if cut.late is not None:
                cut.late()
                cut.late = None
            cut.calls += 1
            if cut.calls != cut.at:
                return method(*args, **named)
            if cut.done:
                method(*args, **named)
            elif cut.only is not None:
                cut.late = lambda: (method(*args, **named), self._client.close())
            raise cut.error()

        return call
