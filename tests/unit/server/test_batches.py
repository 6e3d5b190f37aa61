"""Batches: what a failed one refuses is not stored, work that lacks room runs again in a batch with it, and what has
to come first comes first."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from support.storage.crashing import Place, places
from tests.support.servers.requests import answers_of, batch_of

from qs_schemas import CopyMessage, DeleteMessage, Error, Fault, Message, Ping, PurgeQueue, PushMessage
from qs_server.broker.background import ExpiryLoop, Turns
from qs_server.broker.committer import Committer
from qs_server.broker.jobs import Job, Waiters
from qs_server.broker.subscriptions import Subscriptions
from qs_server.operations.service import Service
from qs_server.session.requests import RequestBatch
from qs_storage.directories import JournalEngine
from qs_storage.engine import LEFT, Draft, Durability, Effects, NoRoomError, Options, Queue


class Ask(Job):
    """Work of a client: a function, and whether it was refused."""

    refused: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.refused = error


class Broken(Ask):
    """Work that breaks the batch it is in."""

    def advance(self, pushing: bool | None) -> None:
        raise RuntimeError("a fault")


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    yield from places(tmp_path)


@pytest.fixture(name="run")
def _run(place: Place) -> Callable[..., None]:
    """Runs a batch of some work."""
    committer = Committer(place.engine, Durability.ALWAYS, Waiters(), Subscriptions(place.engine, place.clock))  # type: ignore[arg-type]

    def run(*works: Ask) -> None:
        committer.scheduled += works
        assert committer.on_poll_end()

    run(Ask(lambda: None))  # a first batch tells the committer that commits are quick
    return run


def test_batch_that_raises_is_rolled_back(place: Place, run: Callable[..., None]) -> None:
    """An exception that nobody expects, too, takes back what was asked for in its batch: the next commit stores its
    own alone."""
    place.queue("q")
    refused, later = Ask(lambda: place.ask_push("q", b"refused")), Ask(lambda: place.ask_push("q", b"later"))
    run(refused, Broken())
    assert refused.refused is not None
    run(later)
    assert later.refused is None
    assert place.payloads("q") == [b"later"]
    place.crash()
    assert place.payloads("q") == [b"later"]


def test_push_to_queue_of_failed_batch_is_refused(place: Place, run: Callable[..., None]) -> None:
    """A push to a queue that was made in the same batch is refused with it, though it is in the log."""
    place.queue("q")

    def push_to_new() -> None:
        place.engine.create("new", Options())
        place.ask_push("new", b"1")

    works = [Ask(push_to_new), Ask(lambda: place.ask_push("q", b"2"))]
    place.disk.refuse("fsync", str(place.root), errno.EIO)
    run(*works)
    assert all(work.refused is not None for work in works)


# -- room


class RoomQueue:
    """A queue of an engine with little room: pushes and deletes take some of it."""

    def __init__(self, queue: Any, engine: "LittleRoom") -> None:
        self._queue, self._engine = queue, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def push_payloads(self, payloads: list[bytes]) -> Any:
        self._engine.take(sum(map(len, payloads)))
        return self._queue.push_payloads(payloads)

    def push(self, drafts: list[Draft]) -> Any:
        return self.push_payloads([draft.payload for draft in drafts])

    def delete(self, receipt: Any) -> None:
        self._engine.room -= self._engine.of_a_delete
        self._queue.delete(receipt)

    def purge(self, upto: int, count: int) -> int:
        self._engine.take(self._engine.of_a_purge)
        return int(self._queue.purge(upto, count))


class LittleRoom(JournalEngine):
    """The journal's engine, as if a batch had little room, and the disk only so much for any batch."""

    batch = 2 * LEFT
    disk = 8 << 20
    of_a_delete = 0
    of_a_purge = 100
    room = 2 * LEFT

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.secured: list[int] = []
        self.refused: list[int] = []
        self.batches: list[list[str]] = [[]]
        """What was done, by batch."""

    def take(self, size: int) -> None:
        if size > self.room:
            self.refused.append(size)
            raise NoRoomError(size)
        self.room -= size
        self.batches[-1].append(str(size))

    def secure(self, lacked: NoRoomError | None = None) -> None:
        size = LEFT if lacked is None else lacked.size
        assert not self.batches[-1], "something is pending"
        self.secured.append(size)
        self.room = min(max(size, self.batch), self.disk)

    def effects(self) -> Effects:
        return super().effects()._replace(room=self.room)

    def commit(self) -> Effects:
        if self.batches[-1]:
            self.batches.append([])
        return super().commit()

    def queue(self, qid: str) -> Any:
        return RoomQueue(super().queue(qid), self)

    def copy(self, qid: str, mid: int, into: Any) -> None:
        self.take(1000 * len(into))
        super().copy(qid, mid, into)


