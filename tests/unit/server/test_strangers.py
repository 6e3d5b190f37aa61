"""Clients that have not said who they are: how long they may stay, how much they may send, and who gives way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from support.clients.access import authenticate, principal, section, write_access
from support.clients.documents import PING, code, mids, new_queue, push, receive, req, request, subscribe, text
from support.servers.memory import Client, Clock, MemoryTransport, Serving, clock_of, serving

from qs_serving.access.access import Access
from qs_serving.options import ServerLimits

KNOWN = principal("known", admin=True)
TOKEN = authenticate("known-token")
PUBLIC = section("anonymous", read=["q"], write=["q"])
LONG = "x" * 5_000_000
"""A payload that only clients that are known may send."""
TIME = pytest.approx(33, abs=3.01)
"""Seconds after which a stranger is turned out: 30, and at most a fifth more."""

settled = trio.testing.wait_all_tasks_blocked


@asynccontextmanager
async def closed(path: Path, clock: Clock, *sections: str, **limits: float) -> AsyncIterator[Serving]:
    """A server with an access file and one queue, "q"."""
    access = Access(str(write_access(path / "access.toml", sections or [KNOWN])))
    given = ServerLimits(**limits)  # type: ignore[arg-type]
    async with serving(path / "root", clock_of(clock), limits=given, queues=(), access=access) as running:
        maker = await known(running)
        assert code(await maker.ask(new_queue("q"))) == 0
        await maker.hang_up()
        await settled()
        yield running


async def known(running: Serving) -> Client:
    """A client that has authenticated."""
    client = running.connect()
    assert code(await client.ask(TOKEN)) == 0
    return client


async def is_open(client: Client) -> bool:
    return code(await client.ask(PING)) == 0


# -- time -------------------------------------------------------------------------------------------------------------


async def test_silent_stranger_is_408(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client that says nothing is told 408 when its time to authenticate is over, and what to do."""
    async with closed(tmp_path, autojump_clock) as running:
        began = trio.current_time()
        (answer,) = await running.connect().rest()
        assert (code(answer), req(answer)) == (408, "")
        assert "authenticate" in text(answer)
        assert trio.current_time() - began == TIME


@pytest.mark.parametrize("document", [PING, authenticate("wrong"), request("list-queues"), "\n", "<qs "])
async def test_busy_stranger_gets_no_more_time(tmp_path: Path, autojump_clock: Clock, document: str) -> None:
    """No request, no wrong token and no beginning of a document gives a stranger more time."""
    async with closed(tmp_path, autojump_clock) as running:
        client = running.connect()
        began = trio.current_time()
        for _ in range(9):
            await trio.sleep(3.5)
            await client.send(document)
            document = {"<qs ": " "}.get(document, document)
        assert code((await client.rest())[-1]) == 408
        assert trio.current_time() - began == TIME


