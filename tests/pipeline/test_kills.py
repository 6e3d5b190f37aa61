"""`kill -9` of the JVM, the driver, the server, and of several at once, under load: each message arrives exactly
once."""

import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.servers.processes import FAST, ServerProcess
from support.spark.queues import SHORT_LIVED_JVM, bodies, rows
from support.storage.postgres import Database, needs_postgres

from qs_client import Draft, QueueClient, ServerError, ServerUnavailable
from qs_pipeline.errors import NoJavaError
from qs_pipeline.interpreters import find_java

QUEUE = "q"
ENDS_WITHIN = 90
BATCH_WITHIN = 240
"""Seconds. A Spark that starts on a busy machine, and its first batch, take minutes."""

KINDS = ("jvm", "driver", "server", "server+jvm", "server+driver", "jvm+driver", "server+jvm+driver")


class Job:
    """`qs-pipeline` as a child that goes on until it is killed; counts the batches that it tells of."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        self._told = threading.Condition()
        self._batches = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qs_pipeline.command", "-v", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.ended = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self._log.open("a", buffering=1) as log, self.process.stderr:
            for line in self.process.stderr:
                log.write(line)
                if line.startswith(f"{QUEUE}: batch "):
                    with self._told:
                        self._batches += 1
                        self._told.notify_all()
        self.ended.set()
        with self._told:
            self._told.notify_all()

    def wait_for_batches(self, count: int) -> None:
        """Waits until it has reported so many more batches."""
        with self._told:
            wanted = self._batches + count
            came = self._told.wait_for(lambda: self._batches >= wanted or self.ended.is_set(), BATCH_WITHIN)
        assert came, f"no batch within {BATCH_WITHIN} s:\n{self.log()}"
        assert not self.ended.is_set(), f"it ended by itself:\n{self.log()}"

    def jvms(self) -> list[int]:
        """The JVM that it has started, if it has."""
        found: list[int] = []
        for children in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            found += [int(pid) for pid in children.read_text().split()]
        return found

    def interrupt(self) -> int:
        """Ctrl-C. The exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(ENDS_WITHIN)
        self._reader.join(ENDS_WITHIN)
        return code

    def kill(self, *, jvm: bool, driver: bool) -> None:
        """Kills processes with SIGKILL. The others have to end by themselves."""
        jvms = self.jvms()
        watched = [os.pidfd_open(pid) for pid in jvms]
        if jvm:
            for pid in jvms:
                os.kill(pid, signal.SIGKILL)
        if driver:
            self.process.kill()
        self.process.wait(ENDS_WITHIN)
        for handle in watched:
            assert select.select([handle], [], [], ENDS_WITHIN)[0], "the JVM outlives its driver"
            os.close(handle)
        self._reader.join(ENDS_WITHIN)
        assert self.ended.is_set()

    def log(self) -> str:
        """Returns the stderr of the process."""
        return self._log.read_text()


class Load:
    """A producer, and a consumer that competes with the job for the messages of the queue.

    pushed: every payload that was answered, which in the end is every one that was sent; taken: what the competitor has
    deleted for sure; maybe: what it has asked to delete when the server was killed.
    """

    def __init__(self, server: ServerProcess, *, compete: bool = True) -> None:
        self._server = server
        self._stopping = threading.Event()
        self.pushed: list[bytes] = []
        self.taken: list[bytes] = []
        self.maybe: set[bytes] = set()
        self.trouble: list[str] = []
        clients = [self._produce, self._compete] if compete else [self._produce]
        self._threads = [threading.Thread(target=self._run, args=(client,)) for client in clients]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert self.trouble == []

    def _run(self, client: Callable[[QueueClient], None]) -> None:
        try:
            with QueueClient(self._server.host, self._server.port, timeout=20) as connection:
                client(connection)
        except Exception as error:
            self.trouble.append(repr(error))

    def _produce(self, client: QueueClient) -> None:
        number = 0
        while not self._stopping.wait(0.02):
            payloads = [b"<m>%d</m>" % (number + step) for step in range(5)]
            drafts = [Draft(payload, key=payload.decode()) for payload in payloads]
            while True:  # a push with a key is stored once, however often it is sent
                try:
                    client.push_many(QUEUE, drafts)
                    break
                except ServerUnavailable:
                    self._stopping.wait(0.05)
            self.pushed += payloads
            number += 5

    def _compete(self, client: QueueClient) -> None:
        while not self._stopping.wait(0.2):
            try:
                found = client.receive(QUEUE, max=3, visibility=2)
            except ServerUnavailable:
                continue
            for delivery in found:
                try:
                    client.delete(delivery)
                    self.taken.append(delivery.payload)
                except ServerUnavailable:
                    self.maybe.add(delivery.payload)
                except ServerError:  # it took too long, and is somebody else's again
                    pass


