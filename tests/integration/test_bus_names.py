"""Names of subscribers at the real bus process: shared, kept, and ended with their queue."""

from pathlib import Path

import pytest
from support.bus.clients import Connect, gone, push_one, stored
from support.clients.documents import PING, code, delete_list, mids, new_queue, req, request, subscribe, text
from support.servers.processes import FAST, ServerProcess, Wire, bus_serving, serving


@pytest.fixture
def q(qid: str) -> str:
    """A queue of the test's own."""
    return qid


def test_a_name_is_kept_over_restarts(tmp_path: Path) -> None:
    """A name gets what was pushed while no member was there, the bus or the server was restarted, or both were down."""
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server) as bus:
        with Wire(server) as producer, Wire(bus) as wire:
            producer.ask(new_queue("q"))
            assert code(wire.ask(subscribe("q", name="audit", ack="client"))) == 0
            sent = [push_one(producer, "q", "1")]
            assert mids(wire.line()) == sent  # and not acknowledged
        with Wire(server) as producer:
            sent.append(push_one(producer, "q", "nobody is there"))
            assert gone(producer, "q")
            assert stored(producer, "bus:q:audit") == sent
            bus.stop()
            sent.append(push_one(producer, "q", "the bus is down"))
        server.stop()
        again = ServerProcess(server.root, *FAST, port=server.port)
        try:
            bus.start()
            with Wire(again) as producer, Wire(bus) as wire:
                assert gone(producer, "q")
                assert code(wire.ask(subscribe("q", name="audit", ack="client"))) == 0
                sent.append(push_one(producer, "q", "all are there"))
                got = [mids(wire.line())[0] for _ in sent]
                assert sorted(got) == sent
                assert mids(wire.ask(delete_list("q", *sent))) == sent
                assert gone(producer, "bus:q:audit")
        finally:
            again.stop()


def test_a_name_is_shared(connect: Connect, producer: Wire, q: str) -> None:
    """Each message goes to one of the members of a name, in turn."""
    one, two = (connect(subscribe(q, name="n", ack="client")) for _ in range(2))
    sent = [push_one(producer, q) for _ in range(10)]
    first, second = [mids(one.line())[0] for _ in range(5)], [mids(two.line())[0] for _ in range(5)]
    assert sorted(first + second) == sent
    one.ask(delete_list(q, *first))
    two.ask(delete_list(q, *second))
    assert gone(producer, f"bus:{q}:n")
    assert gone(producer, q)


def test_two_names_and_plain_ones(connect: Connect, producer: Wire, q: str) -> None:
    """Each name gets every message once, and so does every plain subscriber; all know it by the same queue and id."""
    plain = [connect(subscribe(q)), connect(subscribe(q, ack="client"))]
    named = [connect(subscribe(q, name="one")), connect(subscribe(q, name="two:%"))]
    sent = [push_one(producer, q, str(number)) for number in range(20)]
    for wire in (*plain, *named):
        lines = [wire.line() for _ in sent]
        assert [mids(line)[0] for line in lines] == sent
        assert all(f"<qid>{q}</qid>" in line for line in lines)
    plain[1].ask(delete_list(q, *sent))
    for qid in (q, f"bus:{q}:one", f"bus:{q}:two%3A%25"):
        assert gone(producer, qid)


def test_names_that_cannot_be(connect: Connect, q: str) -> None:
    """A name that is empty, or too long for a queue's name, is 400 that says so."""
    wire = connect()
    for name in ("", "n" * 201, "n" * 199, "&#10;", "\N{GRINNING FACE}" * 80):
        answer = wire.ask(subscribe(q, name=name))
        assert code(answer) == 400, answer
        assert "name" in text(answer)
    assert code(wire.ask(subscribe(q, name="n"))) == 0


def test_the_queue_behind_a_name_is_deleted(connect: Connect, producer: Wire, q: str) -> None:
    """Deleting the queue itself ends the subscriptions of names too; a name's messages stay for its next members when
    the queue is there again. Deleting both does no harm to others."""
    member = connect(subscribe(q, name="n", req="m", ack="client"))
    mid = push_one(producer, q, "kept")
    assert mids(member.line()) == [mid]
    assert gone(producer, q)
    producer.ask(request("delete-queue", f"<qid>{q}</qid>", force="yes"))
    line = member.line()
    assert (code(line), req(line)) == (404, "m")
    producer.server.until(lambda: stored(producer, f"bus:{q}:n", "ready") == [mid])
    producer.ask(new_queue(q))
    assert code(member.ask(subscribe(q, name="n", ack="client"))) == 0
    assert mids(member.line()) == [mid]
    later = push_one(producer, q)
    assert mids(member.line()) == [later]
    for qid in (q, f"bus:{q}:n"):
        producer.ask(request("delete-queue", f"<qid>{qid}</qid>", force="yes"))
    assert code(member.line()) == 404
    assert code(member.ask(PING)) == 0
