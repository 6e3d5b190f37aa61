"""The clients of the measurements of the storage `postgres`, in a process of their own.

Run as a program, its arguments are a kind, where to connect, and the number of clients:

- `push`, `cycle` (HOST:PORT): raw connections to a queue server. They push; or push, receive and delete. Each sends
  ready-made bytes and looks for a few words of the answer: that costs little of the processor, of which the server and
  PostgreSQL have the rest.
- `table` (DSN): threads with psycopg, which push, receive and delete by the statements that everybody writes for a
  queue in a table: INSERT; UPDATE of what a SELECT … FOR UPDATE SKIP LOCKED has found; DELETE.
- `pgmq` (DSN): the same threads with the functions send, read and delete of pgmq.

It prints a line when all are connected. Then it reads lines with a number of seconds. For each of them all clients work
so long, each until the end of its round, and it prints the rounds, the seconds and the processor time that it used.
"""

import json
import os
import random
import re
import select
import socket
import string
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from load import document
from peer import QUEUE
from processes import Assistant

SIZE = 1024
_TIMEOUT = 60
_CHUNK = 1 << 16
_VISIBILITY = 30
_QID = b"<qid>" + QUEUE.encode() + b"</qid>"
_MID = re.compile(rb'<message[^>]* mid="(\d+)"')

TABLE = """
CREATE TABLE plain_queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload bytea NOT NULL,
    visible_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX plain_queue_visible_at ON plain_queue (visible_at)
"""
"""The table of `table`."""

_TABLE = (
    "INSERT INTO plain_queue (payload) VALUES (%b)",
    f"""UPDATE plain_queue SET visible_at = now() + interval '{_VISIBILITY} seconds' WHERE id IN (
        SELECT id FROM plain_queue WHERE visible_at <= now() ORDER BY visible_at LIMIT 1 FOR UPDATE SKIP LOCKED
    ) RETURNING id, payload""",
    "DELETE FROM plain_queue WHERE id = %b",
)
PGMQ = f"SELECT pgmq.create('{QUEUE}')"
"""What makes the queue of `pgmq`, once its functions are there."""
_PGMQ = (
    f"SELECT pgmq.send('{QUEUE}', %s::jsonb)",
    f"SELECT msg_id, message FROM pgmq.read('{QUEUE}', {_VISIBILITY}, 1)",
    f"SELECT pgmq.delete('{QUEUE}', %b::bigint)",
)


class Clients(Assistant):
    """Clients of one kind in a process of their own."""

    def __init__(self, kind: str, where: str, clients: int) -> None:
        super().__init__("postgres_load.py", kind, where, clients)

    def begin(self, seconds: float) -> None:
        """Lets the clients work so long. `result` waits for it."""
        self.tell(b"%f" % seconds)

    def result(self) -> tuple[int, float, float]:
        """Returns the rounds, the seconds, and the seconds of processor time of this process."""
        rounds, seconds, used = json.loads(self.line())
        return rounds, seconds, used


