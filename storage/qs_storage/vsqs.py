"""Queues in the vsqs layout as a library: no server, any number of processes and threads.

    from qs_storage import vsqs

    queue = vsqs.Queue("/var/spool/orders", create=True)
    queue.publish(b"hello")
    mid, data = queue.receive(visibility_timeout=10)
    queue.delete(mid)

The directory is shared with servers of the `files` engine, and with processes that use the package vsqs 0.3, while all
of them run. The names, arguments and returned values are those of that package; `QueueManager` is there for its users.
What differs: nothing is lost on power loss once `publish` has returned, no operation gets slower with the depth of the
queue, an expiring message wakes the receivers, and `delete` also works for messages that were received elsewhere.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

from .disk import Disk
from .engine import SECOND, Draft, Durability, NoSuchMessageError, QueueFullError, Receipt, StorageError
from .files.queue import FilesQueue
from .journal.log.lock import is_in_use
from .names import JOURNAL, parse_message
from .settings import FILE, read_options
from .shared import Activity, EngineContext
from .watch import Watch

_POLL = 0.1
"""Seconds between two looks without reports of changes."""


def micros() -> int:
    """Returns microseconds since the Epoch. This is the default clock."""
    return int(time.time() * SECOND)


class QueueException(StorageError):  # noqa: N818 - named as in vsqs
    """The base of this module's errors."""


class QueueFullException(QueueException):
    """The queue is still full after a wait."""


class QueueInUseError(StorageError):
    """The messages of the queue are in a journal, and not in its directory."""


def check_no_server(path: str) -> None:
    """Checks that a directory is not a queue of a journal, which would ingest the files. See docs/storage.md, "Moving
    messages in and out". QueueInUseError."""
    root = os.path.dirname(os.path.realpath(path))
    running = is_in_use(os.path.join(root, JOURNAL))
    if read_options(path, "journal" if running else "files").storage != "journal":
        return
    if running:
        raise QueueInUseError(
            f"a server is running on {root}, and has the messages of this queue in its journal (storage 'journal'): "
            "`qs receive` and `qs export` take them out"
        )
    raise QueueInUseError(
        f"the messages of this queue are in the journal of {root} (storage 'journal'): start the server, or use "
        "`queue-journal.py export`, which writes them to files"
    )


