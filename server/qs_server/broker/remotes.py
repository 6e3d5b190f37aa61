"""Queues whose messages another server keeps, beside those of the root: which there are, and who asks for them."""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

from ..storage.engine import Message as Stored
from ..storage.engine import NoSuchMessageError, NoSuchQueueError, Receipt, StaleReceiptError, UnsupportedError
from ..storage.lifecycle import Event, Lifecycle
from ..storage.remote.engine import RemoteEngine, RemoteError

_logger = logging.getLogger(__name__)
_registered = attrgetter("registered")


class Remotes:
    """The engines of such queues, by the names of their storages. Its methods ask nobody else."""

    def __init__(
        self,
        engines: Mapping[str, RemoteEngine] | None = None,
        missing: Collection[str] = (),
        default: str | None = None,
        lifecycle: Lifecycle | None = None,
        out_of_reach: Mapping[str, str] | None = None,
    ) -> None:
        """missing: storages that there would be if their libraries were installed; default: the storage of new queues
        that name none, if it is one of these; lifecycle: is told of what is done here with messages; out_of_reach: the
        queues of missing storages, each with its storage."""
        self.engines = engines or {}
        self.out_of_reach = out_of_reach or {}
        self._missing = missing
        self._default = default
        self._lifecycle = lifecycle

    def note(self, event: Event, qid: str, mid: int, size: int | None = None, receives: int | None = None) -> None:
        """Something has happened to a message: see Lifecycle. Only where the storage's own engine is used."""
        if self._lifecycle is not None:
            self._lifecycle.note(event, qid, mid, size, receives)

    @property
    def used(self) -> bool:
        """Whether there is any such queue."""
        return bool(self.out_of_reach) or any(map(_registered, self.engines.values()))

    def of(self, qid: str) -> RemoteEngine | None:
        """Who keeps a queue; None: nobody here. UnsupportedError when it is out of reach."""
        if qid in self.out_of_reach:
            raise self.absent(self.out_of_reach[qid], qid)
        for engine in self.engines.values():
            if qid in engine.registered:
                return engine
        return None

    def of_storage(self, name: str | None) -> RemoteEngine | None:
        """Who is to make a queue for which that storage was asked; None: somebody else. UnsupportedError when it is
        missing."""
        name = name or self._default or ""
        if name in self._missing:
            raise self.absent(name)
        return self.engines.get(name)

    def absent(self, name: str, qid: str | None = None) -> UnsupportedError:
        """What to say when a storage is needed that is missing. qid: the queue for which it is."""
        needed = "" if qid is None else f"queue {qid!r} cannot be used: "
        return UnsupportedError(
            f"{needed}the storage {name!r} needs a library that is not installed here: install qsbus[{name}]"
        )

    def of_all(self, qids: Iterable[str]) -> RemoteEngine | None:
        """Who keeps all of these. UnsupportedError when no one does, but somebody keeps some."""
        named = list(qids)
        keepers = [self.of(qid) for qid in named]
        if all(keeper is keepers[0] for keeper in keepers):
            return keepers[0]
        one, other = next((a, b) for a, b in pairwise(named) if self.of(a) is not self.of(b))
        raise UnsupportedError(
            f"queues {one!r} and {other!r} are of storages that cannot be asked together: ask for each by itself"
        )

    def queues(self) -> set[str]:
        """The names of all of them."""
        return {*self.out_of_reach, *(qid for engine in self.engines.values() for qid in engine.queues())}

    def close(self) -> None:
        """Lets go of them."""
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
) -> list[Stored]:
    """As `receive_within`, but gives back what comes when the wait has been stopped: there may be nobody any more to
    take it. A queue that is deleted meanwhile does not hide what the others have."""
    until = time.monotonic() + wait
    while True:
        left = max(until - time.monotonic(), 0)
        try:
            found = engine.receive_within(qids, most, visibility, max_bytes, wait=left, stop=stop)
        except NoSuchQueueError:
            known = engine.queues()
            others = [qid for qid in qids if qid in known]
            if not others or len(others) == len(qids):
                raise
            qids = others
            continue
        if wait and stop.is_set():
            give_back(engine, found)
            found = []
        return found


def give_back(engine: RemoteEngine, messages: Sequence[Stored]) -> None:
    """Makes messages visible again that were received and are not wanted. Logs what cannot be: its window ends."""
    for at, message in enumerate(messages):
        try:
            engine.queue(message.qid).release(Receipt(message.mid, message.receives), 0)
        except (NoSuchQueueError, NoSuchMessageError, StaleReceiptError):
            continue  # somebody has acknowledged it meanwhile, or received it
        except RemoteError as error:
            # The others would take as long to fail.
            left, qid = len(messages) - at, message.qid
            _logger.error("%s messages of %r stay hidden until their windows end: %s", left, qid, error)
            return
