"""The job `archive`: queues to a Parquet table, each message once, whatever ends it and when."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.servers.processes import FAST, ServerProcess, serving
from support.spark.queues import Crash, MortalFiles, SparkQueue, asked, bodies, parquet, rows

from qs_client import Draft, QueueClient
from qs_pipeline import archive as archive_module
from qs_pipeline.archive import Archived, BatchWriter, archive
from qs_pipeline.archive_layout import QueueState
from qs_pipeline.command import main
from qs_pipeline.errors import (
    BadMessageError,
    CheckpointLostError,
    NoServerError,
    NoSuchQueueError,
    PipelineError,
    UsageError,
)
from qs_pipeline.files import HadoopFiles, LocalFiles, open_files
from qs_pipeline.running import FinishedBatch, Stop


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def run(queue: SparkQueue, to: Path) -> Callable[..., Archived]:
    """Archives the queue of the test."""

    def run(*queues: str, **more: Any) -> Archived:
        client = queue.client
        return archive(queue.spark, queues or [queue.name], str(to), host=client.host, port=client.port, **more)

    return run


def empty(queue: SparkQueue) -> bool:
    """Tells whether nothing is left, also not in a claim."""
    return list(queue.client.list_messages(queue.name, state="all")) == [] and queue.claims() == []


def test_archive_moves_queue_into_table(queue: SparkQueue, to: Path, run: Callable[..., Archived]) -> None:
    """Every payload is there as it was, in batches; the queue is empty; a second run takes what is new only."""
    payloads = [b"<a/>", b"\xff\x00", "ä€😀".encode(), b"", b"x" * 100_000]
    mids = queue.push(*payloads)
    steps: list[FinishedBatch] = []
    assert run(batch=2, progress=steps.append).messages == {queue.name: 5}
    assert [(step.queue, step.batch, step.rows) for step in steps] == [
        (queue.name, n, r) for n, r in enumerate((2, 2, 1))
    ]
    assert empty(queue)
    found = rows(to)
    assert [row["mid"] for row in found] == mids
    assert [row["body"] for row in found] == payloads
    assert all(row["pushed_at"].timestamp() * 1e6 == pytest.approx(row["mid"], abs=2) for row in found)
    assert {row["queue"] for row in found} == {queue.name}
    assert {row["date"] for row in found} == {f"{row['pushed_at']:%Y-%m-%d}" for row in found}
    queue.push(b"later")
    assert run().total == 1
    assert bodies(to) == [*payloads, b"later"]
    assert asked(to, "SELECT count(*), count(DISTINCT mid), min(body) FROM TABLE WHERE receives = 1") == [(6, 6, b"")]


def test_archive_keeps_attributes(queue: SparkQueue, to: Path, run: Callable[..., Archived]) -> None:
    """Headers, priority and group are columns, which any reader of Parquet has."""
    queue.push("plain", Draft("all", priority=7, group="g", headers={"b": "1", "a": "é"}))
    assert run().total == 2
    assert [(dict(row["headers"]), row["priority"], row["group"]) for row in rows(to)] == [
        ({}, 0, None), ({"b": "1", "a": "é"}, 7, "g")
    ]  # fmt: skip
    assert asked(to, "SELECT decode(body) FROM TABLE WHERE headers['a'] = 'é'") == [("all",)]


@pytest.mark.long  # ten seconds, on two cores
def test_archive_several_queues_of_any_name(queue: SparkQueue, to: Path, run: Callable[..., Archived]) -> None:
    """Each in its partition, under its own name, also when that cannot be a directory's."""
    names = ["a/b=c%41 {x}", "Aufträge_日本", "123"]
    for name in names:
        queue.client.new_queue(name)
        queue.client.push(name, name)
    try:
        assert run(*names, names[0]).messages == dict.fromkeys(names, 1)
    finally:
        for name in names:
            queue.client.delete_queue(name, force=True)
    assert [(row["queue"], row["body"].decode()) for row in rows(to)] == [(name, name) for name in sorted(names)]
    assert asked(to, "SELECT count(*) FROM TABLE WHERE CAST(queue AS VARCHAR) = decode(body)") == [(3,)]