class Bench:
    """A committer without tasks, and the requests of some connections: each is run again until it is done."""

    def __init__(self, folder: Path) -> None:
        self.engine = LittleRoom(str(folder), clock=lambda: 1_760_000_000_000_000, durability=Durability.NONE)
        for qid in ("q", "into"):
            self.engine.create(qid, Options())
        self.engine.commit()
        self.subscriptions = Subscriptions(self.engine, lambda: 0)  # type: ignore[arg-type]
        self.committer = Committer(self.engine, Durability.NONE, Waiters(), self.subscriptions)

    def connection(self, *events: Message | Fault) -> RequestBatch:
        service = Service(self.engine, self.subscriptions, lambda: None)  # type: ignore[arg-type, return-value]
        return batch_of(events, service)

    def ask(self, *connections: RequestBatch) -> int:
        """Runs the requests of connections to their end. Returns the number of rounds that it took."""
        rounds = 0
        while left := [each for each in connections if each.unanswered]:
            rounds += 1
            assert rounds < 500
            for each in left:
                each.resume()
            self.committer.scheduled += left
            while not self.committer.on_poll_end():
                pass
        return rounds

    def push(self, count: int) -> list[int]:
        queue: Queue = JournalEngine.queue(self.engine, "q")
        mids = queue.push([Draft(b"x")] * count)
        self.engine.commit()
        return mids


@pytest.fixture(name="bench")
def _bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.engine.close()


def test_push_that_lacks_room_begins_next_batch(bench: Bench) -> None:
    """A push for which the batch has no room is run again as the first of a batch that has it; what others asked for
    meanwhile, and what is behind it, is done too."""
    big = PushMessage("q", payload=b"x" * (3 * LEFT))
    one = bench.connection(PushMessage("q", payload=b"1"), big, PushMessage("q", payload=b"2"))
    other = bench.connection(PushMessage("q", payload=b"3"))
    bench.ask(one, other)
    assert not [answer for answer in (*answers_of(one), *answers_of(other)) if isinstance(answer, Error)]
    assert len(answers_of(one)) == 3
    assert bench.engine.refused.count(3 * LEFT) == 1
    assert bench.engine.secured[0] == 3 * LEFT
    first = next(batch for batch in bench.engine.batches if str(3 * LEFT) in batch)
    assert first[0] == str(3 * LEFT)
    assert len(bench.engine.queue("q")._queue) == 4


def test_push_without_any_room_is_refused(bench: Bench) -> None:
    """A push that lacks room though it is the first of its batch is answered with 507, and the others go on."""
    bench.engine.disk = 2 * LEFT
    one = bench.connection(PushMessage("q", payload=b"x" * (3 * LEFT)), PushMessage("q", payload=b"2"), Ping())
    other = bench.connection(PushMessage("q", payload=b"3"))
    bench.ask(one, other)
    error, stored, ping = answers_of(one)
    assert isinstance(error, Error)
    assert (error.code, error.text) == (507, "the disk is full; nothing was changed")
    assert (type(stored), type(ping), type(answers_of(other)[0])) == (PushMessage, Ping, PushMessage)
    assert bench.engine.refused.count(3 * LEFT) == 2
    assert len(bench.engine.queue("q")._queue) == 2


