"""AsyncBusClient: BusClient for trio and asyncio. `bus_session` has the logic of a subscription."""

import contextlib
import math
from collections.abc import Iterable
from typing import Self

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from qs_schemas import DeleteMessage, GetMessage, ReleaseMessage

from .async_connection import AsyncConnection
from .async_wire import Connecting
from .bus_client import Bus, Match
from .bus_session import BusSession, Connect, Deliver, Pause, Read, Ready, Send, Step, Steps
from .errors import OtherProcess, ServerError
from .lifetimes import AsyncClosing, call_after_fork
from .session import Session
from .waiting import LINGER


def _deadline(step: Step) -> float:
    span = step.seconds if isinstance(step, Pause | Read) else None
    return math.inf if span is None else anyio.current_time() + span


class AsyncBusMessages(AsyncClosing):
    """Iterates over the messages of a subscription.

    It ends with `aclose()`, also in another task, at the end of its `async with` block, or when it is no longer
    referenced, as after a `break`. Only one task at a time may ask for the next message. After a cancellation,
    iteration may be resumed: what was under way continues, with the same deadline. Messages that have arrived are
    handed out without waiting, so a cancellation is noticed when the iterator waits for more.
    """

    # Drives the steps of a `BusSession`, as BusMessages does, with one guarantee more: a cancelled poll loses nothing.
    # The step under way is kept with its deadline, and the attempt to connect too, as a poll shorter than a pause or a
    # handshake would never come to the end of either.

    def __init__(self, bus: "AsyncBusClient", session: BusSession) -> None:
        self._bus = bus
        self._session = session
        self._steps = session.steps()
        self._connection: AsyncConnection | None = None
        self._closed = False
        self._running = anyio.Lock(fast_acquire=True)
        self._wait_scope: anyio.CancelScope | None = None
        self._pending_step: Step | None = None  # a step to resume after a cancellation
        self._deadline = math.inf  # of the pending step
        self._attempt: Connecting | None = None  # to resume after a cancellation
        self._inherited = False
        call_after_fork(self)

    def after_fork(self) -> None:
        """Ends the iterator in a child process, see `lifetimes`."""
        self._inherited = self._closed = True
        self._session.abandon()
        self._connection = self._attempt = self._wait_scope = None
        self._running = anyio.Lock(fast_acquire=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GetMessage:
        if self._inherited:
            raise OtherProcess
        try:
            # Messages that have come are handed out without a lock or a scope: only waiting needs them.
            if not self._running.locked() and type(step := self._advance(self._steps, Deliver)) is Deliver:
                return step.message
            async with self._running:
                with anyio.CancelScope() as self._wait_scope:  # `aclose` in another task cancels it
                    step = await self._run(self._steps, Deliver)
                    if isinstance(step, Deliver):
                        return step.message
        except Exception:
            self.close()
            raise
        raise StopAsyncIteration

    async def open(self, *, patient: bool = False) -> None:
        """Connects and subscribes now, instead of when the first message is asked for. See `BusMessages.open`."""
        if self._inherited:
            raise OtherProcess
        async with self._running:
            if not self._session.subscribed:
                try:
                    with self._session.without_reconnect(patient=patient):
                        await self._run(self._steps, Ready)
                except Exception:
                    self.close()
                    raise

    async def aclose(self) -> None:
        """Ends the subscription; a loop that waits in another task ends. See `BusMessages.close`."""
        if self._closed:
            return
        with contextlib.suppress(anyio.WouldBlock, ServerError, OSError):
            self._running.acquire_nowait()
            try:
                with anyio.move_on_after(LINGER, shield=True):
                    await self._run(self._session.last_steps())
            finally:
                self._running.release()
        self.close()
        if self._wait_scope is not None:
            self._wait_scope.cancel()

    def close(self) -> None:
        """Ends the subscription at once. Messages that were acknowledged last may be delivered again."""
        self._closed = True
        self._disconnect()

    def settle(self, message: GetMessage, request: DeleteMessage | ReleaseMessage) -> bool:
        """Sends the request if the message is in hand here, see `BusMessages.settle`. Tells whether it was sent."""
        settled = self._session.settle(message, request)
        if settled and self._connection is not None:
            self._connection.flush()
        return settled

    async def _run(self, steps: Steps, stop: type[Step] | None = None) -> Step | None:
        """Takes steps until one of type `stop`, and returns that step. Returns None at the end of the steps, or when
        the iterator was closed."""
        session: Session | None = None
        failure: OSError | None = None
        await checkpoint_if_cancelled()
        try:
            while (step := self._advance(steps, stop, session, failure)) is not None:
                if stop is not None and isinstance(step, stop):
                    return step
                session = failure = None
                try:
                    session = await self._perform(step)
                except OSError as error:
                    failure = error
                self._pending_step = None
        finally:
            if self._closed:
                self._disconnect()
        return None

    def _advance(
        self,
        steps: Steps,
        stop: type[Step] | None,
        session: Session | None = None,
        failure: OSError | None = None,
    ) -> Step | None:
        """Takes the steps that need no waiting. Returns the first one that has to be waited for, which is the pending
        one then, or that is of type `stop`. Returns None at the end of the steps, or when the iterator was closed.

        session, failure: the result of the step before."""
        if self._closed:
            return None
        if self._pending_step is not None and steps is self._steps:
            return self._pending_step
        try:
            step = steps.send(session) if failure is None else steps.throw(failure)
            while type(step) is Send:
                if self._connection is not None:
                    self._connection.flush()
                step = steps.send(None)
        except StopIteration:
            return None
        if stop is None or type(step) is not stop:
            self._pending_step = step
            if not (isinstance(step, Read) and step.going_on):
                self._deadline = _deadline(step)
        return step

    async def _perform(self, step: Step) -> Session | None:
        connection = self._connection
        match step:
            case Connect():
                self._connection = await self._connected()
                return self._connection.session
            case Pause():
                self._disconnect()
                await anyio.sleep_until(self._deadline)
            case Read() if connection is not None:
                connection.flush()
                await connection.more(self._deadline)
        return None

    async def _connected(self) -> AsyncConnection:
        bus = self._bus
        if self._attempt is None:
            self._attempt = Connecting(bus.host, bus.port, bus.place, bus.timeout, security=bus.security)
        try:
            wire = await self._attempt.connected()
        except OSError:
            self._attempt = None
            raise
        self._attempt = None
        return AsyncConnection(wire, bus.place, bus.limits)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.close()

    def __del__(self) -> None:
        self.close()


class AsyncBusClient(Bus[AsyncBusMessages], AsyncClosing):
    """Messages of a bus as they come: `async for message in bus.subscribe("orders", ack=True):`.

    The arguments and everything else are as in BusClient.
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
    ) -> AsyncBusMessages:
        """Iterates endlessly over the messages of one queue or several. The arguments are those of
        `BusClient.subscribe`."""
        session = self._session(queues, ack=ack, prefetch=prefetch, name=name, where=where, match=match)
        return self._added(AsyncBusMessages(self, session))

    async def delete(self, message: GetMessage) -> None:
        """Acknowledges the message in hand before the loop asks for the next one. See `BusClient.delete`."""
        self._settle(message, DeleteMessage(message.qid, message.mid))

    async def release(
        self, message: GetMessage, *, delay: float | None = None, count: bool = True, reason: str | None = None
    ) -> None:
        """Releases the message in hand: it is delivered again now, or after delay seconds. See `BusClient.release`."""
        self._release(message, delay, count=count, reason=reason)

    async def aclose(self) -> None:
        """Ends all subscriptions. Loops that wait in other tasks end."""
        for messages in list(self._open):
            await messages.aclose()
