"""A queue server over a real memcached and moto's SQS. Faults can be put in front of both."""

import contextlib
import queue
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qs_testing.programs import until
from support.clients.documents import new_queue, request
from support.servers.processes import FAST, ServerProcess, Wire, serving
from support.storage.memcached import Memcached
from support.storage.sqs import FaultySqs, SqsServer, give_credentials

STORAGES = ["memcached", "sqs"]
LONG = 20
"""Seconds: only a failure waits that long."""


class Elsewhere:
    """The other servers, and how to start a queue server that uses them."""

    def __init__(self, memcached: Memcached, log: Path, sqs: FaultySqs) -> None:
        """log: memcached's log."""
        self.memcached = memcached
        self._log = log
        self.sqs = sqs
        self._polls: queue.SimpleQueue[None] = queue.SimpleQueue()
        sqs.before = self._seen
        self.begin()

    def begin(self) -> None:
        """Gives names of their own at SQS to the servers that are started from now on."""
        self.prefix = f"{uuid.uuid4().hex[:8]}-"

    def _seen(self, operation: str, parameters: dict[str, Any]) -> None:
        if operation == "ReceiveMessage" and parameters.get("WaitTimeSeconds"):
            self._polls.put(None)

    @property
    def flags(self) -> tuple[str, ...]:
        host, port = self.memcached.address
        return "--memcached", f"{host}:{port}", "--sqs-endpoint", self.sqs.url, "--sqs-prefix", self.prefix

    def serving(self, root: Path, *flags: str, port: int = 0) -> contextlib.AbstractContextManager[ServerProcess]:
        return serving(root, *FAST, *self.flags, *flags, port=port)

    @contextlib.contextmanager
    def waited_at(self, storage: str, times: int = 1) -> Iterator[None]:
        """Waits, at the end of the block, until the queue server has waited for messages of that storage `times` times
        more than before."""
        if storage == "memcached":
            before = self._gets()
            yield
            until(lambda: self._gets() >= before + times, self._log.parent)
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self._polls.get_nowait()
        yield
        for _ in range(times):
            self._polls.get(timeout=LONG)

    def _gets(self) -> int:
        """Returns how many keys memcached was asked for: a receive looks before it waits."""
        return sum(
            len(keys.split())
            for keys in re.findall(r"^<\d+ gets? (.*)$", self._log.read_text("utf-8", "replace"), re.M)
        )


@contextlib.contextmanager
def elsewhere_serving(moto: SqsServer) -> Iterator[Elsewhere]:
    """Runs memcached, and a proxy with faults before moto, for the length of a with block, with credentials for the
    servers that are started in the block."""
    with (
        pytest.MonkeyPatch.context() as environment,
        tempfile.TemporaryDirectory() as folder,
        Memcached(log=Path(folder, "log")) as memcached,
    ):
        give_credentials(environment)
        proxy = FaultySqs(moto)
        try:
            yield Elsewhere(memcached, Path(folder, "log"), proxy)
        finally:
            proxy.close()


def made(wire: Wire, qid: str, storage: str, **options: int | float) -> str:
    """Makes a new queue of that storage, and returns its name."""
    written = "".join(f' {name}="{value}"' for name, value in options.items())
    answer = wire.ask(new_queue(qid, f'<options storage="{storage}"{written}/>'))
    assert f"<qid>{qid}</qid>" in answer, answer
    return qid


def attributes(line: str, qid: str) -> dict[str, str]:
    """Returns the attributes of a queue in an answer with figures."""
    found = re.search(rf"<queue ([^>]*)>{re.escape(qid)}</queue>", line)
    assert found is not None, line
    return dict(re.findall(r'([\w-]+)="([^"]*)"', found[1]))


def stats(wire: Wire, qid: str) -> dict[str, str]:
    """Returns the figures of a queue."""
    return attributes(wire.ask(request("queue-stats", f"<qid>{qid}</qid>")), qid)
