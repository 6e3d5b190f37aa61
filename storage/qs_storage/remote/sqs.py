"""The `sqs` engine: queues that an SQS endpoint keeps, Amazon's or any other server that speaks its protocol.
docs/sqs.md says what these queues mean for ids, order and windows, and what they cannot do."""

import contextlib
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ..disk import Disk
from ..engine import (
    Clock,
    Feature,
    Message,
    Options,
    Origin,
    QueueExistsError,
    RemoteError,
    StorageError,
    UnsupportedError,
)
from ..policy import check_dead_letter
from ..remote_engine import RootedEngine
from ..settings import storage_in
from .sqs_calls import (
    ARN,
    KEPT,
    LEAST_RETENTION,
    LONGEST_WINDOW,
    MOST_ENTRIES,
    CallPolicy,
    Received,
    SqsClient,
    changed_attributes,
    check_prefix,
    retention_of,
    source_of,
    whole_seconds,
    with_kept,
    without_kept,
)
from .sqs_queue import InFlight, Receipts, SqsQueue

__all__ = ["CallPolicy", "SqsEngine"]
_STOP_INTERVAL = 0.5
"""Seconds between two looks at `stop`: an Event and a Condition cannot be waited for together."""


class _Poll:
    """A long poll that runs in a thread. `left`: True if its receiver has gone, so that its messages are given back."""

    def __init__(self, queue: SqsQueue, window: int, count: int) -> None:
        """window: seconds."""
        self.wanted = (queue, window, count)
        self.done = False
        self.left = False
        self.messages: list[Received] = []
        self.error: StorageError | None = None


class LongPolls:
    """Waits for messages with long polls: SQS answers when there is one, or after 20 seconds.

    A poll cannot be cancelled: SQS may answer it with a message until its end. So each poll has its own thread, and the
    receiver may leave earlier. The next receiver of the same queue, window and count takes the poll over; without one,
    a message is given back at once. Several threads may use it."""

    def __init__(self, policy: CallPolicy) -> None:
        self._policy = policy
        self._changed = threading.Condition()  # and the lock for what follows
        self._left: list[_Poll] = []

    def wait(
        self, windows: Mapping[SqsQueue, int], count: int, deadline: float, stop: threading.Event | None
    ) -> list[Received]:
        """Waits until a queue has messages. Returns at most count messages of each queue that has some by then; none at
        the deadline (monotonic) or when stopped. windows: seconds, by queue."""
        polls = [self._begin(queue, window, count, deadline) for queue, window in windows.items()]
        stopped = False
        try:
            with self._changed:
                while not stopped and not any(poll.messages or poll.error for poll in polls):
                    left = deadline - time.monotonic()
                    stopped = left <= 0 or (stop is not None and stop.is_set())
                    if not stopped and not self._renew(polls, deadline):
                        self._changed.wait(min(left, _STOP_INTERVAL))
        finally:
            found = self._leave(polls)
        if stop is not None and stop.is_set():
            give_back(windows, found)
            return []
        failed = [poll.error for poll in polls if poll.error]
        if failed and not found:
            raise failed[0]
        return found

    def _renew(self, polls: list[_Poll], deadline: float) -> bool:
        """Restarts the polls that ended without messages. Returns False if there were none."""
        ended = [number for number, poll in enumerate(polls) if poll.done]
        for number in ended:
            polls[number] = self._begin(*polls[number].wanted, deadline)
        return bool(ended)

    def _begin(self, queue: SqsQueue, window: int, count: int, deadline: float) -> _Poll:
        with self._changed:
            for poll in self._left:
                if poll.wanted == (queue, window, count) and not poll.done:
                    self._left.remove(poll)
                    # Taken over while it waits: so its answer is not given back.
                    poll.left = False
                    return poll
        poll = _Poll(queue, window, count)
        wait = math.ceil(min(max(deadline - time.monotonic(), 1), self._policy.longest_poll))
        threading.Thread(target=self._run, args=(poll, wait), name=f"sqs poll {queue.qid}", daemon=True).start()
        return poll

    def _run(self, poll: _Poll, wait: int) -> None:
        messages: list[Received] = []
        queue, window, count = poll.wanted
        try:
            # Up to 20 seconds, which nothing can cut short.
            messages = queue.receive(window, count, wait)
        except StorageError as error:
            poll.error = error
        except Exception as error:
            poll.error = RemoteError(f"an answer of SQS could not be understood: {error!r}")
        with self._changed:
            left = poll.left
            if not left:
                poll.messages = messages
            poll.done = True
            self._changed.notify_all()
        if left:
            give_back([queue], messages)
            with self._changed:
                self._left.remove(poll)
                self._changed.notify_all()

    def _leave(self, polls: list[_Poll]) -> list[Received]:
        """Returns the messages that have come. Unfinished polls go on."""
        found: list[Received] = []
        with self._changed:
            for poll in polls:
                if poll.done:
                    found += poll.messages
                else:
                    poll.left = True
                    self._left.append(poll)
        return found

    def close(self) -> None:
        """Waits a moment for polls without a receiver, longer for those that may be getting a message."""
        begun = time.monotonic()
        with self._changed:
            while (left := self._wait_until(begun) - time.monotonic()) > 0:
                self._changed.wait(left)

    def _wait_until(self, begun: float) -> float:
        """Returns the time until which `close` waits for polls. begun: when `close` began."""
        leave, settle = begun + self._policy.leave, self._policy.settle
        return max((max(leave, min(begun, poll.wanted[0].shown) + settle) for poll in self._left), default=begun)


