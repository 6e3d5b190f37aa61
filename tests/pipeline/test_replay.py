"""The job `replay`: an archive back to a queue, in order, no message twice however often it is interrupted."""

import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.spark.queues import SparkQueue

from qs_client import QueueClient
from qs_pipeline import replay as replay_module
from qs_pipeline import replay_plan
from qs_pipeline.archive import BatchWriter
from qs_pipeline.archive_layout import QueueState, archive_id
from qs_pipeline.command import main
from qs_pipeline.errors import BadQueryError, NoSuchQueueError, UsageError
from qs_pipeline.files import LocalFiles
from qs_pipeline.replay import Replayed, preview, replay
from qs_pipeline.replay_plan import PlanStore, Selection
from qs_pipeline.running import FinishedBatch, Stop

START = datetime(2025, 6, 30, 23, 59, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ATTRIBUTES = "headers MAP<STRING, STRING>, priority INT, group STRING"


def add(
    spark: SparkSession, directory: Path, queue: str, batch: int, first: int, last: int, names: str = "", *more: Any
) -> None:
    """A batch of an archive: messages `<queue>-<n>`, pushed n seconds after START, written in another order. names,
    more: further columns, and what each message has there."""
    files = LocalFiles(str(directory))
    state = QueueState(files, archive_id(files, create=True), queue)
    if batch == 0:
        state.open({})
    data = [(n, START + n * SECOND, f"{queue}-{n}".encode(), 1, *more) for n in reversed(range(first, last))]
    columns = "mid BIGINT, pushed_at TIMESTAMP, body BINARY, receives INT"
    frame = spark.createDataFrame(data, f"{columns}, {names}" if names else columns)
    offsets = Path(state.checkpoint.uri.removeprefix("file:")) / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / str(batch)).write_text("v1\n{}\n{}")
    BatchWriter(files, state).write(frame.repartition(2), batch)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 messages of the queue a, in two batches, and 20 of the queue b."""
    directory = tmp_path_factory.mktemp("replay") / "archive"
    add(spark, directory, "a", 0, 0, 70)
    add(spark, directory, "a", 1, 70, 100)
    add(spark, directory, "b", 0, 10, 30)
    return directory


@pytest.fixture
def archived(made: Path, tmp_path: Path) -> Path:
    """Makes a copy of the archive for one test."""
    return Path(shutil.copytree(made, tmp_path / "archive [1]"))


Run = Callable[..., Replayed]


@pytest.fixture
def run(queue: SparkQueue, archived: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Replays to the queue of the test, in chunks of 40."""
    monkeypatch.setattr(replay_module, "CHUNK", 40)

    def run(selection: Selection | None = None, **more: Any) -> Replayed:
        client = queue.client
        return replay(queue.spark, str(archived), queue.name, selection, host=client.host, port=client.port, **more)

    return run


def names(queue: str, numbers: range) -> list[bytes]:
    return [f"{queue}-{n}".encode() for n in numbers]


EXPECTED = [
    name for n in range(100) for name in ([b"a-%d" % n, b"b-%d" % n] if 10 <= n < 30 else [b"a-%d" % n])
]  # two that were pushed in the same microsecond come in order of their queues


def test_replay_pushes_all_in_order(queue: SparkQueue, run: Run, archived: Path) -> None:
    """Messages are replayed by the time of the push, over all queues, once; again only on request."""
    assert run() == Replayed(120, 0, 120)
    assert queue.bodies() == EXPECTED
    with pytest.raises(UsageError, match="--again"):
        run()
    assert queue.bodies() == []
    assert run(again=True).pushed == 120
    assert len(queue.bodies()) == 120
    assert list(archived.glob("_qs/replays/*/run=*")) == []


class InterruptedRun(Exception):  # noqa: N818 - it is what happens, not a fault
    """The run ends here."""


