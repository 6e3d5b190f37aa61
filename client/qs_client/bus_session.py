"""The logic of a subscription to a bus: connect, subscribe, hand out, acknowledge, reconnect. It does no I/O: a
generator yields steps, which the drivers of the sync and the async client carry out."""

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from qs_schemas import Authenticate, DeleteMessage, Error, GetMessage, Message, ReleaseMessage, Subscribe

from .backoff import delays
from .errors import ProtocolMismatch, ServerError, Unexpected, exception_for
from .place import Place
from .security import Token
from .session import Session
from .waiting import LINGER, Pending, Subscription

_log = logging.getLogger("qs_client.bus")

LATE = 1.5
"""Seconds without an answer to the subscription after which the client reports that it waits. A bus whose queue server
is away answers no client, and the program's user would see nothing at all."""

_TEMPORARY = frozenset((408, 429, 500, 503, 507))
"""Codes of errors that another attempt may not meet. All others mean that the subscription itself is wrong."""

_SETTLED = frozenset((404, 409))
"""Codes of answers to an acknowledgement that mean that this subscriber no longer had the message. The message is
delivered again to another subscriber, so this program has nothing to report."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Asks the driver to open a connection, and to send its session into the generator."""


@dataclass(frozen=True, slots=True)
class Send:
    """Asks the driver to send what the session has to send."""


@dataclass(frozen=True, slots=True)
class Read:
    """Asks the driver to send as well, and then to give the session the bytes that come next. The driver throws a
    TimeoutError if no bytes come within these seconds; going_on: the seconds of the previous Read continue."""

    seconds: float | None
    going_on: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks the driver to close the connection, and to wait for these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Ready:
    """Reports that the bus has taken the subscription."""


@dataclass(slots=True)  # not frozen, as one is made for each message: that takes a third of the time
class Deliver:
    """Asks the driver to hand the message out, and to go on when the next one is asked for."""

    message: GetMessage


Step: TypeAlias = Connect | Send | Read | Pause | Ready | Deliver
Steps: TypeAlias = Generator[Step, Session | None, None]


