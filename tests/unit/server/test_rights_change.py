"""What a client may do changes while it is at something, because the access file is read again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.access import authenticate, principal, section, write_access
from support.documents import code, payloads, push, receive, request
from support.memory_serving import Client, Clock, Serving, clock_of, serving

from qs_serving.access.access import Access

ALL = {right: ["*"] for right in ("read", "write", "configure")}
EVERYBODY = section("anonymous", **ALL)


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """Everybody may do everything, the principal `one` too."""
    return Access(str(write_access(tmp_path / "access.toml", [EVERYBODY, principal("one", **ALL)])))


def take_out(access: Access) -> None:
    """The principal `one` loses its rights."""
    write_access(Path(access.path), [EVERYBODY])
    access.reload()


@pytest.fixture
async def running(tmp_path: Path, access: Access, autojump_clock: Clock) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "root", clock_of(autojump_clock), access=access) as running:
        yield running


@asynccontextmanager
async def principal_one(running: Serving) -> AsyncIterator[Client]:
    """A client that is `one`, for at most an hour of the clock that jumps."""
    with trio.fail_after(3600):
        client = running.connect()
        assert code(await client.ask(authenticate("one-token"))) == 0
        yield client


def take_out_during(running: Serving, name: str, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """The principal `one` loses its rights in a batch: when the queue has done this for the first time."""
    queue = running.storage.queue("q")
    method = getattr(queue, name)

    def patched(*args: object) -> object:
        monkeypatch.undo()
        result = method(*args)
        take_out(access)
        return result

    monkeypatch.setattr(queue, name, patched)


async def test_the_next_in_line_gets_the_message(
    running: Serving, access: Access, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    """A receive that waits and is refused passes on the message for which it was woken, at once."""
    async with principal_one(running) as first:
        second = running.connect()
        for client in (first, second):
            await client.send(receive("q", wait=600))
            assert await client.nothing_yet()
        take_out_during(running, "push", access, monkeypatch)
        began = trio.current_time()
        await running.connect().ask(push("q", "x"))
        assert code(await first.line()) == 401
        assert payloads(await second.line()) == ["x"]
        assert trio.current_time() == began


async def test_a_request_that_has_begun(
    running: Serving, access: Access, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    """A purge that takes many turns and is no longer allowed is finished: an error would say that nothing has changed.
    The next request is refused."""
    async with principal_one(running) as client:
        await client.ask(*[push("q", "x")] * 300)
        take_out_during(running, "purge", access, monkeypatch)
        await client.send(request("purge-queue", "<qid>q</qid>"), receive("q"))
        assert "<count>300</count>" in await client.line()
        assert code(await client.line()) == 401
