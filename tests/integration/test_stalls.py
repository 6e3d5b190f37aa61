"""A process that stands still for a moment does not take that for something that its clients did, or did not do."""

import contextlib
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bus_serving import bus_serving
from documents import PING, code, is_delivery, mids, new_queue, push, push_list, req, request, subscribe
from serving import FAST, Listening, ServerProcess, Wire, serving
from stalls import pass_time, stopped

COUNT = 50


@pytest.fixture
def queues(wire: Wire) -> tuple[str, str]:
    """Two of them."""
    wire.ask(new_queue("other"))
    return "q", "other"


def stored(wire: Wire, qid: str, state: str) -> list[int]:
    return mids(wire.ask(request("list-messages", f"<qid>{qid}</qid>", state=state)))


def wait_until(condition: Callable[[], bool]) -> None:
    """Asks again and again; the test's time-out ends it."""
    while not condition():
        select.select([], [], [], 0.002)


def test_a_bus_that_stalls(server: ServerProcess, wire: Wire, queues: tuple[str, str]) -> None:
    """A client whose request lies in the socket while the bus stands still for longer than it waits for one is not
    silent: it gets its queue, and nothing of any other, whose messages nobody touches."""
    with bus_serving(server, "-q", ",".join(queues)) as bus, Wire(bus) as late:
        with Wire(bus) as other:
            assert code(other.ask(PING)) == 501  # the bus takes them one after the other: the first is there
        with stopped(bus):
            late.send(subscribe("q", req="late", ack="client"))
            sent = mids(wire.ask(push_list("other", *map(str, range(COUNT)))))
            pass_time(0.4)
        answer = late.line()
        assert (code(answer), req(answer)) == (0, "late")
        (mid,) = mids(wire.ask(push("q", "x")))
        assert mids(late.line()) == [mid]
        assert stored(wire, "other", "new") == sent


@pytest.mark.parametrize("request_", [subscribe("q"), PING], ids=["subscribe", "another request"])
def test_one_that_speaks_late(server: ServerProcess, wire: Wire, queues: tuple[str, str], request_: str) -> None:
    """A client that was taken for silent and then speaks gets nothing more that it did not ask for; what it got
    unasked goes back to its queue, whole, for whoever asks for that."""
    with bus_serving(server, "-q", ",".join(queues)) as bus, Wire(bus) as late:
        unasked = mids(wire.ask(push_list("other", *map(str, range(COUNT)))))
        assert mids(late.line()) == unasked[:1]
        late.send(request_)
        while is_delivery(answer := late.line()):
            pass
        assert "get-message" not in answer
        unasked += mids(wire.ask(push_list("other", "later")))
        wait_until(lambda: stored(wire, "other", "ready") == unasked)
        (mid,) = mids(wire.ask(push("q", "x")))
        if request_ != PING:
            assert mids(late.line()) == [mid]
        assert not select.select([late.socket], [], [], 0.2)[0]
        with Wire(bus) as asked:
            asked.ask(subscribe("other"))
            assert [mids(asked.line())[0] for _ in unasked] == unasked


def test_what_is_on_its_way_to_one_that_speaks_late(server: ServerProcess, wire: Wire, queues: tuple[str, str]) -> None:
    """What waits in the bus for a slow client when that speaks at last is not sent any more, but for the line that is
    begun, which comes whole; all of it goes back."""
    with bus_serving(server, "-q", ",".join(queues)) as bus, Wire(bus) as late:
        big = "x" * 1_000_000
        unasked = [mids(wire.ask(push("other", big)))[0] for _ in range(20)]
        assert mids(late.line()) == unasked[:1]
        wait_until(lambda: stored(wire, "other", "in-flight") == unasked)
        late.send(subscribe("q", req="late"))
        wait_until(lambda: stored(wire, "other", "ready") == unasked)
        lines: list[str] = []
        while is_delivery(line := late.line()):
            assert line.endswith("</qs>\r\n")
            lines.append(line)
        assert req(line) == "late"
        assert len(lines) < len(unasked) - 1


def test_one_that_only_listens_and_goes(server: ServerProcess, wire: Wire) -> None:
    """What was written to a client that never said anything, and has gone, is handled: it does not come again."""
    with bus_serving(server, "-q", "q") as bus:
        with Wire(bus) as silent:
            sent = mids(wire.ask(push("q", "x")))
            assert mids(silent.line()) == sent
        wait_until(lambda: stored(wire, "q", "all") == [])


@contextlib.contextmanager
def server_or_bus(which: str, folder: Path, *flags: str) -> Iterator[Listening]:
    with serving(folder / "root", *FAST, *(flags if which == "server" else ())) as server:
        if which == "server":
            yield server
            return
        with bus_serving(server, *flags) as bus:
            yield bus


@pytest.mark.parametrize("which", ["server", "bus"])
def test_a_document_that_came_in_time(which: str, tmp_path: Path) -> None:
    """The rest of a document that came while the process stood still for longer than a document may take is taken.
    What never comes is still 408."""
    with server_or_bus(which, tmp_path, "--document-time", "0.5") as process:
        expected = 0 if which == "server" else 501
        with Wire(process) as client:
            assert code(client.ask(PING)) == expected
            client.send(PING[:20])
            with Wire(process) as other:
                assert code(other.ask(PING)) == expected  # the beginning has been read
            with stopped(process):
                client.send(PING[20:])
                pass_time(0.7)
            assert code(client.line()) == expected
            client.send(PING[:20])
            assert code(client.line()) == 408
            assert client.line() == ""
