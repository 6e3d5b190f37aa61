"""A queue server, a bus, publishers and all kinds of subscribers at work, while things are killed, round by round."""

import contextlib
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qs_client import BusClient
from qs_testing.proxy import Proxy
from support.bus.clients import SAID, FileJournal, Journal, Publisher, Subscriber, Where, headers_of, subscribe
from support.clients.documents import new_queue, request
from support.faults import pass_time
from support.servers.processes import FAST, WITH_SUPPORT, BusProcess, ServerProcess, Wire, lasting_port

QUEUES = ("a", "b")
QUIET_WITHIN = 30
BATCHES = 30
"""Batches that each publisher pushes in a round, at most."""
_RECEIVED = {
    "singly": ("a", "b"),
    "few ahead": ("a",),
    "gives back": ("a", "b"),
    "library": ("a", "b"),
    "steady": ("a",),
    "moving": ("a", "b"),
    "silent": ("a", "b"),
    "some": ("a", "b"),
    "some, by pattern": ("a", "b"),
    "some, shared": ("a", "b"),
}
"""The queues of each receiver, by its name. Those whose name begins with `some` have a condition."""
_STATS = re.compile(r"<queue ([^>]*)>([^<]*)</queue>")
_COUNTS = re.compile(r'\b(?:new|ready|in-flight|delayed)="(\d+)"')


class SubscriberProcess:
    """A subscriber to be killed: acknowledges what comes of `a`, and shares the name `shared` on `b`."""

    def __init__(self, bus: Where, folder: Path) -> None:
        self._bus = bus
        self.plain = FileJournal("process", ("a",), folder / "process")
        self.named = FileJournal("shared", ("b",), folder / "process-shared")
        self._log = folder / "process.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "support.bus.clients",
                    self._bus.host,
                    str(self._bus.port),
                    str(self.plain.path),
                    str(self.named.path),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=WITH_SUPPORT,
            )

    def ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"subscribed\n", self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        self.process.communicate(timeout=30)
        assert self._log.read_text() == ""


class LibrarySubscriber(threading.Thread):
    """The client of the library, in a plain loop."""

    def __init__(self, bus: Where, journal: Journal) -> None:
        super().__init__(daemon=True)
        self._journal = journal
        self._client = BusClient(bus.host, bus.port, on_trouble=lambda text: None)
        self.messages = self._client.subscribe(journal.queues, ack=True)

    def run(self) -> None:
        for message in self.messages:
            self._journal.payloads.append(message.text)
            if message.headers != headers_of(message.text):
                self._journal.trouble.append(repr(message))

    def close(self) -> None:
        self._client.close()
        self.join(20)
        assert not self.is_alive()


def in_order(payloads: list[str]) -> bool:
    """Tells whether the payloads of each publisher to each queue first came in the order of the pushes."""
    last: dict[str, int] = {}
    for payload in dict.fromkeys(payloads):
        of, _, number = payload.rpartition("-")
        if int(number) < last.get(of, 0):
            return False
        last[of] = int(number)
    return True


@dataclass
class Round:
    """The result of a round. again: by receiver, how many deliveries were repeats; pushed: answered pushes."""

    fault: str
    pushed: int
    again: dict[str, int]
    seconds: float


