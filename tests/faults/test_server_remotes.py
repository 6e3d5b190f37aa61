"""A queue server whose other servers fail, hang, or come back, and whose clients go away while it waits for them."""

import contextlib
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.documents import (
    PING,
    code,
    delete,
    delete_list,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    request,
    subscribe,
    text,
)
from support.servers.processes import ServerProcess, Wire
from support.servers.remote import LONG, STORAGES, Elsewhere, attributes, elsewhere_serving, made
from support.storage.memcached import Memcached, needs_memcached
from support.storage.sqs import RefusedError, SqsServer

pytestmark = needs_memcached
BROKEN = RefusedError(500, "InternalFailure")
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST."""
FOR_EVER = 3600


@pytest.fixture(scope="module")
def elsewhere(sqs_server: SqsServer) -> Iterator[Elsewhere]:
    with elsewhere_serving(sqs_server) as elsewhere:
        yield elsewhere


@pytest.fixture(scope="module")
def shared(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all tests that do not end it: its first use of SQS takes some 2 s."""
    with elsewhere.serving(tmp_path_factory.mktemp("remotes") / "root") as server:
        yield server


@pytest.fixture
def own(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[ServerProcess]:
    """One that may be ended."""
    elsewhere.memcached.command("flush_all")
    elsewhere.begin()
    with elsewhere.serving(tmp_path / "root") as server:
        yield server


@pytest.fixture
def wire(shared: ServerProcess) -> Iterator[Wire]:
    with Wire(shared) as wire:
        yield wire


@pytest.fixture
def other(shared: ServerProcess) -> Iterator[Wire]:
    """Connects another client."""
    with Wire(shared) as wire:
        yield wire


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "-", request.node.name)[-60:]


@pytest.fixture
def local(wire: Wire, name: str) -> str:
    """A queue of the server's own."""
    return made(wire, f"{name}-local", "journal")


@pytest.fixture
def in_memcached(wire: Wire, name: str) -> str:
    return made(wire, f"{name}-memcached", "memcached")


@pytest.fixture
def at_sqs(wire: Wire, name: str) -> str:
    return made(wire, f"{name}-sqs", "sqs")


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Held:
    """Calls of SQS that are begun, and held until they are let go."""

    def __init__(self, *operations: str) -> None:
        self._operations = operations
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self, operation: str, _: dict[str, Any]) -> None:
        if operation in self._operations:
            self.begun.set()
            self.go.wait(10 * LONG)


@contextlib.contextmanager
def before(elsewhere: Elsewhere, fault: Any) -> Iterator[None]:
    usual = elsewhere.sqs.before
    elsewhere.sqs.before = fault
    try:
        yield
    finally:
        elsewhere.sqs.before = usual


@contextlib.contextmanager
def stopped(elsewhere: Elsewhere) -> Iterator[None]:
    """`memcached` answers nothing."""
    elsewhere.memcached.send(signal.SIGSTOP)
    try:
        yield
    finally:
        elsewhere.memcached.send(signal.SIGCONT)


@contextlib.contextmanager
def gone(elsewhere: Elsewhere) -> Iterator[None]:
    """There is no memcached. The one that comes is empty."""
    elsewhere.memcached.kill()
    try:
        yield
    finally:
        elsewhere.memcached.start(elsewhere.memcached.port)


def works(wire: Wire, qid: str, payload: str) -> None:
    """A queue does everything."""
    wire.ask(push(qid, payload))
    found = wire.ask(receive(qid))
    assert payloads(found) == [payload]
    assert code(wire.ask(delete(qid, *mids(found)))) == 0


def received(wire: Wire, qid: str, count: int) -> list[str]:
    """Receives so many payloads of a queue; each receive may give some of them."""
    found: list[str] = []
    while len(found) < count:
        seen = payloads(wire.ask(receive(qid, max=count, wait=LONG)))
        assert seen, f"only {found}"
        found += seen
    return found


# -- who is slow keeps nobody else waiting


def test_memcached_hangs(elsewhere: Elsewhere, wire: Wire, other: Wire, local: str, in_memcached: str) -> None:
    """While a request waits for a memcached that does not answer, those about other queues are answered; it is
    answered itself when memcached goes on."""
    with stopped(elsewhere):
        wire.send(push(in_memcached, "slow"))
        for number in range(5):
            works(other, local, str(number))
        assert not has_come(wire)
    assert mids(wire.line())
    assert received(other, in_memcached, 1) == ["slow"]


