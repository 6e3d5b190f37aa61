"""Subscribers that do not read, or do not acknowledge: the others notice nothing, and the bus keeps within bounds."""

import contextlib
import itertools
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.bus.clients import acknowledge, subscribe
from support.clients.documents import PING, code, mids, new_queue, push_list, request
from support.servers.processes import FAST, BusProcess, ServerProcess, Wire, bus_serving, serving

BATCH = 20
PAYLOAD = 16 * 1024
OUTBOX = 256 * 1024
HOLD = 100_000
PREFETCH = 10
TAKEN = 1000
"""Messages that the bus takes out of a queue when all its subscribers are slow."""
RECORD = 512
"""Bytes that the bus may need for a message in hand, beside the payload."""
SLACK = 4 * 1024 * 1024
"""Bytes by which the memory of a process may grow for no reason that is seen from outside."""
_COUNTS = re.compile(r'\b(new|ready|in-flight|delayed)="(\d+)"')


class Reader:
    """A subscriber that reads when it is told to. slow: its side of the connection takes next to nothing in advance."""

    def __init__(self, bus: BusProcess, qid: str, *, ack: bool, prefetch: int = 0, slow: bool = True) -> None:
        self._qid = qid
        self._socket = socket.socket()
        if slow:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(20)
        self._socket.connect((bus.host, bus.port))
        self._lines = self._socket.makefile("rb")
        self._ack = ack
        self.found: list[int] = []
        self.end = ""
        """The error that the bus has sent at last."""
        self._socket.sendall(subscribe(qid, ack=ack, prefetch=prefetch).encode())
        assert "<subscribe/>" in self._lines.readline().decode()

    def read(self, count: int, *, ack: bool = True) -> list[int]:
        """Reads and acknowledges so many deliveries; fewer when the bus ends the connection."""
        found: list[int] = []
        handled = 0
        while len(found) < count and (line := self._lines.readline().decode()):
            if code(line):
                self.end = line
            elif "<get-message/>" in line:
                found += mids(line)
                if self._ack and ack and (len(found) == count or len(found) - handled == PREFETCH):
                    self.acknowledge(*found[handled:])
                    handled = len(found)
        self.found += found
        return found

    def answers_next(self) -> bool:
        """Tells whether the next line is the answer to what it asks now: nothing was on its way."""
        self._socket.sendall(PING.encode())
        return "<ping/>" in self._lines.readline().decode()

    def acknowledge(self, *found: int) -> None:
        with contextlib.suppress(OSError):  # it may have been sent away
            self._socket.sendall(acknowledge(self._qid, *found).encode())

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Scene:
    """A bus with one slow subscriber and several that are not."""

    def __init__(self, server: ServerProcess, bus: BusProcess, qid: str, others: int, slow: Reader) -> None:
        self.bus = bus
        self.qid = qid
        self.slow = slow
        self.pushed: list[int] = []
        self.wire = Wire(server)
        self._others = [Reader(bus, qid, ack=bool(number % 2), slow=False) for number in range(others)]

    def batch(self) -> None:
        """Pushes a batch; each of the others gets it soon."""
        pushed = mids(self.wire.ask(push_list(self.qid, *["x" * PAYLOAD] * BATCH)))
        assert len(pushed) == BATCH
        self.pushed += pushed
        for other in self._others:
            assert other.read(BATCH) == pushed

    def counts(self) -> dict[str, int]:
        """Messages on the server, by their states."""
        line = self.wire.ask(request("queue-stats", f"<qid>{self.qid}</qid>"))
        return {state: int(number) for state, number in _COUNTS.findall(line)}

    def memory(self) -> int:
        """Bytes that the bus has in memory."""
        status = Path(f"/proc/{self.bus.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def wait_until_empty(self) -> None:
        """Waits until everything that was handled is deleted; messages in the hands of a client are not."""
        self.wire.server.until(lambda: not sum(self.counts().values()))

    def close(self) -> None:
        for each in (*self._others, self.slow, self.wire):
            each.close()


Scenes = Callable[..., contextlib.AbstractContextManager[Scene]]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenes]:
    """Makes scenes, each with a bus and a queue of its own, on one server."""
    with serving(tmp_path_factory.mktemp("slow") / "root", *FAST) as server:

        @contextlib.contextmanager
        def scene(others: int, *flags: str, ack: bool, prefetch: int = 0) -> Iterator[Scene]:
            qid = f"q{next(_numbers)}"
            with Wire(server) as wire:
                wire.ask(new_queue(qid))
            with bus_serving(server, "-q", qid, "--outbox", str(OUTBOX), "--max-hold", str(HOLD), *flags) as bus:
                everything = Scene(server, bus, qid, others, Reader(bus, qid, ack=ack, prefetch=prefetch))
                with contextlib.closing(everything):
                    yield everything
                assert "ERROR" not in bus.log(), bus.log()

        yield scene


