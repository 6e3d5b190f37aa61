"""kill -9 of the JVM, the driver, the server, and of several at once, under load: each message arrives exactly once."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.archives import bodies, rows
from support.pipeline_kills import KINDS, QUEUE, Job, Load, check, finish, kill_again_and_again, new_server
from support.spark_queues import SHORT_LIVED_JVM

from qs_client import QueueClient
from qs_pipeline.errors import NoJavaError
from qs_pipeline.interpreters import find_java

SEED = int(os.environ.get("QS_PIPELINE_KILL_SEED", "20251121"))
COMMON = [
    "--master",
    "local[2]",
    "--conf",
    "spark.driver.memory=1g",
    "--conf",
    f"spark.driver.extraJavaOptions={SHORT_LIVED_JVM}",
]
FOREVER = ["--continuous", "--every", "0.05", "--batch", "40"]


@pytest.fixture(autouse=True, scope="module")
def _java() -> None:
    try:
        find_java()
    except NoJavaError as error:
        pytest.skip(f"NO KILLS OF THE PIPELINE ARE TESTED: {error}")


def kill_archive(tmp_path: Path, kinds: Sequence[str], seed: int) -> int:
    """Returns how many messages there were."""
    print(f"seed {seed}; repeat with QS_PIPELINE_KILL_SEED={seed}")
    log, to = tmp_path / "job.log", tmp_path / "archive"
    server = new_server(tmp_path / "root", QUEUE)
    try:
        load = Load(server)
        arguments = ["archive", QUEUE, "--to", str(to), "--server", f"{server.host}:{server.port}", *COMMON]
        try:
            kill_again_and_again(lambda: Job([*arguments, *FOREVER], log), server, kinds, random.Random(seed))
        finally:
            load.stop()
        with QueueClient(server.host, server.port) as client:
            finish(arguments, client, log)
            assert client.list_claims(QUEUE) == []
    finally:
        server.kill()
    check(load, bodies(to))
    assert load.taken
    assert "Traceback" not in server.log(), server.log()
    return len(load.pushed)


def kill_route(tmp_path: Path, kinds: Sequence[str], seed: int) -> int:
    """Kills a route to two queues: every third message is one of those for errors. Returns how many messages there
    were."""
    print(f"seed {seed}; repeat with QS_PIPELINE_KILL_SEED={seed}")
    log, sql = tmp_path / "job.log", tmp_path / "query.sql"
    sql.write_text("SELECT mid, IF(body LIKE '%3%', NULL, body) AS body FROM messages")
    server = new_server(tmp_path / "root", QUEUE, "good", "bad")
    try:
        load = Load(server)
        arguments = ["route", QUEUE, "--sql", str(sql), "--to", "good", "--errors", "bad"]
        arguments += ["--state", str(tmp_path / "state"), "--server", f"{server.host}:{server.port}", *COMMON]
        try:
            kill_again_and_again(lambda: Job([*arguments, *FOREVER], log), server, kinds, random.Random(seed))
        finally:
            load.stop()
        with QueueClient(server.host, server.port) as client:
            finish(arguments, client, log)
            arrived = {queue: _drained(client, queue) for queue in ("good", "bad")}
    finally:
        server.kill()
    assert {b"3" in body for body in arrived["good"]} <= {False}
    assert {b"3" in body for body in arrived["bad"]} == {True}
    check(load, arrived["good"] + arrived["bad"])
    assert "Traceback" not in server.log(), server.log()
    return len(load.pushed)


def _drained(client: QueueClient, queue: str) -> list[bytes]:
    found: list[bytes] = []
    while messages := client.receive(queue, max=1000, visibility=600):
        found += [message.payload for message in messages]
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_kills_of_a_route(tmp_path: Path) -> None:
    """A route survives a kill of the server, and of everything. Takes 55 s: three starts."""
    assert kill_route(tmp_path, ["server", "server+jvm+driver"], SEED) > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ctrl_c(tmp_path: Path) -> None:
    """The batch at hand is finished, and nothing is half done; the code says how it ended. Takes 17 s."""
    server = new_server(tmp_path / "root", QUEUE)
    try:
        with QueueClient(server.host, server.port) as client:
            mids = client.push_many(QUEUE, [b"%d" % number for number in range(100)])
            arguments = ["archive", QUEUE, "--to", str(tmp_path / "a"), "--server", f"{server.host}:{server.port}"]
            job = Job([*arguments, *COMMON, "--batch", "40", "--continuous", "--every", "5"], tmp_path / "job.log")
            job.wait_for_batches(1)
            assert job.interrupt() == 130, job.log()
            assert "stopping after this batch" in job.log()
            found = [row["mid"] for row in rows(tmp_path / "a")]
            assert found == mids[: len(found)]
            assert len(found) in (40, 80, 100)
            claimed = sum(claim.count for claim in client.list_claims(QUEUE))
            assert claimed in (
                0,
                min(40, 100 - len(found)),
            )  # a batch may have begun at that moment: the next run does it
    finally:
        server.kill()


def _many(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [rng.choice(KINDS) for _ in range(30)]


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_many_kills_of_an_archive(tmp_path: Path) -> None:
    """Thirty. Takes five minutes."""
    print(kill_archive(tmp_path, _many(SEED), SEED), "messages")


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_many_kills_of_a_route(tmp_path: Path) -> None:
    """Thirty. Takes five minutes."""
    print(kill_route(tmp_path, _many(SEED + 1), SEED + 1), "messages")
