"""`.claims/` in a queue's directory: which messages are in whose claims, and what each consumer has acknowledged.

`.claims/CONSUMER/SEQ` is a claim: a line of JSON that describes it, then the ids, one a line. A file is written whole
or not at all, and never changed; that it is there is what makes the claim. `.claims/CONSUMER/acked` holds the number of
the last claim that is acknowledged: what claims up to it have left is to be deleted.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from .disk import Disk
from .engine import BadQueueNameError, StorageError
from .names import directory_of, qid_of

DIRECTORY = ".claims"
_ACKED = "acked"
_LOCK = ".lock"
_READ = os.O_RDONLY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Claim:
    """seq: 1, 2, 3, …; bytes: of payload; first, last: ids, None when it has no messages; checksum: of the ids; since:
    when it was made, microseconds since the Epoch."""

    consumer: str
    seq: int
    count: int
    bytes: int
    first: int | None
    last: int | None
    checksum: str
    since: int


def describe(consumer: str, seq: int, mids: Sequence[int], size: int, since: int) -> Claim:
    """The claim of these messages, whose ids increase. size: of their payloads."""
    first, last = (mids[0], mids[-1]) if mids else (None, None)
    checksum = hashlib.sha256(array("Q", mids).tobytes()).hexdigest()[:16]
    return Claim(consumer, seq, len(mids), size, first, last, checksum, since)


class ClaimFiles:
    """Of one queue. Several servers may share them, each change under `locked`. OSError as the disk gives them."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        """directory: the queue's; sync: whether what is written has to survive a power loss."""
        self._path = f"{directory}/{DIRECTORY}"
        self._disk = disk
        self._sync = sync
        self._read: dict[str, tuple[tuple[int, int], Claim, array[int]]] = {}
        """Claims by path, and which file (inode, time of change) they were read from."""

    def exist(self) -> bool:
        """Whether there ever were any."""
        return os.path.isdir(self._path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other server changes anything meanwhile."""
        self._disk.make_directories(self._path, sync=self._sync)
        fd = self._disk.open(f"{self._path}/{_LOCK}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):  # a file system without locks cannot be shared by several servers
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            self._disk.close(fd)

    # -- reading --------------------------------------------------------------------------------------------------

    def consumers(self) -> list[str]:
        """Those which ever claimed something, in order."""
        if not self.exist():
            return []
        names = map(qid_of, self._disk.directories_in(self._path))
        return sorted(name for name in names if name is not None)

    def acknowledged(self, consumer: str) -> int:
        """The number of the last claim that is; 0: none."""
        try:
            text = self._content(f"{self._of(consumer)}/{_ACKED}")
        except FileNotFoundError:
            return 0
        return _number(text.decode("ascii", "replace").strip(), f"{self._of(consumer)}/{_ACKED}")

    def numbers(self, consumer: str) -> list[int]:
        """Of the claims whose files are there, increasing."""
        try:
            names = self._disk.files_in(self._of(consumer))
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def find(self, consumer: str, seq: int) -> tuple[Claim, "array[int]"] | None:
        """A claim and the ids of its messages, in order. StorageError when its file is damaged."""
        path = f"{self._of(consumer)}/{seq}"
        try:
            status = self._disk.lstat(path)
        except FileNotFoundError:
            self._read.pop(path, None)
            return None
        version = status.st_ino, status.st_mtime_ns
        known = self._read.get(path)
        if known is None or known[0] != version:
            known = version, *_parsed(self._content(path), path)
            self._read[path] = known
        return known[1:]

    def _of(self, consumer: str) -> str:
        try:
            return f"{self._path}/{directory_of(consumer)}"
        except BadQueueNameError as error:
            raise BadQueueNameError(f"the consumer: {error}") from None

    def _content(self, path: str) -> bytes:
        fd = self._disk.open(path, _READ)
        try:
            parts = []
            while part := self._disk.read(fd, 1 << 24):
                parts.append(part)
            return b"".join(parts)
        finally:
            self._disk.close(fd)

    # -- writing --------------------------------------------------------------------------------------------------

    def save(self, claim: Claim, mids: Sequence[int]) -> None:
        """The claim is made when this returns."""
        lines = [json.dumps(asdict(claim)), *map(str, mids), ""]
        self._write(claim.consumer, str(claim.seq), "\n".join(lines).encode())

    def acknowledge(self, consumer: str, seq: int) -> None:
        """Every claim up to that one is acknowledged when this returns."""
        self._write(consumer, _ACKED, b"%d\n" % seq)

    def drop(self, consumer: str, seq: int) -> None:
        """The claim is gone when this returns, if it was there."""
        directory = self._of(consumer)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(f"{directory}/{seq}")
            if self._sync:
                self._disk.sync_directory(directory)
        self._read.pop(f"{directory}/{seq}", None)

    def _write(self, consumer: str, name: str, content: bytes) -> None:
        directory = self._of(consumer)
        self._disk.make_directories(directory, sync=self._sync)
        path = f"{directory}/{name}"
        try:
            self._disk.write_file(path, content, sync=self._sync)
            if self._sync:
                self._disk.sync_directory(directory)
        except OSError:
            if name != _ACKED:
                with contextlib.suppress(OSError):
                    self._disk.unlink(path)  # whoever asked is told that there is none
            raise


def _parsed(content: bytes, path: str) -> tuple[Claim, "array[int]"]:
    try:
        head, *lines = content.decode("ascii").splitlines()
        claim = Claim(**json.loads(head))
        mids = array("Q", map(int, lines))
    except (ValueError, TypeError, OverflowError) as error:
        raise StorageError(f"{path} is damaged ({error}): it is no claim; put it aside, or restore it") from None
    if describe(claim.consumer, claim.seq, mids, claim.bytes, claim.since) != claim:
        raise StorageError(f"{path} is damaged: its ids are not those that it was made of; put it aside, or restore it")
    return claim, mids


def _number(text: str, path: str) -> int:
    if not text.isdigit():
        raise StorageError(f"{path} is damaged: it does not hold a number, but {text[:40]!r}")
    return int(text)
