"""Clients for tests of the bus: requests, principals with their rights, and subscribers that come back by themselves.

Subscribers and publishers are on bare sockets. What they saw they keep in lists, which only grow. Run as a program,
this is one subscriber, to be killed.
"""

import contextlib
import os
import random
import re
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.clients.access import authenticate
from support.clients.documents import code, mids, payloads, push, request
from support.clients.documents import req as req_of
from support.servers.processes import Listening, Wire

Connect = Callable[..., Wire]
"""Documents, each to be answered without an error -> a connection to the bus."""


def push_one(producer: Wire, qid: str, payload: str = "x") -> int:
    return mids(producer.ask(push(qid, payload)))[0]


def stored(producer: Wire, qid: str, state: str = "all") -> list[int]:
    return mids(producer.ask(request("list-messages", f"<qid>{qid}</qid>", state=state)))


def gone(producer: Wire, qid: str) -> bool:
    """Waits until the queue is empty."""
    producer.server.until(lambda: stored(producer, qid) == [])
    return True


def token_of(principal: str) -> str:
    """Returns the token of a principal of `support.clients.access`."""
    return f"{principal}-token"


def shows_no_token(log: str) -> bool:
    """Tells whether no token of `token_of` is in a log."""
    return re.search("[a-z]-token(?!-file)", log) is None


def known(process: Listening, name: str) -> Wire:
    """Returns a connection that has authenticated as a principal."""
    wire = Wire(process)
    answer = wire.ask(authenticate(token_of(name)))
    assert code(answer) == 0, answer
    assert f"<principal>{name}</principal>" in answer
    return wire


def reload(process: Listening, number: int, times: int = 1) -> None:
    """Sends SIGHUP and waits until the log says `times` times that the files have been read again. The process needs
    -v."""
    process.process.send_signal(number)
    process.until_logged("after SIGHUP: the files have been read again", times)


def has_input(wire: Wire, seconds: float) -> bool:
    """Tells whether something has come within these seconds."""
    return bool(select.select([wire.socket], [], [], seconds)[0])


def until_silent(wire: Wire, producer: Wire, qid: str) -> None:
    """Pushes until a client that has sent nothing gets something: from then on the bus knows that it says nothing."""
    while not has_input(wire, 0.02):
        push_one(producer, qid)


LIST = 5
_QID = re.compile(r"<qid>([^<]*)</qid>")
_HEADER = re.compile(r'<header name="said">([^<]*)</header>')


def headers_of(payload: str) -> dict[str, str]:
    """Returns the headers with which a publisher pushes a payload: every other one has its own payload as a header."""
    return {"said": payload} if int(payload.rpartition("-")[2]) % 2 else {}


def content_of(payload: str) -> str:
    """Returns the elements of a message to push."""
    headers = "".join(f"<header name='{name}'>{text}</header>" for name, text in headers_of(payload).items())
    return f"{f'<headers>{headers}</headers>' if headers else ''}<payload>{payload}</payload>"


@dataclass(frozen=True)
class Where:
    """The address of a server or a bus."""

    host: str
    port: int


class Journal:
    """The payloads that arrived at any of several clients, each as often as it arrived."""

    def __init__(self, name: str, queues: tuple[str, ...], *, only_said: bool = False) -> None:
        """only_said: True if the clients ask for messages with a header alone, see `headers_of`."""
        self.name = name
        self.queues = queues
        self.only_said = only_said
        self.payloads: list[str] = []
        self.trouble: list[str] = []

    def counts(self) -> Counter[str]:
        return Counter(self.payloads)

    def wants(self, payload: str) -> bool:
        return payload.partition("-")[0] in self.queues and (bool(headers_of(payload)) or not self.only_said)


class FileJournal(Journal):
    """A journal that a process writes, which may be killed at any moment: a payload is in the file before it is
    acknowledged."""

    def __init__(self, name: str, queues: tuple[str, ...], path: Path) -> None:
        super().__init__(name, queues)
        self.path = path
        path.touch()

    def append(self, payload: str) -> None:
        with self.path.open("a") as file:
            file.write(payload + "\n")

    def counts(self) -> Counter[str]:
        return Counter(self.payloads) + Counter(self.path.read_text().split())