def test_merged_pushes_that_lack_room_run_one_by_one(bench: Bench) -> None:
    """When the pushes of several clients have no room together, those that have it are stored, and the others later."""
    connections = [bench.connection(PushMessage("q", payload=bytes([n]) * (LEFT // 2))) for n in range(10)]
    bench.ask(*connections)
    assert all(type(answers_of(each)[0]) is PushMessage for each in connections)
    assert max(sum(map(int, batch)) for batch in bench.engine.batches) <= bench.engine.batch
    assert len(bench.engine.queue("q")._queue) == 10


def test_pushes_are_merged_behind_work_that_begins_batch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the changes by other programs, with which many batches begin, leaves one push for all clients."""
    pushed: list[int] = []
    push = RoomQueue.push_payloads
    monkeypatch.setattr(
        RoomQueue, "push_payloads", lambda queue, every: (pushed.append(len(every)), push(queue, every))[1]
    )
    connections = [bench.connection(*[PushMessage("q", payload=b"x")] * 5) for _ in range(4)]
    bench.committer.scheduled += [Job(bench.committer.refresh, is_first=True), *connections]
    while not bench.committer.on_poll_end():
        pass
    assert pushed == [20]
    assert [len(answers_of(each)) for each in connections] == [5] * 4


def test_full_disk_refuses_pushes_and_no_deletes(bench: Bench) -> None:
    """Without any room, each push is refused, and each delete is done."""
    mids = bench.push(20)
    bench.engine.disk = bench.engine.room = 0
    asked = [PushMessage("q", payload=b"x") for _ in range(5)]
    deletes = [DeleteMessage("q", mid) for mid in mids]
    pushing, deleting = bench.connection(*asked), bench.connection(*deletes)
    bench.ask(pushing, deleting)
    assert [answer.code for answer in answers_of(pushing) if isinstance(answer, Error)] == [507] * 5
    assert all(type(answer) is DeleteMessage for answer in answers_of(deleting))


def test_secure_that_fails_is_logged_and_batch_runs(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """When the engine fails to make room, a line in the log says why, and requests are refused or done as they find
    room."""

    def secure(lacked: NoRoomError | None = None) -> None:
        raise OSError(errno.EIO, "Input/output error")

    bench.engine.secure = secure  # type: ignore[method-assign]
    one = bench.connection(PushMessage("q", payload=b"x" * (3 * LEFT)), PushMessage("q", payload=b"2"))
    bench.ask(one)
    refused, stored = answers_of(one)
    assert isinstance(refused, Error)
    assert (refused.code, type(stored)) == (507, PushMessage)
    assert "no room could be made for requests: [Errno 5] Input/output error" in caplog.text


def test_list_requests_end_slice_when_room_is_little(bench: Bench) -> None:
    """`delete-message` and copy-message with lists go on in the next batch when little room is left, and answer once
    with all that they have done."""
    mids = bench.push(400)
    bench.engine.of_a_delete = LEFT // 20
    copying = bench.connection(CopyMessage("q", mids=list(mids), queues=["into"]))
    rounds = bench.ask(copying)
    assert answers_of(copying)[0].mids == mids  # type: ignore[attr-defined]
    assert rounds >= 400 * 1000 // bench.engine.batch
    deleting = bench.connection(DeleteMessage("q", mids=list(mids)))
    rounds = bench.ask(deleting)
    assert answers_of(deleting)[0].mids == mids  # type: ignore[attr-defined]
    assert rounds >= 400 * bench.engine.of_a_delete // bench.engine.batch
    assert bench.engine.room >= 0


def test_list_of_copies_waits_for_room_after_first_slice(bench: Bench) -> None:
    """A list of copies, one of which needs more than a batch has left, is not ended half way; if there is no room at
    all, the answer says that some may have been copied."""
    mids = bench.push(3)
    bench.engine.room = 1500
    bench.engine.batch = 1500
    copying = bench.connection(CopyMessage("q", mids=list(mids), queues=["into"]))
    bench.ask(copying)
    assert answers_of(copying)[0].mids == mids  # type: ignore[attr-defined]
    bench.engine.disk = bench.engine.room = 1500
    mids = bench.push(3)
    bench.engine.disk = 500
    bench.engine.room = 1200
    copying = bench.connection(CopyMessage("q", mids=list(mids), queues=["into"]))
    bench.ask(copying)
    [answer] = answers_of(copying)
    assert isinstance(answer, Error)
    assert (answer.code, answer.text) == (507, "the disk is full; some may have been copied")


def test_purge_refused_in_later_slice_says_partly(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a later slice is refused, the messages of the first one are gone, and the answer does not say otherwise."""
    bench.push(9)
    slices: list[int] = []

    def purge(queue: RoomQueue, upto: int, count: int) -> int:
        slices.append(count)
        if len(slices) > 1:
            raise NoRoomError(100)
        return int(queue._queue.purge(upto, 5))

    monkeypatch.setattr(RoomQueue, "purge", purge)
    purging = bench.connection(PurgeQueue("q"))
    bench.ask(purging)
    [answer] = answers_of(purging)
    assert isinstance(answer, Error)
    assert (answer.code, answer.text) == (507, "the disk is full; a part of it may have been done")
    assert len(bench.engine.queue("q")._queue) == 4


def test_work_that_begins_batch_runs_first(bench: Bench) -> None:
    """Upkeep begins a batch, before any request has changed anything, wherever it stands in line; what follows it is in
    the same batch."""
    seen: list[str] = []
    before, after = Ask(lambda: seen.append("before")), Ask(lambda: seen.append("after"))
    upkeep = Job(lambda: seen.append("upkeep"), is_first=True)
    committed = bench.engine.commit
    bench.engine.commit = lambda: (seen.append("commit"), committed())[1]  # type: ignore[method-assign]
    bench.committer.scheduled += [before, upkeep, after]
    while not bench.committer.on_poll_end():
        pass
    assert seen == ["before", "commit", "upkeep", "after", "commit"]


def test_job_that_lacks_room_begins_next_batch(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A job that lacks room runs again at the beginning of a batch that has it; without any, it fails, with a line in
    the log."""
    done: list[int] = []

    async def run(size: int) -> bool:
        return await bench.committer.call(lambda: (bench.engine.take(size), done.append(size)))

    assert trio.run(run, 3 * LEFT)
    assert (done, bench.engine.secured) == ([3 * LEFT], [3 * LEFT])
    assert not trio.run(run, 16 << 20)
    assert done == [3 * LEFT]
    assert "background work of the server failed: [Errno 28] No space left on device" in caplog.text


def test_expiry_ends_slice_when_room_is_little(bench: Bench) -> None:
    """Messages that become dead letters by the timer are moved in several batches, as each has room."""
    left = 10

    def expire(count: int) -> int:
        nonlocal left
        bench.engine.take(LEFT)
        left -= 1
        return left

    bench.engine.expire = expire  # type: ignore[method-assign]
    loop = ExpiryLoop(bench.engine, bench.committer, Turns(), lambda: 0, lambda: 0.0)

    async def main() -> None:
        while left:
            await loop._expire()

    trio.run(main)
    assert len([batch for batch in bench.engine.batches if batch]) == 10 // 2
    assert bench.engine.room >= 0


def test_batch_by_kind_ends_when_pushes_have_no_room(bench: Bench) -> None:
    """With less room than a batch begins with, pushes are left for the next one, and what pushes nothing is done."""
    pushes = bench.connection(PushMessage("q", payload=b"1"))
    other = bench.connection(Ping())
    for each in (pushes, other):
        each.resume()
    bench.engine.room = LEFT // 2
    bench.committer._advance_by_kind([pushes, other], LEFT)
    assert (len(answers_of(pushes)), len(answers_of(other))) == (0, 1)
    assert pushes.unanswered == 1