def kill_again_and_again(
    start: Callable[[], Job], server: ServerProcess, kinds: Sequence[str], rng: random.Random
) -> None:
    """Starts the job, and kills what each of the kinds names, some random time after some batch; what was killed is
    started again for the next."""
    job: Job | None = None
    try:
        for kind in kinds:
            if job is None:
                job = start()
            job.wait_for_batches(rng.randint(1, 3))
            job.ended.wait(rng.uniform(0, 0.3))
            if "server" in kind:
                server.kill()
            if "jvm" in kind or "driver" in kind:
                job.kill(jvm="jvm" in kind, driver="driver" in kind)
                job = None
            if "server" in kind:
                server.start()
    finally:
        if job is not None:
            job.kill(jvm=True, driver=True)


def finish(arguments: Sequence[str], client: QueueClient, log: Path) -> None:
    """Runs the job for what is left, until nothing is: leases of a consumer that was cut off have to run out first."""
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-m", "qs_pipeline.command", *arguments],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{log.read_text()[-4000:]}"
        assert done.stderr == ""  # nothing of Spark's
        if not list(client.list_messages(QUEUE, state="all")):
            return
    raise AssertionError(f"messages are left: {client.stats(QUEUE)}, {client.list_claims(QUEUE)}")


def check(load: Load, arrived: list[bytes]) -> None:
    """Checks that the arrived messages and those of the competitor are the pushed ones, each once."""
    assert len(arrived) == len(set(arrived)), "a message arrived twice"
    assert len(load.taken) == len(set(load.taken))
    assert set(arrived) & set(load.taken) == set(), "a message arrived, and the competitor has it too"
    assert set(arrived) <= set(load.pushed)
    lost = set(load.pushed) - set(arrived) - set(load.taken)
    assert lost <= load.maybe, f"{len(lost - load.maybe)} of {len(load.pushed)} messages are lost"


def new_server(root: Path, *queues: str, flags: Sequence[str] = FAST) -> ServerProcess:
    """A server with these queues."""
    server = ServerProcess(root, *flags)
    with QueueClient(server.host, server.port) as client:
        for queue in queues:
            client.new_queue(queue)
    return server


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


def kill_route(tmp_path: Path, kinds: Sequence[str], seed: int, flags: Sequence[str] = FAST) -> int:
    """Kills a route to two queues: every third message is one of those for errors. flags: of the server. Returns how
    many messages there were."""
    print(f"seed {seed}; repeat with QS_PIPELINE_KILL_SEED={seed}")
    log, sql = tmp_path / "job.log", tmp_path / "query.sql"
    sql.write_text("SELECT mid, IF(body LIKE '%3%', NULL, body) AS body FROM messages")
    server = new_server(tmp_path / "root", QUEUE, "good", "bad", flags=flags)
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
@needs_postgres
def test_kills_of_a_route_over_postgres(database: Database, tmp_path: Path) -> None:
    """Kills of server, driver and JVM leave each message once in the target queue, over PostgreSQL. Takes 80 s."""
    flags = "--postgres", database.dsn, "--storage", "postgres"
    assert kill_route(tmp_path, ["server", "driver", "server+jvm+driver"], SEED, flags) > 0


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
