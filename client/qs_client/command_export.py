"""`qs export`: writes the messages of a queue to files, through a running server.

The files are in the layout of vsqs: the id is the name, the payload the content. `command_labels` keeps headers,
priority and group with them.
"""

import contextlib
import errno
import math
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from qs_schemas import Delivery

from .client import QueueClient
from .command_labels import Labels, keep, labels_of
from .command_output import INCOMPLETE, OK, Output, complain
from .errors import NotFound, ServerError

_NEW_FILE = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})
"""Errors of a file system without hard links, or with too many links to a file."""


class OtherFileError(OSError):
    """Raised when a file of that name exists with other content."""


class Exported(NamedTuple):
    """A message to write. receives: how often it was received."""

    mid: int
    payload: bytes
    receives: int
    labels: Labels


class VsqsFiles:
    """Writes messages into a directory.

    Ensures
    1. A file has its name only once all of its content is durable, and what is kept with it.
    2. Nothing is overwritten: a file of the same name with the same content counts as written, any other is an error.
    3. Two writers of the same messages do not harm each other, and an export can be repeated.
    """

    def __init__(self, directory: str) -> None:
        """Creates the directory if it is missing; its parent must exist. Raises OSError."""
        self._directory = directory
        if not os.path.isdir(directory):
            os.mkdir(directory)
            _sync(os.path.dirname(os.path.abspath(directory)))

    def write(self, messages: Iterable[Exported]) -> int:
        """Writes files durably; a file that exists with the same content counts as written. Returns how many files are
        new. Raises OtherFileError when one exists with other content, and OSError; then some of the files may exist."""
        written: dict[str, int] = {}
        try:
            for message in messages:
                path = os.path.join(self._directory, str(message.mid))
                if not _is_written(path, message.payload):
                    written[path] = _write(path, message)
            for descriptor in written.values():
                os.fsync(descriptor)
            for path in written:
                _publish(_temporary(path), path)
            _sync(self._directory)  # one for all names
        except BaseException:
            for path in written:
                with contextlib.suppress(OSError):
                    os.unlink(_temporary(path))
            raise
        finally:
            for descriptor in written.values():
                os.close(descriptor)
        return len(written)


def _write(path: str, message: Exported) -> int:
    """Writes the temporary file of a message and returns its descriptor. Leaves none behind when that fails."""
    temporary = _temporary(path)
    descriptor = os.open(temporary, _NEW_FILE, 0o666)
    try:
        _write_all(descriptor, message.payload)
        if message.receives:
            with contextlib.suppress(OSError):  # not every file system has attributes
                os.setxattr(descriptor, "user.qs.receives", b"%d" % message.receives)
        keep(message.labels, descriptor, path, _write_durably)
        # Starts writing now, so that the syncs of many files wait together.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return descriptor


def _write_durably(path: str, content: bytes) -> None:
    descriptor = os.open(path, _NEW_FILE, 0o666)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _temporary(path: str) -> str:
    """Returns the name of a file until it is complete: it begins with a dot, as no id does."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.tmp")


def _is_written(path: str, payload: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == len(payload) and file.read() == payload:
                return True
    except FileNotFoundError:
        return False
    raise _other(path)


def _other(path: str) -> OtherFileError:
    return OtherFileError(f"{path} exists with other content, and is not overwritten")


def _publish(temporary: str, path: str) -> None:
    """Gives a complete file its name. Raises OtherFileError if a file of that name exists."""
    try:
        os.link(temporary, path)  # a rename would overwrite a file that another writer has made meanwhile
    except FileExistsError:
        raise _other(path) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise _other(path) from None
        os.rename(temporary, path)
    else:
        os.unlink(temporary)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_AT_ONCE = 100
"""Messages that are written and synced together, and in flight with --delete."""


def export(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Writes each message to a file, except for those that are pushed after it has begun."""
    qid = arguments.queue
    [before] = client.stats(qid)
    files = VsqsFiles(arguments.directory)
    progress = _Progress(before.ready)
    try:
        if arguments.delete:
            _move(client, arguments, files, progress, math.inf if before.ready is None else before.ready)
        else:
            peeked = _peeked(client, qid)
            while messages := list(islice(peeked, _AT_ONCE)):
                progress.add(len(messages), files.write(messages))
    finally:
        progress.clear()
    [after] = client.stats(qid)
    hidden = (after.in_flight or 0) + (after.delayed or 0)
    fields = {"qid": qid, "count": progress.done, "written": progress.written, "hidden": hidden}
    out.line(progress.summary(), fields)
    if hidden:
        complain(f"{hidden} in flight or delayed: not exported; give the command again when they are visible")
    return INCOMPLETE if hidden else OK


def _peeked(client: QueueClient, qid: str) -> Iterator[Exported]:
    """Yields the visible messages and leaves them unchanged."""
    for mid in client.list_messages(qid, state="ready"):
        try:
            message = client.peek(qid, mid)
        except NotFound:
            continue  # consumed meanwhile
        if message.payload is not None:
            yield Exported(mid, _bytes(message.payload), message.receives or 0, labels_of(message))


def _move(client: QueueClient, arguments: Namespace, files: VsqsFiles, progress: "_Progress", count: float) -> None:
    """Receives messages, writes them, and deletes the messages that are durably written. count: how many at most, so
    that the command ends for a queue to which other clients go on pushing."""
    while progress.done < count:
        most = int(min(_AT_ONCE, count - progress.done))
        deliveries = client.receive(arguments.queue, most, visibility=arguments.visibility)
        if not deliveries:
            return
        try:
            written = files.write(
                Exported(each.mid, _bytes(each.payload), (each.receives or 1) - 1, labels_of(each))
                for each in deliveries
            )
        except BaseException:
            _release(client, deliveries)
            raise
        missing = len(deliveries) - len(client.delete_many(deliveries))
        if missing:
            progress.clear()
            complain(
                f"{missing} messages were received by another consumer before they could be deleted; their files stay"
            )
        progress.add(len(deliveries), written)


def _release(client: QueueClient, deliveries: list[Delivery]) -> None:
    with contextlib.suppress(ServerError, OSError):
        for delivery in deliveries:
            client.release(delivery)


def _bytes(payload: str | bytes) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload


class _Progress:
    """A line on a terminal, updated once a second."""

    def __init__(self, total: int | None) -> None:
        self.done = 0
        self.written = 0
        self._total = "" if total is None else f" of {total}"
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._shown_at = self._started = time.monotonic()

    def add(self, done: int, written: int) -> None:
        """Counts messages. done: messages that are in the directory now; written: how many of them are new."""
        self.done += done
        self.written += written
        now = time.monotonic()
        if self._live and now - self._shown_at >= 1:
            self._shown_at = now
            rate = self.done / (now - self._started)
            sys.stderr.write(f"\r\x1b[K{self.done}{self._total} messages, {rate:.0f} a second")
            sys.stderr.flush()

    def summary(self) -> str:
        existing = self.done - self.written
        known = f", {existing} of them were there already" if existing else ""
        return f"{self.done} message{'' if self.done == 1 else 's'}{known}"

    def clear(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
