"""A subscription to a bus, step by step, without sockets and without time: what is sent when, and what trouble does."""

import logging
from collections.abc import Iterator

import pytest
from support.clients.scripted_server import answer_bytes

from qs_client import (
    DeleteMessage,
    Error,
    GetMessage,
    Message,
    NoAnswer,
    NotFound,
    NotImplementedByServer,
    ProtocolMismatch,
    ReleaseMessage,
    ServerUnavailable,
    ShuttingDown,
    Subscribe,
)
from qs_client.bus_session import LATE, BusSession, Connect, Deliver, Pause, Read, Ready, Send, Step
from qs_client.place import BusPlace
from qs_client.session import Session
from qs_schemas import Peer

PLACE = BusPlace("host:9878")


class Driven:
    """Takes the steps by hand. sent: what the bus would have read; told: what was said of trouble."""

    def __init__(self, ack: bool = True, where: str | None = None, match: str | None = None, **options: object) -> None:
        self.told: list[str] = []
        self.sent: list[Message] = []
        self.session = Session()
        request = Subscribe(
            queues=["q", "r"], prefetch=5, ack="client" if ack else None, name="n", where=where, match=match
        )
        self.bus = BusSession(request, PLACE, on_trouble=self.told.append, **options)  # type: ignore[arg-type]
        self.steps = self.bus.steps()
        self.at: Step = next(self.steps)

    def go(self) -> Step:
        """Does the present step, and returns the next one."""
        match self.at:
            case Connect():
                self.session = Session()
                self.at = self.steps.send(self.session)
            case Send() | Read():
                self.flush()
                self.at = next(self.steps)
            case _:
                self.at = next(self.steps)
        return self.at

    def fail(self, error: OSError) -> Step:
        """Lets the present step fail."""
        self.at = self.steps.throw(error)
        return self.at

    def flush(self) -> None:
        peer = Peer()
        peer.receive_data(self.session.data_to_send())
        self.sent += [event for event in peer.events() if isinstance(event, Message)]

    def come(self, data: bytes) -> None:
        self.session.receive_data(data)

    def subscribe(self) -> Message:
        """Takes the steps up to the first message."""
        assert self.at == Connect()
        assert self.go() == Read(LATE)
        self.flush()
        request = self.sent[-1]
        self.come(answer_bytes(request))
        assert self.go() == Ready()
        assert self.go() == Read(None)
        return request

    def deliver(self, *mids: int) -> None:
        for mid in mids:
            message = GetMessage("q", mid, payload=b"x", status="delivered", receives=1, type="response")
            message.req = self.session_req
            self.come(Peer().send(message))

    @property
    def session_req(self) -> str | None:
        return next(message.req for message in reversed(self.sent) if isinstance(message, Subscribe))

    def given(self) -> GetMessage:
        assert isinstance(self.at, Deliver), self.at
        return self.at.message

    def acknowledged(self) -> list[int | None]:
        self.flush()
        return [message.mid for message in self.sent if isinstance(message, DeleteMessage)]


def pauses() -> Iterator[float]:
    yield from (1.0, 2.0, 3.0)


def test_subscribe_names_queues_and_options() -> None:
    """The request says the queues, who acknowledges, how many at a time, and the name."""
    driven = Driven()
    request = driven.subscribe()
    assert isinstance(request, Subscribe)
    assert (request.queues, request.ack, request.prefetch, request.name) == (["q", "r"], "client", 5, "n")
    driven = Driven(ack=False)
    request = driven.subscribe()
    assert isinstance(request, Subscribe)
    assert request.ack is None


def test_condition_and_pattern_are_said_on_each_connection() -> None:
    """After an outage the subscription has the same condition and the same pattern as before."""
    driven = Driven(where="/a > 1", match="pattern", pauses=pauses)
    driven.subscribe()
    assert driven.fail(BrokenPipeError("gone")) == Pause(1)
    assert driven.go() == Connect()
    driven.subscribe()
    said = [(each.where, each.match) for each in driven.sent if isinstance(each, Subscribe)]
    assert said == [("/a > 1", "pattern")] * 2