SAID = "$header-said != ''"
"""The condition that messages with a header match, see `headers_of`."""


def subscribe(
    *queues: str, req: str = "s", ack: bool = True, name: str = "", prefetch: int = 0, where: str = "", match: str = ""
) -> str:
    """Returns a subscribe request for the bus."""
    attributes: dict[str, str | int] = {"ack": "client"} if ack else {}
    attributes |= ({"name": name} if name else {}) | ({"prefetch": prefetch} if prefetch else {})
    attributes |= ({"where": where.replace('"', "&quot;")} if where else {}) | ({"match": match} if match else {})
    listed = "".join(f"<queue>{queue}</queue>" for queue in queues)
    return request("subscribe", f"<queues>{listed}</queues>", req=req, **attributes)


def acknowledge(qid: str, *found: int) -> str:
    listed = "".join(f"<mid>{mid}</mid>" for mid in found)
    return request("delete-message", f"<qid>{qid}</qid><messages>{listed}</messages>", req="ack")


def release(qid: str, mid: int) -> str:
    return request("release-message", f"<qid>{qid}</qid><mid>{mid}</mid>", req="release")


class Subscriber(threading.Thread):
    """Takes messages until it is closed, and connects again whenever its connection ends.

    requests: what it sends on each connection, with a `req` of its own; without any it is silent. takes: gets every
    payload. ack: it acknowledges what it took. releases: it gives some messages back once, and takes them when they
    come again. leaves: the mean number of lines after which it leaves for a moment; it does not handle the last ones.
    """

    def __init__(
        self,
        bus: Where,
        journal: Journal,
        *requests: str,
        takes: Callable[[str], None] | None = None,
        ack: bool = True,
        releases: bool = False,
        leaves: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(daemon=True)
        self.subscribed = threading.Event()
        self.connections = 0
        self._bus = bus
        self._journal = journal
        self._requests = requests
        self._take = takes or journal.payloads.append
        self._ack = ack
        self._releases = releases
        self._released: set[str] = set()
        self._answered: set[str] = set()
        self._leaves = leaves
        self._rng = random.Random(seed)
        self._closing = threading.Event()
        self._socket: socket.socket | None = None

    def run(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(OSError):
                self._connect()
            self._closing.wait(self._rng.uniform(0.005, 0.05))

    def close(self) -> None:
        self._closing.set()
        connected = self._socket
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        self.join(20)
        assert not self.is_alive()

    def _connect(self) -> None:
        with socket.create_connection((self._bus.host, self._bus.port), 20) as connected:
            connected.settimeout(None)
            self._socket = connected
            self.connections += 1
            connected.sendall("".join(self._requests).encode())
            left = self._rng.randint(1, 2 * self._leaves) if self._leaves else -1
            data = b""
            while not self._closing.is_set() and (piece := connected.recv(65536)):
                lines = (data + piece).split(b"\r\n")
                data = lines.pop()
                if self._leaves:
                    left -= len(lines)
                    if left <= 0:
                        return
                connected.sendall("".join(self._read([line.decode() for line in lines])).encode())

    def _read(self, lines: list[str]) -> list[str]:
        """Returns the documents that answer these lines."""
        answers = []
        taken: dict[str, list[int]] = {}
        for line in lines:
            if code(line):
                if code(line) != 503:
                    self._journal.trouble.append(line)
            elif "<get-message/>" in line:
                qid, mid, payload = _QID.findall(line)[0], mids(line)[0], payloads(line)[0]
                if _HEADER.findall(line) != [*headers_of(payload).values()]:
                    self._journal.trouble.append(line)
                if self._releases and mid % 17 == 0 and payload not in self._released:
                    self._released.add(payload)
                    answers.append(release(qid, mid))
                    continue
                self._take(payload)
                taken.setdefault(qid, []).append(mid)
            elif "<subscribe/>" in line:
                self._answered.add(req_of(line))
                if len(self._answered) == len(self._requests):
                    self.subscribed.set()
        if self._ack:
            answers += [acknowledge(qid, *found) for qid, found in taken.items()]
        return answers


class Publisher(threading.Thread):
    """Pushes to a server while it is not paused, and connects again whenever its connection ends. Pushes nothing
    twice."""

    def __init__(
        self, server: Where, name: str, queues: tuple[str, ...], seed: int, progress: threading.Condition
    ) -> None:
        """progress: notified when more pushes have been answered, and when the publisher is idle."""
        super().__init__(daemon=True)
        self._progress = progress
        self.answered: list[str] = []
        self.unanswered: list[str] = []
        self.trouble: list[str] = []
        self._server = server
        self._name = name
        self._queues = queues
        self._rng = random.Random(seed)
        self._number = self._left = 0
        self._go = threading.Event()
        self._idle = threading.Event()
        self._closed = False

    def resume(self, most: int) -> None:
        """Lets the publisher push `most` more batches."""
        self._left = most
        self._idle.clear()
        self._go.set()

    def pause(self) -> None:
        """Pauses. Returns when every push has its answer, or has been given up."""
        self._go.clear()
        assert self._idle.wait(30)

    @property
    def idle(self) -> bool:
        """Tells whether the publisher has pushed everything that it may push."""
        return self._idle.is_set()

    def close(self) -> None:
        self._closed = True
        self._go.set()
        self.join(20)

    def run(self) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):
                self._push_on()
            self._pause(0.02)

    def _push_on(self) -> None:
        self._wait_for_leave()
        with (
            socket.create_connection((self._server.host, self._server.port), 5) as connected,
            connected.makefile("rb") as lines,
        ):
            while not self._closed:
                self._push(connected, lines.readline)
                self._pause(0.02)
                self._wait_for_leave()

    def _pause(self, most: float) -> None:
        """Pauses, so that the load is as planned."""
        time.sleep(self._rng.uniform(0, most))

    def _wait_for_leave(self) -> None:
        if self._left <= 0 and not self._closed:
            self._go.clear()
        if not self._go.is_set():
            self._idle.set()
            with self._progress:
                self._progress.notify_all()
            self._go.wait()
        self._left -= 1

    def _push(self, connected: socket.socket, readline: Callable[[], bytes]) -> None:
        qid = self._rng.choice(self._queues)
        batch = [f"{qid}-{self._name}-{self._number + step}" for step in range(LIST)]
        self._number += LIST
        self.unanswered += batch
        whole = self._rng.random() < 0.5
        requests = [
            request("push-message", f"<qid>{qid}</qid>{content}")
            for content in ([_listed(batch)] if whole else map(content_of, batch))
        ]
        connected.sendall("".join(requests).encode())
        for number in range(len(requests)):
            line = readline().decode()
            if not line.endswith("\n") or code(line) == 503:
                raise ConnectionError("the server has gone")
            if code(line):
                self.trouble.append(line)
                continue
            for payload in batch if whole else batch[number : number + 1]:
                self.unanswered.remove(payload)
                self.answered.append(payload)
            with self._progress:
                self._progress.notify_all()


def _listed(batch: list[str]) -> str:
    """Returns the element of messages to push together."""
    return f"<messages>{''.join(f'<message>{content_of(payload)}</message>' for payload in batch)}</messages>"


def main() -> None:
    """Runs a subscriber, HOST PORT FILE NAMED-FILE: acknowledges what comes of `a`, and what comes of `b` under the
    name `shared`."""
    host, port, plain, named = sys.argv[1:]
    journals = {
        "a": FileJournal("process", ("a",), Path(plain)),
        "b": FileJournal("process, shared", ("b",), Path(named)),
    }
    journal = Journal("process", ("a", "b"))
    subscriber = Subscriber(
        Where(host, int(port)),
        journal,
        subscribe("a", req="p"),
        subscribe("b", name="shared", req="shared"),
        takes=lambda payload: journals[payload.partition("-")[0]].append(payload),
        seed=os.getpid(),
    )
    subscriber.start()
    subscriber.subscribed.wait()
    print("subscribed", flush=True)
    sys.stdin.read()
    subscriber.close()
    sys.exit("\n".join(journal.trouble) or None)


if __name__ == "__main__":
    main()
