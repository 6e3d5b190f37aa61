"""Moving dead letters back when there are many: for a bounded time, not for ever, and with a word about what was done
before an error."""

from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing

from qs_client import Delivery, NotFound, QueueInfo
from qs_web import dead_letters
from qs_web.forms import Form
from qs_web.visit import ProblemError


class _Client:
    """A queue server with dead letters of `jobs` and `mail`, by turns. seconds: that each move takes by `clock`;
    refused: the number of the move that it refuses."""

    def __init__(self, letters: int, seconds: float = 0, refused: int = 0) -> None:
        self.letters = {number: "jobs" if number % 2 else "mail" for number in range(1, letters + 1)}
        self.moves = 0
        self.clock = trio.testing.MockClock()
        self._seconds = seconds
        self._refused = refused

    async def redrive(self, _: str, mids: list[int] | None = None, *, to: str | None, max: int = 1000) -> list[int]:  # noqa: A002 - as the client's
        assert to is None
        self.moves += 1
        self.clock.jump(self._seconds)
        if self.moves == self._refused:
            raise NotFound(404, "not-found", "there is no queue 'jobs'")
        moved = list(self.letters)[:max] if mids is None else mids
        for mid in moved:
            del self.letters[mid]
            self.letters[mid + 1_000_000] = "jobs"  # its consumer fails at once
        return moved

    def list_messages(self, _: str, *, state: str, after: int | None) -> "_Ids":
        assert state == "all"
        return _Ids(mid for mid in list(self.letters) if mid > (after or 0))

    async def peek_many(self, _: str, mids: list[int], *, once: bool) -> list[Delivery]:
        assert once
        return [Delivery(mid, b"", dead_from=self.letters[mid]) for mid in mids[:700]]  # as many as fit


class _Ids:
    """Ids as the client gives them: it need not be read to the end."""

    def __init__(self, mids: Iterator[int]) -> None:
        self._mids = mids

    def __aiter__(self) -> "_Ids":
        return self

    async def __anext__(self) -> int:
        for mid in self._mids:
            return mid
        raise StopAsyncIteration


class _Visit:
    """A visitor who has confirmed."""

    queue_name = "failed"
    request = None

    def __init__(self, client: _Client) -> None:
        self.client = client
        self.upstream = self
        self._held = len(client.letters)

    async def figures(self, qid: str) -> QueueInfo:
        return QueueInfo(qid, ready=self._held)

    def invalidate(self) -> None:
        """Does nothing: this upstream keeps no answers."""

    def redirect(self, page: str, done: str, number: int, *, q: str) -> tuple[str, str, int, str]:
        return page, done, number, q


def move_back(monkeypatch: pytest.MonkeyPatch, client: _Client, of: str = "") -> tuple[str, str, int, str]:
    """Sends the form. Returns the page that the browser is sent to, and the notice with its number."""

    async def read_form(_: object) -> Form:
        return Form({"sure": ["yes"], "of": [of]})

    monkeypatch.setattr(dead_letters, "read_form", read_form)
    visit: Any = _Visit(client)
    moved: Any = trio.run(dead_letters.move_back, visit, clock=client.clock)
    return moved  # type: ignore[no-any-return]


def test_move_back_moves_what_comes_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The letters that the queue holds at the beginning are moved, each once, though all come back."""
    client = _Client(2500)
    assert move_back(monkeypatch, client) == ("queue", "redriven", 2500, "failed")
    assert client.moves == 3
    client = _Client(2500)
    assert move_back(monkeypatch, client, of="jobs") == ("queue", "redriven", 1250, "jobs")
    assert sorted(set(client.letters.values())) == ["jobs", "mail"]
    assert sum(of == "mail" for of in client.letters.values()) == 1250


def test_move_back_ends_after_20_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 20 s the page says how many were moved, and that more wait."""
    client = _Client(10_000, seconds=7)
    assert move_back(monkeypatch, client) == ("queue", "redriven-in-part", 3000, "failed")
    client = _Client(10_000, seconds=15)
    assert move_back(monkeypatch, client, of="mail") == ("queue", "redriven-in-part", 700, "mail")


def test_move_back_counts_what_was_moved_before_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the queue server refuses a later request, the page says how many were moved before; the error of the first
    request is the page's."""
    with pytest.raises(ProblemError, match=r"1,000 messages were moved back; then .* no queue 'jobs'"):
        move_back(monkeypatch, _Client(3000, refused=2))
    with pytest.raises(NotFound):
        move_back(monkeypatch, _Client(3000, refused=1))