@pytest.mark.long  # ten seconds, on two cores
def test_continuous_archive_stops_between_batches(queue: SparkQueue, to: Path, run: Callable[..., Archived]) -> None:
    """Messages pushed while it runs are archived. A stop comes between two batches, and leaves no claim."""
    queue.push(b"1")
    stop = Stop()

    def after(step: FinishedBatch) -> None:
        if step.batch < 2:
            queue.client.push(queue.name, f"{step.batch + 2}")
        else:
            stop.ask()

    assert run(every=0.01, stop=stop, progress=after).total >= 3
    assert bodies(to)[:3] == [b"1", b"2", b"3"]
    assert empty(queue)


def test_archive_refuses_payload_that_is_no_text(queue: SparkQueue, to: Path, run: Callable[..., Archived]) -> None:
    """A payload that is not text cannot be a string. As nothing was written then, the same archive takes it as
    bytes."""
    queue.push(b"\xff")
    with pytest.raises(BadMessageError):
        run(body="string")
    assert run(body="binary").total == 1
    assert bodies(to) == [b"\xff"]


@pytest.mark.long  # ten seconds, on two cores
def test_two_archives_share_queue(queue: SparkQueue, tmp_path: Path) -> None:
    """Two archives of one queue are two consumers: neither takes the other's claims for its own."""
    client, total = queue.client, 0
    for name in ("one", "two"):
        queue.push(name)
        total += archive(queue.spark, [queue.name], str(tmp_path / name), host=client.host, port=client.port).total
    assert total == 2
    assert bodies(tmp_path / "one") == [b"one"]
    assert bodies(tmp_path / "two") == [b"two"]


# -- crashes --------------------------------------------------------------------------------------------------------


def batch_rows(spark: SparkSession, last: int) -> DataFrame:
    """Messages of both sides of a midnight in UTC."""
    times = [datetime(2025, 6, 30, 23, 59, 59, 999_999, UTC), datetime(2025, 7, 1, tzinfo=UTC)]
    data = [(mid, times[mid % 2], b"%d" % mid) for mid in range(last)]
    return spark.createDataFrame(data, "mid BIGINT, pushed_at TIMESTAMP, body BINARY")


def offsets(state: QueueState, to: Path, batch: int) -> None:
    """Writes the offsets that Spark has written when a batch begins."""
    place = Path(state.checkpoint.uri.removeprefix("file:")) / "offsets" / str(batch)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text('v1\n{}\n{"seq":1,"count":6}')


def test_archive_after_crash_at_any_step(spark: SparkSession, tmp_path: Path) -> None:
    """Before each change of the files in turn: the table never has a message twice, and has each once in the end."""
    batch = batch_rows(spark, 6).repartition(2).persist()
    for lives in range(40):
        to = tmp_path / str(lives)
        mortal = MortalFiles(str(to), lives)
        state = QueueState(mortal, "abc", "orders")
        try:
            offsets(state, to, 0)
            state.open({})
            writer = BatchWriter(mortal, state)
            writer.recover()
            assert writer.write(batch, 0) == 6
        except Crash:
            seen = [row["mid"] for row in rows(to)]
            assert len(set(seen)) == len(seen)
        else:
            break
        files = LocalFiles(str(to))
        state = QueueState(files, "abc", "orders")
        state.open({})
        writer = BatchWriter(files, state)
        writer.recover()
        seen = [row["mid"] for row in rows(to)]
        assert seen in ([], list(range(6)))  # a half is completed before anything else is done
        writer.write(batch, 0)
        assert [row["mid"] for row in rows(to)] == list(range(6))
        assert {path.parent.name for path in parquet(to)} == {"date=2025-06-30", "date=2025-07-01"}
        assert state.batch() is not None
        assert files.names(state.staging) == []
    else:
        pytest.fail("it never ends")
    assert lives > 8
    batch.unpersist()