@pytest.mark.parametrize(
    ("asked", "given"),
    [({}, [1, 2]), ({"where": "/a"}, [2]), ({"match": "pattern"}, [2])],
    ids=["plain", "where", "match"],
)
def test_message_that_comes_before_the_subscription(asked: dict[str, str], given: list[int]) -> None:
    """A message that the bus sends before the subscription is handed out, unless only the bus can tell whether it is
    meant: the subscription has a condition, or patterns."""
    driven = Driven(ack=False, **asked)  # type: ignore[arg-type]
    driven.go()
    driven.flush()
    driven.come(Peer().send(GetMessage("q", 1, payload=b"x", status="delivered", receives=1, type="response")))
    driven.come(answer_bytes(driven.sent[-1]))
    driven.deliver(2)
    got: list[int | None] = []
    while len(got) < len(given):
        if isinstance(driven.go(), Deliver):
            got.append(driven.given().mid)
    assert got == given


def test_message_is_acknowledged_when_the_next_is_asked_for() -> None:
    """A message is acknowledged when the next one is asked for, at once and without waiting for the answer."""
    driven = Driven()
    driven.subscribe()
    driven.deliver(1, 2)
    driven.go()
    assert driven.given().mid == 1
    assert driven.acknowledged() == []
    assert driven.go() == Send()
    driven.go()
    assert driven.given().mid == 2
    assert driven.acknowledged() == [1]


def test_message_without_ack_is_not_acknowledged() -> None:
    """Without ack, the client sends no answer to a message, and the message cannot be acknowledged by hand."""
    driven = Driven(ack=False)
    driven.subscribe()
    driven.deliver(1, 2)
    driven.go()
    with pytest.raises(ValueError, match="ack=True"):
        driven.bus.settle(driven.given(), DeleteMessage("q", 1))
    driven.go()
    assert driven.given().mid == 2
    driven.flush()
    assert [type(message) for message in driven.sent] == [Subscribe]


@pytest.mark.parametrize("request_", [DeleteMessage("q", 1), ReleaseMessage("q", 1, delay=5)])
def test_settle_in_the_loop(request_: DeleteMessage | ReleaseMessage) -> None:
    """A message that was deleted or released in the loop is not acknowledged again; only one in hand can be."""
    driven = Driven()
    driven.subscribe()
    driven.deliver(1, 2)
    driven.go()
    message = driven.given()
    assert driven.bus.settle(message, request_)
    assert not driven.bus.settle(message, request_)
    driven.flush()
    assert type(driven.sent[-1]) is type(request_)
    count = len(driven.sent)
    driven.go()
    driven.go()
    assert driven.given().mid == 2
    driven.flush()
    assert len(driven.sent) == count


@pytest.mark.parametrize(("code", "told"), [(404, 0), (409, 0), (501, 1)])
def test_acknowledgement_that_is_refused_is_reported(code: int, told: int) -> None:
    """An acknowledgement for a message that went to somebody else is ignored; any other refusal is reported, and the
    loop goes on."""
    driven = Driven()
    driven.subscribe()
    driven.deliver(1)
    driven.go()
    driven.go()
    driven.flush()
    driven.come(answer_bytes(driven.sent[-1], Error(code, "kind", "why")))
    driven.deliver(2)
    driven.go()
    assert driven.given().mid == 2
    assert len(driven.told) == told


def test_outage_with_a_message_in_hand() -> None:
    """In an outage, the acknowledgement of the message in hand is dropped, and so is what had been sent ahead: all of
    it comes again. The log says once that it began, and once that it is over."""
    driven = Driven(pauses=pauses)
    driven.subscribe()
    driven.deliver(1, 2)
    driven.go()
    message = driven.given()
    assert driven.go() == Send()
    assert driven.fail(BrokenPipeError("gone")) == Pause(1)
    assert not driven.bus.settle(message, DeleteMessage("q", 1))
    assert driven.go() == Connect()
    assert driven.fail(PLACE.cannot_connect(OSError(111, "Connection refused"))) == Pause(2)
    assert len(driven.told) == 1
    assert driven.go() == Connect()
    driven.subscribe()
    assert driven.told[1:] == ["the bus at host:9878 is there again"]
    driven.deliver(3)
    driven.go()
    assert driven.given().mid == 3
    assert isinstance(driven.sent[-1], Subscribe)
    driven.go()
    assert driven.go() == Read(None)
    assert driven.fail(PLACE.lost("went")) == Pause(1)  # a new outage begins with a short pause


