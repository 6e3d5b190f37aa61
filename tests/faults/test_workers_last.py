"""README's worker, started once, over many restarts of the server."""

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.serving import WITH_SUPPORT, ServerProcess

from qs_client import QueueClient

JOBS = 300
RESTARTS = 50
WINDOW = 0.4  # seconds; a job takes up to three of them
TRIES = 20  # a bad job takes them at once; a good one only loses its connection
WORKERS = 3
LEFT = ("ready", "in_flight", "delayed")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sync", "asyncio", "trio"])
def test_worker_survives_fifty_restarts(tmp_path: Path, kind: str) -> None:
    """Every job is done, or among the dead letters if it is bad, over fifty restarts of the server at random moments,
    half of them kill -9, beside jobs of up to three windows; no worker ends or says anything but outages, and no job
    is done more often than the restarts allow. 90 s each."""
    rng = random.Random(f"workers {kind}")
    server = ServerProcess(tmp_path / "root")
    client = QueueClient(server.host, server.port)
    client.new_queue("jobs", visibility=WINDOW, dead_letter="failed", max_receives=TRIES)
    done = tmp_path / "done"
    command = [sys.executable, "-m", "support.lasting_worker", kind, f"{server.host}:{server.port}", "jobs", str(done)]
    workers = []
    for number in range(WORKERS):
        with (tmp_path / f"worker-{number}.log").open("wb") as log:
            workers.append(subprocess.Popen(command, env=WITH_SUPPORT, stderr=log))
    try:
        while (client.stats("jobs")[0].subscribers or 0) < WORKERS * (1 if kind == "sync" else 4):
            pass  # each round is a request; the test's time-out ends it
        for restart in range(RESTARTS):
            for number in range(restart * JOBS // RESTARTS, (restart + 1) * JOBS // RESTARTS):
                client.push("jobs", f"{number} {rng.uniform(0, 3 * WINDOW):.3f}", key=f"job-{number}")
            time.sleep(rng.uniform(0, 1))  # the moment of a restart
            if rng.random() < 0.5:
                server.kill()
            else:
                assert server.stop() == 0
            server.start()
        server.until(lambda: not any(getattr(client.stats("jobs")[0], name) for name in LEFT), within=120)
        dead = {client.peek("failed", mid).text.split()[0] for mid in client.list_messages("failed")}
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait(60) for worker in workers]
        server.stop()
    assert codes == [0] * WORKERS
    counts = Counter(done.read_text().split())
    bad = {str(number) for number in range(7, JOBS, 10)}
    assert bad <= dead
    assert set(counts) | dead == {str(number) for number in range(JOBS)}
    assert not bad & set(counts)
    twice = sum(counts.values()) - len(counts)
    print(f"{kind}: {JOBS} jobs, {RESTARTS} restarts, {twice} done again, {len(dead - bad)} good ones given up")
    assert twice <= RESTARTS * WORKERS * (1 if kind == "sync" else 4)
    for number in range(WORKERS):
        text = (tmp_path / f"worker-{number}.log").read_text()
        assert "Traceback" not in text, text