async def test_client_that_authenticates_in_time_stays(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client that authenticates within its time stays for ever, however it does."""
    async with closed(tmp_path, autojump_clock) as running:
        client, slow = running.connect(), running.connect()
        await slow.send(TOKEN[:-5])
        await trio.sleep(29)
        assert code(await client.ask(TOKEN)) == code(await slow.ask(TOKEN[-5:])) == 0
        await trio.sleep(100_000)
        assert await is_open(client)
        assert await is_open(slow)


async def test_wrong_token_makes_stranger(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client with a wrong token is a stranger from then on, and its time begins there."""
    async with closed(tmp_path, autojump_clock) as running:
        client = await known(running)
        await trio.sleep(1000)
        assert code(await client.ask(authenticate("wrong"))) == 401
        began = trio.current_time()
        assert [code(answer) for answer in await client.rest()] == [408]
        assert trio.current_time() - began == TIME


async def test_principal_taken_out_has_time_to_authenticate(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client whose principal was taken out has the time of a stranger to authenticate as another principal, and then
    stays."""
    async with closed(tmp_path, autojump_clock, KNOWN, principal("other", read=["q"])) as running:
        one, two = await known(running), await known(running)
        await trio.sleep(1000)
        access = running.server.acceptor._access
        assert access is not None
        write_access(Path(access.path), [principal("other", read=["q"])])
        access.reload()
        began = trio.current_time()
        assert code(await two.ask(authenticate("other-token"))) == 0
        assert [code(answer) for answer in await one.rest()] == [408]
        assert trio.current_time() - began == TIME
        assert await is_open(two)


async def test_anonymous_client_with_rights_stays(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client that [anonymous] gives rights stays: it may be a subscriber. Once it gives a wrong token it may not."""
    async with closed(tmp_path, autojump_clock, KNOWN, PUBLIC) as running:
        client = running.connect()
        await trio.sleep(1000)
        assert code(await client.ask(subscribe("q"))) == 0
        await trio.sleep(1000)
        assert await is_open(client)
        assert code(await client.ask(authenticate("wrong"))) == 401
        assert [code(answer) for answer in await client.rest()][-1] == 408


async def test_anonymous_client_without_rights_is_stranger(tmp_path: Path, autojump_clock: Clock) -> None:
    """An empty [anonymous] gives no rights, so its clients have the time of strangers."""
    async with closed(tmp_path, autojump_clock, KNOWN, section("anonymous")) as running:
        assert [code(answer) for answer in await running.connect().rest()] == [408]


async def test_stranger_that_reads_nothing_is_cut_off(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client that never takes its answers, so that nothing can be said to it, is still cut off."""
    async with closed(tmp_path, autojump_clock, linger=1.0) as running:
        client = running.connect()
        client.stream.coming.lockstep = True  # what the server sends waits until it is read
        await client.send(PING * 1000)
        await trio.sleep(36 + 60 + 12)
        await settled()
        assert not running.server.acceptor.connections
        assert not running.server.acceptor.strangers.leaving


# -- size -------------------------------------------------------------------------------------------------------------


async def test_long_document_of_stranger_is_413(tmp_path: Path, autojump_clock: Clock) -> None:
    """64 KiB are read; a byte more is 413, says why, and ends the connection, as soon as it has come."""
    async with closed(tmp_path, autojump_clock) as running:
        fitting = push("q", "")
        fitting = push("q", "x" * (65536 - len(fitting.rstrip())))
        assert len(fitting.rstrip()) == 65536
        client = running.connect()
        assert code(await client.ask(fitting)) == 401
        await client.send(fitting.replace("xxx", "xxxx", 1))
        (answer,) = await client.rest()
        assert code(answer) == 413
        assert "65536 bytes" in text(answer)
        assert "authenticate" in text(answer)
        begun = running.connect()
        await begun.send(push("q", LONG)[:65600])
        assert [code(answer) for answer in await begun.rest()] == [413]


async def test_document_limit_follows_authentication(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client that is known may send what --max-document says again; one that turns out not to be, no more."""
    async with closed(tmp_path, autojump_clock) as running:
        client = await known(running)
        assert mids(await client.ask(push("q", LONG)))
        assert code(await client.ask(authenticate("wrong"))) == 401
        await client.send(push("q", LONG))
        assert [code(answer) for answer in await client.rest()] == [413]


@pytest.mark.parametrize("piece", [1000, 65536, 70_000, 81_920, 10_000_000])
@pytest.mark.parametrize("before", ["", PING, authenticate("wrong")])
async def test_long_push_behind_token_is_taken(tmp_path: Path, autojump_clock: Clock, piece: int, before: str) -> None:
    """A client may send its token and at once a long push, in any pieces: the push is read as the principal's."""
    async with closed(tmp_path, autojump_clock) as running:
        client = running.connect()
        stream = before + TOKEN + push("q", LONG) + PING
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_in_pieces, client, stream, piece)
            answers = await client.lines(4 if before else 3)
        assert [code(answer) for answer in answers[-3:]] == [0, 0, 0]
        assert mids(answers[-2])


async def _send_in_pieces(client: Client, stream: str, piece: int) -> None:
    for at in range(0, len(stream), piece):
        await client.send(stream[at : at + piece])
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("size", [66_000, 5_000_000])
async def test_token_behind_waiting_receive_bounds_nothing_yet(
    tmp_path: Path, autojump_clock: Clock, size: int
) -> None:
    """A document that is read ahead behind a token that has not been looked at yet is not measured before that."""
    async with closed(tmp_path, autojump_clock, KNOWN, PUBLIC) as running:
        client = running.connect()
        async with trio.open_nursery() as nursery:
            stream = receive("q", wait=5) + TOKEN + push("q", "x" * size)
            nursery.start_soon(_send_in_pieces, client, stream, 65536)
            answers = await client.lines(3)
        assert [code(answer) for answer in answers] == [0, 0, 0]
        assert mids(answers[2])


async def test_stream_end_behind_token_ends_after_answers(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client may send everything and close its side: what stands behind its token is done, half a document is 400."""
    async with closed(tmp_path, autojump_clock, KNOWN, PUBLIC) as running:
        client = running.connect()
        await client.send(receive("q", wait=5), TOKEN, push("q", "x" * 60_000), PING[:20])
        await client.stream.send_eof()
        answers = await client.rest()
        assert [code(answer) for answer in answers] == [0, 0, 0, 400]
        assert mids(answers[2])


async def test_read_ahead_of_stranger_is_bounded(tmp_path: Path, autojump_clock: Clock) -> None:
    """While its wrong token is being answered, no more than a few KiB are taken from a stranger."""
    async with closed(tmp_path, autojump_clock) as running:
        client = running.connect(lockstep=True)
        sent = 0

        async def flood() -> None:
            nonlocal sent
            await client.send(authenticate("wrong"))
            for _ in range(200):
                await client.send(authenticate("wrong") * 70)  # some 7 KB
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await settled()
            assert sent <= 1
            nursery.cancel_scope.cancel()


async def test_read_of_stranger_is_bounded(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than 4 KiB of a stranger are read at a time, so that others wait little for what they ask; of who is
    known, more."""
    async with closed(tmp_path, autojump_clock) as running:
        stranger, client = running.connect(), await known(running)
        sizes: list[int] = []
        receive_now = MemoryTransport._receive_now

        def noting(transport: MemoryTransport, most: int) -> bytes:
            data = receive_now(transport, most)
            sizes.append(len(data))
            return data

        monkeypatch.setattr(MemoryTransport, "_receive_now", noting)
        await stranger.send(PING * 500)
        assert [code(answer) for answer in await stranger.lines(500)] == [0] * 500
        assert max(sizes) == 4096
        await client.send(PING * 500)
        await client.lines(500)
        assert max(sizes) == len(PING * 500)


# -- places -----------------------------------------------------------------------------------------------------------


async def test_oldest_stranger_gives_way(tmp_path: Path, autojump_clock: Clock) -> None:
    """When all places are taken, the next client gets that of the stranger that has been there for longest, who is told
    429; those who are known stay."""
    async with closed(tmp_path, autojump_clock, connections=4) as running:
        first = await known(running)
        strangers = [running.connect() for _ in range(3)]
        for stranger in strangers:
            assert await is_open(stranger)
        second = await known(running)
        (answer,) = await strangers[0].rest()
        assert code(answer) == 429
        assert "authenticate" in text(answer)
        for client in (first, second, *strangers[1:]):
            assert await is_open(client)
        others = [await known(running) for _ in range(2)]
        assert [[code(line) for line in await stranger.rest()] for stranger in strangers[1:]] == [[429], [429]]
        (answer,) = await running.connect().rest()  # nobody is left that could give way
        assert code(answer) == 429
        for client in (first, second, *others):
            assert await is_open(client)


async def test_silent_client_with_anonymous_rights_gives_way(tmp_path: Path, autojump_clock: Clock) -> None:
    """A client that has said nothing gives way also if [anonymous] gives it rights; what it has begun is finished."""
    async with closed(tmp_path, autojump_clock, KNOWN, PUBLIC, connections=1) as running:
        stranger = running.connect()
        await stranger.send(receive("q", wait=3600, req="wait"))
        await settled()
        client = await known(running)
        answers = await stranger.rest()
        assert [(req(answer), code(answer)) for answer in answers] == [("wait", 0), ("", 429)]
        assert await is_open(client)


async def test_leaving_strangers_are_bounded(tmp_path: Path, autojump_clock: Clock) -> None:
    """Clients that do not close when they are told to are cut off once there are too many: each place and each of those
    that leave is one connection, and no more are open."""
    async with closed(tmp_path, autojump_clock, connections=2, leaving=3, linger=60.0) as running:
        clients = []
        for _ in range(12):
            clients.append(running.connect())
            await settled()
            assert len(running.server.acceptor.connections) <= 5
        for client in clients[:7]:
            assert [code(answer) for answer in await client.rest()] == [429]
        assert len(running.server.acceptor.strangers.leaving) == 3
        assert await is_open(clients[-1])


async def test_many_strangers_leave_in_parts(tmp_path: Path, autojump_clock: Clock) -> None:
    """Five hundred strangers whose time ends at the same moment are turned out in parts, and others are served."""
    async with closed(tmp_path, autojump_clock) as running:
        client = await known(running)
        strangers = [running.connect() for _ in range(500)]
        began = trio.current_time()
        for stranger in strangers:
            assert [code(answer) for answer in await stranger.rest()] == [408]
        assert trio.current_time() - began == TIME
        assert await is_open(client)
        await trio.sleep(2)
        assert len(running.server.acceptor.connections) == 1


async def test_nobody_is_stranger_without_access_file(tmp_path: Path, autojump_clock: Clock) -> None:
    """Where everybody may do everything, nobody is a stranger: silent clients stay, and one too many gets 429."""
    limits = ServerLimits(connections=1)
    async with serving(tmp_path / "root", clock_of(autojump_clock), limits=limits) as running:
        silent = running.connect()
        await trio.sleep(1000)
        assert [code(answer) for answer in await running.connect().rest()] == [429]
        assert mids(await silent.ask(push("q", "x" * 100_000)))


# -- the log ----------------------------------------------------------------------------------------------------------


async def test_strangers_are_logged_once(
    tmp_path: Path, autojump_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A flood of strangers is one line, and those whose time ends are none."""
    async with closed(tmp_path, autojump_clock, connections=2) as running:
        for _ in range(50):
            running.connect()
            await settled()
        await trio.sleep(100)
    lines = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
    assert len(lines) == 1
    assert "all 2 connections are taken" in lines[0]
