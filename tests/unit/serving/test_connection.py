"""Tests the phases of a connection with a session that does what the test says, without a server."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from qs_schemas import Fault, Message, Peer, Ping, errors
from qs_serving.connection import TRANSITIONS, Cause, Connection, Phase
from qs_serving.figures import RequestCounts
from qs_serving.hub import Hub
from qs_serving.options import ServerLimits
from qs_serving.strangers import Strangers
from qs_serving.timers import Timers
from qs_serving.transport import Transport

MockClock = trio.testing.MockClock
settled = trio.testing.wait_all_tasks_blocked
PING = Peer().send(Ping())


class Wire(Transport):
    """A transport whose other side is the test. credit: bytes that the other side still takes."""

    def __init__(self) -> None:
        super().__init__(Hub(), "memory")
        self.watched = True
        self.credit = 1 << 30
        self.sent = bytearray()
        self.coming: list[bytes | OSError] = []
        self.ended = self.closed = False
        self._more = trio.Event()

    def say(self, *pieces: bytes | OSError) -> None:
        """Sends bytes from the other side, and lets the hub read until the session wants no more."""
        self.coming += pieces
        while self.coming and not self.held:
            self.ready()

    def read(self) -> None:
        """Reads everything at the other side."""
        self.credit = 1 << 30
        self._more.set()

    def fileno(self) -> int:
        raise AssertionError("it has none")

    def _receive_now(self, max_bytes: int) -> bytes:
        if not self.coming:
            raise BlockingIOError
        data = self.coming.pop(0)
        if isinstance(data, OSError):
            raise data
        return data

    def send_now(self, data: bytes | memoryview) -> int:
        count = min(len(data), self.credit)
        self.sent += data[:count]
        self.credit -= count
        return count

    async def send_all(self, data: bytes | memoryview) -> None:
        while data := data[self.send_now(data) :]:
            self._more = trio.Event()
            await self._more.wait()

    def backlog(self) -> int:
        return 0

    async def send_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True


class Script:
    """A session that answers each request, or does what `next` says: "pause", "fail" or "close"."""

    stopping_text = "bye"
    patience: float | None = None
    subscription_count = 0

    def __init__(self, connection: Connection["Script"]) -> None:
        self.connection = connection
        self.next = ""
        self.ran: list[Message | Fault] = []
        self.told: list[str] = []

    def run(self) -> None:
        requests = self.connection.requests
        if not requests:
            self.connection.answered()
            return
        self.ran.append(requests.popleft())
        todo, self.next = self.next, ""
        if todo == "pause":
            self.connection.pause()
        elif todo == "fail":
            raise KeyError("a bug")
        elif self.connection.outbox.put(b"answer\n"):
            self.connection.answered(closes=todo == "close")
        else:
            self.connection.await_socket()

    def go_on(self) -> None:
        """Answers the request that has paused."""
        self.connection.end_pause()
        self.connection.outbox.put(b"late\n")
        self.connection.answered()

    def interrupt(self) -> None:
        self.told.append("interrupt")
        self.go_on()

    def abandon(self) -> None:
        self.told.append("abandon")

    def rights_changed(self) -> None:
        self.told.append("rights changed")

    def heard(self) -> None:
        self.told.append("heard")

    def silent(self) -> None:
        self.told.append("silent")
        self.patience = None

    def written(self, token: object) -> None:
        self.told.append(f"written {token}")


class Served:
    """A connection, its wire, and the phases through which it goes."""

    def __init__(self, nursery: trio.Nursery, *, pipeline: int = 10, patience: float | None = None) -> None:
        self.wire, self.timers, self.closed = Wire(), Timers(), 0
        limits = ServerLimits(pipeline=pipeline, document_time=10.0, linger=1.0)

        def session(connection: Connection[Script]) -> Script:
            script = Script(connection)
            script.patience = patience
            return script

        self.connection = Connection(
            self.wire,
            Peer(serving=True),
            session,
            limits=limits,
            nursery=nursery,
            timers=self.timers,
            counts=RequestCounts(),
            strangers=Strangers(limits),
            closed=self._closed,
        )
        self.session = self.connection.session
        nursery.start_soon(self.timers.serve)

    def _closed(self, connection: Connection[Script]) -> None:
        self.closed += 1

    @property
    def phase(self) -> Phase:
        return self.connection.phase

    @property
    def sent(self) -> str:
        return bytes(self.wire.sent).decode()


@pytest.fixture
async def served(nursery: trio.Nursery) -> Served:
    served = Served(nursery)
    served.connection.begin()
    return served


async def test_requests_are_answered_one_after_the_other(served: Served) -> None:
    """Requests that come in one piece are taken up in their order, and the connection reads again."""
    served.wire.say(PING * 3, PING)
    assert served.sent == "answer\n" * 4
    assert (served.phase, len(served.session.ran)) == (Phase.READING, 4)


async def test_nothing_is_read_while_the_client_does_not_read(served: Served) -> None:
    """Once the socket takes no more, no request is taken up or read until it has taken everything."""
    served.wire.credit = 3
    served.wire.say(PING * 2, PING)
    assert (served.phase, served.sent, len(served.wire.coming)) == (Phase.SENDING, "ans", 1)
    served.wire.read()
    await settled()
    served.wire.say()
    assert (served.phase, served.sent) == (Phase.READING, "answer\n" * 3)


async def test_requests_are_read_ahead_up_to_a_bound(served: Served) -> None:
    """While a request waits, ten more are read, and not one more; then all are answered."""
    served.session.next = "pause"
    served.wire.say(*[PING] * 20)
    assert (served.phase, len(served.connection.requests), len(served.wire.coming)) == (Phase.WAITING, 10, 9)
    served.session.go_on()
    served.wire.say()
    assert (served.phase, served.sent) == (Phase.READING, "late\n" + "answer\n" * 19)


@pytest.mark.parametrize("end", [b"", ConnectionResetError()])
async def test_the_end_of_the_client_ends_a_wait(served: Served, end: bytes | OSError) -> None:
    """The session is told that the client goes while its request waits, and may still answer; then it is closed."""
    served.session.next = "pause"
    served.wire.say(PING, end)
    assert served.session.told == ["heard", "interrupt", "abandon", "abandon"]
    assert (served.phase, served.closed, served.wire.closed) == (Phase.CLOSED, 1, True)


async def test_a_wait_that_begins_after_the_end_is_interrupted_at_once(served: Served) -> None:
    """A client that has gone during its first wait is not waited for in the next: nothing more would tell of it."""
    served.session.next = "pause"
    served.session.interrupt = lambda: served.session.told.append("interrupt")  # type: ignore[method-assign]
    served.wire.say(PING, PING, b"")
    assert served.session.told == ["heard", "interrupt"]
    served.session.next = "pause"
    served.session.go_on()
    assert served.session.told[1:] == ["interrupt", "interrupt"]


async def test_a_fault_while_a_connection_is_abandoned_closes_it(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that cannot even give up its requests is closed like any other, and told of in the log."""

    def fail() -> None:
        raise KeyError("a bug")

    served.session.abandon = fail  # type: ignore[method-assign]
    served.wire.say(PING, ConnectionResetError())
    assert (served.phase, served.closed, served.wire.closed) == (Phase.CLOSED, 1, True)
    assert "fault of the server" in caplog.text


