"""A connection to the queue server that survives a restart of the server."""

import time
from collections.abc import Callable
from typing import TypeVar

from qs_client import (
    NotFound,
    NotImplementedByServer,
    ProtocolMismatch,
    QueueClient,
    ServerError,
    ServerUnavailable,
)
from qs_client.backoff import delays
from qs_client.lifetimes import Closing

from .errors import NoServerError, NoSuchQueueError, PipelineError
from .options import Options
from .security import QueueServer

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds for one answer. A claim of 100,000 messages takes the server a second or more, and it may be busy."""


class QueueConnection(Closing):
    """A connection to the queue server, for the queue of the options.

    Ensures:
    1. A question is answered, or raises an error of the pipeline that says what to do. A lost connection, a server that
       shuts down and a request that was cut off raise nothing: the question is asked again until the patience is over.
    2. Nothing is sent before the first question, so making a connection in a process that asks nothing costs nothing.

    Assumes that every question can be repeated without harm. That holds for claims, which have a number; for parts,
    which have an attempt; and for a publication, which has a batch. A push without a key must never be asked through
    it.
    """

    def __init__(
        self,
        options: Options,
        patience: float,
        open_client: Callable[[QueueServer, float], QueueClient] = QueueServer.client,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """patience: seconds for which a lost connection is tried again; open_client, clock, sleep: for tests."""
        self.queue = options.queue
        self.place = options.server.endpoint
        self.patience = patience
        self._client = open_client(options.server, TIMEOUT)
        self._clock = clock
        self._sleep = sleep

    def close(self) -> None:
        self._client.disconnect()

    def ask(self, question: Callable[[QueueClient], T]) -> T:
        """Returns the question's result. Asks again when the connection is lost, so the question must be safe to
        repeat.

        Raises NoServerError if the server stays away for longer than the patience, or is not a queue server. Errors
        that the server answers are raised like the client's.
        """
        # The time begins with the first failure: a question may wait long for its answer without any.
        until: float | None = None
        for delay in delays():
            try:
                return question(self._client)
            except ProtocolMismatch as error:  # it is not a queue server, and will not become one
                raise NoServerError(str(error)) from error
            except ServerUnavailable as error:
                until = self._clock() + self.patience if until is None else until
                if self._clock() + delay >= until:
                    raise self._gave_up(error) from error
            self._sleep(delay)
        raise AssertionError("the delays have no end")

    def must_have_queue(self) -> None:
        """Checks that the queue exists. Raises NoSuchQueueError if it does not."""
        try:
            self.ask(lambda client: client.stats(self.queue))
        except NotFound:
            raise NoSuchQueueError(
                f"there is no queue {self.queue!r} on {self.place}: check the option queue, or create it with qs new"
            ) from None

    def refused(self, what: str, error: ServerError) -> PipelineError:
        """Returns the error for an unexpected answer. what: the thing that was asked for, as in `the claim`."""
        if isinstance(error, NotImplementedByServer):
            return PipelineError(
                f"the server on {self.place} cannot do {what} on the queue {self.queue!r}: exactly-once needs a queue "
                f"of the storage journal ({error})"
            )
        return PipelineError(f"the server on {self.place} refused {what} on the queue {self.queue!r}: {error}")

    def _gave_up(self, error: Exception) -> NoServerError:
        tried = f"; tried for {self.patience:g} s (option retrySeconds)" if self.patience else ""
        return NoServerError(f"{error}{tried}")
