"""Finds the engines of remote queues, whose messages another server keeps, and receives from them.

Another server may be slow or hang, so its engine is called in threads (`operations/remote_requests.py`, `fetcher.py`),
outside of batches. `Remotes` keeps in memory all that a batch has to know of remote queues.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeGuard

from qs_storage.engine import (
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    Receipt,
    RemoteError,
    StaleReceiptError,
    Stats,
    UnavailableError,
    UnsupportedError,
)
from qs_storage.remote_engine import GatheringEngine, RemoteEngine
from qs_storage.shared import Event, Lifecycle

_logger = logging.getLogger(__name__)


class Remotes:
    """Holds the engines of remote queues, by the names of their storages.

    Ensures:
    1. An engine is opened once, when it is first asked for: a server without remote queues imports no library for them.
    2. If a storage cannot be used because its library is missing, only requests about its queues are refused, with the
       reason, and the server runs.
    3. All methods except `open` and `close` answer from memory, so a batch may call them.

    Assumes that any thread reads `engines`, and that the other attributes are changed in batches, at the start, or
    under the lock. This class must never contact another server."""

    def __init__(
        self,
        open_engine: Callable[[str], RemoteEngine | None] = lambda storage: None,
        own: Collection[str] | None = None,
        default: str = "",
        lifecycle: Lifecycle | None = None,
        here: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Begins without an open engine. open_engine: opens the engine of a storage, returns None if there is none, and
        raises UnsupportedError if its library is missing; own: the storages that are not remote, None for all; default:
        the storage of new queues whose request names no storage; lifecycle: gets the events of messages, None without a
        history; here: returns the names of the queues that are not remote; called in batches."""
        self.engines: Mapping[str, RemoteEngine] = {}
        """The open engines. Replaced as a whole, so that threads can read it without a lock."""
        self.out_of_reach: dict[str, str] = {}
        """The queues of storages that cannot be used: queue -> storage."""
        self._open_engine = open_engine
        self._own = own
        self._default = default
        self._lifecycle = lifecycle
        self._here = here
        self.has_history = lifecycle is not None
        """True if the events of messages are recorded."""
        self._refusals: dict[str, str] = {}
        """By storage: why it cannot be used."""
        self._opening = threading.Lock()  # two requests for a new queue may open the same engine, each in its thread
        self.counts = Stats()
        """Counts what this server did with messages of remote queues since the start, including deleted queues."""
        self.counts_in_loop = Stats()
        """Counts the same of what was done without a batch. Only the loop changes it."""
        self.gathered: dict[str, GatheringEngine] = {}
        """Queues whose requests need neither a batch nor a thread, see `gather`. The loop reads it."""
        self.has_queues = False
        """True if there is or was a remote queue. It is read for each request: without one, no request is asked whose
        queue it is about."""

    def open(self, storage: str) -> RemoteEngine | None:
        """Opens the engine of a storage, once. Returns None if there is no such engine. Call this at the start or in a
        thread, because the import of the library takes up to a second. Raises UnsupportedError if the library is
        missing."""
        with self._opening:
            if storage in self._refusals:  # importing the library again would take as long to fail
                raise UnsupportedError(self._refusals[storage])
            engine = self.engines.get(storage)
            if engine is None:
                try:
                    engine = self._open_engine(storage)
                except UnsupportedError as error:
                    self._refusals[storage] = str(error)
                    raise
                if engine is not None:  # in the directories of the root it has found its queues, if there are any
                    self.engines = {**self.engines, storage: engine}
                    # Other servers may make queues for an engine that gathers requests, at any time.
                    self.has_queues = self.has_queues or bool(engine.queues()) or is_gathering(engine)
            return engine

    def give_up(self, storage: str, qids: Sequence[str]) -> None:
        """Notes the queues of a storage that `open` has refused. From then on, requests about them are refused."""
        self.out_of_reach.update(dict.fromkeys(qids, storage))
        self.has_queues = bool(self.has_queues or qids)

    def note(
        self,
        event: Event,
        qid: str,
        mid: int,
        size: int | None = None,
        receives: int | None = None,
        *,
        trace: str | None = None,
    ) -> None:
        """Counts an event of a message, and passes the event to the history; see `Lifecycle`."""
        counts = self.counts
        if event == "pushed":
            counts.pushed += 1
        elif event == "received":
            counts.delivered += 1
            counts.redelivered += (receives or 0) > 1
        elif event == "released":
            counts.released += 1
        elif event == "deleted":
            counts.deleted += 1
        if self._lifecycle is not None:
            self._lifecycle.note(event, qid, mid, size, receives, trace=trace)

    def engine_of(self, qid: str) -> RemoteEngine | None:
        """Returns the engine of a queue, None if the queue is not remote. A queue of this server comes before one of
        the same name that another server has made in a database. Raises UnsupportedError if the queue is out of reach,
        and UnavailableError if nobody can know yet whether there is one."""
        if qid in self.out_of_reach:
            why = self._refusals[self.out_of_reach[qid]]
            raise UnsupportedError(f"queue {qid!r} cannot be used: {why}")
        if qid in self._here():
            return None
        for engine in self.engines.values():
            if qid in engine.queues():
                return engine
        for engine in self.engines.values():
            if is_gathering(engine) and not engine.knows(qid):
                raise UnavailableError(
                    f"there may be a queue {qid!r} in the storage {engine.name!r}, which has not answered since the "
                    "start of this server"
                )
        return None

    def figures(self) -> dict[str, float]:
        """Returns the figures of engines that have some of their own."""
        engines = [engine for engine in self.engines.values() if is_gathering(engine)]
        return {name: value for engine in engines for name, value in engine.figures().items()}

    def gather(self, qids: Sequence[str]) -> bool:
        """Tells whether requests about these queues need no batch, because one engine that gathers requests has all of
        them. If so, the loop learns of the queues. Called in a batch. Raises as `engine_of`."""
        engines = [self.engine_of(qid) for qid in qids]
        engine = engines[0]
        if engine is None or not is_gathering(engine) or any(other is not engine for other in engines):
            return False
        self.gathered.update(dict.fromkeys(qids, engine))
        return True

    def forget(self, qid: str) -> None:
        """Notes that a queue of this server is made: from now on it is meant by its name."""
        self.gathered.pop(qid, None)

    def storage_for(self, storage: str | None) -> str | None:
        """Returns the storage for a new queue if that storage may be remote, else None. storage: the name in the
        request, None for the default."""
        name = storage or self._default
        if not name or self._own is None or name in self._own:
            return None
        return name

    def engine_of_all(self, qids: Sequence[str], refusal: str) -> RemoteEngine | None:
        """Returns the engine that all these queues share, None if no queue is remote. Raises UnsupportedError if the
        queues have several engines. refusal: the end of the error's text."""
        engine = self.engine_of(qids[0])
        for qid in qids:
            if self.engine_of(qid) is not engine:
                raise UnsupportedError(f"queues {qids[0]!r} and {qid!r} are of storages that cannot {refusal}")
        return engine

    def queues(self) -> set[str]:
        return {*self.out_of_reach, *(qid for engine in self.engines.values() for qid in engine.queues())}

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()


