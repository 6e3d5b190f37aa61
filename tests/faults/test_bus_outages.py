"""Tests what a bus goes through: no server yet, a server that restarts, queues that are deleted, nobody there."""

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.bus.clients import Where, acknowledge, subscribe
from support.clients.documents import PING, code, mids, new_queue, payloads, push, req, request, text
from support.faults import pass_time
from support.servers.processes import FAST, BusProcess, ServerProcess, Wire, bus_serving, lasting_port, serving


class Client(Wire):
    """A client of the bus. Deliveries may come before an answer; they are kept for `delivery`."""

    def __init__(self, bus: BusProcess, qid: str) -> None:
        super().__init__(bus)
        self._qid = qid
        self.kept: deque[str] = deque()

    def ask(self, *documents: str | bytes) -> str:
        self.send(*documents)
        answers: list[str] = []
        while len(answers) < len(documents):
            line = self.line()
            (self.kept if "<get-message/>" in line else answers).append(line)
        return answers[-1]

    def delivery(self) -> str:
        """Returns the next delivery."""
        line = self.kept.popleft() if self.kept else self.line()
        assert "<get-message/>" in line, line
        return line

    def handle(self) -> str:
        """The payload of the next message, which is acknowledged."""
        line = self.delivery()
        assert mids(self.ask(acknowledge(self._qid, *mids(line)))) == mids(line)
        return payloads(line)[0]


class Place:
    """A bus, its server, which may come later, and the name of a queue there."""

    def __init__(self, bus: BusProcess, qid: str, server: ServerProcess | None = None) -> None:
        self.bus = bus
        self.qid = qid
        self.server = server

    def ask(self, document: str) -> str:
        """Returns the server's answer."""
        assert self.server is not None
        with contextlib.closing(Wire(self.server)) as wire:
            return wire.ask(document)

    def count(self, qid: str) -> int:
        """Returns the number of messages in a queue."""
        return len(mids(self.ask(request("list-messages", f"<qid>{qid}</qid>", state="all"))))

    def wait_for(self, qid: str, count: int) -> None:
        """Waits until a queue has so many messages."""
        assert self.server is not None
        try:
            self.server.until(lambda: self.count(qid) == count)
        except AssertionError:
            raise AssertionError(f"{self.count(qid)} messages in {qid}\n{self.bus.log()}") from None

    def connect(self, *requests: str) -> Client:
        """A client of the bus; each request is answered."""
        wire = Client(self.bus, self.qid)
        for document in requests:
            answer = wire.ask(document)
            assert "<subscribe/>" in answer, answer
        return wire


class OwnPlace(Place):
    """A server and a bus that can be started again in their places."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._root = folder / "root"
        self.address = Where("127.0.0.1", lasting_port())
        super().__init__(BusProcess(self.address, *flags, port=lasting_port(), log=folder / "bus.log"), "q")

    def start_server(self, qid: str = "") -> None:
        """qid: a queue that is there before anybody can connect."""
        if qid:
            with serving(self._root, *FAST) as elsewhere, Wire(elsewhere) as wire:
                wire.ask(new_queue(qid))
        self.server = ServerProcess(self._root, *FAST, port=self.address.port)

    def close(self) -> None:
        self.bus.stop()
        if self.server is not None:
            self.server.stop()
            assert "Traceback" not in self.server.log(), self.server.log()
        assert "Traceback" not in self.bus.log(), self.bus.log()


@contextlib.contextmanager
def place(folder: Path, *flags: str, server: bool = True) -> Iterator[OwnPlace]:
    """With a queue `q`, if the server is started at once."""
    everything = OwnPlace(folder, *flags)
    try:
        if server:
            everything.start_server()
            everything.ask(new_queue("q"))
        yield everything
    finally:
        everything.close()


Shared = Callable[..., Place]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Gives a place with a queue of its own, on a server and a bus that are neither stopped nor killed. monitored: the
    bus has the queue as -q."""
    names = [f"told-{number}" for number in range(4)]
    told, others = iter(names), (f"other-{number}" for number in itertools.count())
    with (
        serving(tmp_path_factory.mktemp("shared") / "root", *FAST) as server,
        bus_serving(server) as free,
        bus_serving(server, "-q", ",".join(names)) as telling,
    ):

        def place(monitored: bool) -> Place:
            everything = Place(telling, next(told), server) if monitored else Place(free, next(others), server)
            everything.ask(new_queue(everything.qid))
            return everything

        yield place