class SqsEngine(RootedEngine[SqsQueue]):
    """The engine over an SQS endpoint. See RemoteEngine.

    Ensures that a message which SQS hands out reaches a consumer, or is given back. Ids and receipts are this server's
    own: SQS finds no message by its id, so only what was received here can be deleted here.

    Promises no order, and no count that is exact: SQS has neither."""

    name: ClassVar[str] = "sqs"
    cannot: ClassVar[frozenset[Feature]] = frozenset(Feature) - {
        Feature.KEEP,
        Feature.DURABLE,
        Feature.SHARED,
        Feature.SET,
        Feature.DEAD,
        Feature.RETENTION,
        Feature.HEADERS,
    }

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        endpoint: str | None = None,
        region: str | None = None,
        disk: Disk | None = None,
        prefix: str = "",
        policy: CallPolicy | None = None,
    ) -> None:
        """Sends nothing to SQS yet. clock: has to agree with SQS's clock; endpoint: None for Amazon's; region: None for
        the environment's; prefix: the beginning of all names at SQS. StorageError."""
        check_prefix(prefix)
        policy = policy or CallPolicy()
        super().__init__(root, disk)
        self._prefix = prefix
        self._client = SqsClient(endpoint, region, policy)
        self._clock = clock
        self._receipts = Receipts(clock)
        self._polls = LongPolls(policy)
        self._given: dict[str, int] = {}
        """The greatest ids of queues that were removed."""

    def describe(self) -> str:
        return ""

    # -- queues

    def open_queue(self, qid: str, options: Options) -> SqsQueue:
        given = self._given.get(qid, -1)
        return SqsQueue(qid, options, self._client, self._prefix, self._receipts, self._clock, given)

    def check_options(self, options: Options) -> None:
        if options.capacity is not None:
            raise UnsupportedError("the storage 'sqs' has no capacity: SQS takes messages without a bound")
        if options.timestamps != "us":
            raise UnsupportedError("the storage 'sqs' has ids in microseconds only (timestamps)")
        if options.paused:
            raise UnsupportedError(
                "the storage 'sqs' cannot pause a queue: SQS goes on giving its messages to other programs"
            )
        super().check_options(options)
        whole_seconds(options.visibility, LONGEST_WINDOW, "a visibility window")
        if options.retention is not None and retention_of(options) < LEAST_RETENTION:
            raise UnsupportedError(f"SQS allows a retention of at least {LEAST_RETENTION} seconds")

    def create(self, qid: str, options: Options) -> None:
        options = replace(options, storage=self.name)
        self.check_options(options)
        # Before the queue is made: a bad dead-letter queue must not leave it half made.
        asked = {} if qid in self.queues() else self._to_change(qid, without_kept(options), options)
        self.add(qid, without_kept(options), lambda queue: queue.make(asked))

    def options(self, qid: str) -> Options:
        """Returns a queue's options. Asks SQS, as other programs may have changed them. RemoteError."""
        queue = self.queue(qid)
        try:
            return with_kept(queue.options, queue.attributes(KEPT), self._prefix)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise queue.not_sqs(error) from None

    def configure(self, qid: str, options: Options) -> None:
        self.check_options(options)
        self.queue(qid).set_attributes(self._to_change(qid, self.options(qid), options))
        super().configure(qid, without_kept(options))

    def _to_change(self, qid: str, old: Options, new: Options) -> dict[str, str]:
        """Returns the attributes to change. Makes a missing dead-letter queue. UnsupportedError,
        DeadLetterCycleError."""
        if not new.dead_letter or (new.dead_letter, new.max_receives) == (old.dead_letter, old.max_receives):
            return changed_attributes(old, new, "")
        storage = storage_in(self.root, new.dead_letter, "of the server's own")
        check_dead_letter(qid, new, self._chain(new.dead_letter), storage)
        if storage is None:
            with contextlib.suppress(QueueExistsError):
                self.create(new.dead_letter, Options())
        return changed_attributes(old, new, self.queue(new.dead_letter).attributes([ARN])[ARN])

    def _chain(self, qid: str) -> dict[str, Options]:
        """Returns a queue and the dead-letter queues after it, with their options."""
        chain: dict[str, Options] = {}
        while qid in self.queues() and qid not in chain:
            chain[qid] = self.options(qid)
            qid = chain[qid].dead_letter
        return chain

    def remove(self, qid: str, *, force: bool) -> None:
        queue = self.queue(qid)
        super().remove(qid, force=force)
        self._given[qid] = queue.given

    # -- messages

    def receive(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float = 0,
        stop: threading.Event | None = None,
        held: bool = False,
        given: bool = False,
    ) -> list[Message]:
        """Receives messages in no promised order. Returns them in the order of ids."""
        deadline = time.monotonic() + wait
        # Checked for all before anything is received: a window that SQS does not allow must not hide messages.
        windows = {queue: queue.window(visibility) for queue in map(self.queue, dict.fromkeys(qids))}
        if count <= 0:
            return []
        # Before anything is received: a message without a place for its handle could not be deleted.
        count = min(count, self._receipts.room())
        # One queue is asked with the long poll itself, which finds what an immediate answer may miss.
        received = _collect(windows, count, max_bytes) if len(windows) > 1 or wait <= 0 else []
        if not received and wait > 0:
            asked = min(count, MOST_ENTRIES)
            received = self._polls.wait(windows, asked, deadline, stop)
            if len(received) >= asked:
                received = _collect(windows, count, max_bytes, received)
        by_name = {queue.qid: queue for queue in windows}
        wanted = _first(windows, received, count, max_bytes)
        return sorted((self._hand_out(by_name[each.qid], each) for each in wanted), key=lambda message: message.mid)

    def _hand_out(self, queue: SqsQueue, received: Received) -> Message:
        held = InFlight(received.message, received.handle, received.receives, received.until)
        mid = self._receipts.add(queue.qid, received.mid, held)
        queue.note_received(mid)
        message = Message(queue.qid, mid, "delivered", held.receives, received.pushed_at, held.until, received.payload)
        message.headers = received.headers
        source = source_of(received.source, self._prefix)
        if source is not None:
            message.origin = Origin(source, received.mid, 0, 0, "receives", received.pushed_at)
        return message

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        self.queue(qid)
        raise UnsupportedError(
            f"queue {qid!r} has the storage 'sqs', and SQS does not copy messages: push the payload to the other queues"
        )

    def close(self) -> None:
        self._client.close()
        self._polls.close()
        self._client.disconnect()