class BusSession:
    """One subscription, over all the connections that it takes.

    Ensures
    1. A message is acknowledged when the next one is asked for, unless the program has settled it; one that it has in
       hand when the connection or the loop ends is not, and is delivered again.
    2. After an outage it connects and subscribes again; only an error that another attempt cannot cure is raised.
    3. Nothing but the token and the greeting is sent before the other side has said that it is a bus: a queue server
       would take the subscription, and messages would be taken from its workers.
    4. No message is handed out twice that comes before and after the subscription is taken.
    5. The condition and the pattern of the subscription are said again on each connection.

    Assumes a driver that carries out each step before it asks for the next, and throws an error of the connection
    (OSError) into `steps`.
    Never does I/O, and never waits: a Pause and the time of a Read are the driver's.
    """

    def __init__(
        self,
        request: Subscribe,
        place: Place,
        *,
        token: Token | None = None,
        timeout: float | None = 30.0,
        reconnect: bool = True,
        on_trouble: Callable[[str], None] | None = None,
        pauses: Callable[[], Iterator[float]] = delays,
    ) -> None:
        """token: authenticates each connection; timeout: seconds for the bus to take the subscription; on_trouble: gets
        a line when an outage begins, when it is over, and when the subscription is not taken within `LATE`; None: the
        lines are logged."""
        self.subscribed = False
        self._request = request
        self._place = place
        self._token = token
        self._timeout = timeout
        self._reconnect = reconnect
        self._on_trouble = on_trouble
        self._pauses = pauses
        self._pause = pauses()
        self._outage = False
        self._late = False  # the subscription is late, and that has been reported
        self._session: Session | None = None
        self._in_hand: GetMessage | None = None
        self._delivered_early: set[tuple[str | None, int | None]] = set()  # see `_is_repeated`

    @contextlib.contextmanager
    def without_reconnect(self, *, patient: bool = False) -> Iterator[None]:
        """Raises every error inside the block, for a program that asks for one attempt. patient: wait for the
        subscription without a timeout."""
        before = self._reconnect, self._timeout
        self._reconnect = False
        if patient:
            self._timeout = None
        try:
            yield
        finally:
            self._reconnect, self._timeout = before

    def steps(self) -> Steps:
        """Yields all steps, from the first connection on. Never returns normally."""
        while True:
            try:
                yield from self._conversation()
            except (ServerError, OSError) as error:
                if not self._reconnect or not _is_temporary(error):
                    raise
                self._begin_outage(error)
            finally:
                self._in_hand = self._session = None  # an unacknowledged message is delivered again
                self.subscribed = False
            # After the finally: while it waits, nothing of the lost connection can be settled any more.
            yield Pause(next(self._pause))

    def last_steps(self) -> Steps:
        """Yields the steps of the end: waits until the bus has confirmed the acknowledgements, which could otherwise be
        lost."""
        session = self._session
        if session is not None and self._request.ack is not None:
            yield Send()
            step = Read(LINGER)
            while session.awaits_answer:
                if not session.route():
                    yield step
                    step = Read(LINGER, going_on=True)

    def abandon(self) -> None:
        """Forgets the connection and the message in hand: in a child of a fork they belong to the parent."""
        self._session = self._in_hand = None
        self.subscribed = False

    def settle(self, message: GetMessage, request: DeleteMessage | ReleaseMessage) -> bool:
        """Sends an acknowledgement or a release of the message in hand. Returns False, and sends nothing, when the
        message is no longer in hand here. Raises ValueError if the subscription does not acknowledge."""
        if message is not self._in_hand or self._session is None:
            return False
        if self._request.ack is None:
            raise ValueError("this subscription leaves acknowledging to the bus: subscribe(..., ack=True)")
        self._in_hand = None
        if isinstance(request, ReleaseMessage):
            self._delivered_early.discard((message.qid, message.mid))
        asked = self._session.ask(request)
        asked.wake = lambda: self._confirmed(asked)  # nobody waits for the answer: the loop goes on at once
        return True

    def _conversation(self) -> Steps:
        session = yield Connect()
        assert session is not None  # noqa: S101 - drivers send a session for this step
        self._session = session
        early: list[Message] = []
        session.on_unmatched = early.append
        # At once: the bus would take a client that says nothing for 0.25 s for one that wants everything.
        token = None if self._token is None else session.ask(Authenticate(self._token.reveal()))
        if session.greeting is not None:
            # Before the subscription: a queue server would take that too, and the client share messages with workers.
            yield from self._introduced(session, session.greeting)
        if token is not None:
            yield from self._accepted(session, token)
        subscription = session.subscribe(replace(self._request))
        self._delivered_early.clear()
        session.on_unmatched = lambda message: self._deliver_early(subscription, message)
        for each in early:
            self._deliver_early(subscription, each)
        yield from self._accepted(session, subscription.asked)
        self._end_outage()
        self.subscribed = True
        yield Ready()
        try:
            while True:
                while (message := session.next_delivery(subscription)) is None:
                    yield Read(None)
                self._in_hand = message
                if not (self._delivered_early and self._is_repeated(message)):
                    yield Deliver(message)
                if self._request.ack is not None:
                    self.settle(message, DeleteMessage(message.qid, message.mid))
                    yield Send()
        except Unexpected as error:
            raise self._place.protocol_error(error) from None

    def _accepted(self, session: Session, asked: Pending) -> Steps:
        """Waits until the bus has accepted the token or the subscription. Raises ServerError if it refuses."""
        answer = yield from self._answer(session, asked)
        self._late = False
        if isinstance(answer, Error):
            raise exception_for(answer)

    def _introduced(self, session: Session, greeting: Pending) -> Steps:
        """Waits until the answer to the greeting says that the other side is a bus."""
        yield from self._answer(session, greeting)
        try:
            session.check_program()
        except Unexpected as error:
            raise self._place.protocol_error(error) from None

    def _answer(self, session: Session, asked: Pending) -> Generator[Step, Session | None, Message]:
        """Waits for the bus's answer. The bus does not answer while it is without its queue server."""
        timeout = self._timeout
        first = not self._late and (timeout is None or timeout > LATE)
        step = Read(LATE if first else timeout)
        while (answer := self._answer_to(session, asked)) is None:
            try:
                yield step
                # Bytes that are no answer, such as early messages, must not begin the time anew.
                step = Read(step.seconds, going_on=step.seconds is not None)
            except TimeoutError:
                if not first:
                    raise self._place.no_answer(timeout) from None
                first = False
                self._late = True
                self._report(
                    logging.WARNING,
                    f"waiting: the bus at {self._place.name} has not taken the subscription yet; is its queue server "
                    "running?",
                )
                step = Read(None if timeout is None else timeout - LATE)
        return answer

    def _answer_to(self, session: Session, asked: Pending) -> Message | None:
        try:
            return session.answer_to(asked)
        except Unexpected as error:
            raise self._place.protocol_error(error) from None

    def _deliver_early(self, subscription: Subscription, message: Message) -> None:
        """Hands out a message that came before the subscription: the bus subscribes a client that says nothing for 0.25
        s to everything. Some seconds later the bus counts such a message as handled, so it would otherwise be lost.
        With a condition or a pattern nothing is handed out early: only the bus can tell which messages are meant."""
        request = self._request
        if request.where is not None or request.match is not None:
            return
        if isinstance(message, GetMessage) and message.req is None and message.qid in request.queues:
            self._delivered_early.add((message.qid, message.mid))
            subscription.put(message)

    def _is_repeated(self, message: GetMessage) -> bool:
        """Tells whether the message was handed out before the subscription was taken. Within the seconds after that,
        the bus gives such a message back to its queue, and delivers it again to the subscription."""
        key = message.qid, message.mid
        if message.req is None or key not in self._delivered_early:
            return False
        self._delivered_early.remove(key)
        return True

    def _confirmed(self, asked: Pending) -> None:
        answer = asked.answer
        if isinstance(answer, Error) and answer.req is not None and answer.code not in _SETTLED:
            self._report(logging.WARNING, f"the bus at {self._place.name} refused an acknowledgement: {answer.text}")

    def _begin_outage(self, error: Exception) -> None:
        if not self._outage:
            self._outage = True
            self._report(logging.WARNING, f"{error} (trying again until the bus answers)")

    def _end_outage(self) -> None:
        self._pause = self._pauses()  # the next outage begins with short pauses
        if self._outage:
            self._outage = False
            self._report(logging.INFO, f"the bus at {self._place.name} is there again")

    def _report(self, level: int, text: str) -> None:
        if self._on_trouble is not None:
            self._on_trouble(text)
        else:
            _log.log(level, "%s", text)


def _is_temporary(error: Exception) -> bool:
    if isinstance(error, ServerError):
        return error.code in _TEMPORARY
    return not isinstance(error, ProtocolMismatch)
