"""The dependencies that an engine gives each of its queues."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from .disk import Disk
from .engine import Clock, Durability, NoSuchQueueError
from .lifecycle import Lifecycle
from .queues import EngineQueue
from .watch import Watch


class Activity:
    """The queues with changes that no commit has covered (dirty), with new visible messages (arrived), or with windows
    that end."""

    def __init__(self) -> None:
        self.staged: dict[str, Callable[[], dict[int, OSError]]] = {}
        """By queue that has pushes which are not visible yet: makes them visible, and returns by first id those that
        came to nothing."""
        self.staged_messages = 0
        """The number of those messages, in all queues; each may have an open file."""
        self.dirty: set[str] = set()
        self.arrived: set[str] = set()
        self.expiries: list[tuple[int, str]] = []
        """A heap of announced times and queues. Its first may be out of date: ask the queue, and `drop` it then."""
        self._announced: dict[str, int] = {}

    def announce(self, qid: str, expiry: int) -> None:
        """Notes that a queue has a hidden message that is due then. Cheap to call for every message."""
        known = self._announced.get(qid)
        if known is None or expiry < known:
            self._announced[qid] = expiry
            heapq.heappush(self.expiries, (expiry, qid))

    def drop(self) -> None:
        """Forgets the earliest announcement."""
        expiry, qid = heapq.heappop(self.expiries)
        if self._announced.get(qid) == expiry:
            del self._announced[qid]

    def forget(self, qid: str) -> None:
        """Forgets a queue that is gone."""
        self.staged.pop(qid, None)
        self.dirty.discard(qid)
        self.arrived.discard(qid)
        self._announced.pop(qid, None)


def _no_queue(qid: str, storage: str) -> EngineQueue:
    raise NoSuchQueueError(f"there is no queue {qid!r}")


@dataclass(slots=True)
class Shared:
    """The dependencies of every queue of an engine. vanished: is called with the name of a queue whose directory is
    gone; find_or_make: returns the queue of a name, which is made with a storage if there is none; lifecycle: receives
    the events of messages, None: they are not recorded."""

    clock: Clock
    durability: Durability
    disk: Disk
    watch: Watch
    activity: Activity
    vanished: Callable[[str], None] = lambda qid: None
    find_or_make: Callable[[str, str], EngineQueue] = _no_queue
    lifecycle: Lifecycle | None = None

    @property
    def always(self) -> bool:
        """True if a commit has to survive a power loss."""
        return self.durability is Durability.ALWAYS


class DirectoryIdentity:
    """Recognizes the directory that was opened, as another one may have its name by now."""

    def __init__(self, path: str, disk: Disk) -> None:
        """Remembers the directory. OSError."""
        self._path = path
        self._disk = disk
        self._identity = self._look_up()

    def _look_up(self) -> tuple[int, int]:
        status = self._disk.lstat(self._path)
        return status.st_dev, status.st_ino

    def in_place(self) -> bool:
        """Tells whether the directory of that path is still the one that was opened. OSError."""
        try:
            return self._look_up() == self._identity
        except FileNotFoundError:
            return False
