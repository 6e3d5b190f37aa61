"""Handles the requests of one connection on the queue server: passes requests to the committer, puts the answers into
the outbox after the batch, and waits where a request has to wait.

A request passes through here in three calls. `run` makes a batch of the connection's requests; the committer runs it at
the end of the poll cycle, or in its worker thread; `_on_batch_end` sends the answers. If a request has to wait,
`_pause` begins the wait, `_end_wait` ends any kind of wait, and the same batch of requests is scheduled again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, cast

import trio

from qs_schemas import Figure, Limits, Peer
from qs_serving.access.caller import Caller
from qs_serving.connection import Connection
from qs_serving.figures import RequestCounts, operation_of
from qs_serving.options import ServerLimits
from qs_serving.timers import Timer, Timers
from qs_storage.engine import Engine
from qs_storage.remote_engine import Receive

from ..broker.committer import Committer
from ..broker.jobs import Call, Job, Pause, Waiters, run_call
from ..broker.remotes import Remotes
from ..broker.room import DiskRoom
from ..broker.subscriber import Subscriber, cost
from ..broker.subscriptions import Subscriptions
from ..operations.door import Door
from ..operations.service import Service
from .gathering import Run, begin_run, end_run
from .requests import RequestBatch

_CALLS = trio.CapacityLimiter(64)
"""Threads for calls to other servers. Further calls wait for one."""
_WAITS = trio.CapacityLimiter(500)
"""Threads for calls that wait for messages of other servers. Apart from the others, so that clients who wait cannot
keep a push from its thread."""


class _Calls(Job):
    """Makes calls in a batch that an operation without one has left. peer: the client's address, for the history."""

    def __init__(self, calls: Sequence[Callable[[], object]], peer: str) -> None:
        super().__init__(lambda: [call() for call in calls])
        self.peer = peer


