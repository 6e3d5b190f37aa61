"""`.claims/` in a queue's directory: which messages are in whose claims, and what each consumer has acknowledged.

`.claims/CONSUMER/SEQ` is a claim: a line of JSON that describes it, then the ids, one a line. A file is written whole
or not at all, and never changed; that it is there is what makes the claim. `.claims/CONSUMER/acked` holds the number of
the last claim that is acknowledged: what claims up to it have left is to be deleted.
"""

import contextlib
import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .disk import Disk
from .engine import StorageError
from .sidefiles import SideFiles

DIRECTORY = ".claims"
_ACKED = "acked"


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
    """Of one queue. Several servers may share them, each change under `locked`. OSError as the disk gives them;
    BadQueueNameError for the name of a consumer."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        """directory: the queue's; sync: whether what is written has to survive a power loss."""
        self._files = SideFiles(f"{directory}/{DIRECTORY}", "consumer", disk, sync=sync)
        self._disk = disk
        self._read: dict[str, tuple[tuple[int, int, int], Claim, array[int]]] = {}
        """Claims by path, and which file (inode, time of change, size) they were read from."""
        self.exist = self._files.exist
        self.locked = self._files.locked
        self.consumers = self._files.names
        self.make_certain = self._files.make_certain
        self.clear_left_behind = self._files.clear_left_behind

    # -- reading --------------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: str) -> int:
        """The number of the last claim that is; 0: none. StorageError when that file is damaged."""
        content = self._files.read(consumer, _ACKED)
        if content is None:
            return 0
        text = content.decode("ascii", "replace").strip()
        if not text.isdigit():
            raise StorageError(
                f"{self._files.of(consumer)}/{_ACKED} is damaged: it does not hold a number, but {text[:40]!r}; write "
                "the number of the last claim that is acknowledged into it (0: none), and restart the server"
            )
        return int(text)

    def numbers(self, consumer: str) -> list[int]:
        """Of the claims whose files are there, increasing."""
        try:
            names = self._disk.files_in(self._files.of(consumer))
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def find(self, consumer: str, seq: int) -> tuple[Claim, "array[int]"] | None:
        """A claim and the ids of its messages, in order. StorageError when its file is damaged."""
        path = self._path(consumer, seq)
        try:
            status = self._disk.lstat(path)
        except FileNotFoundError:
            self._read.pop(path, None)
            return None
        version = status.st_ino, status.st_mtime_ns, status.st_size
        known = self._read.get(path)
        if known is None or known[0] != version:
            content = self._files.read(consumer, str(seq))
            if content is None:
                return None
            known = version, *_parsed(content, path)
            self._read[path] = known
        return known[1:]

    def has(self, consumer: str, seq: int) -> bool:
        """Whether there is a file for that claim, whatever is in it."""
        try:
            self._disk.lstat(self._path(consumer, seq))
        except FileNotFoundError:
            return False
        return True

    def since(self, consumer: str, seq: int) -> int:
        """When a claim's file was written, microseconds since the Epoch; 0 when there is none."""
        with contextlib.suppress(OSError):
            return self._disk.lstat(self._path(consumer, seq)).st_mtime_ns // 1000
        return 0

    def _path(self, consumer: str, seq: int) -> str:
        return f"{self._files.of(consumer)}/{seq}"

    # -- writing --------------------------------------------------------------------------------------------------

    def save(self, claim: Claim, mids: Sequence[int]) -> None:
        """The claim is made when this returns. OSError: it is not, unless `has` says so: then it could not be undone
        for sure."""
        lines = [json.dumps(asdict(claim)), *map(str, mids), ""]
        try:
            self._files.write(claim.consumer, str(claim.seq), "\n".join(lines).encode())
        except OSError:
            with contextlib.suppress(OSError):
                self.drop(claim.consumer, claim.seq)
            raise

    def acknowledge(self, consumer: str, seq: int) -> None:
        """Every claim up to that one is acknowledged when this returns."""
        self._files.write(consumer, _ACKED, b"%d\n" % seq)

    def drop(self, consumer: str, seq: int) -> None:
        """The claim is gone when this returns, if it was there. OSError: it is there still, unless that is not to be
        had either: a power loss must not bring it back once others have its messages."""
        path = self._path(consumer, seq)
        aside = f"{path}.tmp"
        try:
            self._disk.rename(path, aside)
        except FileNotFoundError:
            return
        try:
            self._files.make_certain(consumer, anew=True)
        except OSError:
            self._disk.rename(aside, path)
            raise
        self._read.pop(path, None)
        with contextlib.suppress(OSError):  # the next start clears it away
            self._disk.unlink(aside)


def _parsed(content: bytes, path: str) -> tuple[Claim, "array[int]"]:
    try:
        head, *lines = content.decode("ascii").splitlines()
        claim = Claim(**json.loads(head))
        mids = array("Q", map(int, lines))
        sound = describe(claim.consumer, claim.seq, mids, claim.bytes, claim.since) == claim
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise StorageError(f"{path} is damaged ({error}): restore it, or release that claim") from None
    if not sound or not path.endswith(f"/{claim.seq}"):
        raise StorageError(f"{path} is damaged, it is not what was written: restore it, or release that claim")
    return claim, mids