@dataclass
class World:
    """Queue server, bus, publishers and subscribers at work. rng: for the choices of faults. The proxy stands between
    bus and server, if it is used. progress: notified when a publisher has been answered."""

    rng: random.Random
    server: ServerProcess
    bus: BusProcess
    proxy: Proxy | None
    process: SubscriberProcess
    staying: list[Journal]
    names: list[Journal]
    others: list[Journal]
    publishers: list[Publisher]
    progress: threading.Condition
    in_database: bool
    rounds: list[Round] = field(default_factory=list)

    def restart_server(self) -> None:
        self.server.start()

    def go_on(self, most: int) -> None:
        """Waits until a random number of further pushes have been answered, or all of this round."""
        count = self._answered() + self.rng.randint(0, most)
        with self.progress:
            over = self.progress.wait_for(
                lambda: self._answered() >= count or all(publisher.idle for publisher in self.publishers), QUIET_WITHIN
            )
        assert over, self.logs()

    def round(self, fault: Callable[["World"], str]) -> Round:
        """Plays a round: load, a fault in the middle of the load, more load, and quiet. Then checks that each pushed
        message is where it belongs."""
        began = time.monotonic()
        again = self._again()
        done = self._answered()
        for publisher in self.publishers:
            publisher.resume(BATCHES)
        self.go_on(150)
        what = fault(self)
        self.go_on(50)
        for publisher in self.publishers:
            publisher.pause()
        self._be_quiet(what)
        self.check(what)
        pushed = self._answered() - done
        more = {name: count - again[name] for name, count in self._again().items()}
        self.rounds.append(Round(what, pushed, more, time.monotonic() - began))
        return self.rounds[-1]

    def _answered(self) -> int:
        return sum(len(publisher.answered) for publisher in self.publishers)

    def _again(self) -> dict[str, int]:
        counted = [(journal.name, journal.counts()) for journal in self.receivers]
        return {name: counts.total() - len(counts) for name, counts in counted}

    @property
    def receivers(self) -> list[Journal]:
        return [*self.staying, *self.names, *self.others]

    def left(self) -> dict[str, int]:
        """Returns the number of messages on the server by queue, without the queues that the bus keeps for itself."""
        with contextlib.closing(Wire(self.server)) as wire:
            line = wire.ask(request("queue-stats"))
        found = {qid: sum(map(int, _COUNTS.findall(attributes))) for attributes, qid in _STATS.findall(line)}
        assert found.keys() >= set(QUEUES), line
        return {qid: count for qid, count in found.items() if count and not qid.startswith("bus::")}

    def _be_quiet(self, what: str) -> None:
        try:
            if self.in_database:
                self._poll_until_empty()
            self.server.until(lambda: not self.left(), QUIET_WITHIN)
        except AssertionError:
            left = self.left()
            raise AssertionError(f"{what}: still in the queues: {left}; {self._missing()}\n{self.logs()}") from None

    def _poll_until_empty(self) -> None:
        """Asks again and again: nobody tells of a change in a database."""
        end = time.monotonic() + QUIET_WITHIN
        while self.left() and time.monotonic() < end:
            pass_time(0.05)

    def _missing(self) -> dict[str, list[str]]:
        answered = [payload for publisher in self.publishers for payload in publisher.answered]
        found = {}
        for journal in [*self.staying, *self.names]:
            there = journal.counts()
            if missing := [payload for payload in answered if journal.wants(payload) and payload not in there]:
                found[journal.name] = [f"{len(missing)} of {len(answered)}", *missing[:5]]
        return found

    def check(self, what: str) -> None:
        """Checks that the queues are empty: a message is deleted only when every client that should have it has it."""
        missing = self._missing()
        assert missing == {}, f"{what}: deleted, and not handled: {missing}\n{self.logs()}"
        sent = {p for publisher in self.publishers for p in (*publisher.answered, *publisher.unanswered)}
        for journal in self.receivers:
            strange = [payload for payload in journal.counts() if payload not in sent or not journal.wants(payload)]
            assert strange == [], f"{what}: {journal.name} got what nobody pushed to it"
            assert journal.trouble == [], f"{what}: {journal.name}"
        for journal in self.staying:
            if not self.in_database and journal.name != "gives back":
                assert in_order(journal.payloads), f"{what}: {journal.name} got them in another order"
        assert [publisher.trouble for publisher in self.publishers if publisher.trouble] == [], what
        assert re.search("Traceback|ERROR|CRITICAL", self.logs()) is None, f"{what}\n{self.logs()}"

    def logs(self) -> str:
        return f"server:\n{self.server.log()[-20000:]}\nbus:\n{self.bus.log()[-20000:]}"