class Session:
    """Handles a client's requests on the queue server. Implements `qs_serving.connection.Session`.

    Ensures:
    1. One batch of its requests at most is under way, so its answers are in the order of its requests.
    2. Answers are put into the outbox only after the commit, and deliveries only after the answer to their subscribe.
    3. A receive that is given up while it waits, or after it was woken, wakes the next one that waits.
    4. A scheduled batch runs to its end, also if the connection is gone meanwhile: the committer does not know of
       connections.
    5. Messages that the client holds by subscriptions become visible again after the client has left.

    Assumes that all its methods are called in the loop's thread, between two batches or at the end of one, and that the
    connection calls `run` only while no requests of it are under way or after `await_socket`.

    A session must never change the engine or the subscriptions itself: jobs do so, in batches."""

    stopping_text = "the server is stopping; connect again later"
    patience: float | None = None
    """Seconds without a request until `silent` is called: None, as a client may be silent for as long as it likes."""

    __slots__ = (
        "_batch", "_call", "_committer", "_connection", "_counts", "_most", "_outbox", "_peer", "_remotes", "_requests",
        "_run", "_service", "_since", "_subscriptions", "_tasks", "_timer", "_timers", "_waiters",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection["Session"],
        peer: Peer,
        *,
        limits: ServerLimits,
        counts: RequestCounts,
        timers: Timers,
        tasks: trio.Nursery,
        document_limits: Limits,
        storage: Engine,
        subscriptions: Subscriptions,
        committer: Committer,
        waiters: Waiters,
        remotes: Remotes,
        caller: Caller | None,
        figures: Callable[[bool], list[Figure]],
        room: DiskRoom,
        door: Door,
    ) -> None:
        """Begins without requests. tasks: the nursery for calls to other servers; caller: the client's identity, None
        without an access file; figures: returns the server's figures; its argument: True to include those of each
        connection; room: notes requests that are refused because the disk is full; door: checks payloads."""
        self._connection = connection
        self._outbox = connection.outbox
        self._most = limits.outbox
        self._peer = peer
        self._counts = counts
        self._timers = timers
        self._tasks = tasks
        self._committer = committer
        self._waiters = waiters
        self._subscriptions = subscriptions
        self._service = Service(
            storage,
            subscriptions,
            self._become_subscriber,
            document_limits.list_length,
            document_limits.document,
            connection.address,
            remotes=remotes,
            caller=caller,
            waiting=waiters.count,
            figures=figures,
            room=room,
            door=door,
        )
        self._batch: RequestBatch | None = None  # made for the first requests, and used for all
        self._requests: RequestBatch | None = None  # the same while requests are under way
        self._since = 0.0  # when the requests began, or continued after a wait that the client asked for
        self._timer: Timer | None = None  # ends the present wait
        self._remotes = remotes
        self._run: Run | None = None  # the operation that the present requests wait for
        self._call: trio.CancelScope | None = None  # around the call that the present request waits for

    # -- requests -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Takes up the connection's next requests. If requests are under way, whose answers the socket has taken,
        continues those. Called in a poll cycle or at the end of a batch, after which the committer checks `scheduled`,
        so unlike `_schedule` this need not wake the committer's task."""
        requests = self._requests
        if requests is not None:
            self._after_answers(requests)
            return
        requests = self._batch
        if requests is None:
            self._batch = requests = RequestBatch(self._service, self._peer, self._most)
        requests.begin(self._connection.requests)
        self._requests, self._since = requests, perf_counter()
        if self._remotes.gathered and self._begin_run(requests):
            return
        requests.on_batch_end = self._on_batch_end
        self._committer.scheduled.append(requests)

    def _on_batch_end(self) -> None:
        """Sends the answers that are ready, and goes on if the socket takes them. Called at the end of a batch."""
        requests = self._requests
        if requests is None:
            return  # the connection was closed while its batch ran
        try:
            if requests.fault is not None:
                raise requests.fault
            taken, answers, subscriber = True, requests.answers, self._service.subscriber
            if answers:
                answered = requests.events
                if len(answers) < len(answered):  # some have no answer yet, or were answered before
                    answered = answered[requests.done - len(answers) : requests.done]
                self._counts.count(answered, perf_counter() - self._since)
                for at, code in requests.refusals.items():
                    self._counts.refused(operation_of(answered[at]), code)
                # A client that acknowledges gets its next messages with the answer, in one write.
                taken = self._send(requests.take(), subscriber)
            if subscriber is not None and subscriber.new:  # before any later request, and behind the answer
                self._committer.post(Job(self._service.start_subscriptions))
            if taken:
                self._after_answers(requests)
            else:
                self._connection.await_socket()
        except Exception as error:  # the error concerns this connection alone, not the rest of the batch
            self._connection.fail(error)

    def _after_answers(self, requests: RequestBatch) -> None:
        """Begins the next step after the socket has taken the answers: a pause, the rest of the requests, or new
        ones."""
        pause = requests.pause
        if pause is not None:
            self._pause(requests, pause)
        elif requests.unanswered:
            self._schedule(requests)
        else:
            self._requests = None
            requests.events.clear()  # a client that has nothing to ask takes no memory for them
            self._connection.answered(closes=requests.closes)

    def _schedule(self, requests: RequestBatch) -> None:
        """Begins the operation of the next requests, or schedules them for the next batch. Wakes the committer's task,
        because a timer or the end of a call may call this outside of a poll cycle."""
        if self._remotes.gathered and self._begin_run(requests):
            self._committer.wake()
            return
        requests.on_batch_end = self._on_batch_end
        self._committer.post(requests)

    # -- requests without a batch -------------------------------------------------------------------------------------

    def _begin_run(self, requests: RequestBatch) -> bool:
        """Begins the operation of the next requests, if their queue is of an engine that gathers requests. Returns
        False if the next request has to run in a batch."""
        run = None if requests.is_begun else begin_run(requests, self._service)
        if run is not None:
            self._add_run(requests, run)
        elif requests.unanswered:
            return False
        else:  # all that was left was refused
            self._on_batch_end()
        return True

    def _add_run(self, requests: RequestBatch, run: Run) -> None:
        if run.waits:
            receive = cast(Receive, run.operation)
            if self._connection.is_leaving:  # nobody would end the wait
                receive.wait_seconds, run = 0, run._replace(waits=False)
            else:  # for the figures: the engine ends the wait
                self._waiters.add(requests, Pause(tuple(receive.qids)))
        self._run = run
        self._committer.gatherer.add(run.engine, run.operation, self._end_run)
        if run.waits:
            self._connection.pause()

    def _end_run(self, operation: Any) -> None:
        """Sends the answers to the requests of an operation that has ended. Called in the loop."""
        run, self._run = self._run, None
        requests = self._requests
        if run is None:
            return  # never: a session has one at a time
        if requests is None:  # the connection is closed
            self._committer.gatherer.give_back_result(run.engine, operation)
            return
        try:
            ended = end_run(requests, self._service, run)
            if ended.left:
                self._committer.gatherer.give_back(run.engine, ended.left)
            if ended.calls:
                self._committer.post(_Calls(ended.calls, self._service.peer))
            if run.waits:
                self._waiters.leave(requests)
                self._since = perf_counter()
                self._connection.end_pause()
            if ended.again is not None:
                self._add_run(requests, ended.again)
                return
        except Exception as error:
            self._connection.fail(error)
            return
        self._on_batch_end()

    def _stop_run(self) -> None:
        """Ends the wait of a receive soon."""
        if self._run is not None and self._run.waits:
            self._committer.gatherer.stop(self._run.engine, cast(Receive, self._run.operation))

    # -- waits ----------------------------------------------------------------------------------------------------

    def _pause(self, requests: RequestBatch, pause: Pause) -> None:
        """Begins a wait. `_end_wait` ends it."""
        connection, waiters = self._connection, self._waiters
        if pause.call is not None:
            connection.pause()
            self._tasks.start_soon(self._run_call, requests, pause, pause.call)
        elif not pause.qids:
            if pause.wait:
                connection.pause()
                self._timer = self._timers.add(pause.wait, self._woken)
            else:  # the requests of others run in the same batch, or before it
                requests.resume()
                self._schedule(requests)
        else:
            connection.pause()
            if requests.pause is not pause:
                return  # the client is leaving, so `pause` has ended the wait
            # An access file that was read again during the batch may forbid the receive: `_end_wait` checks.
            if waiters.listen(requests, self._woken) or not requests.is_allowed():
                self._end_wait()
                return
            # By the loop's clock, which is monotonic: a client waits as long as it asked, whatever the wall clock does.
            # A wait that goes on, as somebody else got the message, keeps its deadline.
            now = trio.current_time()
            requests.deadline = now + pause.wait if requests.deadline is None else requests.deadline
            self._timer = self._timers.add(requests.deadline - now, self._is_over)

    def _woken(self) -> None:
        self._connection.attempt(self._end_wait)

    def _is_over(self) -> None:
        self._connection.attempt(partial(self._end_wait, over=True))

    def _end_wait(self, *, over: bool = False) -> None:
        """Ends the present wait of any kind, and continues the request. over: True if the time of the wait is over."""
        requests = self._requests
        if requests is None or requests.pause is None:
            return
        pause = requests.pause
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None
        if pause.call is not None or not pause.qids:
            self._waiters.leave(requests)
            requests.resume()
        elif self._connection.is_leaving or not requests.is_allowed():
            # The client cannot or may not take messages any more, so the next in line is woken instead.
            self._waiters.leave(requests)
            requests.end_wait()
        else:
            self._waiters.resume(requests)
            requests.resume(over=over)
        if pause.is_asked_for:
            self._since = perf_counter()
        self._connection.end_pause()
        self._schedule(requests)

    async def _run_call(self, requests: RequestBatch, pause: Pause, call: Call[Any]) -> None:
        """Waits for the end of a call. Tells the call to stop if the client goes or the request is forbidden."""
        if self._requests is None or requests.pause is not pause:
            return  # given up before this task ran
        if not requests.is_allowed():
            call.stop.set()
        with trio.CancelScope() as self._call:
            if self._connection.is_leaving:  # `interrupt` has come before this task ran
                self._call.cancel()
            await run_call(call, _WAITS if call.waits else _CALLS)
        self._call = None
        if self._requests is not None and requests.pause is pause:
            self._connection.attempt(self._end_wait)

    def interrupt(self) -> None:
        """Ends the wait of a request soon. A deliberate delay goes on, so that a client cannot shorten the delay by
        going away."""
        pause = None if self._requests is None else self._requests.pause
        if self._run is not None:
            self._stop_run()
        elif pause is not None and pause.call is not None:
            if self._call is not None:
                self._call.cancel()  # which waits for the call to stop, up to a bound
        elif pause is not None and pause.qids:
            self._end_wait()

    def abandon(self) -> None:
        """Gives up all requests, whose answers nobody wants any more."""
        requests, self._requests = self._requests, None
        self._stop_run()
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None
        if self._call is not None:
            self._call.cancel()
        if requests is not None:
            if requests.on_batch_end is None:
                self._waiters.leave(requests)
            else:  # the work is in a batch, and may wait after it: then the next one is woken at once
                requests.on_batch_end = partial(self._waiters.leave, requests)

    def rights_changed(self) -> None:
        """Ends subscriptions and waits that the access file does not allow any more. A receive that is still allowed
        looks for messages again, because they may have woken a receive that is now refused."""
        requests = self._requests
        pause = None if requests is None else requests.pause
        if requests is not None and self._run is not None:
            if not requests.is_allowed():
                self._stop_run()
        elif requests is not None and pause is not None:
            if pause.call is not None:
                if not requests.is_allowed():
                    pause.call.stop.set()
            elif pause.qids and self._timer is not None:
                self._end_wait()
        if self._service.subscriber is not None:
            self._committer.post(Job(self._service.end_forbidden_subscriptions))

    def heard(self) -> None:
        """Does nothing: this server needs no sign of life from a client."""

    def silent(self) -> None:
        """Does nothing: the connection never calls this, because `patience` is None."""

    # -- subscriptions --------------------------------------------------------------------------------------------

    @property
    def subscription_count(self) -> int:
        subscriber = self._service.subscriber
        return 0 if subscriber is None else len(subscriber.subscriptions)

    def _become_subscriber(self) -> Subscriber:
        return Subscriber(self._most, partial(self._connection.attempt, self._deliver), self._service.peer)

    def _deliver(self) -> None:
        """Sends the pending deliveries, if there are any left."""
        subscriber = self._service.subscriber
        if subscriber is not None and subscriber.mail:
            self._send(b"", subscriber)

    def _send(self, answers: bytes, subscriber: Subscriber | None) -> bool:
        """Sends answers, and behind them the pending deliveries. Returns True if the socket has taken all at once. If
        not, the connection calls `written` later."""
        if subscriber is None or not subscriber.mail:
            return self._outbox.put(answers)
        pending, subscriber.mail = subscriber.mail, []
        size = sum(map(cost, pending))
        taken = self._outbox.put(b"".join([answers, *map(self._peer.send, pending)]), size or None)
        if taken:
            self.written(size)
        return taken

    def written(self, token: Any) -> None:
        """Counts deliveries that the socket has taken. token: the bytes of the deliveries."""
        subscriber = self._service.subscriber
        if subscriber is not None and subscriber.has_read(token):
            self._committer.post(Job(partial(self._subscriptions.feed_all, subscriber)))

    def leave(self) -> None:
        """Ends the client's subscriptions in a later batch, because a batch of its requests may be under way. The
        messages of the subscriptions become visible again, batch by batch."""
        self._committer.post(Job(self._drop))

    def _drop(self) -> None:
        if self._service.subscriber is not None:
            self._subscriptions.drop(self._service.subscriber)
