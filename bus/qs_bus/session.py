"""Handles the requests, acknowledgements and subscriptions of one client of the bus.

`Broker` describes the bus as its connections use it, so that this module need not import the bus.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import trio

from qs_schemas import Error, Fault, Figure, ListQueues, Message, Peer, Subscribe, errors
from qs_serving.access.caller import Caller, NotAllowedError
from qs_serving.answers import new_resp
from qs_serving.connection import Connection
from qs_serving.figures import RequestCounts
from qs_serving.options import ServerLimits
from qs_serving.strangers import PIECE, Strangers
from qs_serving.timers import Timers

from .conditions import BadCondition, Condition
from .feeds import HeldMessage
from .operations import WAITING, operation_of
from .options import BusOptions
from .patterns import compiled
from .rights import RefusedError, Rights
from .subscription import DeliveryCounts, Subscription

SILENCE = 0.25
"""Seconds after which a client that has sent nothing is subscribed to every queue that it may read."""
_DOUBT = 5
"""Further seconds in which such a client may still turn out to be slow: its messages until then go back to their queues
when it sends something."""
_ANSWERS = (None, None)
"""Marks an outbox entry that is an answer, in place of the subscription and message of a delivery."""
_NO_ACCESS_FILE = "this bus has no access file: connect without a token, or start the bus with --access FILE"
_GROUP = 256
"""The most requests that are handled before other connections are served."""


@dataclass(slots=True)
class _Group:
    """Holds requests that are answered together. documents: the documents of the answers, and of answers that were
    counted before; since: the time at which the first of the requests was taken up."""

    documents: list[bytes]
    requests: list[Message | Fault] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)
    since: float = field(default_factory=perf_counter)


class Broker(Protocol):
    """Describes the bus, as its connections use it."""

    @property
    def options(self) -> BusOptions:
        """The options of the bus."""

    @property
    def counts(self) -> RequestCounts:
        """The counts of all clients' requests, and of their durations."""

    @property
    def strangers(self) -> Strangers:
        """The clients that have given no valid credential."""

    @property
    def delivery_counts(self) -> DeliveryCounts:
        """The counts of messages that were sent to subscribers."""

    @property
    def timers(self) -> Timers:
        """Calls functions at a later time."""

    @property
    def server_name(self) -> str:
        """HOST:PORT of the queue server."""

    async def subscribe(
        self, session: BusSession, subscription: Subscription, qids: list[str], answer: Message
    ) -> None:
        """Subscribes a client to queues. May wait for the queue server.

        answer: the answer to send before any message, see `BusSession.begin`. Raises RefusedError.
        """

    def review(self, session: BusSession) -> None:
        """Ends the subscriptions that a client may no longer have, and adds to a silent client the queues that it may
        read now."""

    def subscribe_silent(self, session: BusSession, subscription: Subscription) -> None:
        """Subscribes a client that has sent nothing to every queue that is monitored now or later."""

    def leave(self, session: BusSession) -> None:
        """Ends all subscriptions of a client. The feeds no longer wait for messages that the client has not handled."""

    def figures(self, connections: bool) -> list[Figure]:
        """Returns the figures of the bus. connections: True to include those of each connection."""

    def log_slow(self, text: str) -> None:
        """Logs why a slow client is disconnected."""


