"""Requests are pipelined, and the greatest id is found with few of them."""

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.scripted_server import SOON, Conversation, answering, client_of, scripted

from qs_client import Error, GetMessage, Message, NoAnswer, NotFound, ServerUnavailable
from qs_pipeline.pipelining import GREATEST, answers, exchanges, greatest
from qs_schemas import Peer


def _asked(count: int) -> list[GetMessage]:
    return [GetMessage("q", number, peek=True) for number in range(count)]


def test_exchanges_in_order() -> None:
    """Answers come in the order of the requests, more of them than are on their way; an error stands in its place."""
    replies: list[Message] = [GetMessage("q", mid, payload=b"x") for mid in range(5)]
    replies[2] = Error(code=404, kind="not-found", text="gone")
    with scripted(answering(*replies)) as server, client_of(server) as client:
        found = list(exchanges(client, _asked(5), 2))
        client.disconnect()
    assert isinstance(found[2], NotFound)
    assert [each.mid for each in found if isinstance(each, GetMessage)] == [0, 1, 3, 4]


def test_answers_raise_error_and_close() -> None:
    """The connection is closed then, as answers may be on their way that nobody waits for."""
    replies = [Error(code=404, kind="not-found", text="gone"), GetMessage("q", 1)]

    def script(conversation: Conversation) -> None:
        for reply in replies:
            conversation.answer(conversation.read(), reply)
        conversation.wait_for_close()

    with scripted(script) as server, client_of(server) as client:
        with pytest.raises(NotFound):
            list(answers(client, _asked(2), 2))
        assert not client.connected


def test_exchanges_with_request_cut_off() -> None:
    """A 400 without `req` is about what the server could not read: nothing was done, and it is asked again."""

    def script(conversation: Conversation) -> None:
        conversation.read()
        conversation.write(Peer().send(Error(code=400, kind="bad-request", text="the document ends too early")))

    with scripted(script) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable, match="cut off a request"):
            list(exchanges(client, _asked(1), 1))
        assert not client.connected


def test_exchanges_with_lost_connection() -> None:
    """A request without an answer may or may not have been done: the caller asks again."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), GetMessage("q", 0))

    with scripted(script) as server, client_of(server) as client:
        with pytest.raises(ServerUnavailable):
            list(exchanges(client, _asked(2), 2))
        assert not client.connected


def test_exchanges_without_answer() -> None:
    """After the client's timeout it is an error that can be asked again, on another connection."""

    def script(conversation: Conversation) -> None:
        conversation.read()
        conversation.wait_for_close()

    with scripted(script) as server, client_of(server, timeout=SOON) as client:
        with pytest.raises(NoAnswer, match=f"no answer from 127.0.0.1:{server.port} within 0.02 s"):
            list(exchanges(client, _asked(1), 1))
        assert not client.connected


class Asked:
    """A sorted list, and how often it was asked."""

    def __init__(self, mids: list[int]) -> None:
        self._mids = mids
        self.times = 0

    def after(self, mid: int) -> int | None:
        self.times += 1
        place = bisect.bisect_right(self._mids, mid)
        return self._mids[place] if place < len(self._mids) else None


@given(st.sets(st.integers(1, GREATEST)))
def test_greatest_of_any_set(mids: set[int]) -> None:
    """The greatest id is found in any set of ids; it is 0 when there are none."""
    assert greatest(Asked(sorted(mids)).after) == max(mids, default=0)


@pytest.mark.parametrize("count", [1, 1000, 1_000_000])
def test_greatest_takes_few_questions(count: int) -> None:
    """A queue that was filled in the course of an hour takes tens of questions, not one for each page."""
    first = 1_760_000_000_000_000
    mids = list(range(first, first + 3_600_000_000, 3_600_000_000 // count))
    asked = Asked(mids)
    assert greatest(asked.after) == mids[-1]
    assert asked.times < 80