class Queue:
    """A queue in a directory, for several threads. Close it, or use it in a with statement.

    Ensures that a published message is durable when `publish` returns (unless `sync` is off), that a message is
    received by one process at a time, and that waiting costs nothing: the kernel reports what others do.

    Assumes that no server has the queue in its journal. The constructor checks that, unless publish_only is given."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        *,
        create: bool = False,
        publish_only: bool = False,
        sync: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """path: the queue's directory. capacity: messages, at least 1, None for no bound. create: True to make a
        missing directory, and to accept one that holds only other things. publish_only: True to allow only `publish`
        and `close`, so that a server may have the queue in its journal and ingest the published messages. sync: True if
        published messages have to be durable when `publish` returns. clock: microseconds since the Epoch.

        QueueException: the directory is no queue, or a server has it in its journal. OSError.
        """
        self.path = os.path.abspath(os.fspath(path))
        self.capacity = capacity
        self.manager: QueueManager | None = None
        # Looked up at each call: programs that test themselves replace the module's clock.
        self._clock = clock or (lambda: micros())  # noqa: PLW0108
        self._changes = threading.Condition(threading.RLock())
        self._closed = False
        self._watcher: threading.Thread | None = None
        self._end_read = self._end_write = -1
        self._activity = Activity()
        self._watch = Watch()
        self._publish_only = publish_only
        durability = Durability.ALWAYS if sync else Durability.NONE
        self._context = EngineContext(self._clock, durability, Disk(), self._watch, self._activity)
        try:
            if not create:
                _check_is_queue(self.path)
            self._queue = self._open()
        except BaseException:
            self._watch.close()
            raise

    def _open(self) -> FilesQueue:
        self._context.disk.make_directories(self.path, sync=self._context.always)
        if not self._publish_only:
            try:
                check_no_server(self.path)
            except QueueInUseError as error:
                raise QueueException(f"{error} (publish_only=True is possible all the same)") from None
        options = read_options(self.path, "files")
        # To move messages to other queues, and to remove old ones, is left to servers.
        options.dead_letter, options.max_receives, options.retention = "", None, None
        return FilesQueue(self.path, os.path.basename(self.path), options, self._context)

    def __enter__(self) -> "Queue":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the waits of other threads, and closes the queue. Messages stay."""
        with self._changes:
            if self._closed:
                return
            self._closed = True
            if self._watcher is not None:
                # Wakes the thread that waits for changes, which then ends.
                os.write(self._end_write, b".")
            self._changes.notify_all()
        if self._watcher is not None:
            self._watcher.join()
            os.close(self._end_read)
            os.close(self._end_write)
        self._queue.close()
        self._watch.close()

    def publish(self, data: bytes, timeout: float | None = None) -> str:
        """Stores a message. Returns its id. timeout: the seconds to wait while the queue is full, None for any time.
        QueueFullException, OSError."""
        draft = Draft(bytes(memoryview(data)))
        deadline = _deadline(timeout)
        with self._changes:
            while True:
                self._look()
                if self.capacity is None or len(self._queue) < self.capacity:
                    return self._publish(draft)
                if not self._wait(deadline, until=None):
                    raise QueueFullException(f"{self.path} holds {len(self._queue)} messages, and that is its capacity")

    def _publish(self, draft: Draft) -> str:
        try:
            mids = self._queue.push([draft])
        except QueueFullError as error:
            raise QueueFullException(str(error)) from None
        for failure in self._queue.flush().values():
            raise failure
        try:
            self._commit()
        except OSError:
            # It may not be durable: a program that publishes it again would store it twice.
            with contextlib.suppress(OSError, NoSuchMessageError):
                self._queue.delete(Receipt(mids[0]))
            raise
        return str(mids[0])

    def receive(
        self, visibility_timeout: float = 10, timeout: float | None = None
    ) -> tuple[str, bytes] | tuple[None, None]:
        """Returns the oldest visible message's id and payload, and hides the message for visibility_timeout seconds.
        Returns (None, None) after timeout seconds without a message; None waits for ever."""
        self._check_not_publish_only()
        deadline = _deadline(timeout)
        visibility = round(visibility_timeout * SECOND)
        with self._changes:
            while True:
                self._look()
                self._queue.expire()
                while (mid := self._queue.first_ready()) is not None:
                    message = self._queue.take(mid, visibility)
                    if message is not None:
                        self._commit()
                        return str(message.mid), message.payload or b""
                if not self._wait(deadline, until=self._queue.next_expiry()):
                    return None, None

    def delete(self, mid: str | int) -> None:
        """Removes a message in any state. Does nothing if the message is gone."""
        self._check_not_publish_only()
        with self._changes:
            self._look()
            with contextlib.suppress(NoSuchMessageError):
                self._queue.delete(Receipt(int(mid)))
                self._commit()

    def size(self) -> int:
        """Counts messages, hidden ones included."""
        self._check_not_publish_only()
        with self._changes:
            self._look()
            return len(self._queue)

    def _check_not_publish_only(self) -> None:
        if self._publish_only:
            raise QueueException(
                f"the queue on {self.path} was opened with publish_only=True: nothing else can be done"
            )

    # -- waiting --------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._closed:
            raise QueueException(f"the queue on {self.path} has been closed")
        self._watch.refresh()
        if self._activity.vanished:  # somebody has removed the directory, and maybe made it again
            self._activity.vanished.clear()
            self._queue.close()
            self._queue = self._open()
        if not self._queue.store.watched:
            self._queue.store.rescan()

    def _commit(self) -> None:
        if self._activity.dirty:
            self._queue.commit()
            self._activity.dirty.clear()
        self._changes.notify_all()

    def _wait(self, deadline: float | None, until: int | None) -> bool:
        """Waits for a change, or a time on the queue's clock. Returns False after the deadline."""
        waits = [] if deadline is None else [deadline - time.monotonic()]
        if waits and waits[0] <= 0:
            return False
        if until is not None:
            # Until the next window ends: no event reports that.
            waits.append(max((until - self._clock()) / SECOND, 0.0))
        if not self._queue.store.watched:
            waits.append(_POLL)
        self._start_watching()
        self._changes.wait(min(waits) if waits else None)
        return True

    def _start_watching(self) -> None:
        """Starts the thread that listens for changes by other processes. The first wait calls it."""
        if self._watcher is None and self._watch.fileno() is not None:
            self._end_read, self._end_write = os.pipe()
            self._watcher = threading.Thread(target=self._listen, name=f"watch {self.path}", daemon=True)
            self._watcher.start()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._watch.fileno() or 0, select.POLLIN)
        poll.register(self._end_read, select.POLLIN)
        while True:
            if any(descriptor == self._end_read for descriptor, _ in poll.poll()):
                return
            with self._changes:
                if not self._closed:
                    self._watch.refresh()
                    self._changes.notify_all()


def _check_is_queue(path: str) -> None:
    """Checks that a directory is empty, or holds a message or a queue's options. QueueException, OSError."""
    try:
        with os.scandir(path) as entries:
            others = None
            for entry in entries:
                if entry.name == FILE or (parse_message(os.fsencode(entry.name)) and entry.is_file()):
                    return
                if entry.name == JOURNAL:
                    raise QueueException(
                        f"{path} is no queue: it is the root of a server, and each directory in it is one"
                    )
                others = others or (None if entry.name.startswith(".") else entry.name)
    except FileNotFoundError:
        raise QueueException(f"there is no queue {path}: correct the path, or make it with create=True") from None
    if others is not None:
        raise QueueException(
            f"{path} is no queue: it holds {others!r} and no message; correct the path, or give create=True"
        )


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


class QueueManager:
    """Opens queues in directories of one directory, as in the package vsqs."""

    def __init__(self, path: str | os.PathLike[str] = "") -> None:
        self.path = os.fspath(path)
        self._queues: list[Queue] = []

    def get_queue(self, name: str | os.PathLike[str], capacity: int | None = None) -> Queue:
        """Returns the queue with a name, which is made if missing. capacity: messages, None for no bound.
        QueueException if a server has the queue in its journal."""
        queue = Queue(os.path.join(self.path, name), capacity, create=True)
        queue.manager = self
        self._queues.append(queue)
        return queue

    def close(self) -> None:
        """Closes all queues that the manager has opened."""
        while self._queues:
            self._queues.pop().close()