def test_sqs_hangs(elsewhere: Elsewhere, wire: Wire, other: Wire, local: str, in_memcached: str, at_sqs: str) -> None:
    """While a request waits for SQS, requests for memcached are answered; later ones on its connection have their turn
    then."""
    held = Held("SendMessageBatch", "SendMessage")
    with before(elsewhere, held):
        wire.send(push(at_sqs, "slow"), push(local, "next"), PING)
        assert held.begun.wait(LONG)
        for number in range(20):
            works(other, local, str(number))
            works(other, in_memcached, str(number))
        assert not has_come(wire)
        held.go.set()
        assert mids(wire.line())
        assert mids(wire.line())
        assert "<ping/>" in wire.line()


def has_come(wire: Wire) -> bool:
    """Tells whether there is anything to read by now."""
    wire.socket.setblocking(False)
    try:
        return bool(wire.socket.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        wire.socket.settimeout(LONG)


# -- the client goes away


@pytest.mark.parametrize("way", ["half", "reset"])
def test_the_client_goes_during_a_wait(
    elsewhere: Elsewhere, shared: ServerProcess, wire: Wire, name: str, storage: str, way: str
) -> None:
    """A message that comes after a waiting client has gone is for the next one, long before its window ends. One that
    has only ended its side is answered with nothing."""
    qid = made(wire, name, storage)
    leaving = Wire(shared)
    with elsewhere.waited_at(storage):
        leaving.send(receive(qid, wait=10 * LONG, visibility=FOR_EVER))
    if way == "half":
        leaving.socket.shutdown(socket.SHUT_WR)
        answer = leaving.line()
        assert (code(answer), payloads(answer), leaving.line()) == (0, [], "")
    else:
        leaving.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    leaving.close()
    wire.ask(push(qid, "for the next"))
    assert received(wire, qid, 1) == ["for the next"]


def test_a_message_comes_as_the_client_goes(
    elsewhere: Elsewhere, shared: ServerProcess, wire: Wire, name: str, storage: str
) -> None:
    """In the same moment: somebody gets it."""
    qid = made(wire, name, storage)
    for number in range(5):
        leaving = Wire(shared)
        with elsewhere.waited_at(storage):
            leaving.send(receive(qid, wait=10 * LONG, visibility=FOR_EVER))
        wire.send(push(qid, str(number)))
        leaving.socket.shutdown(socket.SHUT_WR)
        answer = leaving.line()
        assert mids(wire.line())
        leaving.close()
        if payloads(answer) != [str(number)]:
            assert payloads(answer) == []
            assert received(wire, qid, 1) == [str(number)]


# -- the server is stopped


def test_a_stop_during_waits(elsewhere: Elsewhere, tmp_path: Path, own: ServerProcess, storage: str) -> None:
    """SIGTERM ends a waiting receive with an empty answer, and the server within seconds. What comes afterwards is not
    lost: at SQS it may still come to the poll of the server that has ended, and is visible when its window is over."""
    with Wire(own) as wire:
        made(wire, "q", storage)
        with elsewhere.waited_at(storage):
            wire.send(receive("q", wait=10 * LONG, visibility=FOR_EVER if storage == "memcached" else 1))
        begun = time.monotonic()
        assert own.stop() == 0
        assert time.monotonic() - begun < LONG / 2
        answer = wire.line()
        assert (code(answer), payloads(answer)) == (0, [])
        assert code(wire.line()) == 503
    with elsewhere.serving(tmp_path / "root") as again, Wire(again) as wire:
        wire.ask(push("q", "later"))
        assert received(wire, "q", 1) == ["later"]


def test_a_stop_with_subscribers(elsewhere: Elsewhere, tmp_path: Path, own: ServerProcess, storage: str) -> None:
    """Unacknowledged messages of subscribers are visible again when the server has ended."""
    sent = ["one", "two", "three"]
    with Wire(own) as wire:
        made(wire, "q", storage)
        wire.ask(push_list("q", *sent))
        with elsewhere.waited_at(storage):
            wire.send(subscribe("q", visibility=FOR_EVER))
        lines = [wire.line() for _ in range(4)]
        assert sum(map(is_delivery, lines)) == 3
        begun = time.monotonic()
        assert own.stop() == 0
        assert time.monotonic() - begun < LONG / 2
    with elsewhere.serving(tmp_path / "root") as again, Wire(again) as wire:
        assert sorted(received(wire, "q", 3)) == sorted(sent)


@pytest.mark.slow
def test_a_stop_while_sqs_hangs(elsewhere: Elsewhere, own: ServerProcess) -> None:
    """A request that SQS does not answer does not keep the server from stopping: some 12 s."""
    held = Held("SendMessage", "SendMessageBatch")
    with Wire(own) as wire:
        made(wire, "q", "sqs")
        with before(elsewhere, held):
            wire.send(push("q", "x"))
            assert held.begun.wait(LONG)
            begun = time.monotonic()
            assert own.stop() == 0
            assert time.monotonic() - begun < 25
            held.go.set()


def test_a_stop_while_memcached_is_gone(elsewhere: Elsewhere, own: ServerProcess) -> None:
    """If memcached is gone at the stop, the server cannot give back its subscribers' messages: it logs one line and
    ends."""
    with Wire(own) as wire:
        made(wire, "q", "memcached")
        wire.ask(push_list("q", *map(str, range(10))))
        with elsewhere.waited_at("memcached"):
            wire.send(subscribe("q"))
        assert sum(is_delivery(wire.line()) for _ in range(11)) == 10
        with gone(elsewhere):
            assert own.stop() == 0
    assert own.log().count("stay hidden until their windows end: memcached at") == 1
    assert "10 messages of 'q' stay hidden" in own.log()


# -- the other server fails


def test_memcached_is_restarted(
    elsewhere: Elsewhere, shared: ServerProcess, wire: Wire, other: Wire, name: str, local: str, in_memcached: str
) -> None:
    """While it is gone, requests fail with its address and what to do, at once; afterwards they work, and subscribers
    are sent what comes, though nobody has done anything here."""
    host, port = elsewhere.memcached.address
    about = f"<qid>{in_memcached}</qid>"
    wire.ask(push(in_memcached, "gone with it"))
    made(wire, name, "memcached")
    with Wire(shared) as subscriber:
        with elsewhere.waited_at("memcached"):
            subscriber.ask(subscribe(name))
        with gone(elsewhere):
            for asked in (
                push(in_memcached, "x"),
                receive(in_memcached),
                receive(in_memcached, wait=LONG),
                request("queue-stats", about),
                request("purge-queue", about),
                request("list-messages", about),
                new_queue(f"{name}-new", '<options storage="memcached"/>'),
            ):
                answer = wire.ask(asked)
                assert (code(answer), f"memcached at {host}:{port}" in text(answer)) == (500, True), answer
                assert "start it" in text(answer)
            shared.until_logged(f"messages of '{name}' cannot be fetched")
            works(other, local, "meanwhile")
        assert mids(wire.ask(push(name, "for the subscriber")))
        assert payloads(subscriber.line()) == ["for the subscriber"]
    assert mids(wire.ask(push(in_memcached, "after")))
    assert received(other, in_memcached, 1) == ["after"]
    made(wire, f"{name}-new", "memcached")
    assert shared.log().count(f"'{name}' cannot be fetched") == 1
    assert f"'{name}' can be fetched again" in shared.log()


def test_a_wait_at_memcached_fails(elsewhere: Elsewhere, wire: Wire, in_memcached: str) -> None:
    """A waiting receive fails when memcached goes."""
    with elsewhere.waited_at("memcached"):
        wire.send(receive(in_memcached, wait=10 * LONG))
    with gone(elsewhere):
        answer = wire.line()
        assert (code(answer), "memcached at" in text(answer)) == (500, True)


def fail(operation: str, _: dict[str, Any]) -> None:
    raise BROKEN


def hang_up(operation: str, _: dict[str, Any]) -> None:
    raise ConnectionError


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fail, hang_up])
def test_sqs_fails(elsewhere: Elsewhere, wire: Wire, other: Wire, local: str, at_sqs: str, fault: Any) -> None:
    """Requests are tried again for some 3 s, then fail with the endpoint, each; local ones go on. Some 8 s."""
    with before(elsewhere, fault):
        wire.send(push(at_sqs, "x"), receive(at_sqs, wait=LONG))
        works(other, local, "meanwhile")
        for _ in range(2):
            answer = wire.line()
            assert (code(answer), f"SQS at {elsewhere.sqs.url}" in text(answer)) == (500, True), answer
    assert mids(wire.ask(push(at_sqs, "after")))
    assert received(wire, at_sqs, 1) == ["after"]


