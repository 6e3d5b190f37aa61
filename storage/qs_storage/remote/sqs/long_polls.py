"""Waits for messages with long polls: SQS answers when there is one, or after 20 seconds.

A poll cannot be cancelled: SQS may give it a message until its end. So each has its own thread, and the receiver may
leave earlier. The next receiver of the same queue, window and count takes the poll over; without one, a message is
given back at once.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ...engine import RemoteError, StorageError
from .client import CallPolicy
from .messages import Received

_STOP_INTERVAL = 0.5
"""Seconds between two looks at `stop`: an Event and a Condition cannot be waited for together."""


class _Poll:
    def __init__(self, wanted: tuple[str, int, int]) -> None:
        """wanted: queue, window in seconds, count."""
        self.wanted = wanted
        self.done = False
        self.left = False
        self.messages: list[Received] = []
        self.error: StorageError | None = None


class LongPolls:
    """Several threads may use it."""

    def __init__(
        self,
        receive: Callable[[str, int, int, int], list[Received]],
        give_back: Callable[[Sequence[Received]], None],
        policy: CallPolicy,
    ) -> None:
        """receive: takes queue, window, count and seconds to wait."""
        self._receive = receive
        self._give_back = give_back
        self._policy = policy
        self._changed = threading.Condition()  # and the lock for what follows
        self._left: list[_Poll] = []
        self._shown: dict[str, float] = {}
        """When a message of a queue was made visible, as of time.monotonic."""

    def note_visible(self, qid: str) -> None:
        """Notes that a message is about to be made visible: SQS may give it to any poll of the queue."""
        with self._changed:
            self._shown[qid] = time.monotonic()

    def wait(
        self, windows: Mapping[str, int], count: int, deadline: float, stop: threading.Event | None
    ) -> list[Received]:
        """Returns at most count messages of each queue that has some by the time the first one has; none at the
        deadline (monotonic) or when stopped. windows: seconds, by queue."""
        polls = [self._begin((qid, window, count), deadline) for qid, window in windows.items()]
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
            self._give_back(found)
            return []
        failed = [poll.error for poll in polls if poll.error]
        if failed and not found:
            raise failed[0]
        return found

    def _renew(self, polls: list[_Poll], deadline: float) -> bool:
        """Restarts the polls that ended empty. False if there were none."""
        ended = [number for number, poll in enumerate(polls) if poll.done]
        for number in ended:
            polls[number] = self._begin(polls[number].wanted, deadline)
        return bool(ended)

    def _begin(self, wanted: tuple[str, int, int], deadline: float) -> _Poll:
        with self._changed:
            for poll in self._left:
                if poll.wanted == wanted and not poll.done:
                    self._left.remove(poll)
                    poll.left = False
                    return poll
        poll = _Poll(wanted)
        wait = math.ceil(min(max(deadline - time.monotonic(), 1), self._policy.longest_poll))
        threading.Thread(target=self._run, args=(poll, wait), name=f"sqs poll {wanted[0]}", daemon=True).start()
        return poll

    def _run(self, poll: _Poll, wait: int) -> None:
        messages: list[Received] = []
        try:
            messages = self._receive(*poll.wanted, wait)
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
            self._give_back(messages)
            with self._changed:
                self._left.remove(poll)
                self._changed.notify_all()

    def _leave(self, polls: list[_Poll]) -> list[Received]:
        """Returns what has come. Unfinished polls go on."""
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
        """begun: when `close` began."""
        settle, leave = self._policy.settle, begun + self._policy.leave
        shown = [self._shown.get(poll.wanted[0], begun - settle) for poll in self._left]
        return max((max(leave, min(begun, at) + settle) for at in shown), default=begun)