@pytest.mark.long  # seconds, on two cores
def test_write_skips_finished_batch(spark: SparkSession, to: Path) -> None:
    """A batch is not repeated if the crash came before Spark's commit log. One before it is not Spark's to run."""
    files = LocalFiles(str(to))
    state = QueueState(files, "abc", "orders")
    offsets(state, to, 7)
    writer = BatchWriter(files, state)
    assert writer.write(batch_rows(spark, 4), 7) == 4
    before = [path.stat().st_mtime_ns for path in parquet(to)]
    assert writer.write(batch_rows(spark, 4), 7) == 0
    assert [path.stat().st_mtime_ns for path in parquet(to)] == before
    with pytest.raises(CheckpointLostError):
        writer.write(batch_rows(spark, 4), 6)


@pytest.mark.long  # seconds, on two cores
def test_recover_tells_of_vanished_file(spark: SparkSession, to: Path) -> None:
    """A half batch whose rest is nowhere is not completed in silence."""
    files = LocalFiles(str(to))
    state = QueueState(files, "abc", "orders")
    state.set_batch(1, 4, [("_qs/staging/gone", "queue=orders/date=2025-06-30/gone.parquet")], done=False)
    with pytest.raises(CheckpointLostError, match=r"gone\.parquet"):
        BatchWriter(files, state).recover()