AMOUNT = [
    pytest.param(9, 20, id="short"),
    pytest.param(49, 300, id="long", marks=[pytest.mark.long, pytest.mark.timeout(300)]),
]
"""How many others, and batches."""


def stop_reading(at: Scene, batches: int) -> int:
    """Stops reading while the others get everything, and returns by how many bytes the bus has grown."""
    for _ in range(10):
        at.batch()
        at.slow.read(BATCH)
    before = at.memory()
    most = 0
    for _ in range(batches):
        at.batch()
        most = max(most, at.memory() - before)
    waiting = batches * BATCH
    print(f"{waiting} messages of {PAYLOAD} bytes waited; the bus grew by {most / 1e6:.1f} MB")
    # As docs/bus.md has it: unread, held, fetched, and each message.
    assert most < OUTBOX + PAYLOAD + OUTBOX + OUTBOX // 2 + waiting * RECORD + SLACK
    return waiting


@pytest.mark.parametrize(("others", "batches"), AMOUNT)
@pytest.mark.parametrize("ack", [True, False])
def test_one_stops_reading(others: int, batches: int, ack: bool, scene: Scenes) -> None:
    """The others get everything meanwhile, memory stays within its bound, and the slow client gets everything in order
    afterwards. The long one takes one to two minutes."""
    with scene(others, ack=ack) as at:
        waiting = stop_reading(at, batches)
        assert at.slow.read(waiting) == at.pushed[-waiting:]
        at.batch()
        assert at.slow.read(BATCH) == at.pushed[-BATCH:]
        at.wait_until_empty()


@pytest.mark.parametrize("ack", [True, False])
def test_one_stops_reading_and_is_sent_away(ack: bool, scene: Scenes) -> None:
    """With --policy disconnect it is, once more than the outbox waits for it; the others notice nothing."""
    with scene(9, "--policy", "disconnect", ack=ack, prefetch=HOLD) as at:
        waiting = stop_reading(at, 25)
        assert "a subscriber is disconnected" in at.bus.log()
        at.wait_until_empty()
        found = at.slow.read(waiting)
        assert len(found) < waiting
        assert found == at.pushed[-waiting:][: len(found)]


def test_one_holds_up_more_than_is_held(scene: Scenes) -> None:
    """With --policy hold, too: once more than --max-hold messages wait for it. The others notice nothing."""
    with scene(9, "--max-hold", "100", ack=True) as at:
        waiting = stop_reading(at, 15)
        assert "a subscriber is disconnected" in at.bus.log()
        at.wait_until_empty()
        assert len(at.slow.read(waiting)) < waiting


def test_one_does_not_acknowledge(scene: Scenes) -> None:
    """A client that does not acknowledge gets as many messages as its prefetch, and no more until it acknowledges; then
    everything, in order."""
    with scene(9, ack=True, prefetch=PREFETCH) as at:
        waiting = 10 * BATCH
        for _ in range(10):
            at.batch()
        assert at.slow.read(PREFETCH, ack=False) == at.pushed[:PREFETCH]
        assert at.counts()["in-flight"] == waiting
        assert at.slow.answers_next()
        at.slow.acknowledge(*at.slow.found)
        assert at.slow.read(waiting - PREFETCH) == at.pushed[PREFETCH:]
        at.wait_until_empty()


def test_one_does_not_acknowledge_and_is_sent_away(scene: Scenes) -> None:
    """With --policy disconnect, a client that does not acknowledge is disconnected when more than the outbox waits for
    it, and reads why."""
    with scene(9, "--policy", "disconnect", ack=True, prefetch=PREFETCH) as at:
        for _ in range(5):
            at.batch()
        assert at.slow.read(11, ack=False) == at.pushed[:PREFETCH]
        assert code(at.slow.end) == 429
        at.wait_until_empty()


def test_nobody_reads(scene: Scenes) -> None:
    """The bus takes messages from the queue only up to its bound; the rest waits there. Then everybody gets all of
    them."""
    with scene(0, ack=True) as at:
        readers = [at.slow, Reader(at.bus, at.qid, ack=True), Reader(at.bus, at.qid, ack=False)]
        most = 0
        for _ in range(150):
            at.pushed += mids(at.wire.ask(push_list(at.qid, *["x" * PAYLOAD] * BATCH)))
            most = max(most, at.counts()["in-flight"])
        print(f"{most} messages in the hands of the bus, of {len(at.pushed)}")
        assert most <= TAKEN
        assert at.counts()["ready"] >= len(at.pushed) - TAKEN
        for start in range(0, len(at.pushed), 50):
            for reader in readers:
                assert reader.read(50) == at.pushed[start : start + 50]
        at.wait_until_empty()
        for reader in readers:
            reader.close()
