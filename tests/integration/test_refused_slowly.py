"""A refused client that reads slowly gets lines, whole or not at all, however late it reads the last."""

import socket
from collections.abc import Iterator

import pytest
from support.clients.documents import code, is_delivery, mids, new_queue, push, request, subscribe
from support.faults import pass_time
from support.servers.processes import FAST, Listening, ServerProcess, Wire, bus_serving, serving

LINGER = 0.1
SIZE = 700_000
FLAGS = ("--linger", str(LINGER))


class Slow:
    """A client whose side of the connection takes next to nothing in advance."""

    def __init__(self, process: Listening) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        self.socket.settimeout(20)
        self.socket.connect((process.host, process.port))

    def rest(self) -> list[str]:
        """Lines until the end of the stream."""
        with self.socket, self.socket.makefile("rb") as lines:
            return [line.decode() for line in lines]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("refused") / "root", *FAST, *FLAGS) as process:
        yield process


def test_by_the_server(server: ServerProcess, wire: Wire) -> None:
    """A client that has sent garbage, and reads only when the time to linger is over, gets what the system had taken
    for it, and the reason, though it does not stop to send."""
    (mid,) = mids(wire.ask(push("q", "x" * 40_000)))
    slow = Slow(server)
    slow.socket.sendall(request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes").encode())
    assert slow.socket.recv(1, socket.MSG_PEEK)
    slow.socket.sendall(b"\0")
    for _ in range(30):
        pass_time(LINGER / 5)
        slow.socket.sendall(b"<qs")
    answer, error = slow.rest()
    assert (mids(answer), code(error)) == ([mid], 400)
    assert answer.endswith("</qs>\r\n")


@pytest.mark.parametrize("ack", [True, False], ids=["acknowledges", "does not"])
def test_by_the_bus(server: ServerProcess, wire: Wire, ack: bool) -> None:
    """A subscriber that is sent away for being slow, and reads only when the time to linger is over, gets whole lines,
    and then the reason. Its messages are not kept for it meanwhile, and none is lost."""
    qid = f"acknowledges-{ack}"
    wire.ask(new_queue(qid))
    with bus_serving(server, "-q", qid, "--policy", "disconnect", "--outbox", str(SIZE), *FLAGS) as bus:
        slow = Slow(bus)
        slow.socket.sendall((subscribe(qid, ack="client") if ack else subscribe(qid)).encode())
        pushed: list[int] = []
        while "is disconnected" not in bus.log():
            pushed += mids(wire.ask(push(qid, "x" * SIZE)))
        server.until(lambda: not mids(wire.ask(request("list-messages", f"<qid>{qid}</qid>", state="in-flight"))))
        pass_time(6 * LINGER)
        first, *lines = slow.rest()
        assert "<subscribe/>" in first
        assert [line for line in lines if not line.endswith("</qs>\r\n")] == []
        assert all(is_delivery(line) for line in lines[:-1])
        assert code(lines[-1]) == 429
        left = mids(wire.ask(request("list-messages", f"<qid>{qid}</qid>", state="all")))
        handled = [] if ack else [mid for line in lines for mid in mids(line)]
        assert sorted({*left, *handled}) == pushed
