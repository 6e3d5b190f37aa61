"""One connection of the async clients, over anyio: a wire, its session, and which of many tasks reads and writes."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from qs_schemas import CLIENT_LIMITS, Error, GetMessage, Limits, Message

from .asking import Call, Exchange, drive_async
from .async_wire import AsyncWire
from .errors import ServerUnavailable, Unexpected, closes
from .lifetimes import call_after_fork
from .place import Place
from .session import Session
from .skimming import may_hold_messages, releases_of
from .waiting import FRESH, LINGER, Pending, Subscription, Waitable

T = TypeVar("T")

_IN_A_ROW = 4
"""Reads before other tasks run: otherwise a server that sends fast enough would keep the event loop busy."""


def _deadline(seconds: float | None) -> float:
    return math.inf if seconds is None else anyio.current_time() + seconds


class _Condition(Waitable):
    """A condition that can be waited for. Call `changed` whenever it may have become true."""

    __slots__ = ("_condition",)

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__()
        self._condition = condition

    @property
    def ready(self) -> bool:
        return self._condition()

    def changed(self) -> None:
        self._has_come()


class AsyncConnection:
    """The socket and the session of an async client, for any number of tasks.

    It has no task of its own: a client is made and used without a task group. The first task that waits for something
    reads for all (the leader); others follow, and one of them takes over when the leader is done or cancelled.

    Ensures
    1. A call may be cancelled at any moment: other calls go on, no incomplete document is sent, and messages in its
       answer are released when that comes.
    2. A call that times out leaves the connection to the others, unless no whole answer came from the server meanwhile.
    3. When the connection ends, each task that waits gets an error of its own, with the reason.
    4. Only the leader waits for the socket, and it closes the descriptor if the connection ends meanwhile.

    Assumes one event loop, and the same one for the life of the connection.
    Never reconnects and never repeats a request.
    """

    def __init__(self, wire: AsyncWire, place: Place, limits: Limits = CLIENT_LIMITS) -> None:
        """wire: connected, owned by the connection; place: for error texts."""
        self.session = Session(limits, place.program)
        self._wire = wire
        self._place = place
        self._greeting_lock = anyio.Lock(fast_acquire=True)
        self._all_sent = _Condition(lambda: not self._wire.unsent)
        self._reads = 0  # reads that got bytes
        self._heard_at = -math.inf  # when bytes have come last
        self._documents = 0  # documents read
        self._reads_seen = 0  # reads that `more` has reported
        self._failure: ServerUnavailable | None = None
        self._retired = False
        self._in_a_row = 0  # reads since the last wait
        self._users = 0  # tasks inside _until
        self._leading = False
        self._roused: anyio.Event | None = None  # set when `watched` has something to do
        self._followers: dict[anyio.Event, None] = {}  # in order of arrival
        call_after_fork(self)

    def after_fork(self) -> None:
        """Closes the socket in a child process, see `forks`."""
        if self._failure is None:
            self._failure = self._place.closed()
        self._wire.close()

    # -- the connection's life ----------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Tells whether calls may be made: the connection is open, and nothing indicates that it will end soon."""
        return self._failure is None and not self._retired

    def is_stale(self) -> bool:
        """Tells whether the server has closed the connection, or is about to, without owing an answer. Within FRESH of
        the last bytes it does not look at the socket, as in `Connection.is_stale`."""
        if self._users or self.session.may_get_unasked:
            return False  # the task that reads will notice
        if self._failure is None and time.monotonic() - self._heard_at < FRESH:
            return False
        while self._failure is None:
            if not self.session.awaits_answer:
                return self._wire.has_input()  # the stream has ended, or unexpected data has come
            if not self._pull():
                return False
            self.flush()
        return True

    def give_up_after(self, seconds: float) -> None:
        """Treats the connection as lost when the other side acknowledges no sent bytes for these seconds, instead of
        the system's 15 minutes. Do not use it for a server that may stop reading for longer. Linux only."""
        self._wire.give_up_after(seconds)

    def retire(self) -> None:
        """Refuses further calls, and closes the connection when no task waits on it."""
        self._retired = True
        if not self._users:
            self.close(broken=True)

    def close(self, *, broken: bool = False) -> None:
        """Ends the connection at once. Tasks that wait on it get Disconnected, or with `broken` ServerUnavailable: then
        the program did not ask for the end."""
        self._fail(self._place.given_up() if broken else self._place.closed())

    def _fail(self, failure: ServerUnavailable) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self._wire.shut_down()  # wakes the leader
        self._rouse()
        for event in self._followers:
            event.set()
        self._close_unless_read()

    def _close_unless_read(self) -> None:
        """Closes the socket, unless the leader waits on it: then the leader closes it, so that no other file gets the
        descriptor's number while the leader waits."""
        if self._failure is not None and not self._leading:
            self._wire.close()

    def _check(self) -> None:
        if self._failure is not None:  # raised anew for each task: a traceback belongs to one of them
            raise type(self._failure)(*self._failure.args) from self._failure.__cause__

    # -- what is done with it -----------------------------------------------------------------------------------------

    async def exchange(
        self,
        exchange: Exchange,
        timeout: float | None,  # noqa: ASYNC109
        *,
        alone: bool = False,
    ) -> Message:
        """Sends a request and returns its answer, an `Error` too. May be cancelled at any time.

        timeout: seconds, beyond the exchange's patience; None for no limit; alone: the connection is used for nothing
        else, and not again when this is left early, see `answer_or_release`.

        Raises NoAnswer on a timeout: the connection stays usable, unless no whole answer came meanwhile. Raises
        ServerUnavailable if the connection fails, ValueError if XML cannot carry a field; then nothing is sent.
        """
        await checkpoint_if_cancelled()
        self._check()
        seconds = exchange.within(timeout)
        wait_for = self.answer_or_release if alone else self.answer
        return await wait_for(self.session.ask(exchange.request), seconds)

    async def await_greeting(self, timeout: float | None) -> None:  # noqa: ASYNC109
        """Waits until the other side has said which program it is. Raises WrongProgram; ServerError if it ends the
        connection. timeout: as in `exchange`."""
        greeting = self.session.greeting
        if greeting is None:
            return
        async with self._greeting_lock:  # one task at a time can wait for the same answer
            if not greeting.ready:
                await self.answered(greeting, _deadline(timeout), timeout)
        self._check_program()

    def _check_program(self) -> None:
        """Raises WrongProgram or ServerError if the answer to the greeting says so."""
        try:
            self.session.check_program()
        except Unexpected as error:
            self._fail(self._place.protocol_error(error))
            self._check()

    async def call(self, call: Call[T], timeout: float | None) -> T:  # noqa: ASYNC109
        """Makes a call of `calls` and returns its value. timeout: for each of its exchanges, as in `exchange`."""
        return await drive_async(call, lambda wanted: self.exchange(wanted, timeout))

    async def answer(self, pending: Pending, seconds: float | None) -> Message:
        """Returns the answer to a request that the session was asked to send. Otherwise like `exchange`."""
        try:
            return await self.answered(pending, _deadline(seconds), seconds)
        except BaseException as error:
            dropped = self.session.drop(pending)
            self.flush()  # releases the messages of an answer that has already come
            if may_hold_messages(pending.request) and not isinstance(error, OSError):
                # A cancelled receive has messages in flight that nobody knows of: they go back before it ends.
                with anyio.move_on_after(LINGER, shield=True), contextlib.suppress(OSError):
                    await self._until(dropped, math.inf)
            raise

    async def answer_or_release(self, pending: Pending, seconds: float | None) -> Message:
        """Returns the answer, like `answer`. If the call is left early, ends the connection, so that the server stops
        waiting; messages that still come go into the session's `releases`."""
        try:
            return await self.answered(pending, _deadline(seconds), seconds)
        except BaseException as error:
            if not isinstance(error, OSError):
                self._wire.end()  # a half-closed connection ends a receive that waits at the server, with its answer
                with anyio.move_on_after(LINGER, shield=True), contextlib.suppress(OSError):
                    await self._until(pending, math.inf)
            self.session.releases += releases_of(pending.request, pending.answer)
            self.close()
            raise

    async def answered(self, pending: Pending, deadline: float, seconds: float | None) -> Message:
        """Returns the answer until a deadline on the loop's clock. May be awaited again after a cancellation, so it
        drops nothing. seconds: the original time-out, for the error text."""
        self.flush()
        greeting, understood = self.session.greeting, self._documents
        if greeting is not None and not greeting.ready:
            understood += 1  # the answer to the greeting says nothing about the request behind it
        try:
            await self._until(pending, deadline)
        except TimeoutError as error:
            if isinstance(error, ServerUnavailable):
                raise
            if self._documents <= understood:  # the server is stuck, or the network is gone without a word
                self.retire()
            raise self._place.no_answer(seconds) from None
        answer = pending.answer
        assert answer is not None  # noqa: S101 - _until has returned
        if isinstance(answer, Error) and closes(answer):
            self.retire()
        return answer

    async def delivery(self, subscription: Subscription) -> GetMessage:
        """Returns the subscription's next message. Raises ServerError if the server has ended it. One task at a time
        per subscription."""
        await checkpoint_if_cancelled()
        self._check()  # what is left of a lost connection has gone back to its queue, and will come again
        while (message := subscription.next()) is None:
            await self._until(subscription, math.inf)
        return message

    async def receive(self, seconds: float | None) -> Message:
        """Returns the next message that answers no call. Raises TimeoutError if none came. One task at a time."""
        await checkpoint_if_cancelled()
        greeting = self.session.greeting
        if greeting is not None and self.session.checks_program:  # another program would send nothing
            self.flush()
            async with self._greeting_lock:
                await self._until(greeting, _deadline(seconds))
            self._check_program()
        while (message := self.session.next_message()) is None:
            await self._until(self.session.unmatched, _deadline(seconds))
        return message

    def post(self, message: Message) -> None:
        """Sends a message unchanged and does not wait: bytes that the socket does not take are sent during a later
        read. Its answer goes to `read_from_outside` or `receive`. Raises ValueError if XML cannot carry a field."""
        self.session.post(message)
        self.flush()

    async def sent(self, seconds: float | None) -> None:
        """Waits until the system has taken all that was posted. Raises TimeoutError if that takes longer."""
        await checkpoint_if_cancelled()
        self._check()
        if self._wire.unsent:
            await self._until(self._all_sent, _deadline(seconds))
        if self._wire.cut:
            raise self._place.lost("broke the connection")

    @contextlib.contextmanager
    def read_from_outside(self, deliver: Callable[[Message], None]) -> Iterator[None]:
        """Leaves the reading to the caller within a with block: it waits for `fileno` to be readable and calls `read`,
        without a task. Other tasks may make calls meanwhile. None may be waiting when the block begins.

        deliver: is called with each message that answers no call, in order; must not raise.
        """
        while (message := self.session.unmatched.take()) is not None:
            deliver(message)
        self.session.on_unmatched = deliver
        self._users += 1
        self._leading = True
        try:
            yield
        finally:
            self.session.on_unmatched = None
            self._users -= 1
            self._leading = False
            self._close_unless_read()

    def fileno(self) -> int:
        """Returns the descriptor to wait for. It stays open until the block of `read_from_outside` ends."""
        return self._wire.fileno()

    def read(self) -> int:
        """Reads once what has come, without waiting, and passes it on. Returns the number of bytes, at least 1 at the
        end of the connection. Call `flush` after it."""
        return self._pull()

    async def broken(self) -> None:
        """Waits until the connection ends, which raises ServerUnavailable. Meanwhile sends what the socket does not
        take at once. Only inside `read_from_outside`."""
        while self._failure is None:
            if self._wire.unsent:
                await self._wire.writable()
                self._send()
            else:
                self._roused = anyio.Event()
                await self._roused.wait()
        self._check()

    def _rouse(self) -> None:
        if self._roused is not None:
            self._roused.set()
            self._roused = None

    async def more(self, deadline: float) -> None:
        """Waits until something has been read since the last return. Raises TimeoutError at the deadline, on the loop's
        clock. For a connection with a single user."""
        await checkpoint_if_cancelled()
        await self._until(_Condition(lambda: self._reads != self._reads_seen), deadline)
        self._reads_seen = self._reads

    def flush(self) -> None:
        """Sends what the session has to send, as far as the socket takes it. Does not wait."""
        if data := self.session.data_to_send():
            self._send(data)

    def _send(self, data: bytes = b"") -> None:
        self._wire.send(data)
        if self._wire.unsent:
            self._rouse()
        else:
            self._all_sent.changed()

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _until(self, waiting: Waitable, deadline: float) -> None:
        """Waits until `waiting` is ready. Raises TimeoutError at the deadline, on the loop's clock."""
        self._users += 1
        try:
            while not waiting.ready:
                self._check()
                if self._leading:
                    await self._follow(waiting, deadline)
                else:
                    await self._lead(waiting, deadline)
        finally:
            self._users -= 1
            if not self._leading and self._followers:
                next(iter(self._followers)).set()  # it looks, finds no leader and becomes it
            if self._retired and not self._users:
                self.close(broken=True)
            self._close_unless_read()

    async def _follow(self, waiting: Waitable, deadline: float) -> None:
        """Waits while another task reads."""
        event = anyio.Event()  # is set when its answer has come, when it has to lead, and when the connection ends
        self._followers[event] = None
        waiting.wake = event.set
        try:
            with anyio.CancelScope(deadline=deadline) as scope:
                await event.wait()
            if scope.cancelled_caught and not waiting.ready:
                raise self._late()
        finally:
            waiting.wake = None
            del self._followers[event]

    async def _lead(self, waiting: Waitable, deadline: float) -> None:
        """Reads for all tasks, until `waiting` is ready."""
        self._leading = True
        try:
            while not waiting.ready and self._failure is None:
                read = self._pull()
                self.flush()  # messages that are released
                if not read:
                    self._in_a_row = 0
                    if not await self._wire.wait(deadline):
                        raise self._late()
                    continue
                self._in_a_row += 1
                if self._in_a_row >= _IN_A_ROW:
                    self._in_a_row = 0
                    await checkpoint()
                    # Only `wait` knows the deadline otherwise, and a server that goes on sending keeps it from waiting.
                    if anyio.current_time() >= deadline:
                        raise self._late()
        finally:
            self._leading = False

    def _late(self) -> TimeoutError:
        return TimeoutError(f"nothing came from {self._place.name} in time")

    def _pull(self) -> int:
        """Sends and reads what is possible at once, and routes the messages. Returns the number of bytes read: 0 if
        nothing had come, at least 1 at the end of the connection."""
        if self._wire.unsent:
            self._send()
        try:
            data = self._wire.receive()
        except OSError as error:
            # Kept, not raised: each task that waits raises it, see `_check`.
            failure = self._place.broken(error, maybe_tls=self._maybe_tls)
            failure.__cause__ = error
            self._fail(failure)
            return 1
        if data is None:
            return 0
        if not data:
            self._fail(self._place.lost(self.session.end_of_data(), maybe_tls=self._maybe_tls))
            return 1
        self._reads += 1
        self._heard_at = time.monotonic()
        self.session.receive_data(data)
        try:
            # All of it, also what other tasks wait for: nobody else reads.
            while self.session.route():
                self._documents += 1
                if self.session.is_routed:
                    break
        except Unexpected as error:
            self._fail(self._place.protocol_error(error))
        return len(data)

    @property
    def _maybe_tls(self) -> bool:
        """Tells whether the other side may be a server with TLS, which waits for a handshake."""
        return not self.session.heard and not self._wire.secure