def give_back(queues: Iterable[SqsQueue], received: Sequence[Received]) -> None:
    """Makes messages of these queues visible that no receiver gets."""
    for queue in queues:
        if messages := [each for each in received if each.qid == queue.qid]:
            queue.give_back(messages)


def _first(queues: Iterable[SqsQueue], received: list[Received], count: int, max_bytes: int) -> list[Received]:
    """Returns the first messages that fit, and gives the others back."""
    # SQS promises no order; what is here can be put into one.
    received.sort(key=lambda each: each.mid)
    fitting, room = 0, max_bytes
    for each in received[:count]:
        room -= each.size
        if room < 0 and fitting:
            break
        fitting += 1
    give_back(queues, received[fitting:])
    return received[:fitting]


def _collect(
    windows: dict[SqsQueue, int], count: int, max_bytes: int, first: Iterable[Received] = ()
) -> list[Received]:
    """Receives ten by ten from each queue in rotation. first: messages received before, which count. When SQS fails on
    the way, returns the messages received so far; RemoteError if there are none."""
    found = {(each.qid, each.message): each for each in first}
    room = max_bytes - sum(each.size for each in found.values())
    turns = list(windows)
    while turns and len(found) < count and room >= 0:
        queue = turns.pop(0)
        try:
            batch = queue.receive(windows[queue], count - len(found), 0)
        except StorageError:
            if not found:
                raise
            break
        new = [each for each in batch if (each.qid, each.message) not in found]
        found |= {(each.qid, each.message): each for each in batch}
        room -= sum(each.size for each in new)
        if new and windows[queue]:  # without a window the same ones would come again
            turns.append(queue)
    return list(found.values())
