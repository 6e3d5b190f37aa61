"""A connection to the queue server that survives its restart.

Every question here can be repeated without harm, so a connection that is lost is made again and the question asked
again, for a bounded time. What goes wrong for good is one of the pipeline's errors.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from qs_client import (
    NotFound,
    NotImplementedByServer,
    ProtocolMismatch,
    QueueClient,
    RequestTimeout,
    ServerError,
    ServerUnavailable,
    ShuttingDown,
    TooMany,
)
from qs_client.backoff import delays
from qs_client.closing import Closing

from .errors import NoServerError, NoSuchQueueError, PipelineError
from .options import Options

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds for one answer. Making or acknowledging a claim of 100,000 messages takes the server a second or some, and it
may have others to serve."""

_AWAY = (ServerUnavailable, ShuttingDown, TooMany, RequestTimeout)
"""What passes when the server is back, or has room again."""


class Server(Closing):
    """The queue server of a queue, connected when it is first asked. patience: seconds for which a lost connection is
    tried again; open_client, clock and sleep: for tests."""

    def __init__(
        self,
        options: Options,
        patience: float,
        open_client: Callable[..., QueueClient] = QueueClient,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.queue = options.queue
        self.place = f"{options.host}:{options.port}"
        self.patience = patience
        self._client = open_client(options.host, options.port, timeout=TIMEOUT)
        self._clock = clock
        self._sleep = sleep

    def close(self) -> None:
        """Ends the connection, if there is one."""
        self._client.disconnect()

    def ask(self, question: Callable[[QueueClient], T]) -> T:
        """What the question returns. It is asked again when the connection is lost, so it must be harmless to repeat.

        NoServerError when the server stays away for longer than the patience, or is none. Errors that the server
        answers with are raised as the client has them.
        """
        until: float | None = None
        for delay in delays():
            try:
                return question(self._client)
            except ProtocolMismatch as error:
                raise NoServerError(str(error)) from error
            except _AWAY as error:
                until = self._clock() + self.patience if until is None else until
                if self._clock() + delay >= until:
                    raise self._gave_up(error) from error
            self._sleep(delay)
        raise AssertionError("the delays have no end")

    def must_have_queue(self) -> None:
        """NoSuchQueueError when there is no queue of that name."""
        try:
            self.ask(lambda client: client.stats(self.queue))
        except NotFound:
            raise NoSuchQueueError(
                f"there is no queue {self.queue!r} on {self.place}: see the option queue, or make it with qs new"
            ) from None

    def refused(self, what: str, error: ServerError) -> PipelineError:
        """The error for an answer that was not expected. what: was asked for, as in `the claim`."""
        if isinstance(error, NotImplementedByServer):
            return PipelineError(
                f"the server on {self.place} cannot do {what} on the queue {self.queue!r}: exactly once needs a queue "
                f"of the storage journal ({error})"
            )
        return PipelineError(f"the server on {self.place} refused {what} on the queue {self.queue!r}: {error}")

    def _gave_up(self, error: Exception) -> NoServerError:
        tried = f"; tried for {self.patience:g} s (option retrySeconds)" if self.patience else ""
        return NoServerError(f"{error}{tried}")
