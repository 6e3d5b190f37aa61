"""Waits for messages with long polls: SQS answers when there is one, or after 20 seconds.

A poll that was begun cannot be called off: SQS may give a message to it at any moment until its end. So each has a
thread of its own, and whoever waits may leave before its end. The next receiver of the same queue, window and count
takes the poll over; when there is nobody by the time a message comes, the message is given back at once.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ...engine import RemoteError, StorageError
from .call_policy import CallPolicy
from .messages import Received

_STOP_INTERVAL = 0.5
"""Seconds between two looks at whether to stop: an Event cannot be waited for together with a Condition."""


class _Poll:
    def __init__(self, wanted: tuple[str, int, int]) -> None:
        """wanted: queue, window in seconds, count: by which polls are the same."""
        self.wanted = wanted
        self.done = False
        self.left = False
        self.messages: list[Received] = []
        self.error: StorageError | None = None


class LongPolls:
    """The polls of all queues. Several threads may use it."""

    def __init__(
        self,
        receive: Callable[[str, int, int, int], list[Received]],
        give_back: Callable[[Sequence[Received]], None],
        policy: CallPolicy,
    ) -> None:
        """receive: of a queue, with a window, a count, and seconds to wait."""
        self._receive = receive
        self._give_back = give_back
        self._policy = policy
        self._changed = threading.Condition()  # and the lock for what follows
        self._left: list[_Poll] = []
        self._shown: dict[str, float] = {}
        """When a message of a queue was made visible last, as of time.monotonic."""

    def note_visible(self, qid: str) -> None:
        """Notes that a message is about to be made visible. SQS may give it to any poll of the queue."""
        with self._changed:
            self._shown[qid] = time.monotonic()

    def wait(
        self, windows: Mapping[str, int], count: int, deadline: float, stop: threading.Event | None
    ) -> list[Received]:
        """Returns the messages of the first queue that has any, and what others have by then: at most count of each
        queue; none by the deadline (monotonic), or when told to stop. windows: seconds, by queue."""
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
        """Begins again those polls that have ended with nothing. False: there was none."""
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
        """Returns what has come. Polls that are not over go on."""
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
        """Waits a moment for the polls that were left, and longer for those that may be getting a message."""
        begun = time.monotonic()
        with self._changed:
            while (left := self._wait_until(begun) - time.monotonic()) > 0:
                self._changed.wait(left)

    def _wait_until(self, begun: float) -> float:
        """Returns when all the polls that were left have had their time. begun: when `close` began."""
        settle, leave = self._policy.settle, begun + self._policy.leave
        shown = [self._shown.get(poll.wanted[0], begun - settle) for poll in self._left]
        return max((max(leave, min(begun, at) + settle) for at in shown), default=begun)
