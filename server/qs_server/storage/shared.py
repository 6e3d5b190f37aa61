"""The dependencies that an engine gives each of its queues."""

from collections.abc import Callable
from dataclasses import dataclass

from .activity import Activity
from .disk import Disk
from .engine import Clock, Durability, NoSuchQueueError
from .lifecycle import Lifecycle
from .queues import EngineQueue
from .watch import Watch


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
