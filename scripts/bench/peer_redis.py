"""Redis Streams with redis-py, and with raw sockets: one stream, one consumer group that all clients share."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import Client as Line
from peer import QUEUE, Exchange, Peer, Running, Script, Target
from raw_load import Pushes
from systems import redis_server

_GROUP = "group"
_ID = re.compile(rb"\r\n(\d+-\d+)\r\n")


class RedisClient:
    """XADD; XREADGROUP; XACK and XDEL in one round trip, as what is acknowledged would else stay. Lists: a pipeline."""

    def __init__(self, target: Target) -> None:
        import redis  # noqa: PLC0415 - the server can be driven without it

        self._client = redis.Redis(port=target["port"], protocol=2)
        self._client.ping()
        self._me = f"consumer-{os.getpid()}"

    async def push(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            self._client.xadd(QUEUE, {"payload": payloads[0]})
            return
        pipeline = self._client.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(QUEUE, {"payload": payload})
        pipeline.execute()

    async def receive(self, count: int) -> list[bytes]:
        found = self._client.xreadgroup(_GROUP, self._me, {QUEUE: ">"}, count=count, block=1000)
        return [entry for _, entries in found or () for entry, _ in entries]

    async def delete(self, received: Sequence[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xack(QUEUE, _GROUP, *received)
        pipeline.xdel(QUEUE, *received)
        pipeline.execute()

    async def close(self) -> None:
        self._client.close()


async def connect(target: Target) -> RedisClient:
    return RedisClient(target)


def _command(*words: bytes) -> bytes:
    """Encodes a command as the protocol has it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _add(size: int) -> bytes:
    return _command(b"XADD", QUEUE.encode(), b"*", b"payload", b"x" * size)


class _Cycle:
    worth = 1

    def __init__(self, size: int) -> None:
        self._add = _add(size)
        me = b"raw-%d" % os.getpid()
        words = (b"XREADGROUP", b"GROUP", _GROUP.encode(), me, b"COUNT", b"1", b"BLOCK", b"1000")
        self._read = _command(*words, b"STREAMS", QUEUE.encode(), b">")

    def round(self) -> Iterator[Exchange]:
        yield self._add, 2
        answer = yield self._read, 13  # type: ignore[misc]
        found = _ID.search(answer)
        if found is None:
            raise RuntimeError(f"no message in {answer!r}")
        name, group = QUEUE.encode(), _GROUP.encode()
        yield _command(b"XACK", name, group, found[1]) + _command(b"XDEL", name, found[1]), 2


def script(target: Target, work: str, size: int, batch: int) -> Script:
    """Returns the requests of a raw connection, by the work. A batch is that many commands sent together."""
    return _Cycle(size) if work == "cycle" else Pushes(_add(size) * batch, 2 * batch, batch)


@dataclass(frozen=True)
class Redis(Peer):
    """flags: of the server."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        with redis_server(folder, "--appendonly", "yes", "--save", "", *self.flags) as program:
            with Line(("127.0.0.1", program.port)) as line:
                line.lines(_command(b"XGROUP", b"CREATE", QUEUE.encode(), _GROUP.encode(), b"0", b"MKSTREAM"))
            yield Running({"module": "peer_redis", "port": program.port}, program.pid)


def peers() -> list[Peer]:
    """`appendfsync always`, and what is the default of a Redis with an append-only file."""
    missing = "" if shutil.which("redis-server") else "apt-get install redis-server"
    common: dict[str, Any] = {
        "client": "redis-py",
        "versions": ("redis-server", "redis", "hiredis"),
        "missing": missing,
    }
    always: dict[str, Any] = {"flags": ("--appendfsync", "always")}
    return [
        Redis("redis", "Redis Streams, appendfsync always", "always", "what was answered", **common, **always),
        Redis(
            "redis-raw", "Redis Streams, appendfsync always, raw sockets", "always", "what was answered",
            **{**common, **always, "client": "raw sockets", "raw": True, "deep": False},
        ),
        Redis(
            "redis-everysec", "Redis Streams, appendfsync everysec", "interval", "all but the last 1 to 2 s",
            flags=("--appendfsync", "everysec"), **common,
        ),
    ]  # fmt: skip
