"""The errors for wrong options, addresses or messages, and a query over a server's restart."""

import queue as queues
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from support.servers.processes import FAST, ServerProcess, serving
from support.spark.queues import SparkQueue, drain, start, told

from qs_client import QueueClient
from qs_pipeline.errors import (
    BadMessageError,
    BadOptionError,
    NoServerError,
    NoSuchQueueError,
    PipelineError,
    SchemaMismatchError,
)


def _reading(queue: SparkQueue, /, **options: Any) -> PipelineError:
    with pytest.raises(PySparkException) as raised:
        queue.read(**options).collect()
    return told(raised.value)


@pytest.mark.long  # seconds, on two cores
@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"maxMesagesPerTrigger": 5}, BadOptionError, "did you mean maxMessagesPerTrigger?"),
        ({"mode": "consume"}, BadOptionError, "the option consumer is missing: mode consume needs a name"),
        ({"queue": "none"}, NoSuchQueueError, "there is no queue 'none' on 127.0.0.1:"),
    ],
)
def test_source_names_wrong_option(
    queue: SparkQueue, options: dict[str, Any], kind: type[PipelineError], said: str
) -> None:
    """The error says which, and what to do."""
    error = _reading(queue, **options)
    assert type(error) is kind
    assert said in str(error)


@pytest.mark.long  # seconds, on two cores
def test_stream_without_consumer_fails(queue: SparkQueue, tmp_path: Path) -> None:
    """A stream has no name of its own but one that is given."""
    frame = queue.spark.readStream.format("qs").options(**queue.options()).load()
    with pytest.raises(PySparkException) as raised:
        drain(frame, tmp_path / "checkpoint")
    error = told(raised.value)
    assert isinstance(error, BadOptionError)
    assert "the option consumer is missing: a stream needs a name of its own" in str(error)


def test_source_without_server_fails(queue: SparkQueue) -> None:
    """The error says where it was looked for, and for how long."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        error = _reading(queue, port=sock.getsockname()[1], retrySeconds="0.1")
        assert isinstance(error, NoServerError)
        assert f"no queue server at 127.0.0.1:{sock.getsockname()[1]} (Connection refused)" in str(error)
        assert "tried for 0.1 s (option retrySeconds)" in str(error)


@pytest.mark.long  # ten seconds, on two cores
def test_source_names_message_that_is_no_text(queue: SparkQueue) -> None:
    """The error names the mid of the message that is not text."""
    mids = queue.push("a", b"\xff", "b")
    error = _reading(queue, bodyType="string")
    assert isinstance(error, BadMessageError)
    assert f"message {mids[1]} of the queue {queue.name!r} is no UTF-8 text" in str(error)


@pytest.mark.long  # seconds, on two cores
def test_source_refuses_other_schema(queue: SparkQueue) -> None:
    """The error says that the source has its own schema."""
    with pytest.raises(PySparkException) as raised:
        queue.spark.read.format("qs").schema("a INT").options(**queue.options()).load().collect()
    error = told(raised.value)
    assert isinstance(error, SchemaMismatchError)
    assert "leave .schema() out" in str(error)


def test_source_of_storage_without_claims(queue: SparkQueue) -> None:
    """A queue of files can be looked at, and neither be claimed from nor be written to: the error says which queue, its
    storage, which one it takes, and how to get it."""
    name = f"{queue.name}-files"
    queue.client.new_queue(name, storage="files")
    queue.client.push(name, "a")
    options = {**queue.options(), "queue": name}
    assert queue.spark.read.format("qs").options(**options).load().count() == 1
    rows = queue.spark.createDataFrame([("b",)], "body STRING")
    with pytest.raises(PySparkException) as raised:
        rows.write.format("qs").options(**options).mode("append").save()
    for error in (_reading(queue, queue=name, mode="consume", consumer="c"), told(raised.value)):
        assert isinstance(error, PipelineError)
        for part in (name, "'files'", "storage journal", "qs new --storage journal", "queue-journal.py convert"):
            assert part in str(error)


@pytest.mark.long  # ten seconds, on two cores
def test_stream_survives_restart_of_server(spark: SparkSession, tmp_path: Path) -> None:
    """A query that runs survives it: messages before and after are in one batch each."""
    with serving(tmp_path / "root", *FAST) as server:
        _restarted(spark, tmp_path, server)


def _restarted(spark: SparkSession, tmp_path: Path, server: ServerProcess) -> None:
    seen: queues.Queue[str] = queues.Queue()

    def each(batch: DataFrame, _: int) -> None:
        for row in batch.collect():
            seen.put(row.body)

    with QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.push("q", "before")
        queue = SparkQueue(spark, client, "q")
        query = start(queue.stream(bodyType="string"), tmp_path / "checkpoint", each, processingTime="0 seconds")
        try:
            assert seen.get(timeout=60) == "before"
            server.stop()
            server.start()
            client.push("q", "after")
            assert seen.get(timeout=60) == "after"
        finally:
            query.stop()
    assert seen.empty()
