"""Calls of a memcached engine, as the tests of it make them."""

from collections.abc import Callable

from qs_storage.engine import Draft, Receipt, State
from qs_storage.remote.memcached import MemcachedEngine
from support.engines import LOTS
from support.memcached_serving import Memcached

LONG = 20
"""Seconds: only a failure waits that long."""
MakeEngine = Callable[..., MemcachedEngine]


def push_numbers(engine: MemcachedEngine, count: int, *, delay: int = 0, at_once: int = 100) -> list[int]:
    mids: list[int] = []
    for start in range(0, count, at_once):
        numbers = range(start, min(start + at_once, count))
        mids += engine.queue("q").push([Draft(b"%d" % number, delay) for number in numbers])
    return mids


def drain(engine: MemcachedEngine, count: int = 1000) -> list[int]:
    """Receives and deletes everything; the ids in their order."""
    found = []
    while messages := engine.receive(["q"], count, None, LOTS):
        for message in messages:
            engine.queue("q").delete(Receipt(message.mid, message.receives))
            found.append(message.mid)
    return found


def listed(engine: MemcachedEngine, state: State = State.ALL) -> list[int]:
    return engine.queue("q").list_mids(state, 1_000_000, -1)


def items(memcached: Memcached) -> int:
    lines = memcached.command("stats").decode().split("\r\n")
    return next(int(line.split()[2]) for line in lines if line.startswith("STAT curr_items "))


def push(engine: MemcachedEngine, *payloads: bytes) -> list[int]:
    return engine.queue("q").push([Draft(payload) for payload in payloads])


def receive(engine: MemcachedEngine, count: int = 1000) -> list[bytes | None]:
    return [message.payload for message in engine.receive(["q"], count, None, LOTS)]
