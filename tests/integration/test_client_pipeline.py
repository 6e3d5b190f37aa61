"""The pipelines of the clients against the real server."""

import queue
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import anyio
import pytest
from support.clients.every_client import both, run
from support.clients.scripted_server import Conversation, client_of, scripted
from support.servers.processes import ServerProcess, serving

from qs_client import AsyncQueueClient, Message, NoAnswer, NotFound, PushMessage, QueueClient, ServerUnavailable, Stale
from qs_client.pipelined import MOST_OPEN


def client_to(server: ServerProcess) -> QueueClient:
    return QueueClient(server.host, server.port, timeout=20)


def test_many_pushes(server: ServerProcess) -> None:
    """Ten thousand pushes get their ids, in order."""
    with client_to(server) as client:
        client.new_queue("q")
        with client.pipeline() as batch:
            stored = [batch.push("q", str(number)) for number in range(10_000)]
        assert all(each.done for each in stored)
        assert [each.result() for each in stored] == list(client.list_messages("q"))


def test_an_error_belongs_to_its_call(server: ServerProcess) -> None:
    """A call that fails does not harm those around it, and the end of the block raises nothing that was looked at."""
    with client_to(server) as client:
        client.new_queue("q")
        with client.pipeline() as batch:
            before, wrong, after = batch.push("q", "1"), batch.push("none", "2"), batch.push("q", "3")
            with pytest.raises(NotFound):
                wrong.result()
        assert [before.result(), after.result()] == list(client.list_messages("q"))


def test_the_first_error_is_raised(server: ServerProcess) -> None:
    """The end of the block raises the first error that nobody has looked at, and tells how many more there are."""
    with client_to(server) as client:
        client.new_queue("q")
        batch = client.pipeline().__enter__()
        batch.push("first", "1")
        batch.push("q", "2")
        batch.push("second", "3")
        with pytest.raises(NotFound, match="first") as caught:
            batch.__exit__(None, None, None)
        assert caught.value.__notes__ == [
            "later calls of the pipeline that failed too, and whose result nobody asked for: 1"
        ]
        assert client.stats("q")[0].ready == 1


def test_a_stale_delete(server: ServerProcess) -> None:
    """A delete of a message that has been received again since fails alone."""
    with client_to(server) as client:
        client.new_queue("q")
        client.push_many("q", ["1", "2"])
        old, other = client.receive("q", max=2)
        client.release(old)
        client.receive("q")
        with client.pipeline() as batch:
            stale, gone = batch.delete(old), batch.delete(other)
            with pytest.raises(Stale):
                stale.result()
        assert gone.result() is None
        assert other.settled


def test_lists_go_on(server: ServerProcess) -> None:
    """A call of several requests goes on beside the others; one of none is done at once."""
    with client_to(server) as client:
        client.new_queue("q")
        with client.pipeline() as batch:
            many, one, none = batch.push_many("q", ["x"] * 2500), batch.push("q", "y"), batch.push_many("q", [])
            assert none.done
        assert len(many.result()) == 2500
        assert none.result() == []
        assert sorted([*many.result(), one.result()]) == list(client.list_messages("q"))


def test_an_exception_of_the_block(server: ServerProcess) -> None:
    """An exception of the block goes on, and what was asked for before is done."""
    with client_to(server) as client:
        client.new_queue("q")
        with pytest.raises(ZeroDivisionError), client.pipeline() as batch:  # noqa: PT012 - the block raises
            stored = batch.push("q", "1")
            batch.push("none", "2")
            _ = 1 / 0
        assert stored.done
        assert client.stats("q")[0].ready == 1
        with pytest.raises(RuntimeError, match="has ended"):
            batch.push("q", "3")


def test_an_interrupt_waits_for_nothing(server: ServerProcess) -> None:
    """After an interrupt of the block, the open calls are not known to be done, and the connection is closed."""
    with client_to(server) as client:
        client.new_queue("q")
        with pytest.raises(KeyboardInterrupt), client.pipeline() as batch:  # noqa: PT012 - the block raises
            stored = batch.push("q", "1")
            raise KeyboardInterrupt
        assert not client.connected
        with pytest.raises(ServerUnavailable, match="not known"):
            stored.result()


def test_a_wrong_argument_is_raised_at_once(server: ServerProcess) -> None:
    """A call raises at once what is wrong before its request is written."""
    with client_to(server) as client, client.pipeline() as batch:
        with pytest.raises(TypeError):
            batch.push("q", 1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="XML"):
            batch.push("\0", "1")


