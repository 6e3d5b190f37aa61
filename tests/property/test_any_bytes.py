"""Any bytes in any pieces give messages and faults of the table and nothing else: to a peer, to a server, to a bus."""

import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.clients.documents import code, mids
from support.examples import changed, pieces, plain, soup
from support.servers.memory import Client, MemoryHub, MemoryListener, adopt, serving

from qs_bus.bus import Bus
from qs_bus.options import BusOptions
from qs_schemas import TABLE, Fault, Message, Peer, PushMessage, errors, serialize


def random_stream(rng: random.Random) -> bytes:
    """Some documents, of which the last ones are mostly wrong."""
    documents = [plain(rng) for _ in range(rng.choice([0, 1, 2]))]
    last = soup(rng) if rng.random() < 0.3 else changed(rng, plain(rng), 4)
    return b"".join([*documents, last, *([plain(rng)] if rng.random() < 0.3 else [])])


def events(data: list[bytes]) -> list[Message | Fault]:
    """Returns what a server gets of a stream that ends behind these pieces."""
    peer = Peer(serving=True)
    found: list[Message | Fault] = []
    for piece in data:
        peer.receive_data(piece)
        found += peer.events()
    last = peer.end_of_data()
    return found if last is None else [*found, last]


def rows(found: list[Message | Fault]) -> list[Any]:
    """Returns the messages, and of the faults their rows and ids, as texts quote what had come."""
    return [(event.error, event.req) if isinstance(event, Fault) else event for event in found]


def check_streams(count: int, seed: int) -> int:
    """Checks so many random streams. Returns how many faults there were."""
    rng = random.Random(seed)
    faults = 0
    for _ in range(count):
        data = random_stream(rng)
        at_once = events([data])
        for event in at_once:
            assert isinstance(event, Message) or (event.error in TABLE and event.text)
            assert not isinstance(event, Fault) or "cannot be read" not in event.text, (data, event)
        cut = pieces(rng, data) if rng.random() < 0.9 else [bytes((byte,)) for byte in data]
        in_pieces = events(cut)
        assert rows(in_pieces) == rows(at_once), (data, cut)
        faults += sum(isinstance(event, Fault) for event in at_once)
    return faults


def test_streams() -> None:
    """Random streams give messages and faults of the table, the same in any pieces, and nothing that nobody foresaw."""
    assert check_streams(1000, 1) > 250


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_streams_in_numbers() -> None:
    """100,000 random streams give messages and faults of the table, the same in any pieces (two minutes)."""
    print(f"{check_streams(100_000, 2):,} faults in 100,000 streams")


@asynccontextmanager
async def bus_connections() -> AsyncIterator[Callable[[], Client]]:
    bus, listener = Bus(BusOptions(), hub=MemoryHub(), adopt=adopt), MemoryListener()  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.acceptor.accept, [listener])
        yield lambda: Client(listener.connect())
        bus.stop()


async def answers(client: Client, data: list[bytes]) -> list[str]:
    """Sends the pieces and the end of the stream. Returns all lines that come, but the empty ones for early clients."""
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for piece in data:
                await client.stream.send_all(piece)
            await client.stream.send_eof()

        nursery.start_soon(send)
        lines = await client.rest()
    await client.hang_up()
    return [line for line in lines if line != "\r\n"]


async def check_answers(connect: Callable[[], Client], count: int, seed: int) -> tuple[int, int]:
    """Checks so many random streams on connections of their own. Returns how many documents were answered with an error
    of the contract, and how many were not."""
    rng = random.Random(seed)
    refused = others = 0
    for _ in range(count):
        data = random_stream(rng)
        expected = events([data])
        lines = await answers(connect(), pieces(rng, data))
        assert len(lines) == len(expected), (data, lines)
        for line, event in zip(lines, expected, strict=True):
            assert line.endswith("\r\n")
            if isinstance(event, Fault):
                assert code(line) == event.error.code, (data, line)
                refused += 1
            else:
                assert code(line) in (0, 400, 404, 409, 501)
                others += 1
    return refused, others


def no_traceback(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def check_server(tmp_path: Path, count: int, seed: int) -> tuple[int, int]:
    async with serving(tmp_path / "root", queues=("a", "orders")) as running:
        return await check_answers(running.connect, count, seed)


async def check_bus(count: int, seed: int) -> tuple[int, int]:
    async with bus_connections() as connect:
        return await check_answers(connect, count, seed)


async def test_streams_to_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server answers each document of a random stream in its place, and its log has no traceback."""
    refused, others = await check_server(tmp_path, 100, 3)
    assert min(refused, others) > 20
    assert no_traceback(caplog)


async def test_streams_to_a_bus(caplog: pytest.LogCaptureFixture) -> None:
    """A bus answers each document of a random stream in its place, and its log has no traceback."""
    refused, others = await check_bus(100, 4)
    assert min(refused, others) > 20
    assert no_traceback(caplog)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_streams_in_numbers_to_both(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Server and bus answer each document of 5,000 random streams, and their logs have no traceback (two minutes)."""
    print(f"server: {await check_server(tmp_path, 5000, 5)}, bus: {await check_bus(5000, 6)} (refused, others)")
    assert no_traceback(caplog)


LAST = [b'<x:y><a xml:space="z"/></x:y>', b"<1>", b"<qs\xff>", b"<qs>\xff", b"\x00", b"<!D", b"<q>&a;</q>"]


@pytest.mark.parametrize("last", LAST)
async def test_pushes_before_what_cannot_be_read(
    last: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """Pushes pipelined before bytes that no document begins with are stored and answered, then comes a 400 and the end,
    while the client still sends."""
    push = serialize(PushMessage("q", b"x"))
    async with serving(tmp_path / "root") as running:
        client = running.connect()
        await client.stream.send_all(push * 3 + last)
        *pushed, fault = await client.lines(4)
        assert [code(line) for line in (*pushed, fault)] == [0, 0, 0, 400]
        assert await client.line() == ""
        await client.hang_up()
        listed = await running.connect().ask(
            '<qs xmlns="http://purl.oclc.org/DEFUZE/qs"><op><list-messages/></op><qid>q</qid></qs>'
        )
        assert mids(listed) == [mid for line in pushed for mid in mids(line)]
    async with bus_connections() as connect:
        client = connect()
        await client.stream.send_all(push * 3 + last)
        assert [code(line) for line in await client.lines(4)] == [501, 501, 501, 400]
        assert await client.line() == ""
        await client.hang_up()
    assert no_traceback(caplog)


@pytest.mark.parametrize("place", ["etree.fromstring", "_message"])
async def test_whatever_the_parser_raises(
    place: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An exception that nobody foresaw, while a document is read, is that document's 400: what came before is answered,
    what comes behind too if the document was well-formed, and the log has no traceback."""

    def fail(*_: object) -> None:
        raise LookupError("unforeseen")

    push = serialize(PushMessage("q", b"x"))
    async with serving(tmp_path / "root") as running:
        client = running.connect()
        with monkeypatch.context() as patch:
            patch.setattr(f"qs_schemas.parsing.{place}", fail)
            await client.stream.send_all(push + b"<!-- not plain -->" + push + push)
            lines = await client.lines(2)
            assert [code(line) for line in lines] == [0, errors.BAD_REQUEST.code]
            assert "unforeseen" in lines[1]
            assert code(await client.line() or lines[1]) == (0 if place == "_message" else 400)
        await client.hang_up()
    assert no_traceback(caplog)
