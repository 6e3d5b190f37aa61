"""Tests how an acceptor takes clients, and stops."""

from typing import Any

import trio

from qs_serving.acceptor import Acceptor
from qs_serving.options import ServerLimits


async def test_a_stop_before_it_accepts() -> None:
    """A signal that comes before the first client can be taken still ends it."""
    server = Acceptor[Any](Any, ServerLimits())
    server.stop()
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    with trio.fail_after(10):
        await server.accept([listener])
