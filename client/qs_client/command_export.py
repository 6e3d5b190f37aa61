"""`qs export`: writes the messages of a queue to files, through a running server."""

import contextlib
import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice

from qs_schemas import Delivery

from .client import QueueClient
from .command_output import INCOMPLETE, OK, Output, complain
from .errors import NotFound, ServerError
from .vsqs_files import VsqsFiles

_AT_ONCE = 100
"""Messages that are written and synced together, and in flight with --delete."""

_Message = tuple[int, bytes, int]


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
    record = {"qid": qid, "count": progress.done, "written": progress.written, "hidden": hidden}
    out.line(progress.summary(), record)
    if hidden:
        complain(f"{hidden} in flight or delayed: not exported; give the command again when they are visible")
    return INCOMPLETE if hidden else OK


def _peeked(client: QueueClient, qid: str) -> Iterator[_Message]:
    """Yields the visible messages and leaves them unchanged."""
    for mid in client.list_messages(qid, state="ready"):
        try:
            message = client.peek(qid, mid)
        except NotFound:
            continue  # consumed meanwhile
        if message.payload is not None:
            yield mid, _bytes(message.payload), message.receives or 0


def _move(client: QueueClient, arguments: Namespace, files: VsqsFiles, progress: "_Progress", count: float) -> None:
    """Receives messages, writes them, and deletes those that are durably written. count: how many at most."""
    while progress.done < count:
        most = int(min(_AT_ONCE, count - progress.done))
        deliveries = client.receive(arguments.queue, most, visibility=arguments.visibility)
        if not deliveries:
            return
        try:
            written = files.write((each.mid, _bytes(each.payload), (each.receives or 1) - 1) for each in deliveries)
        except BaseException:
            _give_back(client, deliveries)
            raise
        missing = len(deliveries) - len(client.delete_many(deliveries))
        if missing:
            progress.clear()
            complain(
                f"{missing} messages were received by another consumer before they could be deleted; their files stay"
            )
        progress.add(len(deliveries), written)


def _give_back(client: QueueClient, deliveries: list[Delivery]) -> None:
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
        """Counts messages. done: messages that are in the directory now; written: those of them that were not there
        before."""
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
