"""A peer: events of a stream, its end, and faults as messages."""

import pytest

from qs_schemas import (
    CLIENT_LIMITS,
    Error,
    Fault,
    GetMessage,
    Limits,
    ListMessages,
    Peer,
    Ping,
    PushMessage,
    errors,
    serialize,
)

PING = serialize(Ping(req="1"))


def test_end_of_data_between_documents() -> None:
    """A stream may end between documents, also after white space."""
    peer = Peer()
    peer.receive_data(PING + b"\r\n")
    assert list(peer.events()) == [Ping(req="1")]
    assert not peer.begun
    assert peer.end_of_data() is None


def test_end_of_data_inside_a_document() -> None:
    """A stream that ends inside a document is 400, once."""
    peer = Peer()
    peer.receive_data(PING[:-4])
    assert list(peer.events()) == []
    assert peer.begun
    fault = peer.end_of_data()
    assert fault is not None
    assert fault.error is errors.MALFORMED
    assert "ended inside" in fault.text
    assert peer.end_of_data() is None
    assert list(peer.events()) == []


def test_next_event_after_a_fault_that_closes() -> None:
    """After a fault that closes, found by the framer or by the parser, nothing is read, begun or kept."""
    for bad in (b"x", b"<qs>&a;</qs>", b"<qs a='1' a='2'/>"):
        peer = Peer()
        peer.receive_data(bad + PING + b"<qs>")
        (fault,) = peer.events()
        assert isinstance(fault, Fault)
        assert fault.error.closes
        peer.receive_data(PING * 1000 + b"<qs>")
        assert peer.next_event() is None
        assert not peer.begun
        assert peer.end_of_data() is None
        assert len(peer._framer.buffer) == 0


def test_fault_message_can_be_sent() -> None:
    """A fault can be sent as an error, whatever it quotes."""
    message = Fault(errors.BAD_REQUEST, "no '\x00\ud800'", "r").message("5" * 64)
    assert message == Error(400, "bad-request", "no '\ufffd\ufffd'", req="r", resp="5" * 64)
    assert serialize(message).endswith(b"</error></qs>\r\n")


def test_client_limits_take_what_a_server_took() -> None:
    """A payload that filled a document to the limit is within a client's limits, however long it is when written."""
    limits = Limits()
    worst = b"\n" * (limits.document - 200)  # five bytes each when written
    peer = Peer(CLIENT_LIMITS)
    peer.receive_data(serialize(PushMessage(qid="a", payload=worst)))
    assert list(peer.events()) == [PushMessage(qid="a", payload=worst)]


def test_next_event_of_nine_mebibytes() -> None:
    """A document of 9 MiB is 413 before all of it has come."""
    peer = Peer()
    document = serialize(PushMessage(qid="a", payload=b"x" * 9 * 2**20))
    taken = 0
    while not (events := list(peer.events())):
        peer.receive_data(document[taken : taken + 65536])
        taken += 65536
    (fault,) = events
    assert isinstance(fault, Fault)
    assert (fault.error.code, fault.error.closes) == (413, True)
    assert taken == 8 * 2**20 + 65536


BARE = PING.strip()
COMMENTED = BARE.replace(b"<op>", b"<!-- not plain --><op>")
EMPTY_LINE = b"\r\n\r\n"
ENDS = [
    (BARE + EMPTY_LINE, True),
    (BARE + EMPTY_LINE + BARE, True),
    (COMMENTED + EMPTY_LINE, True),
    (b"<qs>" + b"<a/>" * 20_000 + b"</qs>" + EMPTY_LINE, True),  # over a bound, and refused
    (BARE + b"\n" + EMPTY_LINE + b" ", True),
    (BARE + b"\r\n" + BARE + EMPTY_LINE, True),
    (BARE, False),
    (PING, False),
    (BARE + b"\n\n", False),
    (BARE + b"\r\n \r\n", False),
    (EMPTY_LINE + BARE + b"\r\n" + COMMENTED + b"\r\n", False),
    (BARE.replace(b"<op>", EMPTY_LINE + b"<op>"), False),
    (serialize(PushMessage("a", b"x", req="1")).replace(b">x<", b">" + EMPTY_LINE + b"<"), False),
]


@pytest.mark.parametrize(("data", "early"), ENDS)
def test_early_by_an_empty_line_behind_a_document(data: bytes, early: bool) -> None:
    """CR LF CR LF behind a document is seen however the bytes are cut; before the first document or inside of one it is
    nothing."""
    for size in (len(data), 1, 2, 3, 5, 1000) if len(data) < 1000 else (len(data), 999, 1000):
        peer = Peer()
        for start in range(0, len(data), size):
            peer.receive_data(data[start : start + size])
            list(peer.events())
        assert peer.early == early, size


def test_send_to_an_early_client() -> None:
    """After an early client's first empty line, every document to it ends with one, and the answer to list-messages has
    its ids in `m`, at most 200."""
    listed = ListMessages("a", mids=[5], type="response")
    messages = [Ping(type="response"), GetMessage("a", 1, payload=b"x", type="response"), Error(404, "not-found", "x")]
    peer = Peer()
    assert peer.send(listed) == serialize(listed)
    peer.receive_data(BARE + EMPTY_LINE)
    list(peer.events())
    for message in messages:
        assert peer.send(message) == serialize(message) + b"\r\n"
    ids = b"<m><mid>5</mid></m></qs>" + EMPTY_LINE
    assert peer.send(listed).endswith(ids)
    assert Peer(early=True).send(listed).endswith(ids)
    assert peer.send(ListMessages("a", mids=list(range(1000)), type="response")).count(b"<mid>") == 200
    assert b"<m>" not in peer.send(ListMessages("a"))


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("piece", [10, 10_000])
def test_bound_documents_for_a_while(*, plain: bool, piece: int) -> None:
    """A lower bound holds for documents that are read while it is there, in whatever pieces they come, with and without
    the parser; what is within it, and what is read once it is gone, is read."""
    push = serialize(PushMessage("q", payload=b"x" * 2000)).rstrip()
    push = push if plain else push.replace(b"<payload>", b"<!----><payload>")
    peer = Peer()
    for bound, complaint in ((len(push), ""), (None, ""), (len(push) - 1, f"{len(push) - 1} bytes, sorry")):
        peer.bound_documents(bound, ", sorry")
        for at in range(0, len(push), piece):
            peer.receive_data(push[at : at + piece])
        (event,) = peer.events()
        if not complaint:
            assert isinstance(event, PushMessage)
        else:
            assert isinstance(event, Fault)
            assert event.error is errors.TOO_LARGE
            assert complaint in event.text
    small = Peer(Limits(document=1000))
    small.bound_documents(5000, ", sorry")
    small.receive_data(push)
    assert [isinstance(event, Fault) for event in small.events()] == [True]