@pytest.mark.slow
def test_a_subscriber_of_sqs_outlasts_it(elsewhere: Elsewhere, shared: ServerProcess, wire: Wire, at_sqs: str) -> None:
    """A subscription that begins while SQS fails is served when it answers; what is acknowledged stays deleted, and
    the rest is for others. Some 6 s."""
    wire.ask(push_list(at_sqs, "one", "two"))
    with Wire(shared) as subscriber:
        with before(elsewhere, fail):
            subscriber.ask(subscribe(at_sqs, visibility=FOR_EVER))
            shared.until_logged(f"messages of '{at_sqs}' cannot be fetched")
        first, second = subscriber.line(), subscriber.line()
        assert code(subscriber.ask(delete(at_sqs, *mids(first)))) == 0
    assert received(wire, at_sqs, 1) == payloads(second)
    assert payloads(wire.ask(receive(at_sqs))) == []


@pytest.mark.slow
def test_figures_while_some_are_down(
    elsewhere: Elsewhere, wire: Wire, local: str, in_memcached: str, at_sqs: str
) -> None:
    """All queues are in the answer; those of a server that does not answer have only their storage and waiting
    receives. Some 10 s: the other queues of this file are asked for as well."""
    wire.ask(push(in_memcached, "x"))
    with before(elsewhere, fail):
        figures = wire.ask(request("queue-stats"))
    nobody = {"subscribers": "0", "waiting": "0"}
    assert attributes(figures, at_sqs) == {"storage": "sqs", **nobody}
    assert attributes(figures, in_memcached)["ready"] == "1"
    assert attributes(figures, local)["ready"] == "0"
    with gone(elsewhere):
        figures = wire.ask(request("queue-stats"))
        alone = wire.ask(request("queue-stats", f"<qid>{in_memcached}</qid>"))
    assert attributes(figures, in_memcached) == {"storage": "memcached", **nobody}
    assert attributes(figures, at_sqs)["ready"] == "0"
    assert code(alone) == 500


