"""Claims as the server makes them, each call with its commit, for tests of engines; and engines over what one left."""

from collections.abc import Callable, Sequence

from qs_storage.engine import SECOND, Claim, Engine, Message
from support.engines import LOTS, Bench


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


def receive(engine: Engine, count: int = 1000, window: int = 30 * SECOND) -> list[Message]:
    found = engine.receive(["q"], count, window, LOTS)
    engine.commit()
    return found


def crash(bench: Bench) -> Engine:
    """Opens another process's engine on the disk of the first, which is not used any more."""
    bench.engine._watch.close()  # type: ignore[attr-defined]
    bench.engine._journal.close()  # type: ignore[attr-defined]
    bench.engine = bench.make(bench.clock)
    return bench.engine


REOPENED: dict[str, Callable[[Bench], Engine]] = {"stop": lambda bench: bench.reopen(), "crash": crash}
