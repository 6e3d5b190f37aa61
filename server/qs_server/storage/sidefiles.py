"""A directory of the server's own in that of a queue, with a directory for each of those that have something in it.

Several servers may share it: each change is made under `locked`. It goes with the queue, so it is never made anew where
the queue's directory is gone.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from .disk import Disk
from .engine import BadQueueNameError
from .names import directory_of, qid_of

_LOCK = ".lock"
_READ = os.O_RDONLY | os.O_CLOEXEC


class SideFiles:
    """Of one queue. OSError as the disk gives them; FileNotFoundError when the queue's directory is gone."""

    def __init__(self, directory: str, who: str, disk: Disk, *, sync: bool) -> None:
        """directory: whose parent is the queue's; who: what those are whose names are asked for, in texts; sync:
        whether what is written has to survive a power loss."""
        self.path = directory
        self._who = who
        self._disk = disk
        self._sync = sync
        self._made: set[str] = set()
        """Directories that are there for sure, also after a power loss."""
        self._certain: set[str] = set()
        """Names in whose directories everything is durable that this process knows of."""

    def exist(self) -> bool:
        """Whether there ever was anything."""
        return os.path.isdir(self.path)

    def names(self) -> list[str]:
        """Those which ever had something here, in order."""
        if not self.exist():
            return []
        names = map(qid_of, self._disk.directories_in(self.path))
        return sorted(name for name in names if name is not None)

    def of(self, name: str) -> str:
        """The directory of one of them. BadQueueNameError."""
        try:
            return f"{self.path}/{directory_of(name)}"
        except BadQueueNameError as error:
            raise BadQueueNameError(f"the {self._who}: {error}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other server changes anything meanwhile. Not within itself."""
        self._make(self.path)
        fd = self._disk.open(f"{self.path}/{_LOCK}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):  # a file system without locks cannot be shared by several servers
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._disk.close(fd)

    def _make(self, directory: str) -> None:
        """Its name is durable when this returns, whoever made it: that process may have been killed before it was."""
        if directory in self._made and os.path.isdir(directory):
            return
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(directory)
        if self._sync:
            self._disk.sync_directory(os.path.dirname(directory))
        self._made.add(directory)

    def directory(self, name: str) -> str:
        """As `of`, and it is there."""
        directory = self.of(name)
        self._make(self.path)
        self._make(directory)
        return directory

    def read(self, name: str, file: str) -> bytes | None:
        """The content of a file; None when it is not there."""
        try:
            fd = self._disk.open(f"{self.of(name)}/{file}", _READ)
        except FileNotFoundError:
            return None
        try:
            parts = []
            while part := self._disk.read(fd, 1 << 24):
                parts.append(part)
            return b"".join(parts)
        finally:
            self._disk.close(fd)

    def write(self, name: str, file: str, content: bytes) -> None:
        """A file that is there completely or not at all, and durable when this returns. OSError: it may be there
        nevertheless, as it was or as it was to be."""
        self.put(name, file, content)
        self.make_certain(name, anew=True)

    def put(self, name: str, file: str, content: bytes) -> None:
        """As `write`, but it is durable only after `make_certain`. OSError: it is as it was."""
        self._disk.write_file(f"{self.directory(name)}/{file}", content, sync=self._sync)

    def make_certain(self, name: str, *, anew: bool = False) -> None:
        """What is known of a name survives a power loss. anew: something has just changed, or another server may have
        changed it that was killed then; without it, nothing is done if it is so for sure."""
        if anew:
            self._certain.discard(name)
        if self._sync and name not in self._certain:
            self._disk.sync_directory(self.of(name))
        self._certain.add(name)

    def clear_left_behind(self, name: str) -> None:
        """Removes files that a crash has left half written. Under the lock. OSError is no reason to fail."""
        directory = self.of(name)
        with contextlib.suppress(OSError):
            for file in self._disk.files_in(directory):
                if file.endswith(".tmp"):
                    self._disk.unlink(f"{directory}/{file}")
