"""A process that stands still for a moment does not take that for something that its clients did, or did not do."""

import contextlib
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bus.clients import stored
from support.clients.documents import PING, code, is_delivery, mids, new_queue, push, push_list, req, subscribe
from support.faults import pass_time
from support.servers.processes import FAST, Listening, ServerProcess, Wire, bus_serving, serving

COUNT = 50


@pytest.fixture
def queues(producer: Wire, qid: str) -> tuple[str, str]:
    """Two of the test's own."""
    producer.ask(new_queue(f"{qid}-other"))
    return qid, f"{qid}-other"


def test_a_bus_that_stalls(shared_server: ServerProcess, producer: Wire, queues: tuple[str, str]) -> None:
    """A client whose request lies in the socket while the bus stands still for longer than it waits for one is not
    silent: it gets its queue, and nothing of any other, whose messages nobody touches."""
    q, other = queues
    with bus_serving(shared_server, "-q", ",".join(queues)) as bus, Wire(bus) as late:
        with Wire(bus) as first:
            assert code(first.ask(PING)) == 0  # the bus takes them one after the other: the first is there
        with bus.freeze():
            late.send(subscribe(q, req="late", ack="client"))
            sent = mids(producer.ask(push_list(other, *map(str, range(COUNT)))))
            pass_time(0.4)
        answer = late.line()
        assert (code(answer), req(answer)) == (0, "late")
        (mid,) = mids(producer.ask(push(q, "x")))
        assert mids(late.line()) == [mid]
        assert stored(producer, other, "new") == sent


@pytest.mark.parametrize("subscribes", [True, False], ids=["subscribe", "another request"])
def test_one_that_speaks_late(
    shared_server: ServerProcess, producer: Wire, queues: tuple[str, str], subscribes: bool
) -> None:
    """A client that was taken for silent and then sends something gets nothing more unasked; its unasked messages go
    back to their queue, whole, for other clients."""
    q, other = queues
    with bus_serving(shared_server, "-q", ",".join(queues)) as bus, Wire(bus) as late:
        unasked = mids(producer.ask(push_list(other, *map(str, range(COUNT)))))
        assert mids(late.line()) == unasked[:1]
        late.send(subscribe(q) if subscribes else PING)
        while is_delivery(answer := late.line()):
            pass
        assert "get-message" not in answer
        unasked += mids(producer.ask(push_list(other, "later")))
        shared_server.until(lambda: stored(producer, other, "ready") == unasked)
        (mid,) = mids(producer.ask(push(q, "x")))
        if subscribes:
            assert mids(late.line()) == [mid]
        assert not select.select([late.socket], [], [], 0.2)[0]
        with Wire(bus) as asked:
            asked.ask(subscribe(other))
            assert [mids(asked.line())[0] for _ in unasked] == unasked


def test_what_is_on_its_way_to_one_that_speaks_late(
    shared_server: ServerProcess, producer: Wire, queues: tuple[str, str]
) -> None:
    """When a slow client sends its first document, the bus completes the line that is begun and sends nothing more of
    what waited; all of it returns to the queue."""
    q, other = queues
    with bus_serving(shared_server, "-q", ",".join(queues)) as bus, Wire(bus) as late:
        big = "x" * 1_000_000
        unasked = [mids(producer.ask(push(other, big)))[0] for _ in range(20)]
        assert mids(late.line()) == unasked[:1]
        shared_server.until(lambda: stored(producer, other, "in-flight") == unasked)
        late.send(subscribe(q, req="late"))
        shared_server.until(lambda: stored(producer, other, "ready") == unasked)
        lines: list[str] = []
        while is_delivery(line := late.line()):
            assert line.endswith("</qs>\r\n")
            lines.append(line)
        assert req(line) == "late"
        assert len(lines) < len(unasked) - 1


def test_one_that_only_listens_and_goes(shared_server: ServerProcess, producer: Wire, qid: str) -> None:
    """Messages written to a client that never sent anything, and has gone, are handled: they do not come again."""
    with bus_serving(shared_server, "-q", qid) as bus:
        with Wire(bus) as silent:
            sent = mids(producer.ask(push(qid, "x")))
            assert mids(silent.line()) == sent
        shared_server.until(lambda: stored(producer, qid, "all") == [])


@contextlib.contextmanager
def server_or_bus(which: str, shared: ServerProcess, folder: Path, *flags: str) -> Iterator[Listening]:
    """A process with those flags, a bus on the shared server."""
    with serving(folder / "root", *FAST, *flags) if which == "server" else bus_serving(shared, *flags) as process:
        yield process


@pytest.mark.parametrize("which", ["server", "bus"])
def test_a_document_that_came_in_time(which: str, shared_server: ServerProcess, tmp_path: Path) -> None:
    """The rest of a document that came while the process stood still for longer than a document may take is taken.
    What never comes is still 408."""
    with server_or_bus(which, shared_server, tmp_path, "--document-time", "0.5") as process, Wire(process) as client:
        assert code(client.ask(PING)) == 0
        client.send(PING[:20])
        with Wire(process) as other:
            assert code(other.ask(PING)) == 0  # the beginning has been read
        with process.freeze():
            client.send(PING[20:])
            pass_time(0.7)
        assert code(client.line()) == 0
        client.send(PING[:20])
        assert code(client.line()) == 408
        assert client.line() == ""
