"""Reads a journal without a server. Its queues are those of the log, even without a directory."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from ...disk import Disk
from ...engine import Clock, Durability, NoRoomError
from ...metadata import Attributes, Stored
from ...names import WITHHELD
from ...shared import Activity, Shared
from ...watch import Watch
from ..keeper import LogKeeper
from ..log import records
from ..queues.queue import LogQueue

_PAGE = 1000


class OfflineJournal:
    """Opens and locks the log of a root directory. Use it in a with statement."""

    def __init__(self, root: str, disk: Disk, clock: Clock) -> None:
        """JournalDamagedError; InUseError if a server uses the log; OSError."""
        self._watch = Watch()
        self._clock = clock
        self._keeper = LogKeeper(root, clock, Durability.ALWAYS, disk)
        try:
            shared = Shared(clock, Durability.ALWAYS, disk, self._watch, Activity())
            self.queues = self._keeper.read_alone(shared)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._keeper.close()
        self._watch.close()

    def messages(self, queue: LogQueue) -> Iterator[Stored]:
        """Yields all messages of a queue, oldest first; those in a claim as visible. DamagedRecordError, OSError."""
        after = -1
        store = self._keeper.open()
        while mids := queue.index.messages.after(after, _PAGE):
            for mid in mids:
                receives, expiry, delayed = queue.state_of(mid)
                if expiry == WITHHELD or queue.time(expiry) <= self._clock():
                    expiry = 0
                attributes = Attributes(receives, expiry if delayed else 0)
                place = queue.places.get(mid) or 0
                payload = store.payload(queue.number, mid, place)
                yield Stored(mid, expiry, attributes, payload, queue.reasons.get(mid, ""))
            after = mids[-1]

    def forget(self, queue: LogQueue) -> None:
        """Removes a queue from the log, durably. OSError: it is there still."""
        self._keeper.secure()
        if self._keeper.open().transaction.left < records.SMALL:
            raise NoRoomError(records.SMALL)  # else the removal would wait for a later commit
        self._keeper.forget(queue)
        self._keeper.commit()
        self._keeper.rest()
