"""Tests how an acceptor takes clients, and stops."""

import errno
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from support.clients.documents import PING, code
from support.servers.memory import MemoryHub, serving

from qs_serving.acceptor import Acceptor
from qs_serving.options import ServerLimits


async def test_a_stop_before_it_accepts() -> None:
    """A signal that comes before the first client can be taken still ends it."""
    server = Acceptor[Any](Any, ServerLimits())
    server.stop()
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    with trio.fail_after(10):
        await server.accept([listener])


async def test_fault_while_a_connection_begins_ends_it_alone(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that the kernel cannot watch is disconnected; those before it and after it are served."""
    async with serving(tmp_path / "root") as running:
        first = running.connect()
        await first.ask(PING)
        watch, failures = MemoryHub.watch, [OSError(errno.ENOSPC, "no more watches")]

        def fail_once(hub: MemoryHub, reader: Any) -> None:
            if failures:
                raise failures.pop()
            watch(hub, reader)

        monkeypatch.setattr(MemoryHub, "watch", fail_once)
        assert await running.connect().rest() == []
        assert code(await first.ask(PING)) == code(await running.connect().ask(PING)) == 0
