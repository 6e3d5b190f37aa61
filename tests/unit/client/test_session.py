"""The session: which message belongs to which request or subscription, without a connection."""

import sys
from types import FrameType
from typing import Any

import pytest
from support.clients.documents import NS
from support.clients.scripted_server import answer_bytes

from qs_client import (
    Delivery,
    Error,
    GetMessage,
    GetQueue,
    ListQueues,
    Message,
    NotFound,
    Ping,
    PushMessage,
    ReceiveMessage,
    ReleaseMessage,
    ServerStats,
    ShuttingDown,
    Subscribe,
    Unsubscribe,
)
from qs_client.errors import Cut, InternalError, OtherProgram, SpeaksHttp, Unexpected, closes, exception_for
from qs_client.session import GREETING, Session
from qs_client.waiting import Pending, Subscription
from qs_schemas import TABLE, Fault, Peer


def sent(session: Session) -> list[Message]:
    """Returns what the server reads of what the session has sent since."""
    peer = Peer()
    peer.receive_data(session.data_to_send())
    events = list(peer.events())
    assert not any(isinstance(event, Fault) for event in events), events
    return events  # type: ignore[return-value]


def ask(session: Session, request: Message) -> tuple[Pending, Message]:
    """A request, and how the server reads it."""
    pending = session.ask(request)
    (asked,) = sent(session)
    return pending, asked


def come(session: Session, *data: bytes) -> None:
    """All of it is read and routed."""
    for piece in data:
        session.receive_data(piece)
    while session.route():
        pass


def delivery(subscription: Subscription, mid: int, qid: str | None = "q") -> bytes:
    """A message as the server delivers it."""
    message = GetMessage(qid, mid, payload=b"x", status="delivered", receives=1, type="response")
    message.req = subscription.request.req
    return Peer().send(message)


def subscribed(session: Session) -> Subscription:
    """A subscription that the server has taken."""
    subscription = session.subscribe(Subscribe("q"))
    come(session, answer_bytes(sent(session)[0]))
    assert isinstance(subscription.asked.answer, Subscribe)
    return subscription


def test_ask_gives_each_request_its_own_req() -> None:
    """Two requests never share a correlation id, not even one object sent twice."""
    session = Session()
    ping = Ping()
    assert ask(session, ping)[1].req != ask(session, ping)[1].req


