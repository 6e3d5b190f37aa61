"""A job of the pipeline under kill -9: what is pushed to its queue, who else takes from it, and what is killed when."""

import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from qs_client import Draft, QueueClient, ServerError, ServerUnavailable
from support.serving import FAST, ServerProcess

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
        """kill -9. Whatever was not killed has to end by itself."""
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
        """Its stderr."""
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
    """pushed = arrived + what the competitor took; nothing lost, nothing twice."""
    assert len(arrived) == len(set(arrived)), "a message arrived twice"
    assert len(load.taken) == len(set(load.taken))
    assert set(arrived) & set(load.taken) == set(), "a message arrived, and the competitor has it too"
    assert set(arrived) <= set(load.pushed)
    lost = set(load.pushed) - set(arrived) - set(load.taken)
    assert lost <= load.maybe, f"{len(lost - load.maybe)} of {len(load.pushed)} messages are lost"


def new_server(root: Path, *queues: str) -> ServerProcess:
    """A server with these queues."""
    server = ServerProcess(root, *FAST)
    with QueueClient(server.host, server.port) as client:
        for queue in queues:
            client.new_queue(queue)
    return server