async def test_a_stop_ends_a_wait_and_tells_why(served: Served) -> None:
    """The wait ends, what comes behind it is refused, and the connection is closed when the client has ended too."""
    served.session.next = "pause"
    served.wire.say(PING, PING)
    served.connection.stop()
    assert served.phase is Phase.PARTING
    assert served.sent.startswith("late\n")
    assert served.sent.count("bye") == 1
    await settled()
    assert served.wire.ended
    served.wire.say(b"more", b"")
    await settled()
    assert (served.phase, served.closed) == (Phase.CLOSED, 1)
    assert served.session.ran == served.session.ran[:1]


async def test_a_client_that_does_not_end_is_left_after_a_moment(served: Served, autojump_clock: MockClock) -> None:
    """After a refusal the connection is closed within the time of `linger`, whether or not the client ends it."""
    served.connection.turn_out(errors.TOO_MANY, "too many")
    assert served.phase is Phase.PARTING
    begun = trio.current_time()
    while served.phase is not Phase.CLOSED:
        await trio.sleep(0.1)
    assert 0.9 < trio.current_time() - begun < 1.3
    assert "too many" in served.sent


async def test_a_client_that_is_turned_out_before_it_begins(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """A client that is refused before it begins is told why as soon as it begins."""
    served = Served(nursery)
    served.connection.turn_out(errors.TOO_MANY, "too many")
    assert (served.phase, served.sent) == (Phase.NEW, "")
    served.connection.begin()
    assert (served.phase, served.sent.count("too many")) == (Phase.PARTING, 1)


async def test_a_document_in_pieces_has_its_time(served: Served, autojump_clock: MockClock) -> None:
    """A document that is not complete in time ends the connection; the time of the next begins with its first byte."""
    served.wire.say(PING[:10])
    await trio.sleep(9)
    served.wire.say(PING[10:], PING[:10])
    await trio.sleep(9)
    assert served.phase is Phase.READING
    await trio.sleep(2)
    assert "not completed within 10 s" in served.sent


async def test_bytes_that_nobody_has_read_are_no_delay_of_the_client(served: Served, autojump_clock: MockClock) -> None:
    """A time step does not count against the client if its bytes lie unread at the step's end: the client had sent
    them."""
    served.wire.say(PING[:10])
    await trio.sleep(7)
    served.wire.coming.append(PING[10:20])
    await trio.sleep(2.5)
    served.wire.coming.append(PING[20:])
    await trio.sleep(1.5)
    assert (served.phase, served.sent) == (Phase.READING, "answer\n")


async def test_a_silent_client(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """The session is told once that a client has sent nothing, and once that it has."""
    served = Served(nursery, patience=5)
    served.connection.begin()
    await trio.sleep(20)
    assert served.session.told == ["silent"]
    served.wire.say(PING, PING)
    assert served.session.told == ["silent", "heard"]


async def test_a_fault_of_the_session_ends_its_connection(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The fault is in the log, the client is disconnected, and the hub goes on reading for all."""
    served.session.next = "fail"
    served.wire.say(PING)
    assert (served.phase, served.closed) == (Phase.CLOSED, 1)
    assert "a fault of the server" in caplog.text


async def test_an_answer_that_closes(served: Served) -> None:
    """After an answer that closes, the client is told nothing more, and has a moment to read."""
    served.session.next = "close"
    served.wire.say(PING, PING)
    await settled()
    assert (served.phase, served.sent, served.wire.ended) == (Phase.PARTING, "answer\n", True)


async def test_dismiss_does_not_end_it_before_the_caller_returns(served: Served, autojump_clock: MockClock) -> None:
    """Code that dismisses a client may be in the middle of a step for that client."""
    served.connection.dismiss(errors.TOO_MANY, "too slow")
    assert (served.phase, served.connection.is_refused) == (Phase.READING, True)
    await trio.sleep(0.01)
    assert (served.phase, served.sent.count("too slow")) == (Phase.PARTING, 1)


Step = Callable[[Served], object]
READING: list[Step] = [lambda served: served.connection.begin()]
PAUSED: list[Step] = [
    *READING,
    lambda served: setattr(served.session, "next", "pause"),
    lambda served: served.wire.say(PING),
]
UNREAD: list[Step] = [*READING, lambda served: setattr(served.wire, "credit", 0), lambda served: served.wire.say(PING)]
RUNNING: list[Step] = [*PAUSED, lambda served: served.connection.end_pause()]
PARTING: list[Step] = [*READING, lambda served: served.connection.stop()]
TO: dict[Phase, list[Step]] = {
    Phase.NEW: [],
    Phase.READING: READING,
    Phase.RUNNING: RUNNING,
    Phase.WAITING: PAUSED,
    Phase.SENDING: UNREAD,
    Phase.PARTING: PARTING,
}
"""The way into each phase."""
BY: dict[Cause, Step] = {
    Cause.ACCEPTED: lambda served: served.connection.begin(),
    Cause.REQUESTS: lambda served: (setattr(served.session, "next", "pause"), served.wire.say(PING)),
    Cause.ANSWERED: lambda served: served.connection.answered(),
    Cause.PAUSED: lambda served: served.connection.pause(),
    Cause.OVER: lambda served: served.connection.end_pause(),
    Cause.UNREAD: lambda served: served.connection.await_socket(),
    Cause.TAKEN: lambda served: served.wire.read(),
    Cause.TOLD: lambda served: served.connection.dismiss(errors.TOO_MANY, "too slow"),
    Cause.GONE: lambda served: served.connection.cut_off(),
}


@pytest.mark.parametrize(("phase", "cause"), TRANSITIONS)
async def test_every_row_of_the_table(
    nursery: trio.Nursery,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    phase: Phase,
    cause: Cause,
) -> None:
    """Each row is taken: its cause brings a connection from its phase into the next."""
    served, looked = Served(nursery), list[tuple[Phase, Cause]]()

    class Noting(dict[tuple[Phase, Cause], Phase]):
        def __getitem__(self, key: tuple[Phase, Cause]) -> Phase:
            looked.append(key)
            return super().__getitem__(key)

    for step in TO[phase]:
        step(served)
    assert served.phase is phase
    monkeypatch.setattr("qs_serving.connection.TRANSITIONS", Noting(TRANSITIONS))
    if (phase, cause) == (Phase.RUNNING, Cause.TOLD):
        served.connection.dismiss(errors.TOO_MANY, "too slow")
        served.connection.answered()
    else:
        BY[cause](served)
        await trio.sleep(0.01)
    assert looked[0] == (phase, cause)


async def test_a_cause_that_the_table_does_not_have(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A session that reports a cause at the wrong time has a fault, which ends its connection alone."""
    served.connection.attempt(served.connection.answered)
    assert (served.phase, served.closed) == (Phase.CLOSED, 1)
    assert "a fault of the server" in caplog.text