def test_replay_continues_after_interruption(
    queue: SparkQueue, run: Run, archived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a chunk, and after one that was pushed and not noted; the archive grows meanwhile. Each message once."""

    def stop_at(step: FinishedBatch) -> None:
        if step.batch == 0:
            raise InterruptedRun

    with pytest.raises(Exception, match="InterruptedRun"):
        run(progress=stop_at)
    add(queue.spark, archived, "a", 2, 100, 130)
    note = PlanStore.note

    def forgets(self: PlanStore, plan: Any) -> None:
        if plan.done == 2:
            raise InterruptedRun
        note(self, plan)

    with monkeypatch.context() as patched:
        patched.setattr(PlanStore, "note", forgets)
        with pytest.raises(Exception, match="InterruptedRun"):
            run()
    assert run() == Replayed(120, 40, 80)
    assert queue.bodies() == EXPECTED


@pytest.mark.long  # ten seconds, on two cores
def test_replay_makes_unfinished_plan_anew(queue: SparkQueue, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed before its plan was complete has pushed nothing, and the next one makes a new plan."""

    def fails(self: PlanStore, plan: Any) -> None:
        raise InterruptedRun

    with monkeypatch.context() as patched:
        patched.setattr(PlanStore, "save", fails)
        with pytest.raises(Exception, match="InterruptedRun"):
            run()
    assert queue.bodies() == []
    assert run().pushed == 120
    assert queue.bodies() == EXPECTED


@pytest.mark.long  # ten seconds, on two cores
def test_replay_brings_back_attributes(queue: SparkQueue, run: Run, archived: Path) -> None:
    """Messages have the headers, priority and group that they were archived with, and a condition sees them. Those of
    files that an earlier version has written, without such columns, have none."""
    headers = {"b": "1", "a": "é"}
    add(queue.spark, archived, "a", 2, 100, 102, ATTRIBUTES, headers, 7, "g")
    add(queue.spark, archived, "new", 0, 200, 201, ATTRIBUTES, {}, 0, None)
    assert run(Selection("mid >= 99 AND headers['c'] IS NULL AND priority >= 0")).pushed == 4
    found = queue.client.receive(queue.name, max=9)
    found += queue.client.receive(queue.name, max=9)
    assert [(m.payload, m.headers, m.priority, m.group) for m in found] == [
        (b"a-100", headers, 7, "g"), (b"a-99", {}, None, None), (b"new-200", {}, None, None)
    ]  # fmt: skip
    queue.client.delete(found[0])
    assert [m.payload for m in queue.client.receive(queue.name, max=9)] == [b"a-101"]
    assert run(Selection("headers['a'] = 'é' AND group = 'g'")).pushed == 2


@pytest.mark.long  # ten seconds, on two cores
def test_replay_of_selection(queue: SparkQueue, run: Run) -> None:
    """A condition on the columns, the body as text, and times, of which the end is not in."""
    begin, end = START + 55 * SECOND, START + 65 * SECOND
    assert run(Selection("queue = 'a' AND body LIKE '%5'", begin, end)).pushed == 1
    assert run(Selection(None, begin, end)).pushed == 10
    assert run(Selection("date = DATE'2025-07-01' AND mid < 62")).pushed == 2
    assert run(Selection("queue = 'c'")) == Replayed(0, 0, 0)
    assert run(Selection(None, START + timedelta(days=9))) == Replayed(0, 0, 0)
    assert queue.bodies() == [b"a-55", *names("a", range(55, 65)), b"a-60", b"a-61"]


@pytest.mark.long  # ten seconds, on two cores
def test_replay_leaves_out_half_batch(queue: SparkQueue, run: Run, archived: Path) -> None:
    """One that is being archived while the plan is made: all of it or nothing."""
    files = LocalFiles(str(archived))
    state = QueueState(files, archive_id(files, create=False), "a")
    last = state.batch()
    assert last is not None
    state.set_batch(1, 30, last["moves"], done=False)
    assert run(Selection("queue = 'a'")).messages == 70


class Clock:
    """Time that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.mark.long  # seconds, on two cores
def test_replay_keeps_rate(queue: SparkQueue, run: Run) -> None:
    """30 messages at 10 a second, those of a second at a time: the last begins after 2 s. One file holds them all."""
    clock = Clock()
    assert run(Selection("queue = 'a' AND mid < 30"), rate=10, clock=clock, sleep=clock.sleep).pushed == 30
    assert clock.now == pytest.approx(2)
    assert queue.bodies() == names("a", range(30))


def test_make_bounds_chunks_in_bytes(queue: SparkQueue, archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are bounded in bytes, also when few of many messages are large: bodies and headers of 4 to 1000 bytes in
    files of at most 2 * 1000, in order."""
    monkeypatch.setattr(replay_plan, "CHUNK_BYTES", 1000)
    sizes = [1000 if n in (30, 31, 33) else 4 for n in range(60)]
    data: list[tuple[Any, ...]] = [
        (START + n * SECOND, "a", n, b"%4d" % n * (size // 4), {}, 0, None) for n, size in enumerate(sizes)
    ]
    data[32] = (*data[32][:4], {"a": "x" * 996}, 0, None)
    columns = f"pushed_at TIMESTAMP, queue STRING, mid BIGINT, body BINARY, {ATTRIBUTES}"
    frame = queue.spark.createDataFrame(data, columns)
    plans = PlanStore(LocalFiles(str(archived)), "key")
    plan = plans.make(frame, 1, 40, 25)
    tables = [pq.read_table(archived / plans.directory(1) / name) for name, _ in plan.chunks]
    kept = [table["body"].to_pylist() for table in tables]
    headers = [table["headers"].to_pylist() for table in tables]
    assert [body for chunk in kept for body in chunk] == [row[3] for row in data]
    assert (
        max(len(b"".join(a)) + sum(len(t) for h in b for _, t in h) for a, b in zip(kept, headers, strict=True)) <= 2000
    )
    assert [len(chunk) for chunk in kept] == [count for _, count in plan.chunks]
    second = plan.portions()[1]
    assert [row.body for row in plans.read(queue.spark, plan, second).collect()] == [
        data[second.first + n + (plan.chunks[0][1] if second.chunk != plan.chunks[0][0] else 0)][3]
        for n in range(second.rows)
    ]


@pytest.mark.long  # ten seconds, on two cores
def test_replay_stops_between_chunks(queue: SparkQueue, run: Run) -> None:
    """The next run pushes the rest."""
    stop = Stop()
    assert run(stop=stop, progress=lambda step: stop.ask()) == Replayed(120, 0, 40)
    assert run() == Replayed(120, 40, 80)
    assert queue.bodies() == EXPECTED


@pytest.mark.long  # seconds, on two cores
def test_replay_tells_errors_before_pushing(queue: SparkQueue, run: Run, tmp_path: Path) -> None:
    """Each in one line, before anything is pushed."""
    with pytest.raises(BadQueryError, match=r"--where: .*bodi"):
        run(Selection("bodi = 'x'"))
    with pytest.raises(BadQueryError, match="--where"):
        run(Selection("mid = = 3"))
    with pytest.raises(BadQueryError, match="--where"):
        run(Selection("CAST(body AS INT) > 3"))
    with pytest.raises(UsageError, match="is no archive"):
        replay(queue.spark, str(tmp_path / "none"), queue.name, port=queue.client.port)
    with pytest.raises(NoSuchQueueError):
        replay(queue.spark, str(tmp_path / "archive [1]"), "nowhere", port=queue.client.port)
    assert queue.bodies() == []


@pytest.mark.long  # ten seconds, on two cores
def test_replay_command(queue: SparkQueue, archived: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run says what would be pushed and pushes nothing; a second run says that it is done."""
    server = f"{queue.client.host}:{queue.client.port}"
    common = ["replay", str(archived), "--to", queue.name, "--server", server, "--until", "2025-07-01"]
    assert main([*common, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "a  60 messages, pushed 2025-06-30 23:59:00Z to 2025-06-30 23:59:59Z",
        "b  20 messages, pushed 2025-06-30 23:59:10Z to 2025-06-30 23:59:29Z",
    ]
    assert queue.bodies() == []
    assert preview(queue.spark, str(archived), Selection("queue = 'none'")) == []
    assert main(common) == 0
    assert capsys.readouterr().out.startswith(f"pushed 80 messages to {queue.name} (")
    assert main(common) == UsageError.exit_code
    assert "--again" in capsys.readouterr().err
    assert main([*common, "--dry-run"]) == 0
    assert "would push nothing: this replay is finished, with 80 messages" in capsys.readouterr().out
    assert len(queue.bodies()) == 80


def test_dry_run_of_interrupted_replay(
    queue: SparkQueue, run: Run, archived: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run of an interrupted replay reports the rest of it, not a new one."""
    stop = Stop()
    run(stop=stop, progress=lambda step: stop.ask())
    server = f"{queue.client.host}:{queue.client.port}"
    assert main(["replay", str(archived), "--to", queue.name, "--server", server, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"would push 80 messages to {queue.name}, after 40 of an earlier run")


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of this process cannot be changed")
def test_dry_run_shows_times_in_utc(spark: SparkSession, archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a dry run are UTC, whatever the machine's zone."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        try:
            found = preview(spark, str(archived), Selection("queue = 'b'"))
        finally:
            patched.undo()
            time.tzset()
    assert [(each.first, each.last) for each in found] == [(START + 10 * SECOND, START + 29 * SECOND)]


@pytest.fixture(autouse=True)
def _no_leftovers(client: QueueClient) -> Iterator[None]:
    """Queues of the tests do not pile up on the shared server."""
    before = set(client.queues())
    yield
    for name in set(client.queues()) - before:
        client.delete_queue(name, force=True)
