"""The session: which answer belongs to which request, without a connection."""

import pytest
from scripted_server import answer_bytes

from qs_client import Delivery, Error, GetMessage, ListQueues, Message, Ping, ReceiveMessage
from qs_client.errors import closes
from qs_client.session import Session, Unexpected
from qs_schemas import TABLE, Peer


def sent(document: bytes) -> Message:
    """What the server reads."""
    return Message.parse(document)


def test_each_request_has_its_own_req() -> None:
    """Two requests never share a correlation id, not even one object sent twice."""
    session = Session()
    ping = Ping()
    assert sent(session.document(ping)).req != sent(session.document(ping)).req


def test_an_answer_in_pieces() -> None:
    """An answer is known when its last byte has come, however it is cut."""
    session = Session()
    request = ListQueues()
    data = answer_bytes(sent(session.document(request)), queues=["a"])
    for at in range(len(data) - 3):  # the document ends before its line end
        session.receive_data(data[at : at + 1])
        assert session.answer_to(request) is None
    session.receive_data(data[-3:])
    answer = session.answer_to(request)
    assert isinstance(answer, ListQueues)
    assert answer.queues == ["a"]


@pytest.mark.parametrize("other", [Ping(req="qs-99"), Ping(), Ping(req="mine")])
def test_an_answer_to_something_else(other: Message) -> None:
    """An answer whose req is not the request's is never taken for its answer."""
    session = Session()
    request = Ping()
    session.document(request)
    session.receive_data(answer_bytes(other))
    with pytest.raises(Unexpected):
        session.answer_to(request)


@pytest.mark.parametrize("answer", [ListQueues(type="response"), Ping(type="request")])
def test_an_answer_of_another_kind(answer: Message) -> None:
    """An answer with the right req and the wrong operation, or an echo of the request, is refused."""
    session = Session()
    request = Ping()
    session.document(request)
    answer.req = request.req
    session.receive_data(Peer().send(answer))
    with pytest.raises(Unexpected):
        session.answer_to(request)


def test_an_error_without_req_answers_whoever_waits() -> None:
    """Too many connections, shutting down: such errors belong to no request and end the one that waits."""
    session = Session()
    request = Ping()
    session.document(request)
    session.receive_data(Peer().send(Error(429, "too-many", "no more")))
    answer = session.answer_to(request)
    assert isinstance(answer, Error)
    assert answer.code == 429


def test_loose_messages_are_kept_in_order() -> None:
    """Answers to messages sent loose, errors and deliveries are kept for next_message while an answer is waited for."""
    session = Session()
    first, second = sent(session.loose_document(ListQueues())), sent(session.loose_document(Ping(req="mine")))
    request = ReceiveMessage("q")
    third = sent(session.document(request))
    for data in (
        answer_bytes(first, queues=["a"]),
        answer_bytes(second, Error(404, "not-found", "no queue")),
        answer_bytes(GetMessage(req="subscription"), mid=5),
        answer_bytes(third, messages=[Delivery(1, b"x")]),
    ):
        session.receive_data(data)
    answer = session.answer_to(request)
    assert isinstance(answer, ReceiveMessage)
    kept = [session.next_message() for _ in range(4)]
    assert [type(message) for message in kept] == [ListQueues, Error, GetMessage, type(None)]


def test_a_loose_error_without_req_is_kept() -> None:
    """An error that answers a loose message without req is not taken for an answer to a request of ours; one that ends
    the connection is."""
    session = Session()
    session.loose_document(ListQueues())
    request = Ping()
    asked = sent(session.document(request))
    session.receive_data(Peer().send(Error(404, "not-found", "no queue")) + answer_bytes(asked))
    assert isinstance(session.answer_to(request), Ping)
    assert isinstance(session.next_message(), Error)
    session.receive_data(Peer().send(Error(503, "shutting-down", "bye")))
    assert isinstance(session.answer_to(request), Error)


def test_what_is_no_document_of_qs() -> None:
    """Bytes of another protocol are refused in words."""
    session = Session()
    request = Ping()
    session.document(request)
    session.receive_data(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(Unexpected, match="not well-formed"):
        session.answer_to(request)


def test_how_the_stream_ended() -> None:
    """It is told apart whether the server hung up inside an answer or before one."""
    session = Session()
    assert session.end_of_data() == "closed the connection"
    session.receive_data(b"<qs ")
    assert session.next_message() is None
    assert session.end_of_data() == "closed the connection in the middle of an answer"


@pytest.mark.parametrize("row", [row for row in TABLE if row.code != 400], ids=lambda row: row.kind)
def test_which_errors_close(row: object) -> None:
    """An error closes as the table says; any error without req does, as the server could not read what it answers."""
    assert closes(Error(row.code, row.kind, "", req="1")) == row.closes  # type: ignore[attr-defined]
    assert closes(Error(row.code, row.kind, ""))  # type: ignore[attr-defined]


def test_a_bad_request_closes_only_without_req() -> None:
    """A 400 with req was about one document; the next one can be sent on the same connection."""
    assert not closes(Error(400, "bad-request", "", req="1"))
    assert closes(Error(400, "bad-request", ""))
