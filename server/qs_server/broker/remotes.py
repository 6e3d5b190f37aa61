"""Remote queues, whose messages another server keeps: finds their engines, and receives from them."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from qs_storage.engine import (
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
    Receipt,
    RemoteError,
    StaleReceiptError,
    Stats,
    UnsupportedError,
)
from qs_storage.lifecycle import Event, Lifecycle
from qs_storage.remote_engine import RemoteEngine

_logger = logging.getLogger(__name__)


class Remotes:
    """The engines of remote queues, by the names of their storages. All methods except `close` answer from memory."""

    def __init__(
        self,
        engines: Mapping[str, RemoteEngine] | None = None,
        missing: Mapping[str, str] = MappingProxyType({}),
        default: str | None = None,
        lifecycle: Lifecycle | None = None,
        out_of_reach: Mapping[str, str] | None = None,
    ) -> None:
        """missing: the library that each missing storage needs; default: the storage of new queues that name none, if
        it is remote; lifecycle: gets the events of messages; out_of_reach: the queues of missing storages, each with
        its storage."""
        self.engines = engines or {}
        self.out_of_reach = out_of_reach or {}
        self._missing = missing
        self._default = default
        self._lifecycle = lifecycle
        self.counts = Stats()
        """Counts what this server did with messages of remote queues since the start, including deleted queues."""
        self.has_queues = bool(self.out_of_reach) or any(engine.queues() for engine in self.engines.values())
        """True if there is or was a remote queue. An attribute, as it is read for every request."""

    def note(self, event: Event, qid: str, mid: int, size: int | None = None, receives: int | None = None) -> None:
        """Counts an event of a message, and reports it to the lifecycle record; see Lifecycle."""
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
            self._lifecycle.note(event, qid, mid, size, receives)

    def engine_of(self, qid: str) -> RemoteEngine | None:
        """Returns the engine of a queue, None if it is not remote. UnsupportedError if it is out of reach."""
        if qid in self.out_of_reach:
            raise self.library_missing(self.out_of_reach[qid], qid)
        for engine in self.engines.values():
            if qid in engine.queues():
                return engine
        return None

    def engine_for(self, storage: str | None) -> RemoteEngine | None:
        """Returns the engine for a new queue, None if its storage is not remote. storage: None for the default.
        UnsupportedError if its library is missing."""
        name = storage or self._default or ""
        if name in self._missing:
            raise self.library_missing(name)
        engine = self.engines.get(name)
        self.has_queues = self.has_queues or engine is not None
        return engine

    def library_missing(self, storage: str, qid: str | None = None) -> UnsupportedError:
        """Returns the error for the use of a missing storage. qid: the queue that needs it."""
        needed = "" if qid is None else f"queue {qid!r} cannot be used: "
        return UnsupportedError(
            f"{needed}the storage {storage!r} needs {self._missing[storage]}, which is not installed here: "
            f"pip install 'qsbus[{storage}]'"
        )

    def engine_of_all(self, qids: Sequence[str], refusal: str) -> RemoteEngine | None:
        """Returns the engine of all these queues, None if none is remote. UnsupportedError if they have several;
        refusal: ends its text."""
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


def receive_wanted(
    engine: RemoteEngine,
    qids: Sequence[str],
    most: int,
    visibility: int | None,
    stop: threading.Event,
    *,
    max_bytes: int,
    wait: float,
) -> list[Message]:
    """Receives like RemoteEngine.receive, but gives back messages that come after `stop` is set. If one of the queues
    is deleted meanwhile, continues with the others."""
    until = time.monotonic() + wait
    while True:
        left = max(until - time.monotonic(), 0)
        try:
            found = engine.receive(qids, most, visibility, max_bytes, wait=left, stop=stop)
        except NoSuchQueueError:
            others = [qid for qid in qids if qid in engine.queues()]
            if not others or len(others) == len(qids):
                raise
            qids = others
            continue
        if wait and stop.is_set():
            give_back(engine, found)
            found = []
        return found


def give_back(engine: RemoteEngine, messages: Sequence[Message]) -> None:
    """Makes received messages visible again. Logs how many stay hidden if that fails."""
    for at, message in enumerate(messages):
        try:
            engine.queue(message.qid).release(Receipt(message.mid, message.receives), None)
        except (NoSuchQueueError, NoSuchMessageError, StaleReceiptError):
            continue  # it was acknowledged or received meanwhile
        except RemoteError as error:
            # Each of the others would take as long to fail.
            left, qid = len(messages) - at, message.qid
            _logger.error("%s messages of %r stay hidden until their windows end: %s", left, qid, error)
            return
