"""The limits of connections: unanswered requests, unread answers, slow documents, and their number."""

from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.documents import (
    PING,
    code,
    mids,
    payloads,
    push,
    push_list,
    receive,
    req,
    request,
)
from support.servers.memory import Client, Clock, Serving, clock_of, serving, source
from tests.support.servers.requests import batch_of

from qs_schemas import ListMessages, Message
from qs_server.broker.subscriber import Subscriber
from qs_server.broker.subscriptions import Subscriptions
from qs_server.main.options import ServerLimits
from qs_server.operations.service import Service
from qs_storage.engine import wall_clock

# -- requests and answers ---------------------------------------------------------------------------------------------


async def test_pipeline_behind_wait_is_bounded(running: Serving, autojump_clock: Clock) -> None:
    """Behind a request that waits, 1024 more are read, and not one more until it is answered; then all are."""
    client = running.connect(lockstep=True)
    await client.send(receive("q", wait=60))
    for number in range(1024):
        await client.send(request("ping", req=str(number)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, request("ping", req="1024"))
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks  # the last one has not been read
        assert "receive-message" in await client.line()
        assert [req(line) for line in await client.lines(1025)] == [str(number) for number in range(1025)]


async def test_requests_in_one_piece_are_answered_in_order(running: Serving, autojump_clock: Clock) -> None:
    """Five thousand requests that arrive in one piece are answered in order."""
    client = running.connect()
    numbers = [str(number) for number in range(5000)]
    await client.send(*(request("ping", req=number) for number in numbers))
    assert [req(line) for line in await client.lines(5000)] == numbers


async def test_client_that_does_not_read_is_not_read_from(tmp_path: Path, autojump_clock: Clock) -> None:
    """Answers are made until the outbox is full; what it asked behind that is done once it reads."""
    limits = ServerLimits(outbox=1000)
    async with serving(tmp_path / "root", clock_of(autojump_clock), limits=limits) as running:
        slow, other = running.connect(lockstep=True), running.connect()
        pushed = mids(await other.ask(push_list("q", *["x" * 600] * 6)))
        await slow.send("".join(receive("q", visibility=60) for _ in pushed))
        await trio.testing.wait_all_tasks_blocked()
        in_flight = mids(await other.ask(request("list-messages", "<qid>q</qid>", state="in-flight")))
        assert in_flight == pushed[:2]
        assert [mids(line) for line in await slow.lines(6)] == [[mid] for mid in pushed]


async def test_lists_of_ids_fill_outbox(tmp_path: Path, autojump_clock: Clock) -> None:
    """Lists of ids fill the outbox too, so that they do not pile up for a client that does not read."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        client = running.connect()
        await client.ask(push_list("q", *["x"] * 100))
        service = Service(
            running.storage, Subscriptions(source(running.storage), wall_clock), lambda: Subscriber(1, lambda: None)
        )
        group = batch_of([ListMessages("q") for _ in range(50)], service, outbox=100 * 32 * 10)
        group.advance(pushing=False)
        assert sum(map(len, group.answers[:-1])) <= 100 * 32 * 10 < sum(map(len, group.answers))
        assert group.unanswered == 50 - len(group.answers) > 0


async def test_receive_is_bounded_by_document_limit(running: Serving, autojump_clock: Clock) -> None:
    """A receive gives as many messages as fit into 8 MiB, and at least one."""
    client = running.connect()
    for _ in range(5):
        await client.ask(push("q", "y" * 2_700_000))
    assert len(mids(await client.ask(receive("q", max=5)))) == 3
    assert len(mids(await client.ask(receive("q", max=5)))) == 2


# -- documents that take their time -----------------------------------------------------------------------------------


async def test_document_not_completed_in_time_is_408(running: Serving, autojump_clock: Clock) -> None:
    """Half a document and then silence: 408 after 30 s, and the end."""
    client = running.connect()
    assert "<ping/>" in await client.ask(PING)
    await trio.sleep(1000)
    began = trio.current_time()
    await client.send(PING[:20])
    (answer,) = await client.rest()
    assert code(answer) == 408
    assert trio.current_time() - began == pytest.approx(30, abs=0.01)


async def test_document_sent_byte_by_byte_is_408(running: Serving, autojump_clock: Clock) -> None:
    """A client that sends a byte a second is refused as well: the time runs from the first byte."""
    client = running.connect()
    began = trio.current_time()

    async def drip() -> None:
        for byte in push("q", "x" * 1000):
            await client.send(byte)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        assert code(await client.line()) == 408
        assert trio.current_time() - began == pytest.approx(30, abs=0.01)
        nursery.cancel_scope.cancel()
    assert mids(await running.connect().ask(request("list-messages", "<qid>q</qid>"))) == []


async def test_slow_document_in_time_is_taken(running: Serving, autojump_clock: Clock) -> None:
    """A document that takes 29 s is taken, and so is the next one that does: each has its own time."""
    client = running.connect()
    for _ in range(3):
        document = push("q", "x")
        await client.send(document[:10])
        await trio.sleep(29)
        assert len(mids(await client.ask(document[10:]))) == 1


async def test_slow_document_behind_another_has_its_own_time(running: Serving, autojump_clock: Clock) -> None:
    """The time of a document that began in the same piece as the end of another one runs from there."""
    client = running.connect()
    first, second = push("q", "1"), push("q", "2")
    await client.send(first[:10])
    await trio.sleep(20)
    assert len(mids(await client.ask(first[10:] + second[:10]))) == 1
    await trio.sleep(20)
    assert len(mids(await client.ask(second[10:]))) == 1


async def test_document_completed_as_time_ends_is_refused_or_done(tmp_path: Path, autojump_clock: Clock) -> None:
    """A document whose end comes at the very moment at which its time does is refused or done, never both."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        document = push("q", "x")
        for _ in range(30):
            client, other = running.connect(), running.connect()
            before = mids(await other.ask(request("list-messages", "<qid>q</qid>")))
            await client.send(document[:10])
            await trio.sleep(30)
            await client.send(document[10:])
            await client.stream.send_eof()
            (answer,) = await client.rest()
            after = mids(await other.ask(request("list-messages", "<qid>q</qid>")))
            assert after == before + mids(answer)
            assert code(answer) in (0, 408)


async def test_idle_connection_stays(running: Serving, autojump_clock: Clock) -> None:
    """A connection without a begun document stays for ever; white space begins none."""
    client = running.connect()
    for between in ("", "\n\n", " \n\t"):
        await client.send(between)
        await trio.sleep(100_000)
        assert "<ping/>" in await client.ask(PING)


async def test_wait_takes_no_document_time(running: Serving, autojump_clock: Clock) -> None:
    """Half a document behind a receive that waits an hour is not refused for that hour, but has its time after it."""
    client = running.connect()
    began = trio.current_time()
    await client.send(receive("q", wait=3600), PING[:20])
    assert mids(await client.line()) == []
    assert trio.current_time() - began == pytest.approx(3600, abs=0.01)
    await trio.sleep(20)
    assert "<ping/>" in await client.ask(PING[20:])
    await client.send(receive("q", wait=3600), PING[:20])
    assert [code(answer) for answer in await client.rest()] == [0, 408]
    assert trio.current_time() - began == pytest.approx(7250, abs=0.01)


# -- connections ------------------------------------------------------------------------------------------------------


async def test_connection_beyond_limit_is_429(tmp_path: Path, autojump_clock: Clock) -> None:
    """One client too many gets 429 and the end; the others go on, and a free place can be had."""
    limits = ServerLimits(connections=1)
    async with serving(tmp_path / "root", clock_of(autojump_clock), limits=limits) as running:
        first = running.connect()
        assert "<ping/>" in await first.ask(PING)
        (answer,) = await running.connect().rest()
        assert code(answer) == 429
        assert "<ping/>" in await first.ask(PING)
        await first.hang_up()
        await trio.testing.wait_all_tasks_blocked()
        assert "<ping/>" in await running.connect().ask(PING)


async def test_refused_connection_that_has_gone_harms_nobody(tmp_path: Path, autojump_clock: Clock) -> None:
    """One that is too many and has closed already harms nobody."""
    limits = ServerLimits(connections=1)
    async with serving(tmp_path / "root", clock_of(autojump_clock), limits=limits) as running:
        first = running.connect()
        assert "<ping/>" in await first.ask(PING)
        for _ in range(3):
            await running.connect().hang_up()
        assert "<ping/>" in await first.ask(PING)


# -- faults in the stream ---------------------------------------------------------------------------------------------


async def test_fault_that_closes_comes_after_answers(running: Serving, autojump_clock: Clock) -> None:
    """Requests before bytes that are no XML are done and answered first; nothing behind them is."""
    client = running.connect()
    await client.send(push("q", "1"), "<qs<", push("q", "2"))
    answers = await client.rest()
    assert [code(answer) for answer in answers] == [0, 400]
    assert payloads(await running.connect().ask(receive("q", max=5))) == ["1"]


async def test_fault_that_does_not_close_is_answered_in_its_place(running: Serving, autojump_clock: Clock) -> None:
    """A document that is XML and not valid is answered in its place, with its req, and the connection goes on."""
    client = running.connect()
    await client.send(request("ping", req="1"), request("ping", "<bogus/>", req="2"), request("ping", req="3"))
    answers = await client.lines(3)
    assert [(req(answer), code(answer)) for answer in answers] == [("1", 0), ("2", 400), ("3", 0)]


async def test_stream_end_inside_document_is_400(running: Serving, autojump_clock: Clock) -> None:
    """Half a document and then the end: what is complete is answered, the half one with 400, nothing is done for it."""
    client = running.connect()
    await client.send(PING, push("q", "half")[:-5])
    await client.stream.send_eof()
    answers = await client.rest()
    assert [code(answer) for answer in answers] == [0, 400]
    assert mids(await running.connect().ask(request("list-messages", "<qid>q</qid>"))) == []


async def test_exception_while_answering_closes_that_connection(
    running: Serving, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception while an answer is written closes that connection, is logged, and harms no other."""

    def broken(self: object, message: Message) -> bytes:
        raise KeyError("a bug")

    victim, other = running.connect(), running.connect()
    with monkeypatch.context() as patched:
        patched.setattr("qs_schemas.Peer.send", broken)
        await victim.send(PING)
        assert await victim.rest() == []
    assert "fault of the server" in caplog.text
    assert "a bug" in caplog.text
    assert "<ping/>" in await other.ask(PING)


# -- stopping ---------------------------------------------------------------------------------------------------------


async def stop(running: Serving) -> None:
    await trio.testing.wait_all_tasks_blocked()
    running.server.stop()


async def test_stop_tells_idle_connection_503(running: Serving, autojump_clock: Clock) -> None:
    """A connection that asks nothing gets 503 without a req, and the end."""
    clients = [running.connect() for _ in range(3)]
    await stop(running)
    for client in clients:
        (answer,) = await client.rest()
        assert (code(answer), req(answer)) == (503, "")


async def test_stop_answers_waiting_receive(running: Serving, autojump_clock: Clock) -> None:
    """A receive that waits is answered with what there is, nothing; the next request of that connection gets 503."""
    client = running.connect()
    await client.send(receive("q", wait=3600, req="wait"))
    await trio.testing.wait_all_tasks_blocked()
    await client.send(request("ping", req="next"), request("ping", req="later"))
    began = trio.current_time()
    await stop(running)
    answers = await client.rest()
    assert [(req(answer), code(answer)) for answer in answers] == [("wait", 0), ("next", 503)]
    assert mids(answers[0]) == []
    assert trio.current_time() - began <= 1


async def test_stop_refuses_begun_document(running: Serving, autojump_clock: Clock) -> None:
    """A document that has only begun is not waited for."""
    client = running.connect()
    await client.send(push("q", "x")[:-3])
    began = trio.current_time()
    await stop(running)
    (answer,) = await client.rest()
    assert code(answer) == 503
    assert trio.current_time() - began <= 1


async def test_stop_refuses_new_connection(running: Serving, autojump_clock: Clock) -> None:
    """A connection that was accepted as the server stops gets 503."""
    busy = running.connect(lockstep=True)
    await busy.send(PING)  # its answer keeps the server from ending
    await stop(running)
    answers: list[str] = []
    late = Client(running.connect().stream)
    with trio.move_on_after(5):
        answers = await late.rest()
    assert [code(answer) for answer in answers] in ([503], [])
    assert [code(answer) for answer in await busy.rest()] == [0, 503]


async def test_stop_tells_refused_connection_nothing_more(running: Serving, autojump_clock: Clock) -> None:
    """A connection that was told one error already is not told another when the server stops."""
    client = running.connect()
    await client.send("this is not XML")
    assert code(await client.line()) == 400
    await stop(running)
    assert await client.rest() == []


async def test_grace_cuts_off_client_that_does_not_read(
    tmp_path: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that does not read its answer is waited for 10 s, and then cut off; the log says so."""
    async with serving(tmp_path / "root", clock_of(autojump_clock)) as running:
        client = running.connect(lockstep=True)
        await client.send(PING)
        began = trio.current_time()
    assert trio.current_time() - began == pytest.approx(10, abs=0.01)
    assert "cut off" in caplog.text
    with pytest.raises(trio.BrokenResourceError):
        await client.send(PING)


async def test_grace_does_not_run_while_server_stands_still(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A pause of the server does not use up the grace: a client that reads when it goes on gets its answer."""
    async with serving(tmp_path / "root", clock_of(mock_clock)) as running:
        client = running.connect(lockstep=True)
        await client.send(PING)
        await trio.testing.wait_all_tasks_blocked()
        await stop(running)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1000)
        await trio.testing.wait_all_tasks_blocked()
        assert ["<ping/>" in line or code(line) for line in await client.rest()] == [True, 503]
        await client.hang_up()
    assert "cut off" not in caplog.text
