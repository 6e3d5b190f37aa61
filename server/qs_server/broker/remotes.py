"""Queues whose messages another server keeps, beside those of the root: which there are, and who asks for them."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any, Generic, TypeVar

from ..storage.engine import NoSuchQueueError, UnsupportedError
from ..storage.lifecycle import Event, Lifecycle
from ..storage.remote.engine import RemoteEngine, RemoteError

T = TypeVar("T")


class Remotes:
    """The engines of such queues, by the names of their storages. Its methods ask nobody else."""

    def __init__(
        self,
        engines: Mapping[str, RemoteEngine],
        missing: Collection[str] = (),
        default: str | None = None,
        lifecycle: Lifecycle | None = None,
        out_of_reach: Mapping[str, str] | None = None,
    ) -> None:
        """missing: storages that there would be if their libraries were installed; default: the storage of new queues
        that name none, if it is one of these; lifecycle: is told of what is done here with messages; out_of_reach: the
        queues of missing storages, each with its storage."""
        self.engines = engines
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
        return bool(self.out_of_reach) or any(engine.queues() for engine in self.engines.values())

    def of(self, qid: str) -> RemoteEngine | None:
        """Who keeps a queue; None: nobody here. UnsupportedError when it is out of reach."""
        if qid in self.out_of_reach:
            raise self.absent(self.out_of_reach[qid], qid)
        for engine in self.engines.values():
            try:
                engine.options(qid)  # does not take longer with more queues
            except NoSuchQueueError:
                continue
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


class Call(Generic[T]):
    """Something that takes long, and so is done in a thread of its own while its handler waits."""

    def __init__(self, function: Callable[[threading.Event], T], *, waits: bool = False) -> None:
        """function: is given what is set when nobody wants to wait any longer; waits: whether it may well take very
        long."""
        self.stop = threading.Event()
        self.waits = waits
        self._function = function
        self._result: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        """Does it, in whatever thread."""
        try:
            self._result.append(self._function(self.stop))
        except Exception as error:
            self._error = error

    def found(self) -> list[Any]:
        """What came of it, if that is a list; empty when it failed."""
        return list(self._result[0]) if self._result and isinstance(self._result[0], list) else []

    def result(self) -> T:
        """What came of it, once it has been run: the result, or the exception. RemoteError when it was not waited for
        to its end."""
        if self._error is not None:
            raise self._error
        if not self._result:
            raise RemoteError(
                "its end was not waited for, as the server stops or the client has gone; it may be done yet"
            )
        return self._result[0]