def is_gathering(engine: RemoteEngine) -> TypeGuard[GatheringEngine]:
    """Tells whether an engine does many requests together, without a thread for each."""
    return hasattr(engine, "submit")


def receive_wanted(
    engine: RemoteEngine,
    qids: Sequence[str],
    most: int,
    visibility: int | None,
    stop: threading.Event,
    *,
    max_bytes: int,
    wait: float,
    held: bool = False,
    given: bool = False,
) -> list[Message]:
    """Receives like RemoteEngine.receive, for a client or a subscriber that waits. Messages that come after `stop` is
    set are given back, because nobody waits for them any more. If one of the queues is deleted meanwhile, continues
    with the others, like a receive from queues of this server."""
    until = time.monotonic() + wait
    while True:
        left = max(until - time.monotonic(), 0)
        try:
            found = engine.receive(qids, most, visibility, max_bytes, wait=left, stop=stop, held=held, given=given)
        except NoSuchQueueError:
            others = [qid for qid in qids if qid in engine.queues()]  # from memory, without a call
            if not others or len(others) == len(qids):
                raise
            qids = others
            continue
        if wait and stop.is_set():
            give_back(engine, found)
            found = []
        return found


def give_back(engine: RemoteEngine, messages: Sequence[Message]) -> None:
    """Makes received messages visible again. If that fails, logs how many messages stay hidden until their windows
    end."""
    for at, message in enumerate(messages):
        try:
            engine.queue(message.qid).release(Receipt(message.mid, message.receives), None)
        except (NoSuchQueueError, NoSuchMessageError, StaleReceiptError):
            continue  # it was acknowledged or received meanwhile
        except RemoteError as error:
            # Each of the other messages would take as long to fail, and a client or a stop waits for this.
            left, qid = len(messages) - at, message.qid
            _logger.error("%s messages of %r stay hidden until their windows end: %s", left, qid, error)
            return