class BusSession:
    """Answers one client's requests and sends the messages of its subscriptions. Implements
    `qs_serving.connection.Session`.

    Ensures that requests are answered in their order, and that the answer to a subscription comes before its messages.
    A request that has to ask the queue server is a task of its own; all others are answered at once. A session must
    never hold messages back for requests: messages go to the outbox as they come."""

    stopping_text = "the bus is stopping; connect again later"

    __slots__ = (
        "_bus", "_caller", "_closes", "_connection", "_counts", "_has_more", "_has_sent", "_is_running", "_limits",
        "_outbox", "_peer", "_silent", "_tasks", "_turn", "_wait", "acknowledged", "rights", "server_name",
        "subscriptions", "timers",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection[BusSession],
        peer: Peer,
        bus: Broker,
        *,
        limits: ServerLimits,
        tasks: trio.Nursery,
        caller: Caller | None,
    ) -> None:
        """tasks: the nursery for requests that wait for the queue server; caller: the client's identity, None without
        an access file."""
        self.rights = Rights(caller)
        self.subscriptions: list[Subscription] = []
        self.acknowledged: dict[Subscription, list[HeldMessage]] = {}
        self.timers, self.server_name = bus.timers, bus.server_name
        self._connection = connection
        self._outbox = connection.outbox
        self._peer = peer
        self._bus = bus
        self._counts = bus.counts
        self._limits = limits
        self._tasks = tasks
        self._caller = caller
        self._wait: trio.CancelScope | None = None  # cancels the request that waits for the queue server
        self._turn: object | None = None  # waits for the requests of others
        self._is_running = self._has_more = False  # see `run`
        self._has_sent = False
        self._closes = False  # the client has been told that the connection ends
        self._silent: Subscription | None = None  # the subscription of a client that has sent nothing

    @property
    def subscription_count(self) -> int:
        return len(self.subscriptions)

    # -- a client that sends nothing ------------------------------------------------------------------------------

    @property
    def patience(self) -> float | None:
        """Seconds for which the client may send nothing before `silent` is called, None for any time."""
        if self._has_sent:
            return None
        if self._silent is None:
            return SILENCE
        return _DOUBT if self._silent.doubtful else None

    def heard(self) -> None:
        """Notes that the client has sent something. If it had been subscribed as a silent client, ends that
        subscription: the client was only slow."""
        self._has_sent = True
        if self._silent is not None:
            self._silent = None
            self._bus.leave(self)

    def silent(self) -> None:
        """Subscribes a client that has sent nothing to every queue. The second time, notes that the client only
        listens."""
        if self._silent is None:
            self._silent = self.new_subscription(None, ack=False, asked=False)
            self._bus.subscribe_silent(self, self._silent)
        else:
            self._silent.confirm_silent()

    # -- requests -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Implements `qs_serving.connection.Session.run`. Handles `_GROUP` requests at most before the requests of
        others."""
        if self._is_running:  # `answered` has found more requests: the loop below takes them up
            self._has_more = True
            return
        self._is_running, left = True, _GROUP
        try:
            while left > 0:
                self._has_more = False
                left -= self._handle(left)
                if not self._has_more:
                    return
        finally:
            self._is_running = False
        self._turn = turn = object()
        self._tasks.start_soon(self._let_others_run, turn)

    def _handle(self, most: int) -> int:
        """Handles requests up to one that has to wait. Returns their number, `most` at most."""
        group, requests = _Group([]), self._connection.requests
        count = 0
        try:
            while requests and count < most and not self._closes and not self._connection.is_closing:
                event = requests.popleft()
                count += 1
                if isinstance(event, Fault):
                    self._add(group, event, event.message(new_resp()))
                    self._closes = event.error.closes
                elif type(event) in WAITING:
                    self._send(group)  # earlier answers go before the messages of a subscription
                    self._wait = trio.CancelScope()
                    self._tasks.start_soon(self._answer_later, event, self._wait)
                    self._connection.pause()
                    return count
                else:
                    self._add(group, event, self.answer_to(event))
        finally:  # in any case: a message that is not reported would stay in flight
            self.report_acknowledged()
        if self._closes:
            self._send_no_more()
        self._send(group)
        unsent = self._outbox.unsent
        if self._closes:
            self._connection.answered(closes=True)
        elif unsent > 2 * PIECE and (unsent > 2 * self._limits.outbox or not self._connection.may_stay):
            self._connection.await_socket()  # the client sends requests and does not read the answers
        elif requests and not self._connection.is_closing:
            self._has_more = True
        else:
            self._connection.answered()
        return count

    def report_acknowledged(self) -> None:
        """Reports what the client has acknowledged with the requests of one group: once for each subscription."""
        if self.acknowledged:
            acknowledged, self.acknowledged = self.acknowledged, {}
            for subscription, messages in acknowledged.items():
                subscription.acknowledged(messages)

    async def _let_others_run(self, turn: object) -> None:
        """Goes on in the next pass of the loop. Meanwhile nothing is read from the client."""
        await trio.lowlevel.checkpoint()
        if self._turn is turn:
            self._turn = None
            self._connection.attempt(self.run)

    def _after_wait(self, wait: trio.CancelScope) -> None:
        """Takes up the next requests after a wait, unless all have been abandoned meanwhile."""
        if self._wait is wait:
            self._wait = None
            self._connection.attempt(self._take_up)
        else:  # a subscription of the last moment ends like all others
            self._send_no_more()

    def _take_up(self) -> None:
        self._connection.end_pause()
        if self._closes:
            self._send_no_more()
            self._connection.answered(closes=True)
        else:
            self.run()

    def interrupt(self) -> None:
        """Implements `qs_serving.connection.Session.interrupt`."""
        if self._wait is not None:
            self._wait.cancel()

    def abandon(self) -> None:
        """Implements `qs_serving.connection.Session.abandon`, and sends nothing more to the client."""
        wait, self._wait, self._turn = self._wait, None, None
        if wait is not None:
            wait.cancel()
        self._send_no_more()

    def _add(self, group: _Group, request: Message | Fault, answer: Message) -> None:
        group.requests.append(request)
        group.answers.append(answer)
        group.documents.append(self._peer.send(answer))

    def _send(self, group: _Group) -> None:
        if any(group.documents):
            self._outbox.put(b"".join(group.documents), _ANSWERS)
        self._counts.answered(group.requests, group.answers, perf_counter() - group.since)

    def answer_to(self, request: Message) -> Message:
        """Returns the answer to a request whose operation does not wait."""
        try:
            answer: Message = operation_of(request, self).handler(self, request)
        except (RefusedError, NotAllowedError) as error:
            return _error(request, error)
        answer.answers(new_resp(), request.req)
        return answer

    async def _answer_later(self, request: Message, wait: trio.CancelScope) -> None:
        """Runs an operation that waits, and puts the answer into the outbox, unless the operation has sent the answer
        itself before the first message. Sends no answer if the wait is cancelled, because the client goes or is
        dismissed."""
        since = perf_counter()
        try:
            answer: Message | None = request
            with wait:
                answer = await operation_of(request, self).handler(self, request)
            if wait.cancelled_caught:
                self._after_wait(wait)
                return
        except (RefusedError, NotAllowedError) as error:
            self._closes = error.error.closes
            answer = _error(request, error)
            if isinstance(error, NotAllowedError):
                since += error.delay  # a deliberate delay does not count as duration
        except Exception as error:  # the error concerns this client alone
            self._connection.fail(error)
            return
        self._counts.answered([request], [answer or request], perf_counter() - since)
        if answer is not None and self._wait is wait:  # else the client has been told that the connection ends
            if not isinstance(answer, Error):
                answer.answers(new_resp(), request.req)
            self._outbox.put(self._peer.send(answer), _ANSWERS)
        self._after_wait(wait)

    # -- subscribing ----------------------------------------------------------------------------------------------

    async def subscribe(self, request: Subscribe | ListQueues, qids: list[str], answer: Message) -> None:
        """Subscribes the client to queues, and sends the answer before the first message. Raises RefusedError."""
        options: dict[str, Any] = {"ack": False}
        if isinstance(request, Subscribe):
            options = {"ack": request.ack == "client", "prefetch": request.prefetch, "name": request.name}
            options["condition"] = _condition_of(request)
            if request.match is not None:
                options["owner"], options["patterns"] = self.rights.owner, compiled(qids)
        answer.answers(new_resp(), request.req)
        subscription = self.new_subscription(request.req, **options)
        await self._bus.subscribe(self, subscription, list(dict.fromkeys(qids)), answer)

    async def authenticate(self, token: str) -> str:
        """Makes the client the principal of a token, and returns its name. Raises RefusedError, NotAllowedError."""
        if self._caller is None:
            raise RefusedError(errors.NOT_IMPLEMENTED, _NO_ACCESS_FILE)
        try:
            name = self._caller.authenticate(token)
        except NotAllowedError as error:
            self.rights_changed()
            await trio.sleep(error.delay)
            raise
        self.rights_changed()
        return name

    def figures(self, connections: bool) -> list[Figure]:
        """Returns the figures of the bus. connections: also those of each connection."""
        return self._bus.figures(connections)

    def rights_changed(self) -> None:
        """Ends what the client may not have any more. Called when its principal has changed, or the access file has
        been read again."""
        self._bus.review(self)

    def new_subscription(
        self,
        req: str | None,
        *,
        ack: bool,
        asked: bool = True,
        **options: Any,
    ) -> Subscription:
        """Makes a subscription. options: see `Subscription`."""
        return Subscription(
            self._outbox,
            self._peer,
            self._bus.options,
            self._too_slow,
            self._bus.delivery_counts,
            req=req,
            ack=ack,
            asked=asked,
            **options,
        )

    def begin(self, subscription: Subscription, answer: Message | None) -> None:
        """Adds a subscription. answer: the answer to send before any message of the subscription."""
        if answer is not None:
            # Serialized only now: requests that came meanwhile may tell how the client's documents end.
            self._outbox.put(self._peer.send(answer), _ANSWERS)
        self.subscriptions.append(subscription)

    def end(self, subscription: Subscription, fault: Fault) -> None:
        """Removes a subscription that is over, and tells the client why."""
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            self._outbox.put(self._peer.send(fault.message(new_resp())), _ANSWERS)

    def _send_no_more(self) -> None:
        """Stops sending messages, when this side ends the connection. While the bus is stopping, messages that are
        being sent still count as delivered."""
        for subscription in self.subscriptions:
            subscription.ending = True
        if not self._connection.is_stopping:
            self._bus.leave(self)

    def _too_slow(self, bound: str, text: str) -> None:
        if not self._connection.is_refused:
            self._bus.delivery_counts.disconnected[bound] += 1
            self._bus.log_slow(text)
            self._connection.dismiss(errors.TOO_MANY, text)

    def written(self, token: Any) -> None:
        """Implements `qs_serving.connection.Session.written`. token: `_ANSWERS`, or a subscription and its message."""
        if token is not _ANSWERS:
            subscription, record = token
            subscription.written(record)
        for each in self.subscriptions:  # all of them share the outbox
            each.pump()

    def leave(self) -> None:
        """Ends all subscriptions, when the client has gone or should get no more messages."""
        if self._connection.has_ended and self._silent is not None:
            self._silent.confirm_silent()
        for subscription in self.subscriptions:
            subscription.leave()
        self.subscriptions.clear()


def _condition_of(request: Subscribe) -> Condition | None:
    """Returns the condition of a request. Raises RefusedError, whose text tells what is wrong with it where."""
    if request.where is None:
        return None
    try:
        return Condition(request.where)
    except BadCondition as error:
        raise RefusedError(errors.BAD_REQUEST, f"the condition in 'where' is not valid: {error}") from None


def _error(about: Message, error: RefusedError | NotAllowedError) -> Error:
    return Fault(error.error, str(error), about.req).message(new_resp())