@pytest.mark.long  # ten seconds, on two cores
def test_next_run_completes_failed_batch(
    queue: SparkQueue, to: Path, run: Callable[..., Archived], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error after the renames and before Spark's commit: the messages stay claimed, and the next run archives each
    once. Other consumers do not get them meanwhile."""
    queue.push(b"1", b"2", b"3")
    write = BatchWriter.write

    def fails(self: BatchWriter, frame: DataFrame, batch: int) -> int:
        write(self, frame, batch)
        raise PipelineError("the power went")

    monkeypatch.setattr(archive_module.BatchWriter, "write", fails)
    with pytest.raises(PipelineError, match="the power went"):
        run(batch=2)
    assert bodies(to) == [b"1", b"2"]
    assert [count for _, _, count in queue.claims()] == [2]
    assert [delivery.payload for delivery in queue.client.receive(queue.name, max=9, visibility=600)] == [b"3"]
    monkeypatch.undo()
    queue.push(b"4")
    assert run(batch=2).total == 1
    assert bodies(to) == [b"1", b"2", b"4"]


# -- what goes wrong ------------------------------------------------------------------------------------------------


def test_archive_with_deleted_checkpoint_fails(queue: SparkQueue, to: Path, run: Callable[..., Archived]) -> None:
    """A deleted checkpoint is an error, and the table is not copied a second time."""
    queue.push(b"1")
    run()
    for log in to.glob("_qs/queues/*/checkpoint/*/*"):
        log.unlink()
    queue.push(b"2")
    with pytest.raises(CheckpointLostError, match="from a backup"):
        run()
    assert bodies(to) == [b"1"]


def test_archive_without_queue_or_server_fails(
    spark: SparkSession, queue: SparkQueue, to: Path, run: Callable[..., Archived]
) -> None:
    """A missing queue and a missing server are reported before anything is made."""
    with pytest.raises(NoSuchQueueError, match="new nowhere"):
        run(queue.name, "nowhere")
    with pytest.raises(NoServerError, match=r"127\.0\.0\.1:9"):
        archive(spark, ["a"], str(to), port=9)
    with pytest.raises(UsageError):
        archive(spark, [], str(to))
    assert not to.exists()


@pytest.mark.long  # seconds, on two cores
def test_archive_to_unwritable_directory_fails(queue: SparkQueue, tmp_path: Path) -> None:
    """The path is named, and the messages stay where they are."""
    (tmp_path / "file").write_text("")
    queue.push(b"1")
    client = queue.client
    with pytest.raises(PipelineError, match="file"):
        archive(queue.spark, [queue.name], str(tmp_path / "file" / "x"), host=client.host, port=client.port)
    assert queue.bodies() == [b"1"]


# -- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.long  # ten seconds, on two cores
def test_archive_command(queue: SparkQueue, to: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A summary on stdout, nothing on stderr, and the code of what went wrong."""
    queue.push(b"1", b"2")
    server = f"{queue.client.host}:{queue.client.port}"
    assert main(["archive", queue.name, "--to", str(to), "--server", server, "--body", "string"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"archived 2 messages in 1 batch to {to} (")
    assert err == ""
    assert bodies(to) == ["1", "2"]
    assert main(["archive", "nowhere", "--to", str(to), "--server", server]) == 5
    assert main(["archive", queue.name, "--to", str(to), "--server", "127.0.0.1:9"]) == 4
    assert main(["archive", queue.name, "--to", str(to), "--server", server]) == 9
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(": ")[0] for line in err.splitlines()] == ["qs-pipeline"] * 3


# -- other file systems ---------------------------------------------------------------------------------------------


@pytest.fixture
def hadoop(spark: SparkSession, to: Path) -> HadoopFiles:
    """The directory through Hadoop, as one of a cluster's file systems would be."""
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(f"file:{to}")
    return HadoopFiles(java, path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path)


@pytest.mark.long  # ten seconds, on two cores
def test_archive_through_hadoop(spark: SparkSession, hadoop: HadoopFiles, to: Path) -> None:
    """A batch through Hadoop's file system gives the same table, and its files are read back as they were written."""
    hadoop.replace("_qs/a.json", b"{}")
    hadoop.replace("_qs/a.json", json.dumps({"b": 1}).encode())
    assert hadoop.read("_qs/a.json") == b'{"b": 1}'
    assert hadoop.read("_qs/none") is None
    assert hadoop.names("none") == []
    state = QueueState(hadoop, "abc", "orders")
    state.open({"mid": "bigint"})
    writer = BatchWriter(hadoop, state)
    writer.recover()
    offsets(state, to, 0)
    assert writer.write(batch_rows(spark, 6), 0) == 6
    assert writer.write(batch_rows(spark, 6), 0) == 0
    assert [row["mid"] for row in rows(to)] == list(range(6))
    with pytest.raises(PipelineError, match="cannot be renamed"):
        hadoop.move([("nothing", "there")])


@pytest.mark.long  # seconds, on two cores
def test_open_files_chooses_file_system(spark: SparkSession, to: Path) -> None:
    """A path and a file: URI are of this machine."""
    for given in (str(to), f"file:{to}", f"file://{to}"):
        files = open_files(spark, given)
        assert isinstance(files, LocalFiles)
        assert files.root == str(to)


# -- a server of one's own ------------------------------------------------------------------------------------------


@pytest.mark.long  # ten seconds, on two cores
def test_archive_tells_of_lost_claim(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claimed message that is gone is an error, not a smaller batch."""
    with serving(tmp_path / "root", *FAST) as server, QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.push_many("q", ["1", "2"])
        _fail_first_batch(spark, server, tmp_path, monkeypatch)
        [claim] = client.list_claims("q")
        assert claim.consumer is not None
        client.release_claim("q", claim.consumer, claim.seq)
        client.receive("q", max=2)
        with pytest.raises(PipelineError) as told:
            archive(spark, ["q"], str(tmp_path / "a"), host=server.host, port=server.port)
        assert told.value.exit_code != 1, told.value
        assert rows(tmp_path / "a") == []
        client.push("q", "3")
        archive(spark, ["q"], str(tmp_path / "a"), host=server.host, port=server.port, accept_loss=True)
        assert bodies(tmp_path / "a") == [b"3"]
        assert list(client.list_claims("q")) == []


def _fail_first_batch(spark: SparkSession, server: ServerProcess, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    def fails(self: BatchWriter, frame: DataFrame, batch: int) -> int:
        raise PipelineError("no")

    with patch.context() as patched:
        patched.setattr(archive_module.BatchWriter, "write", fails)
        with pytest.raises(PipelineError, match="no"):
            archive(spark, ["q"], str(tmp_path / "a"), host=server.host, port=server.port)
