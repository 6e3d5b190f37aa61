"""`.staged/` in a queue's directory: what producers have stored and not published yet, and what each published last.

`.staged/PRODUCER/BATCH.PART.ATTEMPT` holds payloads one after the other, each behind its length and checksum (CRC-32
that begins with 1), both 32 bits, little endian. `.staged/PRODUCER/published` holds the number of the last batch that
was published, and `.staged/PRODUCER/publishing`, in JSON, what a publication that is under way has begun to store.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from zlib import crc32

from .disk import Disk
from .engine import StorageError
from .names import directory_of, qid_of
from .sidefiles import SideFiles

_logger = logging.getLogger(__name__)
DIRECTORY = ".staged"
_PUBLISHED = "published"
_PUBLISHING = "publishing"
_HEAD = struct.Struct("<II")
_STAGED = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,19})")
_APPEND = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC
_BEGIN = 1
"""What a checksum begins with: so that zeros, which a power loss may leave, are no empty payloads."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What is being published: parts with their attempts, and the ids that its messages get, one after the other."""

    batch: int
    parts: Sequence[tuple[int, int]]
    first: int
    count: int


class BatchFiles:
    """Of one queue. Several servers may share them, what is published under `locked`. OSError as the disk gives them;
    BadQueueNameError for the name of a producer."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        """directory: the queue's; sync: whether what is written has to survive a power loss."""
        self._files = SideFiles(f"{directory}/{DIRECTORY}", "producer", disk, sync=sync)
        self._disk = disk
        self._sync = sync
        self._lengths: dict[str, int] = {}
        """Of the files that this process appends to: their lengths when it last did, up to where they are whole."""
        self.exist = self._files.exist
        self.locked = self._files.locked
        self.producers = self._files.names
        self.make_certain = self._files.make_certain
        self.clear_left_behind = self._files.clear_left_behind

    # -- what was staged ------------------------------------------------------------------------------------------

    def append(self, producer: str, name: tuple[int, int, int], payloads: Iterable[bytes]) -> None:
        """Adds payloads to an attempt (batch, part, attempt), all or none. Other servers may add to the same one."""
        path = f"{self._files.directory(producer)}/{_file_name(name)}"
        fd = self._disk.open(path, _APPEND, 0o666)
        try:
            with contextlib.suppress(OSError):  # as in SideFiles.locked; the file is closed in the end
                fcntl.flock(fd, fcntl.LOCK_EX)
            start = self._lengths.get(path)
            if start is None or self._disk.fstat(fd).st_size != start:
                start = sum(_HEAD.size + len(payload) for payload in self._payloads(fd))
                self._disk.ftruncate(fd, start)  # what a crash has cut short was never answered
            data = b"".join(map(_framed, payloads))
            try:
                self._disk.pwrite(fd, data, start)
                if self._sync:
                    self._disk.fdatasync(fd)
                self._files.make_certain(producer, anew=not start)
            except OSError:
                self._lengths.pop(path, None)
                with contextlib.suppress(OSError):
                    self._disk.ftruncate(fd, start)
                raise
            self._lengths[path] = start + len(data)
        finally:
            self._disk.close(fd)

    def payloads(self, producer: str, name: tuple[int, int, int]) -> list[bytes] | None:
        """What an attempt holds; None when there is none. StorageError when it is damaged, or was not stored to its
        end."""
        path = f"{self._files.of(producer)}/{_file_name(name)}"
        try:
            fd = self._disk.open(path, _READ)
        except FileNotFoundError:
            return None
        try:
            found = list(self._payloads(fd))
            whole = sum(_HEAD.size + len(payload) for payload in found)
            if whole < self._disk.fstat(fd).st_size:
                raise StorageError(f"{path} is damaged at byte {whole}: stage that part again, as another attempt")
            return found
        finally:
            self._disk.close(fd)

    def size(self, producer: str, name: tuple[int, int, int]) -> int:
        """Bytes of its file, 0 when there is none."""
        try:
            return self._disk.lstat(f"{self._files.of(producer)}/{_file_name(name)}").st_size
        except FileNotFoundError:
            return 0

    def _payloads(self, fd: int) -> Iterator[bytes]:
        content = bytearray()
        while part := self._disk.read(fd, 1 << 24):
            content += part
        at = 0
        while at + _HEAD.size <= len(content):
            length, checksum = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            payload = bytes(content[at : at + length])
            at += length
            if len(payload) < length or crc32(payload, _BEGIN) != checksum:
                return
            yield payload

    def clear(self, producer: str, upto: int) -> None:
        """Removes what was staged for batches up to that one. OSError is no reason to fail: the next time will do."""
        directory = self._files.of(producer)
        with contextlib.suppress(OSError):
            for name in self._disk.files_in(directory):
                match = _STAGED.fullmatch(name)
                if match is not None and int(match[1]) <= upto:
                    self._lengths.pop(f"{directory}/{name}", None)
                    self._disk.unlink(f"{directory}/{name}")

    # -- what was published ---------------------------------------------------------------------------------------

    def published(self, producer: str) -> int:
        """The number of the last batch that was; -1: none. StorageError when that file is damaged."""
        content = self._files.read(producer, _PUBLISHED)
        if content is None:
            return -1
        text = content.decode("ascii", "replace").strip()
        if not text.isdigit():
            raise StorageError(
                f"{self._files.of(producer)}/{_PUBLISHED} is damaged: it does not hold a number, but {text[:40]!r}; "
                "write the number of the last batch that was published into it"
            )
        return int(text)

    def publish(self, producer: str, batch: int) -> None:
        """That batch, and every one before it, is published when this returns; that it stays so is not sure before
        `make_certain`. OSError: it is not."""
        before = self.published(producer)
        self._files.put(producer, _PUBLISHED, b"%d\n" % batch)
        try:
            self._files.make_certain(producer, anew=True)
        except OSError:
            if self._put_back(producer, before):
                raise

    def _put_back(self, producer: str, before: int) -> bool:
        """Whether it says again what it said."""
        try:
            if before < 0:
                self._disk.unlink(f"{self._files.of(producer)}/{_PUBLISHED}")
            else:
                self._files.put(producer, _PUBLISHED, b"%d\n" % before)
        except OSError:
            return False
        with contextlib.suppress(OSError):
            self._files.make_certain(producer, anew=True)
        return True

    def publishing(self, producer: str) -> Publication | None:
        """What was being published when a server ended or failed, and may or may not be. StorageError."""
        content = self._files.read(producer, _PUBLISHING)
        if content is None:
            return None
        try:
            found = Publication(**json.loads(content))
            return Publication(int(found.batch), [(int(n), int(a)) for n, a in found.parts], found.first, found.count)
        except (ValueError, TypeError) as error:
            raise StorageError(
                f"{self._files.of(producer)}/{_PUBLISHING} is damaged ({error}): a batch may be there in half; restore "
                "it, or put it aside"
            ) from None

    def begin(self, producer: str, publication: Publication) -> None:
        """Notes what is going to be stored."""
        self._files.write(producer, _PUBLISHING, json.dumps(asdict(publication)).encode())

    def end(self, producer: str) -> None:
        """Nothing is being published. OSError is no reason to fail."""
        with contextlib.suppress(OSError):
            self._disk.unlink(f"{self._files.of(producer)}/{_PUBLISHING}")


def finish(queue: str, note: str, disk: Disk, *, sync: bool) -> None:
    """Does what `note_of` says, at a start. queue: the directory of the queue."""
    name, _, batch = note.rpartition(" ")
    producer = qid_of(name)
    if producer is None or not batch.isdigit():
        return
    files = BatchFiles(queue, disk, sync=sync)
    try:
        published = files.published(producer)
    except StorageError as error:
        _logger.error("%s: now it is %s", error, batch)
        return
    if int(batch) > published:
        files.publish(producer, int(batch))


def note_of(producer: str, batch: int) -> str:
    """One line that says that the batch is published."""
    return f"{directory_of(producer)} {batch}"


def _framed(payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), crc32(payload, _BEGIN)) + payload


def _file_name(name: tuple[int, int, int]) -> str:
    return ".".join(map(str, name))
