"""README's worker and `qs work`, started once, over many restarts of the server and kills of their processes."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.servers.processes import WITH_SUPPORT, ServerProcess

from qs_client import GetMessage, QueueClient

WINDOW = 0.4  # seconds; a job takes up to three of them
TRIES = 20  # a bad job takes them all; a good one only loses its connection
BACKOFF, BACKOFF_MAX = 0.05, 0.2  # seconds: all tries of a bad job take some 4 s
WORKERS = 3
AT_ONCE = {"asyncio": 4, "trio": 4}  # jobs that a worker does at a time; otherwise one
LEFT = ("ready", "in_flight", "delayed")
QS = [sys.executable, "-c", "import sys; from qs_client.command import main; sys.exit(main())"]


class Workers:
    """The processes that do the jobs: WORKERS of README's, or one `qs work` with as many of its own."""

    def __init__(self, kind: str, server: ServerProcess, folder: Path) -> None:
        place = f"{server.host}:{server.port}"
        self.done = folder / "done"
        self._folder = folder
        command = [sys.executable, "-m", "support.clients.lasting_worker", kind, place, "jobs", str(self.done)]
        count = WORKERS
        if kind == "qs work":
            command = [
                *QS,
                "work",
                "jobs",
                "support.clients.lasting_worker:do",
                "-s",
                place,
                "--processes",
                str(WORKERS),
            ]
            count = 1
        environ = {**WITH_SUPPORT, "DONE": str(self.done)}
        self._started = []
        for number in range(count):
            with (folder / f"worker-{number}.log").open("wb") as log:
                self._started.append(subprocess.Popen(command, env=environ, stderr=log))

    def kill_one(self, rng: random.Random) -> None:
        """`kill -9` of one of the processes of `qs work`."""
        [parent] = self._started
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        if children:  # otherwise those that were killed before are about to be replaced
            os.kill(int(rng.choice(children)), signal.SIGKILL)

    def stop(self) -> list[int]:
        for worker in self._started:
            worker.terminate()
        return [worker.wait(60) for worker in self._started]

    def said(self) -> str:
        return "".join((self._folder / f"worker-{number}.log").read_text() for number in range(len(self._started)))


def survive(folder: Path, kind: str, jobs: int, restarts: int, *, kills: bool = False) -> None:
    """Asserts that each job is done or among the dead letters. kills: a process of the workers is killed before each
    restart of the server, at a random moment, too."""
    rng = random.Random(f"workers {kind}")
    server = ServerProcess(folder / "root")
    client = QueueClient(server.host, server.port)
    client.new_queue(
        "jobs",
        visibility=WINDOW,
        dead_letter="failed",
        max_receives=TRIES,
        backoff=BACKOFF,
        backoff_max=BACKOFF_MAX,
    )
    workers = Workers(kind, server, folder)
    try:
        while (client.stats("jobs")[0].subscribers or 0) < WORKERS * AT_ONCE.get(kind, 1):
            pass  # each round is a request; the test's time-out ends it
        for restart in range(restarts):
            for number in range(restart * jobs // restarts, (restart + 1) * jobs // restarts):
                client.push("jobs", f"{number} {rng.uniform(0, 3 * WINDOW):.3f}", key=f"job-{number}")
            time.sleep(rng.uniform(0, 1))  # the moment of a kill
            if kills:
                workers.kill_one(rng)
                time.sleep(rng.uniform(0, 1))  # the moment of a restart
            if rng.random() < 0.5:
                server.kill()
            else:
                assert server.stop() == 0
            server.start()
        server.until(lambda: not _left(client), within=120)
        letters = {letter.text.split()[0]: letter for letter in _letters(client)}
    finally:
        codes = workers.stop()
        server.stop()
    assert set(codes) == {0}, workers.said()
    counts = Counter(workers.done.read_text().split())
    bad = {str(number) for number in range(7, jobs, 10)}
    assert {number: letters[number].reason for number in bad} == {
        number: f"ValueError: job {number} is bad" for number in bad
    }
    assert counts.keys() | letters.keys() == {str(number) for number in range(jobs)}
    assert not bad & counts.keys()
    twice = sum(counts.values()) - len(counts)
    print(
        f"{kind}: {jobs} jobs, {restarts} restarts, {twice} done again, {len(letters.keys() - bad)} good ones given up"
    )
    assert twice <= restarts * (WORKERS * AT_ONCE.get(kind, 1) + kills)
    assert "Traceback" not in workers.said(), workers.said()


def _left(client: QueueClient) -> int:
    """Returns how many jobs are left, by one request: between two, a message may go from one state to another."""
    [info] = client.stats("jobs")
    return sum(getattr(info, name) for name in LEFT)


def _letters(client: QueueClient) -> list[GetMessage]:
    return [client.peek("failed", mid) for mid in client.list_messages("failed")]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sync", "asyncio", "trio"])
def test_worker_survives_fifty_restarts(tmp_path: Path, kind: str) -> None:
    """Every job is done, or among the dead letters with its reason if it is bad, over fifty restarts of the server at
    random moments, half of them kill -9, beside jobs of up to three windows; no worker ends or says anything but
    outages, and no job is done more often than the restarts allow. 90 s each."""
    survive(tmp_path, kind, 300, 50)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_qs_work_survives_fifty_restarts_and_kills(tmp_path: Path) -> None:
    """`qs work` does every job over fifty restarts, before each of which one of its processes is killed. 2 minutes."""
    survive(tmp_path, "qs work", 300, 50, kills=True)


@pytest.mark.slow  # 10 s
def test_qs_work_survives_restarts_and_kills(tmp_path: Path) -> None:
    """`qs work` does every job over three restarts, before each of which one of its processes is killed."""
    survive(tmp_path, "qs work", 18, 3, kills=True)