def payload() -> bytes:
    """Returns a payload that no storage can make smaller, and that XML and JSON write as it is."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=SIZE)).encode()


Rounds = Callable[[float], tuple[int, float]]
"""Works for that many seconds, and returns the rounds and the seconds."""


class RawConnections:
    """Connections to a queue server, each with one request under way. cycle: whether they also receive and delete."""

    def __init__(self, where: str, clients: int, cycle: bool) -> None:
        host, _, port = where.rpartition(":")
        self._cycle = cycle
        self._push = document(b"push-message", _QID + b"<payload>" + payload() + b"</payload>")
        self._receive = document(b"receive-message", _QID, b' wait="1"')
        before, _, after = document(b"delete-message", _QID + b"<mid>?</mid>").partition(b"?")
        self._delete = (before, after)
        self._epoll = select.epoll()
        self._sockets: list[socket.socket] = []
        for _ in range(clients):
            connected = socket.create_connection((host, int(port)), _TIMEOUT)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._epoll.register(connected.fileno(), select.EPOLLIN)
            self._sockets.append(connected)

    def rounds(self, seconds: float) -> tuple[int, float]:
        """Works for that many seconds."""
        begun: dict[int, bytes] = {}  # the first bytes of answers that came in pieces
        received: set[int] = set()  # connections whose receive is under way
        deleted: set[int] = set()
        write, read, poll = os.write, os.read, self._epoll.poll
        started = now = time.perf_counter()
        until = started + seconds
        for connected in self._sockets:
            write(connected.fileno(), self._push)
        done, under_way = 0, len(self._sockets)
        while under_way:
            ready = poll(_TIMEOUT)
            now = time.perf_counter()
            if not ready:
                raise RuntimeError(f"no answer in {_TIMEOUT} s")
            for descriptor, _ in ready:
                answer = read(descriptor, _CHUNK)
                if begun and descriptor in begun:
                    answer = begun.pop(descriptor) + answer
                if answer[-1:] != b"\n":
                    if not answer:
                        raise RuntimeError("the connection was closed")
                    begun[descriptor] = answer
                    continue
                if b'type="response"' not in answer:
                    raise RuntimeError(answer.decode())
                if descriptor in received:
                    found = _MID.search(answer)
                    if found is None:
                        write(descriptor, self._receive)
                        continue
                    received.discard(descriptor)
                    deleted.add(descriptor)
                    write(descriptor, self._delete[0] + found[1] + self._delete[1])
                elif self._cycle and descriptor not in deleted:
                    received.add(descriptor)
                    write(descriptor, self._receive)
                else:
                    deleted.discard(descriptor)
                    done += 1
                    if now < until:
                        write(descriptor, self._push)
                    else:
                        under_way -= 1
        return done, now - started


class Threads:
    """Threads that push, receive and delete, each with a connection of its own and each statement in a transaction of
    its own. All statements are prepared."""

    def __init__(self, where: str, clients: int, statements: tuple[str, str, str], pushed: object) -> None:
        self._statements = statements
        self._pushed = [pushed]
        self._connections = [psycopg.connect(where, autocommit=True) for _ in range(clients)]

    def rounds(self, seconds: float) -> tuple[int, float]:
        """Works for that many seconds. Raises what a thread has raised."""
        done: list[tuple[int, float]] = []
        failed: list[Exception] = []
        started = time.perf_counter()
        until = started + seconds

        def work(connection: Any) -> None:
            try:
                done.append(self._until(connection, until))
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=[connection]) for connection in self._connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return sum(rounds for rounds, _ in done), max(ended for _, ended in done) - started

    def _until(self, connection: Any, until: float) -> tuple[int, float]:
        push, receive, delete = self._statements
        cursor = connection.cursor(binary=True)
        rounds = 0
        while True:
            cursor.execute(push, self._pushed, prepare=True)
            while (row := cursor.execute(receive, prepare=True).fetchone()) is None:
                pass  # the rows that this statement saw were taken by others
            cursor.execute(delete, [row[0]], prepare=True)
            rounds += 1
            now = time.perf_counter()
            if now >= until:
                return rounds, now


def _connected(kind: str, where: str, clients: int) -> Rounds:
    if kind == "table":
        return Threads(where, clients, _TABLE, payload()).rounds
    if kind == "pgmq":
        return Threads(where, clients, _PGMQ, json.dumps(payload().decode())).rounds
    return RawConnections(where, clients, kind == "cycle").rounds


def main() -> None:
    """Works for each line of stdin."""
    kind, where, clients = sys.argv[1:]
    rounds = _connected(kind, where, int(clients))
    print("ready", flush=True)
    for line in sys.stdin:
        used = time.process_time()
        done, seconds = rounds(float(line))
        print(json.dumps([done, seconds, time.process_time() - used]), flush=True)


if __name__ == "__main__":
    main()