def test_ask_while_another_thread_sends_and_reads() -> None:
    """The answer finds its request, however soon another thread sends that and reads the answer: it may do so between
    any two lines."""
    session = Session()

    def other_thread(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not Session.ask.__code__:
            return None
        if event != "call":
            for asked in sent(session):
                come(session, answer_bytes(asked))
        return other_thread

    tracer = sys.gettrace()
    sys.settrace(other_thread)
    try:
        pending = session.ask(Ping())
    finally:
        sys.settrace(tracer)
    assert isinstance(pending.answer, Ping)


def test_error_of_the_connection_to_a_request_that_was_sent_twice() -> None:
    """A request that was sent again has a new `req`, and an error without `req` goes to both of its answers."""
    session = Session()
    request = PushMessage("q", b"x", key="k")
    both = [session.ask(request), session.ask(request)]
    come(session, Peer().send(Error(503, "shutting-down", "bye")))
    assert [isinstance(pending.answer, Error) for pending in both] == [True, True]
    assert not session.awaits_answer


def test_data_to_send_is_returned_once() -> None:
    """Requests go out in their order, together, and once."""
    session = Session()
    session.ask(Ping())
    session.post(ListQueues(req="mine"))
    session.ask(PushMessage("q", b"x"))
    assert [type(message) for message in sent(session)] == [Ping, ListQueues, PushMessage]
    assert session.data_to_send() == b""


def test_answer_in_pieces() -> None:
    """An answer is known when its last byte has come, however it is cut."""
    session = Session()
    pending, asked = ask(session, ListQueues())
    data = answer_bytes(asked, queues=["a"])
    for at in range(len(data) - 3):  # the document ends before its line end
        session.receive_data(data[at : at + 1])
        assert session.answer_to(pending) is None
    session.receive_data(data[-3:])
    answer = session.answer_to(pending)
    assert isinstance(answer, ListQueues)
    assert answer.queues == ["a"]


def test_answers_in_any_order() -> None:
    """Several requests may be open: each gets its own answer, whichever task reads, and is told that it has come."""
    session = Session()
    first, of_first = ask(session, PushMessage("q", b"1"))
    second, of_second = ask(session, PushMessage("q", b"2"))
    woken: list[str] = []
    first.wake = lambda: woken.append("first")
    session.receive_data(answer_bytes(of_first, mid=1) + answer_bytes(of_second, mid=2))
    answer = session.answer_to(second)
    assert isinstance(answer, PushMessage)
    assert answer.mid == 2
    assert isinstance(first.answer, PushMessage)
    assert first.answer.mid == 1
    assert woken == ["first"]
    assert not session.awaits_answer


@pytest.mark.parametrize("other", [Ping(req="qs-99"), Ping(), Ping(req="mine")])
def test_answer_to_no_request_is_unexpected(other: Message) -> None:
    """An answer whose req is not a request's is never taken for an answer."""
    session = Session()
    pending, _ = ask(session, Ping())
    session.receive_data(answer_bytes(other))
    with pytest.raises(Unexpected):
        session.answer_to(pending)


@pytest.mark.parametrize("answer", [ListQueues(type="response"), Ping(type="request")])
def test_answer_of_another_kind_is_unexpected(answer: Message) -> None:
    """An answer with the right req and the wrong operation, or an echo of the request, is refused."""
    session = Session()
    pending, asked = ask(session, Ping())
    answer.req = asked.req
    session.receive_data(Peer().send(answer))
    with pytest.raises(Unexpected):
        session.answer_to(pending)


def test_error_without_req_answers_all_requests() -> None:
    """Errors such as too many connections or shutting down belong to no request, and end all that wait."""
    session = Session()
    subscription = subscribed(session)
    pendings = [ask(session, Ping())[0] for _ in range(2)]
    come(session, Peer().send(Error(503, "shutting-down", "bye")))
    assert [isinstance(pending.answer, Error) for pending in pendings] == [True, True]
    with pytest.raises(ShuttingDown):
        subscription.next()


@pytest.mark.parametrize(("code", "kind"), [(413, "too-large"), (408, "timeout")])
def test_error_about_a_document_answers_the_first_request(code: int, kind: str) -> None:
    """An error about a document goes to the oldest unanswered request; the others are not told that theirs were bad."""
    session = Session()
    first, second = (ask(session, PushMessage("q", b"x"))[0] for _ in range(2))
    come(session, Peer().send(Error(code, kind, "why")))
    assert isinstance(first.answer, Error)
    assert second.answer is None


def test_request_that_was_cut_off() -> None:
    """A 400 without req says that the stream was cut, as requests are well-formed: no request is called bad for it."""
    session = Session()
    pending, _ = ask(session, PushMessage("q", b"x"))
    session.receive_data(Peer().send(Error(400, "bad-request", "the stream ended inside a document")))
    with pytest.raises(Cut, match="inside a document"):
        session.answer_to(pending)


def test_post_answers_come_in_order() -> None:
    """Answers to messages posted, errors and deliveries are kept for next_message while an answer is waited for."""
    session = Session()
    session.post(ListQueues())
    session.post(Ping(req="mine"))
    first, second = sent(session)
    pending, third = ask(session, ReceiveMessage("q"))
    for data in (
        answer_bytes(first, queues=["a"]),
        answer_bytes(second, Error(404, "not-found", "no queue")),
        answer_bytes(GetMessage(req="subscription"), mid=5),
        answer_bytes(third, messages=[Delivery(1, b"x")]),
    ):
        session.receive_data(data)
    assert isinstance(session.answer_to(pending), ReceiveMessage)
    kept = [session.next_message() for _ in range(4)]
    assert [type(message) for message in kept] == [ListQueues, Error, GetMessage, type(None)]


def test_post_with_errors_without_req() -> None:
    """An error that answers a posted message without req is not taken for an answer to a request of ours; one that
    ends the connection is."""
    session = Session()
    session.post(ListQueues())
    sent(session)
    pending, asked = ask(session, Ping())
    session.receive_data(Peer().send(Error(404, "not-found", "no queue")) + answer_bytes(asked))
    assert isinstance(session.answer_to(pending), Ping)
    assert isinstance(session.next_message(), Error)
    pending, _ = ask(session, Ping())
    session.receive_data(Peer().send(Error(503, "shutting-down", "bye")))
    assert isinstance(session.answer_to(pending), Error)


def test_unmatched_messages_go_to_on_unmatched() -> None:
    """With a taker for strays, whatever answers no request goes to it, in order, and nothing is kept."""
    session = Session()
    strays: list[Message] = []
    session.on_unmatched = strays.append
    pending, asked = ask(session, Ping())
    come(session, answer_bytes(GetMessage(req="s"), mid=5), answer_bytes(asked), Peer().send(Error(503, "x", "bye")))
    assert pending.ready
    assert [type(message) for message in strays] == [GetMessage, Error]
    assert not session.unmatched.ready


def test_deliveries_between_answers() -> None:
    """Deliveries go to their subscription, answers to their requests, though they come mixed."""
    session = Session()
    one, two = subscribed(session), subscribed(session)
    pending, asked = ask(session, Ping())
    woken: list[int] = []
    two.wake = lambda: woken.append(2)
    come(session, delivery(one, 1), delivery(two, 2, None), answer_bytes(asked), delivery(one, 3))
    assert pending.ready
    assert [message.mid for message in (one.next(), one.next()) if message is not None] == [1, 3]
    assert one.next() is None
    message = two.next()
    assert message is not None
    assert (message.qid, message.mid, message.text) == ("q", 2, "x")  # the name was in the request
    assert woken == [2]


def test_subscription_that_the_server_ends() -> None:
    """After the deliveries comes the error, and it is raised again on every later call."""
    session = Session()
    subscription = subscribed(session)
    error = Error(404, "not-found", "no queue", req=subscription.request.req)
    come(session, delivery(subscription, 1), Peer().send(error))
    assert subscription.next() is not None
    for _ in range(2):
        with pytest.raises(NotFound):
            subscription.next()
    assert session.end(subscription) is None
    assert not session.may_get_unasked


def test_subscription_that_is_refused() -> None:
    """An error in answer to subscribe is the answer, and leaves no subscription."""
    session = Session()
    subscription = session.subscribe(Subscribe("q"))
    come(session, answer_bytes(sent(session)[0], Error(404, "not-found", "no queue")))
    assert isinstance(subscription.asked.answer, Error)
    assert not session.may_get_unasked


def test_end_releases_what_was_sent_ahead() -> None:
    """Unsubscribe goes first; what was not taken goes back then, and so does what is still on its way."""
    session = Session()
    subscription = subscribed(session)
    come(session, *(delivery(subscription, mid) for mid in (1, 2, 3)))
    subscription.next()
    asked = session.end(subscription)
    assert asked is not None
    unsubscribe, *releases = sent(session)
    assert isinstance(unsubscribe, Unsubscribe)
    assert unsubscribe.subscription == subscription.request.req
    given_back = [each for each in releases if isinstance(each, ReleaseMessage)]
    assert [(each.mid, each.receives, each.uncounted) for each in given_back] == [(2, 1, True), (3, 1, True)]
    come(session, delivery(subscription, 4))
    (late,) = sent(session)
    assert isinstance(late, ReleaseMessage)
    assert late.mid == 4
    come(session, answer_bytes(unsubscribe), *(answer_bytes(release) for release in [*releases, late]))
    assert asked.ready
    assert not session.may_get_unasked
    assert not session.awaits_answer


def test_end_releases_where_every_receive_counts() -> None:
    """A delivery that the program has not seen is not a try; where the storage cannot take a receive back, it is
    one."""
    session = Session()
    subscription = subscribed(session)
    come(session, delivery(subscription, 1))
    session.end(subscription)
    _, release = sent(session)
    come(session, answer_bytes(release, Error(501, "not-implemented", "count")))
    (again,) = sent(session)
    assert isinstance(again, ReleaseMessage)
    assert (again.mid, again.receives, again.uncounted) == (1, 1, False)


def test_drop_releases_messages_in_the_answer() -> None:
    """The answer to a request that nobody waits for any more is not taken for another's; messages in it go back."""
    session = Session()
    dropped, of_dropped = ask(session, ReceiveMessage("q"))
    session.drop(dropped)
    pending, asked = ask(session, Ping())
    come(session, answer_bytes(of_dropped, messages=[Delivery(1, b"x", receives=2), Delivery(2, b"x", "r")]))
    assert not pending.ready
    assert [(r.qid, r.mid, r.receives) for r in sent(session) if isinstance(r, ReleaseMessage)] == [
        ("q", 1, 2),
        ("r", 2, None),
    ]
    come(session, answer_bytes(asked))
    assert pending.ready


def test_drop_of_a_request_that_has_its_answer() -> None:
    """Messages of an answer that comes as its call is dropped are given back at once; a subscription is ended."""
    session = Session()
    pending, asked = ask(session, ReceiveMessage("q"))
    come(session, answer_bytes(asked, messages=[Delivery(1, b"x", "q")]))
    session.drop(pending)
    assert [type(message) for message in sent(session)] == [ReleaseMessage]
    subscription = subscribed(session)
    session.drop(subscription.asked)
    assert [type(message) for message in sent(session)] == [Unsubscribe]


def test_data_of_no_document_is_unexpected() -> None:
    """Bytes of another protocol are refused in words."""
    session = Session()
    pending, _ = ask(session, Ping())
    session.receive_data(b"220 mail.example ESMTP\r\n")
    with pytest.raises(Unexpected, match="not well-formed"):
        session.answer_to(pending)


def test_ask_with_a_name_that_xml_cannot_carry() -> None:
    """A name that XML cannot carry leaves no request that is sent or waited for."""
    session = Session()
    for attempt in (session.ask, session.post):
        with pytest.raises(ValueError, match="U\\+0000"):
            attempt(PushMessage("a\0b", b"x"))
    assert session.data_to_send() == b""
    assert not session.awaits_answer


def test_end_of_data_says_how_the_stream_ended() -> None:
    """The error tells whether the server hung up inside an answer or before one."""
    session = Session()
    assert session.end_of_data() == "closed the connection"
    session.receive_data(b"<qs ")
    assert session.next_message() is None
    assert session.end_of_data() == "closed the connection in the middle of an answer"


@pytest.mark.parametrize("row", [row for row in TABLE if row.code != 400], ids=lambda row: row.kind)
def test_closes_by_code(row: object) -> None:
    """An error closes as the table says; any error without req does, as the server could not read what it answers."""
    assert closes(Error(row.code, row.kind, "", req="1")) == row.closes  # type: ignore[attr-defined]
    assert closes(Error(row.code, row.kind, ""))  # type: ignore[attr-defined]


def test_closes_after_a_bad_request_only_without_req() -> None:
    """A 400 with req was about one document; the next one can be sent on the same connection."""
    assert not closes(Error(400, "bad-request", "", req="1"))
    assert closes(Error(400, "bad-request", ""))


# -- what cannot be read ----------------------------------------------------------------------------------------------


def unreadable(req: str | None, op: str = "get-queue", inside: str = "") -> bytes:
    """An answer that is well-formed and breaks the contract."""
    named = "" if req is None else f' req="{req}"'
    options = '<options visibility="1000000000"/>'
    return f'<qs xmlns="{NS}" type="response"{named}><op><{op}/></op><qid>q</qid>{inside or options}</qs>\r\n'.encode()


def test_unreadable_answer_fails_its_request() -> None:
    """An answer that is not valid is the error of its request, which says what is wrong with it. The others get their
    answers."""
    session = Session()
    first, _ = ask(session, Ping())
    wrong, asked = ask(session, GetQueue("q"))
    last, later = ask(session, Ping())
    come(session, unreadable(asked.req), answer_bytes(later))
    assert isinstance(wrong.answer, Error)
    error = exception_for(wrong.answer)
    assert isinstance(error, InternalError)
    assert error.type == "unreadable"
    assert "the answer cannot be read" in str(error)
    assert "'visibility'" in str(error)
    assert isinstance(last.answer, Ping)
    assert not first.ready


def test_unreadable_answer_refuses_a_subscription() -> None:
    """The answer to a subscribe request, if it cannot be read, ends the subscription."""
    session = Session()
    subscription = session.subscribe(Subscribe("q"))
    (asked,) = sent(session)
    come(session, unreadable(asked.req, "subscribe"))
    assert isinstance(subscription.asked.answer, Error)
    assert subscription.over


def test_unreadable_delivery_is_left_to_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """A delivery that is not valid is logged once for its subscription, and left to the server. The next ones come."""
    session = Session()
    subscription = subscribed(session)
    req = subscription.request.req
    wrong = unreadable(req, "get-message", '<mid receives="many">7</mid><payload>x</payload>')
    come(session, wrong, delivery(subscription, 8), wrong)
    message = session.next_delivery(subscription)
    assert message is not None
    assert message.mid == 8
    assert sent(session) == []
    assert len(caplog.records) == 1
    assert "a message of the subscription to q cannot be read" in caplog.text


def test_unreadable_answer_to_a_posted_message_is_an_error() -> None:
    """`recv` gets an error with the `req` of the message that was sent."""
    session = Session()
    session.post(GetQueue("q", req="mine"))
    come(session, unreadable("mine"))
    message = session.next_message()
    assert isinstance(message, Error)
    assert (message.req, message.code, message.kind) == ("mine", 500, "unreadable")


def test_unreadable_answer_to_no_request_is_unexpected() -> None:
    """Without a `req` it cannot be told which request has failed."""
    session = Session()
    session.ask(GetQueue("q"))
    with pytest.raises(Unexpected, match="'visibility'"):
        come(session, unreadable(None))


def greeted(*answers: Message) -> tuple[Session, Pending]:
    """A session that has asked for its program and then pushed, both in one flight, and what came of it."""
    session = Session(program="qs-server")
    pending = session.ask(PushMessage("q", b"x"))
    data = session.data_to_send()
    assert data.index(b"\r\n\r\n") < data.index(b"push-message")  # an HTTP server answers what stands before
    for answer in answers:
        answer.type, answer.req = "error" if isinstance(answer, Error) else "response", GREETING
        session.receive_data(Peer().send(answer))
    return session, pending


def test_greeting_of_another_program() -> None:
    """The first answer of another program shows that it is not the expected one, except to a request for figures; a
    program that posts never asks."""
    session, pending = greeted(Ping("qs-bus"))
    come(session)
    session.receive_data(answer_bytes(pending.request, Error(501, "not-implemented", "no")))
    with pytest.raises(OtherProgram, match="qs-bus"):
        session.answer_to(pending)
    with pytest.raises(OtherProgram, match="qs-bus"):
        session.check_program()
    session, _ = greeted(Ping("qs-bus"))
    stats = session.ask(ServerStats())
    session.receive_data(answer_bytes(stats.request))
    assert session.answer_to(stats) is not None
    session.post(Ping())
    session.check_program()


@pytest.mark.parametrize("answer", [Ping(), Ping("qs-server"), Error(501, "not-implemented", "no ping")])
def test_greeting_of_the_expected_program(answer: Message) -> None:
    """One that does not name itself is accepted."""
    session, pending = greeted(answer)
    come(session)
    session.check_program()
    session.receive_data(answer_bytes(pending.request, mid=1))
    assert session.answer_to(pending) == PushMessage(mid=1, type="response", req="qs-1", resp="0" * 64)


def test_greeting_of_a_server_that_leaves() -> None:
    """The last error of a server that leaves, in answer to the greeting, is the answer to the waiting requests."""
    session, pending = greeted(Error(503, "shutting-down", "bye"))
    assert isinstance(session.answer_to(pending), Error)
    with pytest.raises(ShuttingDown):
        session.check_program()


@pytest.mark.parametrize(
    "data", [b"H", b"HTTP/1.1 400 Bad Request\r\n", b"<!DOCTYPE HTML>\n<html>", b"<html><p></html>"]
)
def test_greeting_of_an_http_server(data: bytes) -> None:
    """An HTTP server is known by its first bytes, which may come alone."""
    session, pending = greeted()
    session.receive_data(data)
    with pytest.raises(SpeaksHttp):
        session.answer_to(pending)