@pytest.mark.parametrize("ack", [True, False])
def test_outage_after_messages_were_read(ack: bool) -> None:
    """No message that was read is dropped when only the reading fails: without ack it would be lost."""
    driven = Driven(ack)
    driven.subscribe()
    driven.deliver(1, 2)
    driven.go()
    assert driven.given().mid == 1
    while driven.go() == Send():
        pass
    assert driven.given().mid == 2


@pytest.mark.parametrize(("code", "kind"), [(503, "shutting-down"), (429, "too-many"), (500, "internal")])
def test_refusal_that_may_pass_is_an_outage(code: int, kind: str) -> None:
    """A bus that stops, or is full, is tried again."""
    driven = Driven(pauses=pauses)
    assert driven.go() == Read(LATE)
    driven.come(Peer().send(Error(code, kind, "why")))
    assert driven.go() == Pause(1)
    driven = Driven(pauses=pauses)
    driven.subscribe()
    driven.come(Peer().send(Error(code, kind, "why")))
    assert driven.go() == Pause(1)


@pytest.mark.parametrize(
    ("code", "error"), [(404, NotFound), (501, NotImplementedByServer), (400, Exception), (401, Exception)]
)
def test_refusal_that_stays_is_raised(code: int, error: type[Exception]) -> None:
    """An error about the subscription itself is raised."""
    driven = Driven()
    driven.go()
    driven.flush()
    driven.come(answer_bytes(driven.sent[-1], Error(code, "kind", "why")))
    with pytest.raises(error, match=str(code)):
        driven.go()


def test_other_program_is_raised() -> None:
    """If something else answers, no further attempt is made."""
    driven = Driven()
    driven.go()
    driven.come(b"220 mail.example ESMTP\r\n")
    with pytest.raises(ProtocolMismatch, match="is it a bus"):
        driven.go()


def test_subscribe_without_answer_times_out() -> None:
    """A bus that takes the connection and says nothing is an outage as well."""
    driven = Driven(reconnect=False)
    assert driven.go() == Read(LATE)
    assert driven.fail(TimeoutError()) == Read(30 - LATE)
    with pytest.raises(NoAnswer, match=r"bus at host:9878 did not take the subscription within 30 s.*queue server"):
        driven.fail(TimeoutError())
    driven = Driven(reconnect=False, timeout=LATE)
    assert driven.go() == Read(LATE)
    with pytest.raises(NoAnswer, match=r"within 1\.5 s"):
        driven.fail(TimeoutError())
    assert driven.told == []


def test_subscribe_late_is_reported() -> None:
    """A bus without its server refuses the subscription: the log says so once in a wait, over several connections, and
    again in the next. A patient client waits for as long as it takes."""
    driven = Driven(pauses=pauses)
    with driven.bus.without_reconnect(patient=True):
        assert driven.go() == Read(LATE)
        assert driven.fail(TimeoutError()) == Read(None)
        assert driven.go() == Read(None)
        (said,) = driven.told
        assert said.startswith("waiting: the bus at host:9878 has not taken the subscription yet")
        driven.flush()
        driven.come(answer_bytes(driven.sent[-1]))
        assert driven.go() == Ready()
    driven.go()
    assert driven.fail(PLACE.lost("went")) == Pause(1)
    driven.go()
    assert driven.go() == Read(LATE)
    assert driven.fail(TimeoutError()) == Read(30 - LATE)
    assert driven.fail(TimeoutError()) == Pause(2)
    driven.go()
    assert driven.go() == Read(30)
    assert [text.split(":")[0] for text in driven.told] == ["waiting", "the bus at host", "waiting"]