def test_memcached_is_gone_at_the_start(elsewhere: Elsewhere, tmp_path: Path, own: ServerProcess) -> None:
    """The queue server still starts, lists the queues, and uses them when memcached has come."""
    with Wire(own) as wire:
        made(wire, "q", "memcached")
        made(wire, "local", "journal")
    own.stop()
    with contextlib.ExitStack() as later:
        with gone(elsewhere):
            server = later.enter_context(elsewhere.serving(tmp_path / "root"))
            wire = later.enter_context(Wire(server))
            assert "<queue>q</queue>" in wire.ask(request("list-queues"))
            works(wire, "local", "x")
            assert code(wire.ask(push("q", "x"))) == 500
        works(wire, "q", "x")


def test_memcached_is_full(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """When memcached is full, pushes are refused with 507, and the rest goes on."""
    with Memcached("-m", "2", "-M") as small:
        host, port = small.address
        with (
            elsewhere.serving(tmp_path / "root", "--memcached", f"{host}:{port}") as server,
            Wire(server) as wire,
        ):
            made(wire, "q", "memcached")
            stored = 0
            while not code(answer := wire.ask(push("q", "x" * 100_000))):
                stored += 1
            assert (code(answer), "no room" in text(answer)) == (507, True), answer
            assert len(received(wire, "q", stored)) == stored


@pytest.mark.slow
def test_a_list_is_deleted_in_part(elsewhere: Elsewhere, wire: Wire, at_sqs: str) -> None:
    """When SQS fails in the midst of a list, the answer says how far it came, and that is so. Some 5 s."""
    wire.ask(push_list(at_sqs, "one", "two", "three"))
    held: list[int] = []
    while len(held) < 3:
        held += mids(wire.ask(receive(at_sqs, max=3, wait=LONG, visibility=FOR_EVER)))
    deletions: list[None] = []

    def fail_later(operation: str, _: dict[str, Any]) -> None:
        if operation == "DeleteMessage":
            deletions.append(None)
            if len(deletions) > 1:
                raise BROKEN

    with before(elsewhere, fail_later):
        assert mids(wire.ask(delete_list(at_sqs, *held))) == held[:1]
    assert mids(wire.ask(delete_list(at_sqs, *held))) == held[1:]