@pytest.mark.parametrize("monitored", [True, False])
def test_the_bus_is_there_before_the_server(monitored: bool, tmp_path: Path) -> None:
    """Clients may come already. As soon as there is a server they are subscribed, and get what is pushed."""
    with place(tmp_path, *(("-q", "q") if monitored else ()), server=False) as at, Client(at.bus, "q") as wire:
        wire.send(subscribe("q"))
        at.start_server("q")
        assert "<subscribe/>" in wire.line()
        at.ask(push("q", "hello"))
        assert wire.handle() == "hello"
        at.wait_for("q", 0)


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("name", ["", "n"])
def test_the_server_restarts(how: str, name: str, tmp_path: Path) -> None:
    """Subscribers stay connected: what they have in hand they can acknowledge, it does not come again, and what is
    pushed afterwards comes."""
    with place(tmp_path, "-q", "q") as at, at.connect(subscribe("q", name=name)) as wire:
        at.ask(push("q", "before"))
        before = wire.delivery()
        assert at.server is not None
        if name:
            at.wait_for("q", 0)  # or the copy is made again, as its answer may be on its way
        getattr(at.server, how)()
        at.start_server()
        at.ask(push("q", "after"))
        assert mids(wire.ask(acknowledge("q", *mids(before)))) == mids(before)
        assert wire.handle() == "after"
        at.wait_for("q", 0)
        at.wait_for("bus:q:n", 0)


@pytest.mark.parametrize("name", ["", "n"])
def test_a_monitored_queue_is_deleted(name: str, shared: Shared) -> None:
    """A monitored queue that is deleted is made again, and its subscribers get later pushes."""
    at = shared(monitored=True)
    with at.connect(subscribe(at.qid, name=name)) as wire:
        at.ask(push(at.qid, "before"))
        before = wire.delivery()
        assert code(at.ask(request("delete-queue", f"<qid>{at.qid}</qid>", force="yes"))) == 0
        assert at.server is not None
        at.server.until(lambda: code(at.ask(push(at.qid, "after"))) != 404)
        assert mids(wire.ask(acknowledge(at.qid, *mids(before)))) == mids(before)
        assert wire.handle() == "after"
        at.wait_for(at.qid, 0)


def test_a_queue_is_deleted(shared: Shared) -> None:
    """Each subscriber of a deleted queue gets an error with its req, and can subscribe again when the queue is back."""
    at = shared(monitored=False)
    with (
        at.connect(subscribe(at.qid, req="one")) as one,
        at.connect(subscribe(at.qid, ack=False, req="two")) as two,
        at.connect(subscribe(at.qid, name="n", req="three")) as three,
    ):
        at.ask(request("delete-queue", f"<qid>{at.qid}</qid>"))
        for wire, known in ((one, "one"), (two, "two"), (three, "three")):
            wire.socket.settimeout(5)
            line = wire.line()
            assert (code(line), req(line)) == (404, known)
        assert code(one.ask(subscribe(at.qid, req="one"))) == 404
        at.ask(new_queue(at.qid))
        for wire, again in (
            (one, subscribe(at.qid, req="one")),
            (two, subscribe(at.qid, ack=False, req="two")),
            (three, subscribe(at.qid, name="n", req="three")),
        ):
            assert "<subscribe/>" in wire.ask(again)
        at.ask(push(at.qid, "new"))
        assert one.handle() == "new"
        assert payloads(two.delivery()) == ["new"]
        assert three.handle() == "new"
        at.wait_for(at.qid, 0)


def test_a_queue_is_deleted_and_there_again(shared: Shared) -> None:
    """A durable name misses nothing of the new one, even if others subscribe to it first."""
    at = shared(monitored=False)
    with at.connect(subscribe(at.qid, name="n")):
        pass
    with at.connect(subscribe(at.qid)) as wire:
        at.ask(request("delete-queue", f"<qid>{at.qid}</qid>", force="yes"))
        assert code(wire.line()) == 404
        at.ask(new_queue(at.qid))
        assert "<subscribe/>" in wire.ask(subscribe(at.qid))
        at.ask(push(at.qid, "new"))
        assert wire.handle() == "new"
    with at.connect(subscribe(at.qid, name="n")) as named:
        named.socket.settimeout(5)
        assert named.handle() == "new"
    at.wait_for(f"bus:{at.qid}:n", 0)


def test_the_queue_of_a_name_is_deleted(shared: Shared) -> None:
    """When the queue of a name is deleted, its members get an error; others go on, and the name can be made again."""
    at = shared(monitored=True)
    with (
        at.connect(subscribe(at.qid, name="n", req="named")) as named,
        at.connect(subscribe(at.qid)) as wire,
    ):
        at.ask(request("delete-queue", f"<qid>bus:{at.qid}:n</qid>", force="yes"))
        line = named.line()
        assert (code(line), req(line)) == (404, "named")
        assert "'n'" in text(line)
        at.ask(push(at.qid, "one"))
        assert wire.handle() == "one"
        assert "<subscribe/>" in named.ask(subscribe(at.qid, name="n"))
        at.ask(push(at.qid, "two"))
        assert wire.handle() == "two"
        assert named.handle() == "two"
        at.wait_for(at.qid, 0)
        at.wait_for(f"bus:{at.qid}:n", 0)


