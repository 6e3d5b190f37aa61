"""QueueClient: bucker's client, with a method for each operation.

A call goes from the method through `drive`, which takes the requests of its generator (`calls`), to `_exchange` here,
which lends the connection to one request at a time, and to `Connection.answer`, which sends it and reads.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from qs_schemas import CLIENT_LIMITS, Error, GetMessage, Message, Ping, ReleaseMessage, Subscribe
from qs_schemas.serializing import check_lengths

from . import calls, claim_calls, policy_calls
from .acknowledgements import Acknowledgements
from .asking import Call, Exchange, copy_signature, drive
from .bounds import seconds as checked_seconds
from .calls import Pages, Received, Subscribing
from .connection import Connection, open_connection
from .deliveries import Begun, Deliveries
from .errors import Ended, NoAnswer, ServerError, ServerUnavailable, always_closes, closes, exception_for
from .handling import Extender, Handling
from .lifetimes import call_after_fork
from .pipeline import Pipeline
from .place import Place, endpoint
from .security import Tls, Token
from .settings import Settings
from .skimming import may_hold_messages, releases_of
from .turns import Turn
from .waiting import LINGER, Lease, Pending, Subscription

P = ParamSpec("P")
T = TypeVar("T")

_PIECE = 0.05
"""Seconds of the pieces of a wait for another thread's turn, which may end what is waited for."""


