"""Three PostgreSQL nodes, two queue servers over them, and clients at work: which faults happen, and what each client
was told, so that in the end every message can be accounted for."""

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.clients.documents import code, is_delivery, mids, new_queue, receive, req, request, subscribe
from support.servers.processes import Gone, MortalWire, ServerProcess, Wire, lasting_port
from support.storage.postgres import Postgres, Standby, most_advanced

QUEUE = "q"
WINDOW = 2.0
"""Seconds of a receive's window."""
HELD = 3600
"""Seconds of a subscriber's window: what it holds comes back when its connection or its server ends."""
_GONE = 0.2
"""Seconds by which the clocks of database, server and test may differ, and a busy machine may be late."""
_WITHIN = 60
"""Seconds: only a failure waits that long."""
_MESSAGE = re.compile(r'<message qid="q" mid="(\d+)" receives="(\d+)"[^>]* visible-at="(\d+)"[^>]*><payload>([^<]*)<')
_DELIVERED = re.compile(r'<payload>([^<]*)</payload><mid [^>]*receives="(\d+)"[^>]* visible-at="(\d+)"[^>]*>(\d+)<')


# -- the database


class Cluster:
    """A primary and two standbys, of which one has to have each commit."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.primary: Postgres = self._stack.enter_context(Postgres(name="n1"))
        self.standbys: list[Standby] = []
        try:
            # Each node names all three: a standby that is promoted has the same rule.
            self.primary.set("synchronous_standby_names", "ANY 1 (n1, n2, n3)")
            for name in ("n2", "n3"):
                self._add(name)
            self.database = self._stack.enter_context(self.primary.database())
        except BaseException:
            self.close()
            raise
        ports = ",".join(str(node.port) for node in self.nodes)
        self.dsn = f"host=127.0.0.1,127.0.0.1,127.0.0.1 port={ports} dbname={self.database.name} user=postgres"
        self.dsn += " sslmode=disable"

    @property
    def nodes(self) -> list[Postgres]:
        return [self.primary, *self.standbys]

    def _add(self, name: str, port: int | None = None) -> None:
        standby = Standby(self.primary, name=name, port=port)
        self._stack.callback(standby.close)
        self.standbys.append(standby)

    def fail_over(self) -> str:
        """Kills the primary, promotes the standby that has most, and makes a new standby in the place of the killed
        one. Returns the name of the new primary."""
        old = self.primary
        old.kill()
        new = most_advanced(self.standbys)
        self.standbys.remove(new)
        new.promote()
        self.primary = new
        for standby in self.standbys:
            standby.follow(new)
        old.close()
        self._add(old.name, old.port)
        return new.name

    def sql(self, text: str) -> list[object]:
        """Runs a statement at the primary, in the database of the queues."""
        return self.primary.sql(text, dbname=self.database.name)

    def close(self) -> None:
        self._stack.close()


# -- what clients know


@dataclass
class Delivery:
    """A message that a client has got. came: when, by the clock of the day; window: its end, by the database's."""

    mid: int
    receives: int
    came: float
    window: float
    held_by: "MortalWire | None" = None
    released: bool = False


@dataclass
class Ledger:
    """Holds what all clients were told. Any thread may write, under the condition `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    pushed: dict[str, int] = field(default_factory=dict)
    """By payload: the id in the answer."""
    deliveries: dict[str, list[Delivery]] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    """By payload: the receives of the receipt with which it was deleted, as was answered."""
    ended: dict[int, float] = field(default_factory=dict)
    """By the identity of a subscriber's connection: when it ended."""
    crashes: list[float] = field(default_factory=list)
    """When a primary died. A receive that was answered just before may be taken back: it waits for no disk."""
    counts: Counter[str] = field(default_factory=Counter)
    trouble: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        with self.changed:
            self.counts[what] += 1
            self.changed.notify_all()

    def complain(self, what: str) -> None:
        with self.changed:
            self.trouble.append(what)

    def delivered(self, payload: str, delivery: Delivery) -> None:
        with self.changed:
            self.counts["deliveries"] += 1
            if self.deleted.get(payload, delivery.receives) < delivery.receives:
                self.trouble.append(f"{payload} came back after its deletion was answered: {delivery}")
            self.deliveries.setdefault(payload, []).append(delivery)

    def check(self) -> None:
        """Checks that no answered message is lost, no deleted one came back, and each repetition is one that the
        promise allows: its window had ended, it was released, the connection or server that held it had gone, or a
        crash of the primary had taken the receive back."""
        lost = [payload for payload in self.pushed if payload not in self.deliveries]
        assert lost == [], f"{len(lost)} of {len(self.pushed)} answered messages were never delivered: {lost[:5]}"
        twice = [payload for payload, found in self.deliveries.items() if len({each.mid for each in found}) > 1]
        assert twice == [], f"stored twice, although pushed with a key: {twice[:5]}"
        for payload, found in self.deliveries.items():
            found.sort(key=lambda each: (each.receives, each.came))
            for first, second in itertools.pairwise(found):
                why = self._why_again(first, second)
                self.counts[f"again: {why}"] += 1
                if why == "?":
                    self.trouble.append(f"{payload} was delivered twice: {first}, {second}")
        assert self.trouble == [], f"{len(self.trouble)}: {self.trouble[:5]}"

    def _why_again(self, first: Delivery, second: Delivery) -> str:
        if first.receives == second.receives:
            crashed = any(first.came <= crash + _GONE and crash <= second.came + _GONE for crash in self.crashes)
            return "its receive was taken back by a crash" if crashed else "?"
        if second.came >= first.window - _GONE:
            return "its window had ended"
        if first.released:
            return "it was released"
        gone = self.ended.get(id(first.held_by)) if first.held_by is not None else None
        return "its subscriber or server had gone" if gone is not None and gone <= second.came + _GONE else "?"