@pytest.mark.parametrize("monitored", [True, False])
def test_the_queue_of_a_name_is_deleted_while_nobody_is_there(monitored: bool, shared: Shared) -> None:
    """The next subscriber to the name makes it anew, and stays."""
    at = shared(monitored=monitored)
    with at.connect(subscribe(at.qid, name="n")):
        pass
    assert code(at.ask(request("delete-queue", f"<qid>bus:{at.qid}:n</qid>", force="yes"))) == 0
    with at.connect(subscribe(at.qid, name="n")) as named:
        at.ask(push(at.qid, "one"))
        assert named.handle() == "one"
    at.wait_for(f"bus:{at.qid}:n", 0)


def test_a_queue_is_deleted_while_a_name_has_no_room(tmp_path: Path) -> None:
    """A message that could not be stored for a name is given up when its queue is deleted, with one line in the log.
    When the queue exists again, the name gets new messages."""
    with place(tmp_path) as at:
        with at.connect(subscribe("q", name="n")):
            at.ask(request("delete-queue", "<qid>bus:q:n</qid>", force="yes"))
            at.ask(new_queue("bus:q:n", '<options capacity="1"/>'))
        with at.connect(subscribe("q", name="n")) as named, at.connect(subscribe("q", ack=False)) as plain:
            for number in range(3):
                at.ask(push("q", str(number)))
            assert payloads(named.delivery()) == ["0"]
            assert [payloads(plain.delivery())[0] for _ in range(3)] == ["0", "1", "2"]
            at.bus.until_logged("the bus keeps trying")
            at.ask(request("delete-queue", "<qid>q</qid>", force="yes"))
            assert code(named.line()) == code(plain.line()) == 404
        pass_time(2.5)  # the bus tries once a second what it tries again
        assert at.bus.log().count("the server has ended the subscription to 'q'") == 1, at.bus.log()
        assert "works again" not in at.bus.log()
        at.ask(new_queue("q"))
        with at.connect(subscribe("q", name="n")) as named:
            assert named.handle() == "0"
            at.ask(push("q", "new"))
            assert named.handle() == "new"
        at.wait_for("q", 0)
        at.wait_for("bus:q:n", 0)


@pytest.mark.parametrize("name", ["", "n"])
def test_nobody_is_there(name: str, tmp_path: Path) -> None:
    """Messages that are pushed while nobody is connected stay, through kills, and reach the next client in order."""
    with place(tmp_path, "-q", "q", "--settle", "0") as at:
        with at.connect(subscribe("q", name=name)) as wire:
            at.ask(push("q", "1"))
            assert wire.handle() == "1"
        at.wait_for("q", 0)
        kept = f"bus:q:{name}" if name else "q"
        at.wait_for(kept, 0)
        at.ask(push("q", "2"))
        at.wait_for(kept, 1)
        at.bus.kill()
        at.ask(push("q", "3"))
        assert at.server is not None
        at.server.kill()
        at.start_server()
        at.ask(push("q", "4"))
        at.bus.start()
        at.ask(push("q", "5"))
        at.wait_for(kept, 4)
        with at.connect(subscribe("q", name=name)) as wire:
            assert [wire.handle() for _ in range(4)] == ["2", "3", "4", "5"]
            at.wait_for(kept, 0)
            at.wait_for("q", 0)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_one_comes_back_before_the_other(how: str, tmp_path: Path) -> None:
    """After a bus has ended, nothing is handed out until all who acknowledged are back, however soon it ended after
    they had subscribed: what waits reaches each of them."""
    with place(tmp_path, "-q", "q,r", "--settle", "600") as at:
        with at.connect(subscribe("q")), at.connect(subscribe("q")):
            getattr(at.bus, how)()
        at.ask(push("q", "hello"))
        at.bus.start()
        with at.connect(subscribe("q")) as one:
            at.bus.kill()  # once more, when not all are back
        at.bus.start()
        with at.connect(subscribe("q")) as one:
            with at.connect(subscribe("r")) as witness:  # asked for later, and nobody is missing there
                at.ask(push("r", "of another queue"))
                assert payloads(witness.delivery()) == ["of another queue"]
            one.ask(PING)
            assert not one.kept
            with at.connect(subscribe("q")) as other:
                assert one.handle() == "hello"
                assert at.count("q") == 1
                assert other.handle() == "hello"
                at.wait_for("q", 0)


def test_one_does_not_come_back(tmp_path: Path) -> None:
    """After --settle seconds the others get what waits without it."""
    with place(tmp_path, "-q", "q", "--settle", "0.5") as at:
        with at.connect(subscribe("q")), at.connect(subscribe("q")):
            at.bus.kill()
        at.ask(push("q", "hello"))
        at.bus.start()
        with at.connect(subscribe("q")) as one:
            assert one.handle() == "hello"
            at.wait_for("q", 0)