class Clients:
    """All kinds of subscribers of the bus, in threads and in a process, once each has subscribed."""

    def __init__(self, bus: Where, folder: Path, rng: random.Random) -> None:
        self._bus = bus
        self._rng = rng
        self.process = SubscriberProcess(bus, folder)
        self.journals = {
            name: Journal(name, queues, only_said=name.startswith("some")) for name, queues in _RECEIVED.items()
        }
        self.journals["shared"] = self.process.named
        subscribers = self._subscribers()
        silent = self._subscriber("silent", ack=False)
        library = LibrarySubscriber(bus, self.journals["library"])
        library.messages.open()
        self.threads: list[Subscriber | LibrarySubscriber] = [*subscribers, silent, library]
        for thread in self.threads:
            thread.start()
        for subscriber in subscribers:
            assert subscriber.subscribed.wait(20)
        self.process.ready()

    def _subscribers(self) -> list[Subscriber]:
        """Returns the subscribers that send requests."""
        return [
            self._subscriber("singly", subscribe("a"), subscribe("b", req="s2")),
            self._subscriber("few ahead", subscribe("a", prefetch=10)),
            self._subscriber("gives back", subscribe("a", "b"), releases=True),
            self._subscriber("steady", subscribe("a", name="steady")),
            self._subscriber("steady", subscribe("a", name="steady", prefetch=5)),
            self._subscriber("moving", subscribe("a", "b", name="moving"), leaves=200),
            self._subscriber("moving", subscribe("a", "b", name="moving"), leaves=50),
            self._subscriber("shared", subscribe("b", name="shared")),
            self._subscriber("some", subscribe("a", "b", where=SAID)),
            self._subscriber("some, by pattern", subscribe("?", where=SAID, match="pattern")),
            self._subscriber("some, shared", subscribe("?", where=SAID, match="pattern", name="some")),
        ]

    def _subscriber(self, name: str, *requests: str, **more: int | bool) -> Subscriber:
        return Subscriber(self._bus, self.journals[name], *requests, seed=self._rng.getrandbits(32), **more)  # type: ignore[arg-type]

    def of(self, *names: str) -> list[Journal]:
        return [self.journals[name] for name in names]


def _server(folder: Path, flags: Sequence[str]) -> ServerProcess:
    """Starts the server, with the queues."""
    server = ServerProcess(folder / "root", *flags, port=lasting_port())
    with contextlib.closing(Wire(server)) as wire:
        for queue in QUEUES:
            wire.ask(new_queue(queue))
    return server


def _publishers(server: Where, rng: random.Random, progress: threading.Condition) -> list[Publisher]:
    """Yields publishers that are running."""
    publishers = [Publisher(server, f"p{n}", QUEUES, rng.getrandbits(32), progress) for n in range(3)]
    for publisher in publishers:
        publisher.start()
    return publishers


@contextlib.contextmanager
def world(
    folder: Path,
    seed: int,
    *,
    proxied: bool = False,
    monitored: bool = True,
    flags: Sequence[str] = FAST,
    in_database: bool = False,
) -> Iterator[World]:
    """Starts a server with two queues, a bus, and clients at work. proxied: a proxy stands between bus and server.
    monitored: the bus is told of the queues; otherwise it learns of them from its clients. flags: of the server.
    in_database: the server's queues are in a database. What ends there with a connection comes back after later
    messages, and no file changes with the queues."""
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        server = _server(folder, flags)
        proxy = stack.enter_context(Proxy(server.host, server.port)) if proxied else None
        told = ("-q", "a,b") if monitored else ()
        bus = BusProcess(proxy or server, *told, port=lasting_port(), log=folder / "bus.log")
        clients = Clients(Where(bus.host, bus.port), folder, rng)
        progress = threading.Condition()
        publishers = _publishers(Where(server.host, server.port), rng, progress)
        everything = World(
            rng,
            server,
            bus,
            proxy,
            clients.process,
            staying=clients.of("singly", "few ahead", "gives back", "library", "some", "some, by pattern"),
            names=clients.of("steady", "moving", "shared", "some, shared"),
            others=[clients.process.plain, *clients.of("silent")],
            publishers=publishers,
            progress=progress,
            in_database=in_database,
        )
        try:
            yield everything
            clients.process.stop()
        finally:
            for thread in (*publishers, *clients.threads):
                thread.close()
            for running in (clients.process, bus, everything.server):
                running.kill()
        everything.check("at the end")