@pytest.mark.parametrize("error", [PLACE.lost("went"), PLACE.connect_timed_out()])
def test_without_reconnect_raises_outages(error: ServerUnavailable) -> None:
    """With reconnect=False trouble is raised, and not told."""
    driven = Driven(reconnect=False)
    with pytest.raises(ServerUnavailable):
        driven.fail(error)
    assert driven.told == []
    driven = Driven(reconnect=False)
    driven.subscribe()
    driven.come(Peer().send(Error(503, "shutting-down", "bye")))
    with pytest.raises(ShuttingDown):
        driven.go()


def test_without_reconnect_inside_a_block() -> None:
    """Inside a block of `without_reconnect` trouble is raised; after the block it is not."""
    driven = Driven(pauses=pauses)
    with driven.bus.without_reconnect():
        driven.subscribe()
    assert driven.bus.subscribed
    assert driven.fail(PLACE.lost("went")) == Pause(1)
    assert not driven.bus.subscribed
    driven = Driven()
    with driven.bus.without_reconnect(), pytest.raises(ServerUnavailable):
        driven.fail(PLACE.lost("went"))


def test_last_steps_wait_for_acknowledgements() -> None:
    """At the end the answers to the acknowledgements are waited for, and to nothing else; a message in hand is not
    acknowledged."""
    driven = Driven()
    driven.subscribe()
    driven.deliver(1, 2)
    driven.go()
    driven.go()
    driven.go()
    assert driven.given().mid == 2
    last = driven.bus.last_steps()
    assert next(last) == Send()
    assert driven.acknowledged() == [1]
    assert next(last) == Read(1)
    driven.come(answer_bytes(driven.sent[-1]))
    assert list(last) == []
    assert list(Driven().bus.last_steps()) == []


def test_early_message_is_delivered() -> None:
    """A message that the bus sent unasked, before the subscription, counts as handled, so it is handed out; one of
    other queues is dropped."""
    driven = Driven()
    assert driven.go() == Read(LATE)
    driven.flush()
    for qid in ("other", "r"):
        driven.come(Peer().send(GetMessage(qid, 7, payload=b"x", status="delivered", type="response")))
    driven.come(answer_bytes(driven.sent[-1]))
    assert driven.go() == Ready()
    driven.go()
    assert driven.given().qid == "r"


def test_early_message_that_comes_again_is_delivered_once() -> None:
    """A message that the bus sent unasked, and sends again for the subscription, is handed out once, and acknowledged
    the second time."""
    driven = unasked()
    assert driven.given().mid == 7
    assert driven.go() == Send()
    assert driven.acknowledged() == [7]  # which the bus does not know by then
    driven.deliver(7, 8)
    assert driven.go() == Send()
    driven.go()
    assert driven.given().mid == 8
    assert driven.acknowledged() == [7, 7]


def test_early_message_that_is_released_is_delivered_again() -> None:
    """A message that came before the subscription, and that the loop has released, is handed out again when it comes to
    the subscription."""
    driven = unasked()
    assert driven.bus.settle(driven.given(), ReleaseMessage("q", 7))
    driven.deliver(7)
    assert driven.go() == Send()
    driven.go()
    assert driven.given().mid == 7
    driven.go()
    assert driven.acknowledged() == [7]


def test_early_message_that_comes_again_without_ack() -> None:
    """Without ack, a message that came before the subscription is handed out once, and nothing is sent for it."""
    driven = unasked(ack=False)
    driven.deliver(7, 8)
    driven.go()
    assert driven.given().mid == 8
    assert driven.acknowledged() == []


def unasked(ack: bool = True) -> Driven:
    """Takes the steps up to message 7 of the queue q, which came before the subscription."""
    driven = Driven(ack)
    assert driven.go() == Read(LATE)
    driven.flush()
    driven.come(Peer().send(GetMessage("q", 7, payload=b"x", status="delivered", type="response")))
    driven.come(answer_bytes(driven.sent[-1]))
    assert driven.go() == Ready()
    driven.go()
    return driven


def test_outages_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without a function for it, the log says what happened."""
    bus = BusSession(Subscribe(queues=["q"]), PLACE)
    steps = bus.steps()
    next(steps)
    with caplog.at_level(logging.INFO, "qs_client.bus"):
        for _ in range(3):
            assert isinstance(steps.throw(PLACE.lost("closed the connection")), Pause)
            next(steps)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "host:9878 closed the connection" in caplog.text