# -- clients


class _Client(threading.Thread):
    """Works on a connection to one of the servers, and connects again when the server is gone."""

    def __init__(self, world: "World", name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._world = world
        self._rng = random.Random(seed)
        self.stopping = threading.Event()
        self.leaves = True
        """Whether some messages are left alone, as by a consumer that fails."""

    @property
    def _ledger(self) -> Ledger:
        return self._world.ledger

    def run(self) -> None:
        while not self.stopping.is_set():
            wire = None
            try:
                wire = MortalWire(self._rng.choice(self._world.servers))
                self.use(wire)
            except Gone:
                self._ledger.note("connections lost")
                self.stopping.wait(0.05)
            except Exception as error:
                self._ledger.complain(f"{self.name}: {error!r}")
                return
            finally:
                if wire is not None:
                    with self._ledger.changed:
                        self._ledger.ended[id(wire)] = time.time()
                    self._world.kept.append(wire)  # so that no other has its identity
                    wire.close()

    def use(self, wire: MortalWire) -> None:
        raise NotImplementedError

    def refused(self, answer: str, what: str) -> bool:
        """Tells whether an answer is an error that the promise allows."""
        found = code(answer)
        if found == 503:
            self._ledger.note(f"{what}: not known" if "not-known" in answer else f"{what}: unavailable")
            self.stopping.wait(0.02)
            return True
        if found:
            self._ledger.complain(f"{what}: {answer}")
        return found != 0


class _Producer(_Client):
    """Pushes messages with keys, each again until it is answered."""

    _number = 0
    _due: list[str] = []  # noqa: RUF012 - replaced, never changed

    def use(self, wire: MortalWire) -> None:
        while not self.stopping.is_set():
            if not self._due:
                count = self._rng.choice((1, 1, 3))
                self._due = [f"{self.name}-{self._number + step}" for step in range(count)]
                self._number += count
            entries = "".join(f'<message key="{each}"><payload>{each}</payload></message>' for each in self._due)
            self._ledger.note("pushes sent")
            answer = wire.ask(request("push-message", f"<qid>{QUEUE}</qid><messages>{entries}</messages>"))
            if self.refused(answer, "push"):
                continue
            found = mids(answer)
            assert len(found) == len(self._due), answer
            with self._ledger.changed:
                self._ledger.pushed |= dict(zip(self._due, found, strict=True))
            self._due = []
            self._ledger.note("pushes answered")
            self.stopping.wait(0.01)


class _Deleting(_Client):
    """A client that deletes what it gets."""

    def delete(self, mid: int, receives: int, name: str = "d") -> str:
        return request("delete-message", f'<qid>{QUEUE}</qid><mid receives="{receives}">{mid}</mid>', req=name)

    def deleted(self, answer: str, payload: str, receives: int) -> None:
        """Notes the answer to a delete. Somebody else may have got the message when its window had ended, or an
        unanswered delete was done."""
        if code(answer) in (404, 409):
            self._ledger.note("deletes too late")
        elif not self.refused(answer, "delete"):
            with self._ledger.changed:
                self._ledger.deleted[payload] = receives
                later = [each for each in self._ledger.deliveries[payload] if each.receives > receives]
            if later:
                self._ledger.complain(f"{payload} was deleted with {receives} receives, and delivered: {later}")
            self._ledger.note("deletes answered")


class _Consumer(_Deleting):
    """Receives and deletes; leaves some, and releases some."""

    def use(self, wire: MortalWire) -> None:
        while not self.stopping.is_set():
            answer = wire.ask(receive(QUEUE, max=self._rng.randint(1, 5), wait=0.5, visibility=WINDOW))
            if self.refused(answer, "receive"):
                continue
            came = time.time()
            for mid, receives, window, payload in _MESSAGE.findall(answer):
                delivery = Delivery(int(mid), int(receives), came, int(window) / 1e6)
                self._ledger.delivered(payload, delivery)
                choice = self._rng.random() if self.leaves else 1.0
                if choice < 0.03:
                    continue
                if choice < 0.06:
                    delivery.released = True
                    receipt = f'<qid>{QUEUE}</qid><mid receives="{receives}">{mid}</mid>'
                    wire.ask(request("release-message", receipt))
                    continue
                self.deleted(wire.ask(self.delete(int(mid), int(receives))), payload, int(receives))


class _Subscriber(_Deleting):
    """Subscribes, and deletes most of what comes. What it has left comes back when it goes, as it does now and
    then."""

    _wire: MortalWire | None = None

    def use(self, wire: MortalWire) -> None:
        self._wire = wire
        held: dict[str, tuple[str, int]] = {}
        wire.send(subscribe(QUEUE, prefetch=5, visibility=HELD))
        left = self._rng.randint(10, 200)
        # Not by the id: a crash may take a receive back, and then the same message comes again before its deletion is
        # answered.
        numbers = itertools.count()
        while left and not self.stopping.is_set():
            line = wire.line()
            if not is_delivery(line):
                if (about := held.pop(req(line), None)) is not None:
                    self.deleted(line, *about)
                elif self.refused(line, "subscribe"):
                    return
                continue
            [(payload, receives, window, mid)] = _DELIVERED.findall(line)
            delivery = Delivery(int(mid), int(receives), time.time(), int(window) / 1e6, wire)
            self._ledger.delivered(payload, delivery)
            left -= 1
            if self._rng.random() >= 0.03:
                name = f"d{next(numbers)}"
                held[name] = payload, int(receives)
                wire.send(self.delete(int(mid), int(receives), name))

    def stop(self) -> None:
        """Ends the connection: a subscriber may wait for messages for ever."""
        self.stopping.set()
        if self._wire is not None:
            with contextlib.suppress(OSError):
                self._wire._socket.shutdown(socket.SHUT_RDWR)


# -- all of it


class World:
    """The cluster, the servers and the clients. rng: for the choices of faults."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.kept: list[MortalWire] = []
        self.faults: Counter[str] = Counter()
        self._stack = contextlib.ExitStack()
        self.cluster = Cluster()
        self._stack.callback(self.cluster.close)
        self.servers: list[ServerProcess] = []
        self._clients: list[_Client] = []
        try:
            for number in range(2):
                flags = ("--postgres", self.cluster.dsn, "--storage", "postgres")
                server = ServerProcess(folder / f"root{number}", *flags, port=lasting_port())
                self._stack.callback(server.kill)
                self.servers.append(server)
            with Wire(self.servers[0]) as wire, Wire(self.servers[1]) as other:
                assert code(wire.ask(new_queue(QUEUE))) == 0
                while code(other.ask(request("queue-stats", f"<qid>{QUEUE}</qid>"))):
                    time.sleep(0.05)  # another server learns of it within a second
            kinds: list[tuple[type[_Client], int]] = [(_Producer, 4), (_Consumer, 4), (_Subscriber, 2)]
            for kind, count in kinds:
                for number in range(count):
                    name = f"{kind.__name__[1].lower()}{number}"
                    self._clients.append(kind(self, name, self.rng.getrandbits(32)))
            for client in self._clients:
                client.start()
        except BaseException:
            self.close()
            raise

    def go_on(self, count: int) -> None:
        """Waits until so many further pushes and deletes have been answered: everything has recovered."""
        counts = self.ledger.counts
        names = ("pushes answered", "deletes answered")
        wanted = {name: counts[name] + count for name in names}
        with self.ledger.changed:
            done = self.ledger.changed.wait_for(lambda: all(counts[name] >= wanted[name] for name in names), _WITHIN)
        assert done, f"nothing goes on: {dict(counts)}, wanted {wanted}\n{self.logs()}"

    def round(self, fault: Callable[["World"], str]) -> None:
        self.go_on(self.rng.randint(5, 40))
        self.faults[fault(self)] += 1
        self.go_on(20)
        assert self.ledger.trouble == [], f"{self.ledger.trouble[:5]}\n{self.logs()}"

    def fail_over(self) -> None:
        """Kills the primary, and promotes a standby."""
        self.ledger.crashes.append(time.time())
        self.cluster.fail_over()

    def finish(self) -> None:
        """Ends the load, waits until the queue is empty, and checks everything."""
        for client in self._clients:
            client.leaves = False
            if isinstance(client, _Producer | _Subscriber):
                client.stopping.set()
            if isinstance(client, _Subscriber):
                client.stop()
        end = time.monotonic() + _WITHIN
        while self.cluster.sql("SELECT count(*) FROM qs.messages") != [0]:
            with self.ledger.changed:
                self.ledger.changed.wait(0.2)
            assert time.monotonic() < end, f"messages stay: {self._left()}\n{self.logs()}"
        self._end_clients()
        assert self._left() == {"messages": 0, "line": 0, "hidden": 0}
        self.ledger.check()
        for server in self.servers:
            assert "Traceback" not in server.log(), server.log()

    def _left(self) -> dict[str, object]:
        return {
            table: self.cluster.sql(f"SELECT count(*) FROM qs.{table}")[0] for table in ("messages", "line", "hidden")
        }

    def table(self) -> str:
        """Returns what happened, a line each."""
        rows = [*sorted(self.faults.items()), ("", 0), *sorted(self.ledger.counts.items())]
        return "\n".join(f"{count:>8}  {name}" if name else "" for name, count in rows)

    def logs(self) -> str:
        found = [f"{server.name} {server.port}:\n{server.log()[-5000:]}" for server in self.servers]
        return "\n".join([*found, *(f"{node.name}:\n{node.log()[-3000:]}" for node in self.cluster.nodes)])

    def _end_clients(self) -> None:
        for client in self._clients:
            client.stopping.set()
            if isinstance(client, _Subscriber):
                client.stop()
        for client in self._clients:
            client.join(_WITHIN)
            assert not client.is_alive(), client.name

    def close(self) -> None:
        for client in self._clients:
            client.stopping.set()
        self._stack.close()  # clients see their servers end
        for client in self._clients:
            if client.ident is not None:
                client.join(_WITHIN)


@contextlib.contextmanager
def world(folder: Path, seed: int) -> Iterator[World]:
    """Runs everything for the length of a with block, which ends with all checks."""
    with contextlib.closing(World(folder, seed)) as everything:
        yield everything
        everything.finish()


# -- faults


def kill_primary(at: World) -> str:
    """The primary's machine dies, and a standby is promoted."""
    at.fail_over()
    return "the primary is killed, a standby promoted"


def crash_primary(at: World) -> str:
    """The primary crashes and comes back as primary: what it had not replicated shows then."""
    at.ledger.crashes.append(time.time())
    at.cluster.primary.stop(signal.SIGQUIT) if at.rng.random() < 0.5 else at.cluster.primary.kill()
    at.cluster.primary.start()
    at.cluster.primary.until_streaming(*at.cluster.standbys)
    return "the primary crashes and comes back"


def kill_server(at: World) -> str:
    server = at.rng.choice(at.servers)
    server.kill()
    at.go_on(5)
    server.start()
    return "a queue server is killed"


def kill_primary_and_server(at: World) -> str:
    """Two machines die together: the primary's, and that of a queue server."""
    server = at.rng.choice(at.servers)
    server.kill()
    at.fail_over()
    server.start()
    return "the primary and a queue server are killed"


def freeze_node(at: World) -> str:
    node = at.rng.choice(at.cluster.nodes)
    with node.frozen():
        threading.Event().wait(at.rng.uniform(0.2, 2))
    return "the primary stands still" if node is at.cluster.primary else "a standby stands still"


def freeze_standbys(at: World) -> str:
    """No commit is answered meanwhile, and somebody may cancel some that wait."""
    one, two = at.cluster.standbys
    with one.frozen(), two.frozen():
        threading.Event().wait(at.rng.uniform(0.2, 1))
        if at.rng.random() < 0.5:
            _end_backends(at, at.rng.choice(("cancel", "terminate")))
            threading.Event().wait(0.1)
    return "both standbys stand still"


def freeze_server(at: World) -> str:
    with at.rng.choice(at.servers).freeze():
        threading.Event().wait(at.rng.uniform(0.2, 3))
    return "a queue server stands still"


def end_backends(at: World) -> str:
    how = at.rng.choice(("cancel", "terminate"))
    for _ in range(at.rng.randint(1, 10)):
        _end_backends(at, how)
    return f"pg_{how}_backend for some connections"


def _end_backends(at: World, how: str) -> None:
    at.cluster.sql(
        f"SELECT pg_{how}_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND random() < 0.7"
    )


FAULTS: list[Callable[[World], str]] = [
    kill_primary,
    crash_primary,
    kill_server,
    kill_primary_and_server,
    freeze_node,
    freeze_standbys,
    freeze_server,
    end_backends,
]
SEED = int(os.environ.get("QS_KILL_SEED", "20251121"))
