"""Long requests run in time slices, with the requests of others in between; what is one step is bounded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.documents import code, mids, new_queue, push_list, request, text
from support.servers.memory import Clock, Serving
from support.storage.engines import JournalEngine
from tests.support.servers.requests import answers_of, batch_of

from qs_schemas import (
    AckClaim,
    ClaimMessages,
    CopyMessage,
    DeleteMessage,
    DeleteQueue,
    Error,
    GetClaim,
    ListClaims,
    ListQueues,
    Message,
    NewQueue,
    Part,
    PauseQueue,
    Ping,
    PublishStaged,
    QueueStats,
    ReleaseClaim,
    ResumeQueue,
    ServerStats,
    SetQueue,
    StageMessages,
)
from qs_schemas import Draft as WireDraft
from qs_schemas import QueueOptions as WireOptions
from qs_schemas.limits import COPIES
from qs_schemas.serializing import serialize
from qs_server.broker.jobs import Pause
from qs_server.operations import claiming, service
from qs_server.operations.service import TURN, Service
from qs_server.session.requests import RequestBatch
from qs_serving.access.caller import Caller
from qs_serving.access.principal import Principal, Right
from qs_storage.engine import Draft, Durability, Engine, Options, State


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[JournalEngine]:
    engine = JournalEngine(str(tmp_path), clock=lambda: 1_760_000_000_000_000, durability=Durability.NONE)
    for qid in ("q", *(f"into-{number}" for number in range(40))):
        engine.create(qid, Options())
    engine.commit()
    yield engine
    engine.close()


class _Subscriptions:
    busy = True

    def settled(self, qid: str, mid: int) -> None: ...

    def gone(self, qid: str) -> None: ...

    def count(self, qid: str) -> int:
        return 0


def service_of(engine: Engine, caller: Any = None) -> Service:
    return Service(engine, _Subscriptions(), lambda: None, caller=caller)  # type: ignore[arg-type]


def slices_of(batch: RequestBatch) -> list[int]:
    """Runs a batch to its end. Returns the work of each of its slices."""
    found: list[int] = []
    while batch.unanswered:
        batch.resume()
        batch.advance(None)
        found.append(batch._service.spent)
    return found


def fill(engine: JournalEngine, count: int) -> list[int]:
    stored = engine.queue("q").push([Draft(b"x", 0, None)] * count)
    engine.commit()
    return stored


def test_copy_list_runs_in_slices(engine: JournalEngine) -> None:
    """`copy-message` of many ids into many queues: no slice is much longer than a time slice, and each message is whole
    in the slice that copies it."""
    stored = fill(engine, 75)
    into = [f"into-{number}" for number in range(40)]
    batch = batch_of([CopyMessage("q", mids=list(stored), queues=into)], service_of(engine))
    while batch.unanswered:
        batch.resume()
        batch.advance(None)
        assert len({len(engine.queue(qid)) for qid in into}) == 1
        assert batch._service.spent <= TURN + 2 * len(into)
        assert (batch.pause is None) == (batch.unanswered == 0)
    answers = answers_of(batch)
    assert [type(answer) for answer in answers] == [CopyMessage]
    assert answers[0].mids == stored  # type: ignore[attr-defined]
    assert [len(engine.queue(qid)) for qid in into] == [75] * 40


def test_pipelined_list_queues_run_in_slices(engine: JournalEngine) -> None:
    """256 list-queues of one connection, by somebody who may see one of the queues: in time slices."""
    batch = batch_of([ListQueues() for _ in range(256)], service_of(engine, _caller("q")), 1 << 30)
    slices = slices_of(batch)
    assert len(slices) == -(-256 * 46 // TURN)
    assert all(spent <= TURN + 46 for spent in slices)
    assert [answer.queues for answer in answers_of(batch)] == [["q"]] * 256  # type: ignore[attr-defined]


def _caller(*read: str) -> Caller:
    principal = Principal("reader", {Right.READ: read})

    class One(Caller):
        def __init__(self) -> None: ...

        @property
        def principal(self) -> Principal:
            return principal

        def check(self, rights: object, request: object) -> None: ...

    return One()


@pytest.mark.parametrize(
    ("asked", "most"), [(ListQueues(), 20), (QueueStats(), 160)], ids=["list-queues", "queue-stats"]
)
def test_list_of_very_many_queues_runs_in_slices(
    engine: JournalEngine, monkeypatch: pytest.MonkeyPatch, asked: Message, most: int
) -> None:
    """One request that looks at all queues lets the requests of others run on the way, also while its document is
    written. The answer has all of them, and its document is the same as one that is written at once."""
    monkeypatch.setattr(service, "TURN", 5)
    batch = batch_of([asked], service_of(engine, _caller("*")))
    slices = slices_of(batch)
    assert len(slices) == 4  # one to gather the names, and one for each 20
    assert max(slices) <= most
    [answer] = answers_of(batch)
    assert len(answer.queues) == 41  # type: ignore[attr-defined]
    monkeypatch.setattr("qs_server.operations.queues.WrittenQueues", _Kept)
    at_once = batch_of([asked], service_of(engine, _caller("*")))
    slices_of(at_once)
    answer.resp = answers_of(at_once)[0].resp
    assert serialize(answer) == serialize(answers_of(at_once)[0])


def test_server_stats_counts_work_for_each_queue(engine: JournalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`server-stats` adds up the figures of all queues: the more there are, the fewer such requests are in a time
    slice."""
    monkeypatch.setattr("qs_server.operations.queues._FIGURES", 0)
    monkeypatch.setattr("qs_server.operations.queues._COUNTED", 1)
    monkeypatch.setattr("qs_server.session.requests.TURN", 82)
    batch = batch_of([ServerStats() for _ in range(4)], service_of(engine))
    assert slices_of(batch) == [82, 82]


