"""BusClient: messages of a bus in a plain loop. `bus_session` has the logic of a subscription."""

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Generic, Literal, Protocol, Self, TypeAlias, TypeVar

from qs_schemas import CLIENT_LIMITS, DeleteMessage, GetMessage, Limits, ReleaseMessage, Subscribe

from .asking import checked_reason, queue_names
from .bounds import condition, seconds, whole
from .bus_session import BusSession, Connect, Deliver, Pause, Read, Ready, Send, Step, Steps
from .connection import Connection, open_connection
from .errors import OtherProcess, ServerError, Unexpected
from .lifetimes import Closing, call_after_fork
from .place import BusPlace, Place, endpoint
from .security import Tls, Token
from .session import Session
from .settings import Settings


class Settling(Protocol):
    """A subscription that may have a message in hand: BusMessages or AsyncBusMessages."""

    def settle(self, message: GetMessage, request: DeleteMessage | ReleaseMessage) -> bool:
        """Sends the request if the message is in hand in this subscription. Tells whether it was."""


S = TypeVar("S", bound=Settling)
Match: TypeAlias = Literal["pattern"]
"""The ways in which the queues of a subscription may be given, other than by their names."""


class Bus(Settings, Generic[S]):
    """The base of both bus clients, which document the arguments. It knows the subscriptions that are open, to find the
    one that has a message in hand, and to end them all."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        timeout: float | None = 30.0,
        max_document: int = CLIENT_LIMITS.document,
        tls: Tls = None,
        token: str | Token | None = None,
        reconnect: bool = True,
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(host, port, 9878, timeout, max_document, tls=tls, token=token)
        self.reconnect = reconnect
        self.on_trouble = on_trouble
        self._open: weakref.WeakSet[S] = weakref.WeakSet()  # weak: a loop that was left by `break` ends there

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {endpoint(self.host, self.port)}>"

    @property
    def place(self) -> Place:
        """Returns the address of the bus, with the errors about it."""
        return BusPlace(endpoint(self.host, self.port), client=type(self).__name__)

    @property
    def limits(self) -> Limits:
        """Returns the bounds of what is read."""
        return replace(CLIENT_LIMITS, document=self.max_document)

    def _session(
        self,
        queues: str | Iterable[str],
        *,
        ack: bool,
        prefetch: int | None,
        name: str | None,
        where: str | None,
        match: Match | None,
    ) -> BusSession:
        if match not in (None, "pattern"):
            raise ValueError(f"match is 'pattern' if the queues are patterns, else None, not {match!r}")
        request = Subscribe(
            queues=queue_names(queues),
            prefetch=whole(prefetch, "prefetch", 1),
            ack="client" if ack else None,
            name=name,
            where=where,
            match=match,
        )
        condition(request.where, "where")
        if not request.queues:
            raise ValueError("the queues to subscribe to are missing: name at least one")
        return BusSession(
            request,
            self.place,
            token=self.token,
            timeout=self.timeout,
            reconnect=self.reconnect,
            on_trouble=self.on_trouble,
        )

    def _added(self, messages: S) -> S:
        self._open.add(messages)
        return messages

    def _release(self, message: GetMessage, delay: float | None, *, count: bool, reason: str | None) -> None:
        delay = seconds(delay, "delay")
        reason = checked_reason(reason)
        release = ReleaseMessage(message.qid, message.mid, delay=delay, uncounted=not count, reason=reason)
        self._settle(message, release)

    def _settle(self, message: GetMessage, request: DeleteMessage | ReleaseMessage) -> None:
        # The message does not say which subscription it is of. Only that one sends anything, and ends the search.
        any(each.settle(message, request) for each in list(self._open))


class BusMessages(Closing):
    """Iterates over the messages of a subscription. It ends with `close()`, also in another thread, at the end of its
    `with` block, or when it is no longer referenced, as after a `break`."""

    # Drives the steps of a `BusSession`.
    # Ensures
    # 1. The connection is closed when the iterator ends, whatever ends it, and what was acknowledged is confirmed
    #    first, as the bus would deliver it again: within LINGER, and if no other thread iterates.
    # 2. An error that it raises ends it, as its steps cannot go on.
    # 3. In a child of a fork it hands out nothing, and leaves the parent's connection alone.
    #
    # Assumes one thread at a time that iterates; `close` and `settle` may be called by others.

    def __init__(self, bus: "BusClient", session: BusSession) -> None:
        self._bus = bus
        self._session = session
        self._steps = session.steps()
        self._connection: Connection | None = None
        self._deadline = math.inf  # of the current Read
        self._closed = threading.Event()
        self._running = self._inherited = False
        call_after_fork(self)

    def after_fork(self) -> None:
        """Ends the iterator in a child process, see `lifetimes`."""
        self._inherited = True
        self._closed = threading.Event()  # the old event's lock may be held by a thread of the parent
        self._closed.set()
        self._session.abandon()
        self._connection = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GetMessage:
        if self._inherited:
            raise OtherProcess
        try:
            step = self._run(self._steps, Deliver)
        except BaseException:
            self.close()
            raise
        if not isinstance(step, Deliver):
            raise StopIteration
        return step.message

    def open(self, *, patient: bool = False) -> None:
        """Connects and subscribes now, instead of when the first message is asked for.

        Raises every error, whatever `reconnect` says: ServerUnavailable when there is no bus, ServerError when it
        refuses, NoAnswer when it has not taken the subscription within the client's timeout. patient: wait for that
        without a timeout.
        """
        if self._inherited:
            raise OtherProcess
        if not self._session.subscribed:
            try:
                with self._session.without_reconnect(patient=patient):
                    self._run(self._steps, Ready)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Ends the subscription; a loop that waits in another thread ends. First waits, one second at most, until the
        bus has confirmed the acknowledgements. Unacknowledged messages are delivered again."""
        if self._closed.is_set():
            return
        if not self._running:  # else a thread is inside the steps, or this is a signal handler in one of its reads
            with contextlib.suppress(ServerError, OSError, Unexpected):
                self._run(self._session.last_steps())
        self._closed.set()
        self._disconnect()

    def settle(self, message: GetMessage, request: DeleteMessage | ReleaseMessage) -> bool:
        """Sends the request if the message is in hand here, and does not wait for the answer. Tells whether it was in
        hand."""
        settled = self._session.settle(message, request)
        if settled and self._connection is not None:
            with contextlib.suppress(OSError):  # the loop will get the error
                self._connection.send(self._connection.deadline(self._bus.timeout))
        return settled

    def _run(self, steps: Steps, stop: type[Step] | None = None) -> Step | None:
        """Takes steps until one of type `stop`, and returns that step. Returns None at the end of the steps, or when
        the iterator was closed."""
        session: Session | None = None
        failure: OSError | None = None
        self._running = True
        try:
            while not self._closed.is_set():
                step = steps.send(session) if failure is None else steps.throw(failure)
                if stop is not None and isinstance(step, stop):
                    return step
                session = failure = None
                try:
                    session = self._perform(step)
                except OSError as error:
                    failure = error
        except StopIteration:
            pass
        finally:
            self._running = False
            if self._closed.is_set():
                self._disconnect()
        return None

    def _perform(self, step: Step) -> Session | None:
        connection = self._connection
        match step:
            case Connect():
                bus = self._bus
                self._connection = open_connection(
                    bus.host, bus.port, bus.place, bus.timeout, bus.limits, security=bus.security
                )
                return self._connection.session
            case Pause(span):
                self._disconnect()
                self._closed.wait(span)
            case Send() if connection is not None:
                connection.send(connection.deadline(self._bus.timeout))
            case Read(span, going_on) if connection is not None:
                if not going_on:  # else the deadline of the Read before holds
                    self._deadline = connection.deadline(span)
                connection.fill(self._deadline)
        return None

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        self.close()


