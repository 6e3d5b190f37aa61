"""The acknowledgements of a subscription that go behind its messages: which are written, and which are confirmed.

No I/O: the session writes each one as a request like any other and gives it its answer, and the subscription asks here
what the answers were.
"""

from collections import deque
from typing import cast

from qs_schemas import DeleteMessage, Error

from .errors import NotFound, NotKnown, ServerError, Stale, Unavailable, closes, exception_for, log
from .waiting import Pending

MOST = 256
"""Acknowledgements that may be open, whatever the prefetch is. They and their answers fit into the buffers of the two
sockets, so writing one waits for nothing, even while the server waits until the program reads its deliveries."""


class Acknowledgements:
    """The acknowledgements of one subscription that the server has not confirmed yet, over all its connections.

    taken_away: how many messages were somebody else's, or gone, when their acknowledgement came; ended: no more are
    taken, as the subscription has ended.

    Ensures
    1. Each acknowledgement is open until the server has answered it. What a lost connection leaves open can be written
       again, to the next one: a delete with the count of receives removes no message that has been received again.
       What another server could not take is written again with the next acknowledgement.
    2. At most `most` are open. When `has_room` says no, the program waits for the answer to its acknowledgement, and
       with that all have theirs.
    3. Each answer is looked at once. Threads may look at the same time, and a signal handler in the middle of a look.

    Assumes that the server answers the requests of a connection in order.
    Never sets `Pending.wake`: somebody may be waiting for the same answer.
    """

    def __init__(self, most: int) -> None:
        """most: how many may be open; 0: the program waits for each."""
        self._most = most
        self._open: deque[Pending] = deque()
        self._repeated: set[Pending] = set()  # the first request may have been done, and only its answer lost
        self._refused_now: deque[DeleteMessage] = deque()  # the queue's server could not be asked: written again
        self._errors: deque[ServerError] = deque()  # that nobody has been told
        self.taken_away = 0
        self.ended = False

    @property
    def last(self) -> Pending | None:
        """The youngest that is open: when it is answered, all are. None if none is open."""
        self._look()
        try:
            return self._open[-1]
        except IndexError:
            return None

    @property
    def done(self) -> bool:
        """Tells whether none is open, and nobody has to be told of an error."""
        return self.last is None and not self._errors and not self._refused_now

    @property
    def has_room(self) -> bool:
        """Tells whether another acknowledgement may be added."""
        if len(self._open) >= self._most:
            self._look()
        return len(self._open) + len(self._refused_now) < self._most and not self.ended

    def add(self, pending: Pending, *, repeated: bool = False) -> None:
        """Takes an acknowledgement that is being written. repeated: it was written before, to another connection."""
        if repeated:
            self._repeated.add(pending)
        self._open.append(pending)

    def take(self) -> list[DeleteMessage]:
        """Removes all that are open, and returns their requests, to be written again with `repeated`."""
        self._look()
        requests = self.take_refused()
        while self._open:
            pending = self._open.popleft()
            self._repeated.discard(pending)
            requests.append(cast(DeleteMessage, pending.request))
        return requests

    def take_refused(self) -> list[DeleteMessage]:
        """Removes those that could not be taken for now, and returns their requests, to be written again with
        `repeated`."""
        if not self._refused_now:
            return []
        requests, self._refused_now = self._refused_now, deque()
        return list(requests)

    def confirm(self) -> None:
        """Looks at the answers that have come. Raises ServerError for a message that could not be deleted, and was not
        taken away."""
        if self._open:
            self._look()
        if self._errors:
            raise self._errors.popleft()

    def finish(self) -> None:
        """Logs what nobody can be told any more: errors, and how many are open. Forgets them."""
        self._look()
        while self._errors:
            error = self._errors.popleft()
            log("warning", f"a message was handled, but could not be deleted, so it comes again: {error}")
        if left := len(self._open) + len(self._refused_now):
            messages = "1 message was" if left == 1 else f"{left} messages were"
            log("warning", f"{messages} handled, and the server has not confirmed the deletion: each may come again")
        self.forget()

    def forget(self) -> None:
        """Forgets all without a word: in a child process they are the parent's."""
        self.ended = True
        self._open.clear()
        self._refused_now.clear()
        self._repeated.clear()

    def _look(self) -> None:
        """Looks at the answers that have come. An answer that ends the connection leaves its acknowledgement open: it
        is written to the next one."""
        while self._open:
            try:
                if self._open[0].answer is None:
                    return
                pending = self._open.popleft()  # nobody else looks at it from now on
            except IndexError:  # somebody else has looked
                return
            answer = pending.answer
            if answer is None or (isinstance(answer, Error) and closes(answer)):
                self._open.appendleft(pending)
                return
            if isinstance(answer, Error):
                self._refused(pending, exception_for(answer))
            self._repeated.discard(pending)

    def _refused(self, pending: Pending, error: ServerError) -> None:
        if isinstance(error, Unavailable | NotKnown):
            self._refused_now.append(cast(DeleteMessage, pending.request))
        elif not isinstance(error, Stale | NotFound):
            self._errors.append(error)
        elif isinstance(error, Stale) or pending not in self._repeated:  # else the first request has deleted it
            self.taken_away += 1
            request = cast(DeleteMessage, pending.request)
            log_taken_away(request.qid, request.mid, error)


def log_taken_away(qid: str | None, number: int | None, error: Stale | NotFound) -> None:
    """Logs that a message was not there any more when it was deleted after it had been handled."""
    why = (
        ", as its window had ended or its connection was lost: it is delivered again"
        if isinstance(error, Stale)
        else ": somebody else has deleted it, or its queue was purged or deleted"
    )
    log("warning", f"message {number} of {qid!r} was taken away while it was handled{why}")