def test_the_server_dies(tmp_path: Path) -> None:
    """Each open call gets the error of a single call; what was answered stays; a push with a key is repeated."""
    with serving(tmp_path / "root", "--durability", "none") as server, client_to(server) as client:
        client.new_queue("q")
        with client.pipeline() as batch:
            stored = batch.push("q", "1")
            stored.result()
            open_calls = [batch.push("q", "2"), batch.delete("q", 1)]
            keyed = batch.push("q", "3", key="three")
            server.kill()
            server.start()
            for lost in open_calls:
                with pytest.raises(ServerUnavailable, match=r"not known|may have"):
                    lost.result()
            later = batch.push("q", "4")
        assert stored.result() < keyed.result()
        assert later.done


def test_the_bound() -> None:
    """No more than the bound is written before an answer comes, and further calls wait for it."""
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()

    def serve(conversation: Conversation) -> None:
        requests: list[Message] = [_read(conversation) for _ in range(MOST_OPEN)]
        seen.put(len(requests))
        mids = iter(range(1, 2 * MOST_OPEN + 1))
        for request in requests:
            conversation.answer(request, PushMessage(request.qid, mid=next(mids)))
        for _ in range(MOST_OPEN):
            request = _read(conversation)
            conversation.answer(request, PushMessage(request.qid, mid=next(mids)))

    with scripted(serve) as server, client_of(server) as client:
        with client.pipeline() as batch:
            stored = [batch.push("q", "x") for _ in range(MOST_OPEN)]
            assert not stored[0].done
            stored.append(batch.push("q", "x"))
            assert stored[0].done
            stored += [batch.push("q", "x") for _ in range(MOST_OPEN - 1)]
        assert [each.result() for each in stored] == list(range(1, 2 * MOST_OPEN + 1))
        assert seen.get() == MOST_OPEN


def _read(conversation: Conversation) -> Message:
    request = conversation.read()
    assert request is not None
    return request


@both
def test_async(backend: str, server: ServerProcess) -> None:
    """The async client does the same, on both backends."""

    async def main() -> None:
        async with AsyncQueueClient(server.host, server.port, timeout=20) as client:
            await client.new_queue("q")
            async with client.pipeline() as batch:
                stored = [await batch.push("q", str(number)) for number in range(10_000)]
                wrong = await batch.push("none", "x")
                with pytest.raises(NotFound):
                    await wrong.result()
            mids = [await each.result() for each in stored]
            assert mids == [mid async for mid in client.list_messages("q")]
            with pytest.raises(NotFound):  # noqa: PT012 - the end of the block raises
                async with client.pipeline() as batch:
                    await batch.push("none", "x")
                    await batch.push("q", "y")
            assert (await client.stats("q"))[0].ready == 10_001
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the end of the block raises
                async with client.pipeline() as batch:
                    await batch.push("q", "z")
                    _ = 1 / 0
            assert (await client.stats("q"))[0].ready == 10_002

    run(backend, main)


def test_other_threads_use_the_client(server: ServerProcess) -> None:
    """Other threads make their calls while a pipeline is open, and each gets its own answer."""
    with client_to(server) as client, ThreadPoolExecutor(2) as threads:
        client.new_queue("q")
        client.new_queue("other")
        others = [threads.submit(client.push, "other", str(number)) for number in range(200)]
        with client.pipeline() as batch:
            stored = [batch.push("q", str(number)) for number in range(2000)]
        assert [each.result() for each in stored] == list(client.list_messages("q"))
        assert sorted(each.result() for each in others) == list(client.list_messages("other"))


@both
def test_a_cancelled_block(backend: str, server: ServerProcess) -> None:
    """A cancelled block waits for nothing; the connection and its later answers harm no other call."""

    async def main() -> None:
        async with AsyncQueueClient(server.host, server.port, timeout=20) as client:
            await client.new_queue("q")
            with anyio.CancelScope() as scope:
                async with client.pipeline() as batch:
                    stored = await batch.push("q", "1")
                    scope.cancel()
                    await anyio.sleep_forever()
            with pytest.raises(ServerUnavailable, match="not known"):
                await stored.result()
            assert (await client.stats("q"))[0].ready == 1

    run(backend, main)