def _method(call: Callable[P, Call[T]]) -> "Callable[Concatenate[QueueClient, P], T]":
    """Makes a method of a call. It returns what the call returns."""

    def method(self: "QueueClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return drive(call(*args, **kwargs), self._exchange)

    copy_signature(method, call, "QueueClient")
    return method


def _iterator(call: Callable[P, Pages[T]]) -> "Callable[Concatenate[QueueClient, P], Iterator[T]]":
    """Makes a method of a paged call. It iterates over the entries of all pages."""

    def method(self: "QueueClient", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._iterate(call(*args, **kwargs))

    copy_signature(method, call, "QueueClient")
    return method


def _subscription(call: Callable[P, Subscribing]) -> "Callable[Concatenate[QueueClient, P], Deliveries]":
    """Makes a method of a subscription. It iterates over the deliveries."""

    def method(self: "QueueClient", /, *args: P.args, **kwargs: P.kwargs) -> Deliveries:
        return Deliveries(
            *call(*args, **kwargs),
            begin=self._begin_subscription,
            next_delivery=self._next_delivery,
            end=self._end_subscription,
            confirm=self._confirm_acknowledgements,
            disconnects=lambda: self._disconnects,
        )

    copy_signature(method, call, "QueueClient", returns=Deliveries)
    return method


class QueueClient(Settings):
    """A client of a queue server. It connects when needed.

    host: a name or an address, also IPv6, alone or with a port: HOST, HOST:PORT, [IPV6]:PORT, or qs:// and one of
    these, or qss:// for TLS; port: TCP port, 9876 when neither names one; timeout: seconds for the server to answer
    (for `receive`, beyond its wait), None for no limit; tls: True to trust the system's CAs, a file or a directory of
    CAs, or an ssl.SSLContext; token: tells the server who this is, on each connection; max_document: bytes of the
    largest answer that is read. The default of 48 MiB suits a server with default limits; for a larger --max-document
    give six times that, as escaped text is up to six times as long. All but tls can be changed later; a new token or
    max_document is used from the next connection on.

    Threads may share a client, but their calls take turns: give a thread that waits long in `receive` its own. In a
    child of `os.fork` the client opens a new connection and leaves the parent's alone.

    `connect`, `send`, `recv` and `disconnect` are those of bucker's QueueClient. The other methods raise `ServerError`
    with code and type, `ServerUnavailable` (a ConnectionError) or `NoAnswer` (also a TimeoutError). After the last two
    the connection is closed, and the next call opens a new one.
    """

    # Ensures
    # 1. A connection that an exchange left early, by an error, a time-out or an interrupt, is never used again: no
    #    answer is taken for that of another request.
    # 2. Messages in an answer that the caller does not get are released, if the server answers within LINGER.
    # 3. A request is sent once. Only the calls that are safe to repeat do so, by themselves (`ask_until_answered`).
    # 4. disconnect(), wake-ups and the end of a subscription never wait for a turn of their own thread, and for that of
    #    another one only while acknowledgements are open, for a limited time: so threads and signal handlers may ask
    #    for them at any time.
    #
    # Assumes that the server answers the requests of one connection in order: a request that waits at the server delays
    # those of other threads, so each exchange has the turn until its answer has come.
    # Never reads without the turn of `_reading`, and never connects with a lock that `disconnect` needs.

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        timeout: float | None = 30.0,
        max_document: int = CLIENT_LIMITS.document,
        tls: Tls = None,
        token: str | Token | None = None,
    ) -> None:
        super().__init__(host, port, 9876, timeout, max_document, tls=tls, token=token)
        self._disconnects = 0  # calls of disconnect(): each ends the subscriptions that have begun
        self._without_reasons: set[str] = set()  # queues, see `negative_acknowledge`
        self.after_fork()
        call_after_fork(self)

    def after_fork(self) -> None:
        """Starts without a connection and with new locks, also in a child process, see `lifetimes`."""
        self._connection: Connection | None = None
        self._reading = Turn()  # of the thread in an exchange or a recv()
        self._left = False  # something was left to the thread whose turn it was, to send
        self._opening = threading.Lock()  # taken after _reading, never before
        self._extender: tuple[object, Extender] | None = None  # with the settings of its client

    def __repr__(self) -> str:
        return f"<QueueClient {endpoint(self.host, self.port)}, {'' if self.connected else 'not '}connected>"

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disconnect()

    # -- as bucker has it ---------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Tells whether a connection is open, as far as the client knows: the server may have ended it since."""
        return self._connection is not None

    def connect(self) -> None:
        """Connects, unless connected. Raises ServerUnavailable if nothing answers at host and port, Unauthorized if the
        server does not know the token. Does not wait until the server has said what it is."""
        self._opened().greet(self.timeout)

    def disconnect(self) -> None:
        """Closes the connection if it is open. A call that waits in another thread raises ServerUnavailable, and so
        does a subscription, also one that waits for a server to come back. Acknowledgements that are written and not
        confirmed get a second for that first, and another one on a new connection; then the log says how many are not
        known."""
        self._disconnects += 1
        connection = self._connection
        if connection is not None:
            for acknowledgements in connection.session.unconfirmed:
                self._confirm_within(acknowledgements, LINGER)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def send(self, message: Message) -> None:
        """Sends a message unchanged, without waiting for its answer: `recv` returns that. Connects first if needed.

        Raises ValueError when XML cannot carry a field, ServerUnavailable when the connection fails, and NoAnswer (also
        a TimeoutError) when the server does not read. After the last two the connection is closed.
        """
        connection = self._opened()
        try:
            connection.send(connection.deadline(self.timeout), message)
        except ValueError:
            raise  # nothing was sent
        except BaseException as error:  # a part may have been sent
            self._drop(connection)
            if isinstance(error, OSError):
                kind = NoAnswer if isinstance(error, TimeoutError) else ServerUnavailable
                raise kind(f"the connection to {endpoint(self.host, self.port)} broke ({error}): send again") from error
            raise

    def recv(self, timeout: float | None = None) -> Message:
        """Returns the next message of the server: an answer, a delivery, or an `Error`, which is not raised.

        timeout: seconds, None for the client's own. Raises TimeoutError (the same as socket.timeout) when nothing came,
        which leaves the connection open for a later recv(), and ServerUnavailable when the connection ended.
        """
        with self._reading.thread, self._reading.lock:
            connection = self._connection
            if connection is None:
                raise ServerUnavailable(f"not connected to {endpoint(self.host, self.port)}: call connect() first")
            deadline = connection.deadline(self.timeout if timeout is None else checked_seconds(timeout, "timeout"))
            try:
                return connection.read(connection.session.next_message, deadline=deadline)
            except BaseException as error:
                if type(error) is not TimeoutError:  # NoAnswer is one, too; after the plain one nothing is lost
                    self._drop(connection)
                raise

    # -- queues -------------------------------------------------------------------------------------------------------

    queues = _method(calls.queues)
    new_queue = _method(calls.new_queue)
    delete_queue = _method(calls.delete_queue)
    purge = _method(calls.purge)
    stats = _method(calls.stats)
    server_stats = _method(calls.server_stats)
    set_queue = _method(policy_calls.set_queue)
    queue_options = _method(policy_calls.queue_options)
    pause = _method(policy_calls.pause)
    resume = _method(policy_calls.resume)
    redrive = _method(policy_calls.redrive)
    ping = _method(calls.ping)

    # -- messages -----------------------------------------------------------------------------------------------------

    push = _method(calls.push)
    push_many = _method(calls.push_many)
    receive = _method(calls.receive)
    receive_one = _method(calls.receive_one)
    get = _method(calls.get)
    peek = _method(calls.peek)
    peek_many = _method(calls.peek_many)
    list_messages = _iterator(calls.list_messages)
    subscribe = _subscription(calls.subscribe)
    copy = _method(calls.copy)
    delete = _method(calls.delete)
    delete_many = _method(calls.delete_many)
    release = _method(calls.release)
    reject = _method(calls.reject)
    extend = _method(calls.extend)

    # -- claims and batches -------------------------------------------------------------------------------------------

    claim_messages = _method(claim_calls.claim_messages)
    get_claim = _method(claim_calls.get_claim)
    ack_claim = _method(claim_calls.ack_claim)
    release_claim = _method(claim_calls.release_claim)
    list_claims = _method(claim_calls.list_claims)
    stage_messages = _method(claim_calls.stage_messages)
    publish_staged = _method(claim_calls.publish_staged)

    def handling(self, message: Received) -> Handling:
        """`with client.handling(delivery):` deletes the message when the block ends without an exception.

        While the block runs, the message's window is extended when half of it has passed, by a thread with a connection
        of its own. When the block raises, the message is released, with the exception as its reason, if the server can
        be reached, and the exception goes on. Only Reject and Retry do not: the message becomes a dead letter at once,
        or comes again when Retry says. A message that the block itself has settled, with `delete(message)`, `release`
        or `reject`, is left alone. When the server has given the message to somebody else meanwhile, or cannot be told
        within the client's timeout that it is done, that is logged and not raised: the message is delivered again.
        """
        return Handling(message, self._extender_now(), self._exchange, self.timeout, self._without_reasons)

    def _extender_now(self) -> Extender:
        """Returns the thread that extends messages, with the present settings. A thread with earlier settings ends by
        itself."""
        # Not made anew for each message: it has a thread and a connection, which the next message can use.
        settings = self.host, self.port, self.timeout, self.security
        if self._extender is None or self._extender[0] != settings:
            other = QueueClient(self.host, self.port, timeout=self.timeout, tls=self.security.context, token=self.token)
            extender = Extender(
                lambda extension: other.extend(extension.message, visibility=extension.visibility), other.disconnect
            )
            self._extender = settings, extender
        return self._extender[1]

    def pipeline(self) -> Pipeline:
        """`with client.pipeline() as batch:` writes requests together, without waiting for each answer: `batch.push`
        and the other methods of `Pipeline` return a Result at once, whose `result()` is what the client's method
        returns or raises. When the block ends, all have been answered; then it raises the first error whose result
        nobody has asked for. At most 256 requests and 1 MiB are open: a further call waits for the oldest.

        A pipeline belongs to one thread. If the connection is lost, the open calls raise ServerUnavailable, and only
        pushes with a key are repeated.
        """
        return Pipeline(
            write=self._write,
            answer=self._answer_in_turn,
            send=self._send_written,
            drop=self._drop,
            timeout=lambda: self._timeout,
        )

    # -- requests and answers -----------------------------------------------------------------------------------------

    def _iterate(self, pages: Pages[T]) -> Iterator[T]:
        with contextlib.suppress(StopIteration):  # of `pages`, after the last page
            call = next(pages)
            while True:
                page = drive(call, self._exchange)
                yield from page
                call = pages.send(page)

    def _exchange(self, exchange: Exchange) -> Message:
        """Sends a request, and returns its answer or the server's `Error`. Raises ServerUnavailable, ValueError."""
        if exchange.pause:
            time.sleep(exchange.pause)  # without the lock: other threads make their calls meanwhile
        if exchange.lease is not None and self._acknowledge_behind(exchange.lease, exchange.request):
            return exchange.request
        with self._reading.thread, self._reading.lock:
            connection = self._connection
            if connection is None or connection.is_stale():
                connection = self._replaced(connection, exchange.request)
            # `Exchange.within` without its call, as each request of a program comes here.
            seconds = None if self._timeout is None else self._timeout + exchange.patience
            answer = self._answer(connection, connection.session.ask(exchange.request), seconds)
        if self._left:
            self._send_left()
        return answer

    def _answer(
        self, connection: Connection, pending: Pending, seconds: float | None, since: float | None = None
    ) -> Message:
        """Waits for the answer to a request that the session was asked to send. Closes the connection if no answer
        comes. since: as in `Connection.answer`."""
        try:
            answer = connection.answer(pending, seconds, since)
        except BaseException as error:  # also an interrupt: half a request may have been sent, or half an answer read
            self._leave(connection, pending, interrupted=not isinstance(error, OSError))
            raise
        if isinstance(answer, Error) and closes(answer):
            self._drop(connection)
        return answer

    def _leave(self, connection: Connection, pending: Pending, *, interrupted: bool) -> None:
        """Closes a connection on which an answer is outstanding, and releases the messages that the answer has brought
        or was to bring, if the server can be reached."""
        if not may_hold_messages(pending.request):
            self._drop(connection)
            return
        try:
            if interrupted:
                connection.last_answer(pending, LINGER)
        finally:
            self._drop(connection)
        releases = [*connection.session.releases, *releases_of(pending.request, pending.answer)]
        if releases:
            with contextlib.suppress(ServerError, OSError):  # then they come again when their window ends
                self._release_unseen(releases)

    def _release_unseen(self, releases: list[ReleaseMessage]) -> None:
        """Releases messages on a new connection: connecting and the answers have LINGER seconds in all."""
        with self._connection_for_the_rest() as (other, deadline):
            for asked in [other.session.ask(release) for release in releases]:
                other.read(other.session.answer_to, asked, deadline=deadline)

    @contextlib.contextmanager
    def _connection_for_the_rest(self) -> Iterator[tuple[Connection, float]]:
        """Yields a new connection for what a lost one has left to do, and the time until which that may take."""
        deadline = time.monotonic() + LINGER
        other = self._open(LINGER)
        try:
            yield other, deadline
        finally:
            other.close()

    def _replaced(self, stale: Connection | None, request: Message) -> Connection:
        """Returns a new connection for a request, in place of one that is known to have ended, if there is one. Raises
        ValueError before it waits in vain."""
        if stale is None:
            check_lengths(request)  # otherwise sending does it
        else:
            self._drop(stale)
        return self._opened()

    def _opened(self) -> Connection:
        """Returns the connection, opened if needed."""
        with self._opening:
            if self._connection is None:
                self._connection = self._open(self.timeout)
            return self._connection

    def _open(self, timeout: float | None) -> Connection:
        place = Place(endpoint(self.host, self.port))
        limits = replace(CLIENT_LIMITS, document=self.max_document)
        connection = open_connection(self.host, self.port, place, timeout, limits, security=self.security)
        if self.token is not None:  # nothing else is sent before the server has accepted it
            try:
                connection.authenticate(self.token, timeout)
            except BaseException:
                connection.close()
                raise
        return connection

    def _drop(self, connection: Connection) -> None:
        """Closes a connection after an error. The next call opens another one."""
        if self._connection is connection:
            self._connection = None
        connection.close(broken=True)

    # -- the steps of Pipeline ----------------------------------------------------------------------------------------

    def _write(self, request: Message) -> tuple[Connection, Pending]:
        """Asks the session to send a request. Returns the connection and the request without its answer."""
        with self._reading.thread, self._reading.lock:
            connection = self._connection
            if connection is None or connection.is_stale():
                connection = self._replaced(connection, request)
            pending = connection.session.ask(request)
        if self._left:
            self._send_left()
        return connection, pending

    def _answer_in_turn(self, connection: Connection, pending: Pending, seconds: float | None, since: float) -> Message:
        """Waits for an answer like `_answer`, when no other thread does. Other answers that came with it get to their
        requests, too."""
        with self._reading.thread, self._reading.lock:
            answer = self._answer(connection, pending, seconds, since)
            try:
                connection.route_all()
            except BaseException:
                self._drop(connection)
                raise
        if self._left:
            self._send_left()
        return answer

    def _send_written(self, connection: Connection) -> None:
        """Sends what the session has to send. An error closes the connection, and the next wait for an answer tells."""
        try:
            connection.send(connection.deadline(self._timeout))
        except TimeoutError:  # a part may have been sent
            self._drop(connection)
        except OSError:
            pass  # reading tells why the server has ended the connection
        except BaseException:
            self._drop(connection)
            raise

    # -- the steps of Deliveries --------------------------------------------------------------------------------------

    def _begin_subscription(self, request: Subscribe, acknowledgements: Acknowledgements, begun: Begun) -> None:
        """Subscribes and waits for the answer. Raises ServerError when the server refuses."""
        with self._reading.thread, self._reading.lock:
            connection = self._connection
            if connection is None or connection.is_stale():
                connection = self._replaced(connection, request)
            try:
                # A bus must not take the subscription: it would count messages as handled that nobody handles.
                connection.await_greeting(self.timeout)
            except BaseException:
                self._drop(connection)
                raise
            connection.make_wakeable()
            subscription = connection.session.subscribe(request, acknowledgements)
            begun(connection, subscription)
            answer = self._answer(connection, subscription.asked, self.timeout)
        if self._left:
            self._send_left()
        if isinstance(answer, Error):
            raise exception_for(answer)

    def _next_delivery(self, connection: Connection, subscription: Subscription) -> GetMessage | None:
        """Waits for the next delivery. Returns None when this side has ended the subscription."""
        with self._reading.thread, self._reading.lock:
            try:
                # What is left of a lost connection has gone back to its queue, and will come again.
                connection.check()
                message = connection.read(connection.session.next_delivery, subscription, deadline=math.inf)
            except Ended:
                self._confirm_end(connection, subscription)
                message = None
            except ServerError as error:
                if always_closes(error.code, error.type):
                    self._drop(connection)
                raise
            except BaseException:
                self._drop(connection)
                raise
        if self._left:
            self._send_left()
        return message

    def _end_subscription(self, connection: Connection, subscription: Subscription) -> None:
        """Ends a subscription. Does not wait while any thread reads, even this one: that thread completes the end."""
        if connection is not self._connection:  # it is closed, and the server has ended the subscription with it
            return
        connection.session.end(subscription)
        self._left = True
        if self._reading.take(partial(self._confirm_end, connection, subscription)):
            self._send_left()
        else:
            connection.wake()

    def _acknowledge_behind(self, lease: Lease, request: Message) -> bool:
        """Writes the acknowledgement of a message if nobody has to wait for its answer. Returns False if somebody has
        to."""
        connection = self._connection
        if connection is None or not connection.session.acknowledge(lease, request):
            return False
        self._left = True
        if not self._send_left():
            connection.wake()  # the thread that reads writes it
        return True

    def _send_left(self) -> bool:
        """Sends what was left to this thread while it had the turn. Returns False if it is not this thread's turn: the
        one whose turn it is comes here after it.

        So nothing is left for ever: who leaves something notes that before it finds the turn taken, and who has had
        the turn looks afterwards.
        """
        # In a turn: in a signal handler, the end of the subscription would wait for the write that it interrupts.
        return self._reading.take(self._send_in_turn)

    def _send_in_turn(self) -> None:
        self._left = False
        if (connection := self._connection) is not None:
            self._send_written(connection)

    def _confirm_acknowledgements(self, acknowledgements: Acknowledgements) -> None:
        """Waits until the acknowledgements of a subscription that has ended are confirmed, as `_confirm_within` does,
        up to the client's time-out."""
        self._confirm_within(acknowledgements, self._timeout)

    def _confirm_within(self, acknowledgements: Acknowledgements, seconds: float | None) -> None:
        """Waits until acknowledgements are confirmed: on their connection, by another thread if it is its turn, or on a
        new one. Logs what is not known in the end. Does nothing in the middle of this thread's own turn, as in a signal
        handler: the end of the loop does it.

        seconds: for the turn of this thread, and for the answers, None for no limit.
        """
        if self._reading.is_mine:
            return
        until = math.inf if seconds is None else time.monotonic() + seconds
        # In pieces, as the thread whose turn it is may read the answers.
        while acknowledgements.last is not None and (left := until - time.monotonic()) > 0:
            if self._reading.take(partial(self._await_in_turn, acknowledgements, seconds), min(left, _PIECE)):
                break
        if acknowledgements.last is not None:
            with contextlib.suppress(ServerError, OSError), self._connection_for_the_rest() as (other, deadline):
                other.session.acknowledge_again(acknowledgements)
                if (last := acknowledgements.last) is not None:
                    other.read(other.session.answer_to, last, deadline=deadline)
        acknowledgements.finish()
        if self._left:
            self._send_left()

    def _await_in_turn(self, acknowledgements: Acknowledgements, seconds: float | None) -> None:
        connection = self._connection
        if connection is not None and acknowledgements in connection.session.unconfirmed:
            self._await_last(connection, acknowledgements, seconds)

    def _await_last(self, connection: Connection, acknowledgements: Acknowledgements, seconds: float | None) -> None:
        """Waits until all acknowledgements are answered, if the server can be reached."""
        with contextlib.suppress(ServerError, OSError):
            if (last := acknowledgements.last) is not None:
                self._answer(connection, last, seconds)

    def _confirm_end(self, connection: Connection, subscription: Subscription) -> None:
        """Waits until the server has ended the subscription, and releases the messages that came until then, if the
        server can be reached."""
        if connection is self._connection and (asked := subscription.ending) is not None:
            with contextlib.suppress(ServerError, OSError):
                self._answer(connection, asked, self.timeout)
                # A connection that ends before this is answered could end before they are read.
                if subscription.released:
                    subscription.released = False
                    self._answer(connection, connection.session.ask(Ping()), self.timeout)
