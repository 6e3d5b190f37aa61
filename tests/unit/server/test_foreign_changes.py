"""The server looks at changes of other programs in the directories, however slow the disk is."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import trio
from support.servers.memory import source
from support.storage.engines import JournalEngine, ManualClock

from qs_server.broker.background import Changes
from qs_server.broker.committer import Committer
from qs_server.broker.jobs import Job, Waiters
from qs_server.broker.subscriptions import Subscriptions
from qs_serving.hub import Hub
from qs_storage.engine import Draft, Durability, Options


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JournalEngine]:
    """An engine with a queue `q` and a message, on a disk that takes a second to sync. Its upkeep is done."""
    monkeypatch.setattr("qs_storage.journal.journal.perf_counter", count().__next__)
    engine = JournalEngine(str(tmp_path), clock=ManualClock(), durability=Durability.ALWAYS)
    engine.create("q", Options())
    engine.queue("q").push([Draft(b"x")])
    effects = engine.commit()
    while effects.next_upkeep is not None:
        upkeep = engine.begin_upkeep()
        engine.commit()
        if upkeep is not None:
            upkeep.run()
            engine.finish_upkeep(upkeep)
        effects = engine.commit()
    assert not effects.commit_is_cheap
    yield engine
    engine.close()


async def found(engine: JournalEngine, work: Callable[[Committer], None]) -> None:
    """Returns when the engine has seen that there is something new in a directory. work: what is done before."""
    committer = Committer(engine, Durability.ALWAYS, Waiters(), Subscriptions(source(engine), lambda: 0))
    committer.note_clients(2)
    hub = Hub(committer.on_poll_end)
    descriptor = engine.fileno()
    assert descriptor is not None
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(committer.serve)
                await committer.run(Job())
                Changes(descriptor, hub, committer)
                nursery.start_soon(hub.serve)
                work(committer)
                await committer.upkeep.wait(ManualClock())  # the engine's, which stands
                nursery.cancel_scope.cancel()
    finally:
        hub.close()


async def test_refresh_finds_file_between_batches(engine: JournalEngine, tmp_path: Path) -> None:
    """A file that somebody puts into a queue's directory is seen though every batch is run in the thread."""

    def put(committer: Committer) -> None:
        (tmp_path / "q" / "7").write_bytes(b"seven")

    await found(engine, put)


async def test_refresh_finds_file_while_thread_is_never_idle(engine: JournalEngine, tmp_path: Path) -> None:
    """A file is seen also when the thread is never idle: there is more to do at the end of each batch."""

    until = trio.current_time() + 20

    def put_and_go_on(committer: Committer) -> None:
        def post() -> None:
            if committer.upkeep.due is None and trio.current_time() < until:
                job = Job()
                job.on_batch_end = post
                committer.post(job)

        post()
        (tmp_path / "q" / "7").write_bytes(b"seven")

    await found(engine, put_and_go_on)
    assert trio.current_time() < until