class BusClient(Bus[BusMessages], Closing):
    """Messages of a bus as they come: `for message in bus.subscribe("orders", ack=True):`.

    Each subscription has a connection of its own, opened when the first message is asked for, and again after every
    outage. A refusal, as of a queue that the bus does not know, raises a ServerError.

    host, port, tls, token: of the bus, as for QueueClient, and the usual port is 9878; timeout: seconds for connecting
    and subscribing, None for no limit; max_document: bytes of the largest document that is read; reconnect: False to
    raise errors of the connection instead; on_trouble: gets the lines that are logged otherwise: when an outage begins,
    when it is over, and when the bus has not taken the subscription after 1.5 s.
    """

    def subscribe(
        self,
        queues: str | Iterable[str],
        *,
        ack: bool = False,
        prefetch: int | None = None,
        name: str | None = None,
        where: str | None = None,
        match: Match | None = None,
    ) -> BusMessages:
        """Iterates endlessly over the messages of one queue or several.

        ack: a message is acknowledged when the loop asks for the next one, unless delete() or release() was called for
        it; a `break` or an exception leaves it unacknowledged, and it is delivered again, to this client or another.
        Without ack, a message counts as handled once the bus has written it. prefetch: how many unacknowledged messages
        the bus sends ahead; name: of a durable subscription: its members share the messages, which are kept while no
        member is connected.

        where: a condition over the XML of the payload and the headers, of 1 to 1024 characters, as in
        "/order[@priority='high']/total > 100" or "$header-region = 'eu'". A message that does not match is not sent
        here, and counts as handled. match: "pattern" if the queues are patterns: `*` stands for any characters, `?` for
        one, and queues that appear later belong to the subscription.

        The first message raises BadRequest if the bus cannot use the condition, with the position where it goes wrong;
        Conflict if the name has another condition; NotFound if the bus does not monitor a queue.
        """
        session = self._session(queues, ack=ack, prefetch=prefetch, name=name, where=where, match=match)
        return self._added(BusMessages(self, session))

    def delete(self, message: GetMessage) -> None:
        """Acknowledges the message in hand before the loop asks for the next one. Does not wait for the answer.

        Does nothing when the message is no longer in hand: it is acknowledged already, or its connection has ended and
        it will be delivered again. Raises ValueError if the subscription has no ack.
        """
        self._settle(message, DeleteMessage(message.qid, message.mid))

    def release(
        self, message: GetMessage, *, delay: float | None = None, count: bool = True, reason: str | None = None
    ) -> None:
        """Releases the message in hand: it is delivered again after delay seconds; without one after the queue's
        backoff, or now. Otherwise like `delete`.

        count: False takes this receive back, for a consumer that did not try: the message comes no closer to a
        dead-letter queue. reason: why, at most 1 KiB of UTF-8; the server keeps it with the message if its storage can.
        """
        self._release(message, delay, count=count, reason=reason)

    def close(self) -> None:
        """Ends all subscriptions. Loops that wait in other threads end."""
        for messages in list(self._open):
            messages.close()
