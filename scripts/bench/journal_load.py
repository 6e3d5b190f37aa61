"""The load of the measurements of the store: lists of messages to fill a queue, lists to drain it, counted rounds."""

import re
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from load import Client, Connection, Exchange, Pushes, Script, document, drive
from peer import QUEUE
from processes import Process, queue_server

from qs_client import Draft, PushMessage
from qs_schemas import serialize

SIZE = 1024
LIST = 100
_QID = b"<qid>" + QUEUE.encode() + b"</qid>"
_MESSAGE = re.compile(rb'<message[^>]* mid="(\d+)"')
_FOREVER = float("inf")
Address = tuple[str, int]


def push_list(qid: str) -> bytes:
    """Returns a push of a list of messages of 1 KiB."""
    return serialize(PushMessage(qid, messages=[Draft(b"x" * SIZE)] * LIST))


class Drain:
    """Receives a list of messages and deletes it. taken: messages so far."""

    worth = LIST

    def __init__(self) -> None:
        self.taken = 0
        self._receive = document(b"receive-message", _QID, b' max="%d"' % LIST)

    def round(self) -> Generator[Exchange, bytes, None]:
        """Yields the receive, and the delete of the received messages. Yields nothing more when the queue is empty."""
        answer = yield self._receive, 1
        mids = _MESSAGE.findall(answer)
        if mids:
            entries = b"".join(b"<mid>%s</mid>" % mid for mid in mids)
            yield document(b"delete-message", _QID + b"<messages>" + entries + b"</messages>"), 1
        self.taken += len(mids)


class PushAndDrain(Drain):
    """Pushes a list of messages, receives a list, deletes it."""

    def __init__(self) -> None:
        super().__init__()
        self._push = (push_list(QUEUE), 1)

    def round(self) -> Generator[Exchange, bytes, None]:
        """Yields a push, then what `Drain` yields."""
        yield self._push
        yield from super().round()


def connect(address: Address, script: Script, count: int) -> list[Connection]:
    """Opens that many connections, all with the same script."""
    return [Connection(address, script) for _ in range(count)]


def close(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.socket.close()


def rate(connections: list[Connection], worth: int, seconds: float) -> float:
    """Returns the messages a second that these connections get done in that time."""
    return sum(series(connections, worth, seconds)) / seconds


def series(connections: list[Connection], worth: int, seconds: float) -> list[float]:
    """Returns the messages that these connections get done in each second of that time."""
    started = time.monotonic()
    done = [0.0] * max(int(seconds), 1)

    def ended(_: float, now: float) -> bool:
        at = int((now - started) / seconds * len(done))
        if at < len(done):
            done[at] += worth
        return True

    drive(connections, ended, started + seconds)
    return done


def run_rounds(connections: list[Connection], rounds: int) -> float:
    """Lets these connections do that many rounds together. Returns the seconds."""
    left = rounds - len(connections)

    def ended(_: float, __: float) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    started = time.monotonic()
    drive(connections, ended, _FOREVER)
    return time.monotonic() - started


def new_queue(address: Address, qid: str = QUEUE) -> None:
    """Makes a queue."""
    with Client(address) as client:
        client.lines(document(b"new-queue", b"<qid>%s</qid>" % qid.encode()))


def fill(address: Address, messages: int, qid: str = QUEUE) -> None:
    """Pushes that many messages of 1 KiB in lists of 100."""
    connections = connect(address, Pushes(push_list(qid), 1, LIST), 8)
    run_rounds(connections, messages // LIST)
    close(connections)


def filled_server(root: Path, messages: int, *flags: str) -> Process:
    """Starts a server with that many messages in its queue."""
    server = queue_server(root, *flags)
    try:
        new_queue(server.address)
        fill(server.address, messages)
    except BaseException:
        server.end()
        raise
    return server