def test_new_queue_requests_run_in_slices(engine: JournalEngine) -> None:
    """Requests that write a queue's directory or options count as work: others have their turn after some of these."""
    requests: list[Message] = [NewQueue(f"new-{number}") for number in range(10)]
    requests += [PauseQueue("new-1"), ResumeQueue("new-1"), SetQueue("new-1", WireOptions(capacity=3))]
    requests += [DeleteQueue(f"new-{number}") for number in range(10)]
    batch = batch_of(requests, service_of(engine))
    assert [spent // 200 for spent in slices_of(batch)] == [10, 10, 3]
    assert not any(isinstance(answer, Error) for answer in answers_of(batch))


class _Kept(list[Any]):
    """The queues of an answer that is written at once."""

    add = list.extend


def test_delete_list_runs_in_slices(engine: JournalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`delete-message` with a list deletes all of it, in slices."""
    monkeypatch.setattr(service, "TURN", 10)
    stored = fill(engine, 25)
    batch = batch_of([DeleteMessage("q", mids=list(stored))], service_of(engine))
    assert slices_of(batch) == [10, 10, 5]
    assert len(engine.queue("q")) == 0


def test_ack_claim_ends_claims_one_by_one(engine: JournalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ack-claim` ends each open claim as a whole, the oldest first, and lets others run in between. A number
    that was not made yet is refused before any claim has ended."""
    monkeypatch.setattr(service, "TURN", 2)
    fill(engine, 170)
    claims = engine.queue("q").claims
    assert claims is not None
    for number in range(1, 5):
        claims.claim("c", number, 40, None, None)
    claims.release("c", 2)
    requests = [AckClaim("q", "c", seq=5), AckClaim("q", "c", seq=4)]
    batch = batch_of(requests, service_of(engine))
    still_open: list[list[int]] = []
    while batch.unanswered:
        batch.resume()
        batch.advance(None)
        still_open.append([claim.seq for claim in claims.all()])
    assert still_open == [[3, 4], [4], []]
    assert [type(answer) for answer in answers_of(batch)] == [Error, AckClaim]
    assert len(engine.queue("q")) == 50


def test_list_claims_pauses_between_checksums(engine: JournalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`list-claims` sums up the ids of each claim, and lets others have their turn in between. It lists what was open
    when it began."""
    monkeypatch.setattr(service, "TURN", 4)
    monkeypatch.setattr(claiming, "_SUMMED", 20)
    fill(engine, 120)
    claims = engine.queue("q").claims
    assert claims is not None
    for number in range(1, 4):
        claims.claim("c", number, 40, None, None)
    batch = batch_of([ListClaims("q")], service_of(engine))
    assert slices_of(batch) == [6, 3]
    [answer] = answers_of(batch)
    assert isinstance(answer, ListClaims)
    assert [claim.seq for claim in answer.claims] == [1, 2, 3]


def test_pipelined_claims_are_done_in_slices(engine: JournalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that claims and publications go over in bulk count as work, so that requests of this kind take turns."""
    monkeypatch.setattr("qs_server.session.requests.TURN", 2)
    fill(engine, 100)
    requests: list[Message] = [ClaimMessages("q", "c", seq=number, max=40) for number in (1, 2)]
    requests += [GetClaim("q", "c", seq=1), ReleaseClaim("q", "c", seq=1), AckClaim("q", "c", seq=2)]
    requests.append(StageMessages("q", "p", batch=1, part=0, attempt=0, messages=[WireDraft(b"x")] * 40))
    requests.append(PublishStaged("q", "p", batch=1, chosen=[Part(0, 0)]))
    batch = batch_of(requests, service_of(engine))
    assert slices_of(batch) == [2, 2, 40, 2, 2, 2]
    assert not any(isinstance(answer, Error) for answer in answers_of(batch))


def test_failed_commit_between_slices_is_an_error(engine: JournalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails between two slices ends the request with an error: the copies that it has taken back are in
    no answer. Later requests of the connection are handled."""
    monkeypatch.setattr(service, "TURN", 10)
    stored = fill(engine, 25)
    batch = batch_of([CopyMessage("q", mids=list(stored), queues=["into-1"]), Ping()], service_of(engine))
    batch.advance(None)
    assert isinstance(batch.pause, Pause)
    engine.roll_back()
    batch.fail(OSError(5, "Input/output error"))
    assert batch.runnable
    batch.advance(None)
    error, ping = answers_of(batch)
    assert (type(error), type(ping)) == (Error, Ping)
    assert error.text == "the storage failed: Input/output error; a part of it may have been done"  # type: ignore[attr-defined]
    assert len(engine.queue("into-1")) == 0


def test_copy_into_very_many_queues_is_quick(tmp_path: Path) -> None:
    """A message that is copied into many queues joins them one by one: the set of them is not made anew each time."""
    engine = JournalEngine(str(tmp_path), clock=lambda: 1_760_000_000_000_000, durability=Durability.NONE)
    into = [f"into-{number}" for number in range(50)]
    for qid in ("q", *into):
        engine.create(qid, Options())
    engine.copy("q", fill(engine, 1)[0], into)
    store = engine._journal.store
    assert store is not None
    family = store.families[engine.queue("q").number]  # type: ignore[attr-defined]
    assert len(family) == 51
    assert all(each is family for each in store.families.values())
    engine.create("late", Options())
    engine.copy("q", engine.queue("q").list_mids(State("all"), 1, -1)[0], ["late"])
    assert store.families[engine.queue("late").number] is family  # type: ignore[attr-defined]
    engine.close()


@pytest.mark.parametrize(("ids", "queues"), [(3, COPIES // 3 + 1), (0, COPIES + 1)])
async def test_copy_of_too_many_is_refused(running: Serving, autojump_clock: Clock, ids: int, queues: int) -> None:
    """`copy-message` of more copies than are made at once: 400 that says the bound and what to do; nothing is copied,
    and the connection goes on. As many as the bound are taken."""
    client = running.connect()
    stored = mids(await client.ask(push_list("q", *["x"] * max(ids, 1))))
    await client.ask(new_queue("into"))

    def copies(count: int) -> str:
        listed = "".join(f"<mid>{mid}</mid>" for mid in stored)
        which = f"<messages>{listed}</messages>" if ids else listed
        names = "<queue>into</queue>" * count
        return request("copy-message", f"<qid>q</qid>{which}<queues>{names}</queues>")

    line = await client.ask(copies(queues))
    assert code(line) == 400
    assert f"at most {COPIES}: send several" in text(line)
    assert mids(await client.ask(request("list-messages", "<qid>into</qid>", state="all"))) == []
    assert code(await client.ask(copies(COPIES // max(ids, 1)))) == 0
