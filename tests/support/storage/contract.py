"""The benches of the contract: one for each engine. A test that uses a feature which the engine says it lacks is
skipped."""

import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from qs_storage.engine import Effects, Engine, Feature, Message, UnsupportedError
from qs_storage.remote_engine import Receive, RemoteEngine
from qs_storage.vsqs import micros
from support.storage.engines import Bench, ManualClock
from support.storage.memcached import Memcached, engine_on
from support.storage.postgres import Database, finish
from support.storage.postgres import engine_on as postgres_engine_on
from support.storage.sqs import SqsServer, sqs_engine

NEEDED: dict[str, Feature] = {
    "batches": Feature.CLAIM,
    "claims": Feature.CLAIM,
    "copy": Feature.COPY,
    "get": Feature.GET,
    "list_mids": Feature.LIST,
    "read": Feature.GET,
    "expire": Feature.TELLS,
    "effects": Feature.TELLS,
}
"""Methods of an engine or a queue, and the feature to which each belongs."""


def needs(bench: Bench, *features: Feature) -> None:
    """Skips the test when the engine says that it lacks one of these features."""
    for feature in features:
        if feature in bench.engine.cannot:
            _skip(bench.engine, feature)


def _skip(engine: Engine, feature: Feature) -> None:
    pytest.skip(_lacking(engine.name, feature))


def _lacking(name: str, feature: Feature) -> str:
    return f"the storage {name!r} cannot: {feature.name} ({feature.value})"


class _Guarded:
    """An engine whose methods skip the test when they refuse a feature that the engine says it lacks. Another refusal
    stays an error, and so does a missing queue, which has to be reported first."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return self.look_up(self.engine, name)

    def look_up(self, whose: object, name: str) -> Any:
        """Returns an attribute of the engine, or of one of its queues."""
        value = getattr(whose, name, None) if name in ("claims", "batches") else getattr(whose, name)
        if value is None and name in NEEDED:
            _skip(self.engine, NEEDED[name])
        return partial(self._call, name, value) if callable(value) else value

    def _call(self, name: str, method: Callable[..., object], *args: Any, **named: Any) -> object:
        engine = self.engine
        ends = name == "expire" and isinstance(engine, GatheringAsEngine)
        if NEEDED.get(name) is Feature.TELLS and Feature.TELLS in engine.cannot and not ends:
            _skip(engine, Feature.TELLS)  # it refuses nothing: there is nothing to tell
        try:
            found = method(*args, **named)
        except UnsupportedError:
            feature = _asked_for(name, args)
            if feature is not None and feature in engine.cannot:
                _skip(engine, feature)
            raise
        return _GuardedQueue(self, found) if name == "queue" else found


class _GuardedQueue:
    """The queue of an engine in `_Guarded`, with the same rule."""

    def __init__(self, guarded: _Guarded, queue: object) -> None:
        self._guarded = guarded
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return self._guarded.look_up(self._queue, name)


class RemoteAsEngine:
    """A remote engine where an engine is expected: it commits nothing, and tells nothing."""

    def __init__(self, remote: RemoteEngine) -> None:
        self.remote = remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remote, name)

    def receive(self, *args: Any, held: bool = False) -> list[Message]:
        """held: a remote queue takes it and does nothing else: messages come back when their windows end."""
        return self.remote.receive(*args)

    def commit(self) -> Effects:
        return self.effects()

    def effects(self) -> Effects:
        return Effects({}, {}, None, None)

    def expire(self, count: int) -> None:
        """Does nothing: windows end at the other server."""

    def refresh(self) -> None:
        """Does nothing: no changes of others are followed."""


class GatheringAsEngine(RemoteAsEngine):
    """An engine that gathers requests where an engine is expected."""

    remote: Any

    def expire(self, count: int) -> int:
        """Ends what is due. The engine's thread does so by itself, unless the clock is one of tests."""
        finish(self.remote)
        return 0

    def receive(self, *args: Any, held: bool = False) -> list[Message]:
        operation = Receive(*args, held=held)
        operation.begin_wait()
        self.remote.submit([operation])
        return operation.wait()


def _asked_for(name: str, args: tuple[Any, ...]) -> Feature | None:
    """Returns the feature for which a call may have been refused."""
    if name == "create" and args[1].capacity is not None:
        return Feature.CAPACITY
    if name == "push" and any(draft.key is not None for draft in args[0]):
        return Feature.KEY
    return NEEDED.get(name)


class PassingClock(ManualClock):
    """The time, for an engine that uses another clock than the tests'. A test that asks for the time, or sets it, is
    exact to the microsecond, and is skipped."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self) -> int:
        return micros()

    def tick(self) -> None:
        """Does nothing: the storage's time moves on by itself."""

    @property
    def now(self) -> int:
        pytest.skip(_lacking(self._name, Feature.EXACT))

    @now.setter
    def now(self, value: int) -> None:
        pytest.skip(_lacking(self._name, Feature.EXACT))


def unguarded(bench: Bench) -> Engine:
    """Returns the engine itself, which refuses the features that it lacks."""
    return cast(_Guarded, bench.engine).engine


def has_others(bench: Bench) -> None:
    """Skips the test for an engine whose queues are all of its own storage: the server looks at those of others."""
    if isinstance(unguarded(bench), RemoteAsEngine):
        pytest.skip(f"the engine {bench.engine.name!r} has no queues of another storage")


def as_engine(remote: RemoteEngine) -> Engine:
    """Returns a remote engine, for tests of all engines."""
    return cast(Engine, RemoteAsEngine(remote))


def guarded(make: Callable[[Callable[[], int]], Engine], clock: ManualClock | None = None) -> Bench:
    """Returns a bench of guarded engines."""
    return Bench(lambda now: cast(Engine, _Guarded(make(now))), clock or ManualClock())


def memcached_bench(root: Path, server: Memcached) -> Bench:
    """Returns a bench over memcached, with keys of its own."""
    namespace = uuid.uuid4().hex
    return guarded(lambda clock: as_engine(engine_on(server, root=root, clock=clock, namespace=namespace)))


def postgres_bench(root: Path, database: Database) -> Bench:
    """Returns a bench over a database of PostgreSQL, whose time is that of the bench."""
    # One connection for gathered requests: a connection takes PostgreSQL several milliseconds, a request half of one.
    make = lambda clock: GatheringAsEngine(postgres_engine_on(database, root, clock, connections=1))  # noqa: E731
    return guarded(lambda clock: cast(Engine, make(clock)))


def sqs_bench(root: Path, server: SqsServer) -> Bench:
    """Returns a bench over an SQS endpoint, with queues of its own there."""
    prefix = f"{uuid.uuid4().hex[:8]}-"
    return guarded(
        lambda clock: as_engine(sqs_engine(root, server.url, clock=clock, prefix=prefix)), PassingClock("sqs")
    )
