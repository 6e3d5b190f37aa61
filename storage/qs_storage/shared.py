"""The dependencies that an engine gives each of its queues."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from .disk import Disk
from .engine import SECOND, Clock, Durability, NoSuchQueueError, wall_clock
from .lifecycle import Lifecycle
from .queues import EngineQueue
from .watch import Watch


class Activity:
    """Collects what the queues of an engine report, so that no request has to look at all. dirty: queues to commit;
    arrived: queues with new visible messages."""

    def __init__(self) -> None:
        self.staged: dict[str, Callable[[], dict[int, OSError]]] = {}
        """By queue with pushes that are not visible: publishes them, and returns the failed ones by first id."""
        self.staged_messages = 0
        """Their messages, each maybe with an open file."""
        self.dirty: set[str] = set()
        self.arrived: set[str] = set()
        self.vanished: dict[str, None] = {}
        """Queues whose directory is gone or another one by now, in the order of the reports. The engine reopens them
        between two operations: nobody closes a queue in the middle of its own."""
        self.expiries: list[tuple[int, str]] = []
        """A heap of announced times and queues. The first may be outdated: ask the queue, and `drop` it."""
        self._announced: dict[str, int] = {}

    def announce(self, qid: str, expiry: int) -> None:
        """Announces a hidden message's end. Cheap."""
        known = self._announced.get(qid)
        if known is None or expiry < known:
            self._announced[qid] = expiry
            heapq.heappush(self.expiries, (expiry, qid))

    def drop(self) -> None:
        expiry, qid = heapq.heappop(self.expiries)
        if self._announced.get(qid) == expiry:
            del self._announced[qid]

    def forget(self, qid: str) -> None:
        self.staged.pop(qid, None)
        self.dirty.discard(qid)
        self.arrived.discard(qid)
        self._announced.pop(qid, None)


def _no_queue(qid: str, storage: str) -> EngineQueue:
    raise NoSuchQueueError(f"there is no queue {qid!r}")


@dataclass(frozen=True, slots=True)
class Shared:
    """find_or_make: returns the queue of a name, made with a storage if needed; lifecycle: receives events of messages,
    None: nobody does."""

    clock: Clock
    durability: Durability
    disk: Disk
    watch: Watch
    activity: Activity
    find_or_make: Callable[[str, str], EngineQueue] = _no_queue
    lifecycle: Lifecycle | None = None

    @property
    def always(self) -> bool:
        """A commit has to survive a power loss."""
        return self.durability is Durability.ALWAYS

    def vanished(self, qid: str) -> None:
        """Notes that a queue's directory is gone."""
        self.activity.vanished[qid] = None

    def idle_seconds(self, path: str) -> float:
        """Returns for how long nobody has written to a file. OSError.

        Files bear the wall clock's time. If that was set forward since, a file that is being written looks old by the
        wall clock; if it was set back, by the server's time. So the shorter of the two counts."""
        return min(self.clock(), wall_clock()) / SECOND - self.disk.lstat(path).st_mtime


class DirectoryIdentity:
    """Recognizes the directory that was opened: another one may get its name."""

    def __init__(self, path: str, disk: Disk) -> None:
        """Raises OSError."""
        self._path = path
        self._disk = disk
        self._identity = self._look_up()

    def _look_up(self) -> tuple[int, int]:
        status = self._disk.lstat(self._path)
        return status.st_dev, status.st_ino

    def in_place(self) -> bool:
        """Raises OSError."""
        try:
            return self._look_up() == self._identity
        except FileNotFoundError:
            return False
