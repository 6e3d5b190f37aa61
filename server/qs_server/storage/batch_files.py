"""`.staged/` in a queue's directory: what producers have stored and not published yet, and what each published last.

`.staged/PRODUCER/BATCH.PART.ATTEMPT` holds payloads one after the other, each behind its length and checksum (CRC-32),
both 32 bits, little endian. `.staged/PRODUCER/published` holds the number of the last batch that was published, and
`.staged/PRODUCER/publishing`, in JSON, what a publication that is under way has begun to store in the journal.
"""

import contextlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from zlib import crc32

from .disk import Disk
from .engine import BadQueueNameError, StorageError
from .names import directory_of, qid_of

DIRECTORY = ".staged"
_PUBLISHED = "published"
_PUBLISHING = "publishing"
_HEAD = struct.Struct("<II")
_STAGED = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,19})")
_APPEND = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Publication:
    """What is being published: parts with their attempts, and the ids that its messages get, one after the other."""

    batch: int
    parts: Sequence[Sequence[int]]
    first: int
    count: int


class BatchFiles:
    """Of one queue. OSError as the disk gives them; BadQueueNameError for the name of a producer."""

    def __init__(self, directory: str, disk: Disk, *, sync: bool) -> None:
        """directory: the queue's; sync: whether what is written has to survive a power loss."""
        self._path = f"{directory}/{DIRECTORY}"
        self._disk = disk
        self._sync = sync
        self._lengths: dict[str, int] = {}
        """Of the files that this process appends to: up to where they are whole."""

    def producers(self) -> list[str]:
        """Those which ever stored something, in order."""
        if not os.path.isdir(self._path):
            return []
        names = map(qid_of, self._disk.directories_in(self._path))
        return sorted(name for name in names if name is not None)

    def _of(self, producer: str) -> str:
        try:
            return f"{self._path}/{directory_of(producer)}"
        except BadQueueNameError as error:
            raise BadQueueNameError(f"the producer: {error}") from None

    # -- what was staged ------------------------------------------------------------------------------------------

    def append(self, producer: str, name: tuple[int, int, int], payloads: Iterable[bytes]) -> None:
        """Adds payloads to an attempt (batch, part, attempt), all or none."""
        directory = self._of(producer)
        self._disk.make_directories(directory, sync=self._sync)
        path = f"{directory}/{_file_name(name)}"
        fd = self._disk.open(path, _APPEND, 0o666)
        try:
            start = self._lengths.get(path)
            if start is None:
                start = sum(_HEAD.size + len(payload) for payload in self._payloads(fd))
                os.ftruncate(fd, start)  # what a crash has cut short was never answered
            data = b"".join(
                part for payload in payloads for part in (_HEAD.pack(len(payload), crc32(payload)), payload)
            )
            try:
                self._disk.pwrite(fd, data, start)
                if self._sync:
                    self._disk.fdatasync(fd)
            except OSError:
                self._lengths.pop(path, None)
                with contextlib.suppress(OSError):
                    os.ftruncate(fd, start)
                raise
        finally:
            self._disk.close(fd)
        if self._sync and not start:
            self._disk.sync_directory(directory)
        self._lengths[path] = start + len(data)

    def payloads(self, producer: str, name: tuple[int, int, int]) -> list[bytes] | None:
        """What an attempt holds; None when there is none."""
        try:
            fd = self._disk.open(f"{self._of(producer)}/{_file_name(name)}", _READ)
        except FileNotFoundError:
            return None
        try:
            return list(self._payloads(fd))
        finally:
            self._disk.close(fd)

    def size(self, producer: str, name: tuple[int, int, int]) -> int:
        """Bytes of its file, 0 when there is none."""
        try:
            return self._disk.lstat(f"{self._of(producer)}/{_file_name(name)}").st_size
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
            if len(payload) < length or crc32(payload) != checksum:
                return
            yield payload

    def clear(self, producer: str, upto: int) -> None:
        """Removes what was staged for batches up to that one. OSError is no reason to fail: the next time will do."""
        directory = self._of(producer)
        with contextlib.suppress(OSError):
            for name in self._disk.files_in(directory):
                match = _STAGED.fullmatch(name)
                if match is not None and int(match[1]) <= upto:
                    self._lengths.pop(f"{directory}/{name}", None)
                    self._disk.unlink(f"{directory}/{name}")

    # -- what was published ---------------------------------------------------------------------------------------

    def published(self, producer: str) -> int:
        """The number of the last batch that was; -1: none."""
        path = f"{self._of(producer)}/{_PUBLISHED}"
        text = self._text(path)
        if text is None:
            return -1
        if not text.strip().isdigit():
            raise StorageError(f"{path} is damaged: it does not hold a number, but {text[:40]!r}")
        return int(text)

    def publish(self, producer: str, batch: int) -> None:
        """That batch, and every one before it, is published when this returns."""
        self._write(producer, _PUBLISHED, b"%d\n" % batch)

    def publishing(self, producer: str) -> Publication | None:
        """What was being published when the last server ended, unless it was published."""
        path = f"{self._of(producer)}/{_PUBLISHING}"
        text = self._text(path)
        if text is None:
            return None
        try:
            found = Publication(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise StorageError(f"{path} is damaged ({error}); put it aside, or restore it") from None
        return found if found.batch > self.published(producer) else None

    def begin(self, producer: str, publication: Publication) -> None:
        """Notes what is going to be stored."""
        self._write(producer, _PUBLISHING, json.dumps(asdict(publication)).encode())

    def end(self, producer: str) -> None:
        """Nothing is being published. OSError is no reason to fail."""
        with contextlib.suppress(OSError):
            self._disk.unlink(f"{self._of(producer)}/{_PUBLISHING}")

    def _text(self, path: str) -> str | None:
        try:
            fd = self._disk.open(path, _READ)
        except FileNotFoundError:
            return None
        try:
            return self._disk.read(fd, 1 << 24).decode("ascii", "replace")
        finally:
            self._disk.close(fd)

    def _write(self, producer: str, name: str, content: bytes) -> None:
        directory = self._of(producer)
        self._disk.make_directories(directory, sync=self._sync)
        self._disk.write_file(f"{directory}/{name}", content, sync=self._sync)
        if self._sync:
            self._disk.sync_directory(directory)


def finish(queue: str, note: str, disk: Disk, *, sync: bool) -> None:
    """Does what `note_of` says, at a start. queue: the directory of the queue."""
    name, _, batch = note.rpartition(" ")
    producer = qid_of(name)
    files = BatchFiles(queue, disk, sync=sync)
    if producer is not None and batch.isdigit() and int(batch) > files.published(producer):
        files.publish(producer, int(batch))


def note_of(producer: str, batch: int) -> str:
    """One line that says that the batch is published."""
    return f"{directory_of(producer)} {batch}"


def _file_name(name: tuple[int, int, int]) -> str:
    return ".".join(map(str, name))