@both
def test_async_the_server_dies(backend: str, server: ServerProcess) -> None:
    """Each open call gets the error of a single call, and the next one connects anew."""

    async def main() -> None:
        async with AsyncQueueClient(server.host, server.port, timeout=20) as client:
            await client.new_queue("q")
            async with client.pipeline() as batch:
                first = await batch.push("q", "1")
                await first.result()
                lost, keyed = await batch.push("q", "2"), await batch.push("q", "3", key="three")
                server.kill()
                server.start()
                with pytest.raises(ServerUnavailable, match="not known"):
                    await lost.result()
                later = await batch.push("q", "4")
            assert await first.result() < await keyed.result()
            assert later.done

    run(backend, main)


def test_no_answer_in_time() -> None:
    """A call whose answer does not come in time raises NoAnswer, and so do those behind it."""
    with scripted(lambda conversation: conversation.wait_for_close()) as server:
        client = QueueClient(server.host, server.port, timeout=0.05)
        with client.pipeline() as batch:
            calls = [batch.push("q", "1"), batch.push("q", "2")]
            for call in calls:
                with pytest.raises(NoAnswer):
                    call.result()
        assert not client.connected


def test_long_lists_stay_in_the_bounds(server: ServerProcess) -> None:
    """Calls of several requests write their later ones when they are the oldest, so the two sides never wait for each
    other with full sockets."""
    with client_to(server) as client:
        client.new_queue("q")
        lists = ["a"] * 1000 + ["x" * 1000] * 1000
        with client.pipeline() as batch:
            stored = [batch.push_many("q", lists) for _ in range(20)]
        assert len({mid for each in stored for mid in each.result()}) == 40_000


def test_the_timeout_counts_from_the_sending(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that has waited for others to be sent with it has its whole time when it is sent."""
    with client_to(server) as client:
        client.new_queue("q")
        with client.pipeline() as batch:
            monkeypatch.setattr(batch, "_clock", lambda: time.monotonic() - 100)
            early = batch.push("q", "1")
            monkeypatch.setattr(batch, "_clock", time.monotonic)
            late = batch.push("q", "2")  # and sends the first, which has waited long
        assert early.result() < late.result()


def test_an_interrupt_within_the_block(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call whose next request is interrupted is not known to be done, and the end of the block says so."""

    def interrupted(request: Message) -> NoReturn:
        raise KeyboardInterrupt

    with client_to(server) as client:
        client.new_queue("q")
        with pytest.raises(ServerUnavailable, match="not known"), client.pipeline() as batch:  # noqa: PT012 - its end
            many = batch.push_many("q", ["x"] * 1500)
            with monkeypatch.context() as patched:
                patched.setattr(batch, "_write", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    many.result()
            batch.push("q", "after")
        with pytest.raises(ServerUnavailable, match="not known"):
            many.result()
        assert client.stats("q")[0].ready == 1001


def test_an_interrupt_of_a_wait_that_is_caught(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that were open then are not known to be done, and the end of the block says so once."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with client_to(server) as client:
        client.new_queue("q")
        with pytest.raises(ServerUnavailable, match="not known") as caught, client.pipeline() as batch:  # noqa: PT012 - its end
            calls = [batch.push("q", str(number)) for number in range(3)]
            monkeypatch.setattr(batch, "_answer", interrupted)
            with pytest.raises(KeyboardInterrupt):
                calls[0].result()
        assert caught.value.__notes__ == [
            "later calls of the pipeline that failed too, and whose result nobody asked for: 2"
        ]
        for call in calls:
            with pytest.raises(ServerUnavailable, match="not known"):
                call.result()


@both
def test_a_cancelled_repeat(backend: str, server: ServerProcess) -> None:
    """A repeat that is cancelled while it connects is done later, at the end of the block."""

    async def main() -> None:
        async with AsyncQueueClient(server.host, server.port, timeout=20) as client:
            await client.new_queue("q")
            async with client.pipeline() as batch:
                keyed = await batch.push("q", "1", key="one")
                opened = batch._opened

                async def cancelled() -> NoReturn:
                    scope.cancel()
                    await anyio.sleep_forever()
                    raise AssertionError

                server.kill()
                server.start()
                batch._opened = cancelled
                with anyio.CancelScope() as scope:
                    await keyed.result()
                assert not keyed.done
                batch._opened = opened
            assert await keyed.result()
            assert (await client.stats("q"))[0].ready == 1

    run(backend, main)
