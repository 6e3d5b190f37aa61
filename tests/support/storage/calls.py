"""Short calls of an engine's methods, claims among them, and assertions about them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from qs_storage.engine import SECOND, Claim, Engine, Feature, Message, State
from support.storage.engines import LOTS, Bench, arrived

WINDOW = 5 * SECOND
"""The window, in microseconds, with which `fail` receives messages."""


def receive(bench: Bench, *qids: str, count: int = 1000, visibility: int | None = None) -> list[Message]:
    return bench.engine.receive(qids or ["q"], count, visibility, LOTS)


def mids(messages: list[Message]) -> list[int]:
    return [message.mid for message in messages]


def listed(bench: Bench, state: State = State.ALL, qid: str = "q") -> list[int]:
    return bench.engine.queue(qid).list_mids(state, 10_000, -1)


def count(bench: Bench, qid: str = "q") -> int:
    """Returns how many messages the queue holds, in any state."""
    stats = bench.engine.queue(qid).stats()
    return stats.ready + stats.in_flight + stats.delayed


def next_due(engine: Engine) -> int | None:
    """Returns when the next message of the engine is due, None for never. Checks that the engine wants to be called by
    then: it may name an earlier time, that of a window that has ended early."""
    said = engine.effects().next_expiry
    queues: Any = [engine.queue(qid) for qid in engine.queues()]
    if not all(hasattr(queue, "next_expiry") for queue in queues):
        return said
    due = min((due for queue in queues if (due := queue.next_expiry()) is not None), default=None)
    assert due is None or (said is not None and said <= due)
    return due


def assert_due(bench: Bench, when: int) -> None:
    """Checks that the engine expects the next message to become visible at that time, if it tells such times."""
    if Feature.TELLS not in bench.engine.cannot:
        assert next_due(bench.engine) == when


def assert_arrived(bench: Bench, arrivals: dict[str, int] | None = None) -> None:
    """Asserts that these messages (None: any) have become visible since the last call, if the engine tells arrivals."""
    if Feature.TELLS not in bench.engine.cannot:
        found = arrived(bench.engine)
        assert arrivals is None or found == arrivals


def states(bench: Bench) -> dict[str, list[int]]:
    return {state.value: listed(bench, state) for state in State}


def hold(bench: Bench, *qids: str, count: int = 1000, visibility: int | None = None) -> list[Message]:
    return bench.engine.receive(qids or ["q"], count, visibility, LOTS, held=True)


def fail(bench: Bench, qid: str = "q", times: int = 2) -> None:
    """Receives all messages of the queue, and lets their windows end, `times` times."""
    for _ in range(times):
        bench.engine.receive([qid], 10, WINDOW, LOTS)
        bench.engine.commit()
        bench.clock.now += WINDOW
        bench.engine.expire(1000)
        bench.engine.commit()


def configure(bench: Bench, qid: str = "q", **changes: Any) -> None:
    bench.engine.configure(qid, replace(bench.engine.queue(qid).options, **changes))


def claim(
    engine: Engine,
    seq: int = 1,
    consumer: str = "c",
    *,
    count: int = 10**6,
    max_bytes: int | None = None,
    upto: int | None = None,
) -> Claim:
    """Claims and commits, as the server does."""
    claims = engine.queue("q").claims
    found = claims.claim(consumer, seq, count, max_bytes, upto)
    engine.commit()
    return found


def acknowledge(engine: Engine, seq: int, consumer: str = "c") -> None:
    engine.queue("q").claims.acknowledge(consumer, seq)
    engine.commit()


def release(engine: Engine, seq: int, consumer: str = "c") -> int:
    count = engine.queue("q").claims.release(consumer, seq)
    engine.commit()
    return count


def part(engine: Engine, seq: int = 1, consumer: str = "c", of: tuple[int, int] = (0, 1)) -> list[Message]:
    found = engine.queue("q").claims.part(consumer, seq, of, 1000, LOTS)
    assert found is not None
    return found


def payloads(found: Sequence[Message]) -> list[bytes]:
    return [message.payload or b"" for message in found]


def receive_and_commit(engine: Engine, count: int = 1000, window: int = 30 * SECOND) -> list[Message]:
    found = engine.receive(["q"], count, window, LOTS)
    engine.commit()
    return found


def crash(bench: Bench) -> Engine:
    """Opens the engine of a new process on the disk of the first engine, which is not used any more."""
    if hasattr(bench.engine, "_journal"):
        bench.engine._watch.close()  # type: ignore[attr-defined]
        bench.engine._journal.close()
    else:
        bench.abandoned.append(bench.engine)
    bench.engine = bench.make(bench.clock)
    return bench.engine


REOPENED: dict[str, Callable[[Bench], Engine]] = {"stop": lambda bench: bench.reopen(), "crash": crash}
