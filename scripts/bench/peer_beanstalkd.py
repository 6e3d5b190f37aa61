"""beanstalkd with greenstalk, and with raw sockets."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import Exchange, Pushes, Script
from peer import Peer, Running, Target
from processes import beanstalkd

_LARGEST = 70_000
"""Bytes of the largest message. Without this flag beanstalkd takes 65,535."""
_ID = re.compile(rb"RESERVED (\d+) ")


class BeanstalkdClient:
    """A client of greenstalk, which sends one message a call."""

    def __init__(self, target: Target) -> None:
        import greenstalk  # noqa: PLC0415 - the server can be driven without it

        self._client = greenstalk.Client(("127.0.0.1", target["port"]), encoding=None)
        self._timed_out = greenstalk.TimedOutError

    async def push(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._client.put(payload)

    async def receive(self, count: int) -> list[Any]:
        try:
            return [self._client.reserve(timeout=1)]
        except self._timed_out:
            return []

    async def delete(self, received: Sequence[Any]) -> None:
        for job in received:
            self._client.delete(job)

    async def close(self) -> None:
        self._client.close()


async def connect(target: Target) -> BeanstalkdClient:
    return BeanstalkdClient(target)


def _put(size: int) -> bytes:
    return b"put 65536 0 60 %d\r\n%s\r\n" % (size, b"x" * size)


class _Cycle:
    worth = 1

    def __init__(self, size: int) -> None:
        self._put = _put(size)

    def round(self) -> Iterator[Exchange]:
        yield self._put, 1
        answer = yield b"reserve-with-timeout 1\r\n", 2  # type: ignore[misc]
        found = _ID.search(answer)
        if found is None:
            raise RuntimeError(f"no message in {answer!r}")
        yield b"delete %s\r\n" % found[1], 1


def script(target: Target, work: str, size: int, batch: int) -> Script:
    """Returns the requests of a raw connection, by the work. A batch is that many commands sent together."""
    return _Cycle(size) if work == "cycle" else Pushes(_put(size) * batch, batch, batch)


@dataclass(frozen=True)
class Beanstalkd(Peer):
    """A beanstalkd server. flags: the server's flags."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        flags = ("-F",) if filling else self.flags
        with beanstalkd(folder, "-z", str(_LARGEST), *flags) as program:
            yield Running({"module": "peer_beanstalkd", "port": program.port}, program.pid)


def peers() -> list[Peer]:
    """Returns two peers: one as durable as possible, one with the settings of the package."""
    missing = "" if shutil.which("beanstalkd") else "apt-get install beanstalkd"
    common: dict[str, Any] = {"batches": False, "fills_apart": True, "fills_raw": True, "missing": missing}
    common |= {"client": "greenstalk", "versions": ("beanstalkd", "greenstalk")}
    always: dict[str, Any] = {"flags": ("-f", "0")}
    return [
        Beanstalkd("beanstalkd", "beanstalkd -f 0", "always", "what was answered", **common, **always),
        Beanstalkd(
            "beanstalkd-raw", "beanstalkd -f 0, raw sockets", "always", "what was answered",
            **{**common, **always, "client": "raw sockets", "raw": True, "batches": True, "deep": False},
        ),
        Beanstalkd("beanstalkd-default", "beanstalkd", "interval", "all but the last 50 ms", **common),
    ]  # fmt: skip
