"""The `memcached` engine when answers are lost, and when the qs server is killed between two steps."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.storage.engines import LOTS, Crash, ManualClock
from support.storage.memcached import Memcached, engine_on, listed, needs_memcached, push, receive

from qs_storage.engine import (
    SECOND,
    Draft,
    NoSuchQueueError,
    Options,
    QueueExistsError,
    Receipt,
    RemoteError,
    State,
    StorageError,
)
from qs_storage.remote.memcached import MemcachedEngine
from qs_storage.remote.memcached_servers import MemcachedServer


class Cut:
    """Lets the n-th call to memcached be made, or not be made, and then fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = self.calls = 0
        self.error: type[BaseException] = ConnectionResetError
        self.done = True
        self.only: str | None = None
        """A method: other calls are neither counted nor fail."""
        self.late: Callable[[], object] | None = None
        """A call that was sent, and is made when the next one of its kind comes."""
        original = MemcachedServer._take
        cut = self

        def take(server: MemcachedServer) -> Any:
            return _CutClient(original(server), cut)

        monkeypatch.setattr(MemcachedServer, "_take", take)

    def arm(self, at: int, error: type[BaseException], *, done: bool) -> None:
        self.at, self.error, self.done, self.calls = at, error, done, 0

    def disarm(self) -> bool:
        """Tells whether it has happened."""
        happened = 0 < self.at <= self.calls
        self.at = 0
        return happened


class _CutClient:
    def __init__(self, client: Any, cut: Cut) -> None:
        while isinstance(client, _CutClient):
            client = client._client
        self._client = client
        self._cut = cut

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name == "close":
            return method

        def call(*args: Any, **named: Any) -> Any:
            cut = self._cut
            if cut.only not in (None, name):
                return method(*args, **named)
            if cut.late is not None:
                cut.late()
                cut.late = None
            cut.calls += 1
            if cut.calls != cut.at:
                return method(*args, **named)
            if cut.done:
                method(*args, **named)
            elif cut.only is not None:
                cut.late = lambda: (method(*args, **named), self._client.close())
            raise cut.error()

        return call


pytestmark = needs_memcached
PAGE = 10
"""Messages in a page: fewer than otherwise, since every step begins with a new queue."""


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Cut:
    monkeypatch.setattr("qs_storage.remote.memcached_items._CLAIM_TIMEOUT", 0.0)
    monkeypatch.setattr("qs_storage.remote.memcached_queue.PAGE", PAGE)
    return Cut(monkeypatch)


def prepared(memcached: Memcached, root: Path, namespace: str) -> MemcachedEngine:
    """A queue `q` of two pages, of which the first is all but used up and the second one is full."""
    engine = engine_on(memcached, root=root, namespace=namespace)
    engine.create("q", Options(capacity=10_000))
    engine.create("r", Options(capacity=10_000))
    first = push(engine, *[b"first"] * PAGE)
    push(engine, *[b"second"] * PAGE)
    engine.queue("q").purge(first[-1], PAGE - 1)
    return engine


def _push(engine: MemcachedEngine) -> None:
    engine.queue("q").push([Draft(b"pushed", key="k"), Draft(b"pushed")])


def _receive(engine: MemcachedEngine) -> None:
    engine.receive(["q", "r"], 3, 100 * SECOND, LOTS)


def _delete(engine: MemcachedEngine) -> None:
    engine.queue("q").delete(Receipt(listed(engine)[0]))


def _release(engine: MemcachedEngine) -> None:
    engine.receive(["q"], 1, 100 * SECOND, LOTS)
    engine.queue("q").release(Receipt(listed(engine)[0]), 100 * SECOND)
    engine.queue("q").release(Receipt(listed(engine)[0]), 0)


def _copy(engine: MemcachedEngine) -> None:
    engine.copy("q", listed(engine)[PAGE // 2], ["r"])


def _purge(engine: MemcachedEngine) -> None:
    engine.queue("q").purge(listed(engine)[-1], 1000)


def _remove(engine: MemcachedEngine) -> None:
    engine.remove("q", force=True)


OPERATIONS = [_push, _receive, _delete, _release, _copy, _purge, _remove]


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("error", [ConnectionResetError, TimeoutError, Crash])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_step_fails(
    memcached: Memcached,
    tmp_path: Path,
    cut: Cut,
    operation: Callable[[MemcachedEngine], None],
    error: type[BaseException],
    done: bool,
) -> None:
    """Whichever call fails, or is the last that the qs server makes: the queue stays usable for all, nothing is there
    twice, and an operation that has succeeded in spite of it has been done."""
    for at in range(1, 100):
        root = tmp_path / str(at)
        root.mkdir()
        namespace = uuid.uuid4().hex
        engine = prepared(memcached, root, namespace)
        before = listed(engine)
        cut.arm(at, error, done=done)
        failed = False
        try:
            operation(engine)
        except (StorageError, Crash):
            failed = True
        happened = cut.disarm()
        if failed and error is Crash:
            engine.close()
            engine = engine_on(memcached, root=root, namespace=namespace)
        check(engine, operation, before, failed=failed)
        engine.close()
        if not happened:
            assert not failed
            assert at > 3
            return
    raise AssertionError("it never succeeds")


def check(
    engine: MemcachedEngine, operation: Callable[[MemcachedEngine], None], before: list[int], *, failed: bool
) -> None:
    for qid in ("q", "r"):
        try:
            engine.create(qid, Options(capacity=10_000))  # a removal may have come to its end, or half way
        except QueueExistsError:
            continue
    after = listed(engine)
    assert after == sorted(set(after))
    if operation is _push:
        added = [mid for mid in after if mid not in before]
        assert len(added) in ((0, 2) if failed else (2,))
        mid = engine.queue("q").push([Draft(b"pushed", key="k")])[0]
        assert len(listed(engine)) == len(before) + max(len(added), 1)
        assert mid in (added or listed(engine))
    elif operation is _delete:
        assert after in (before[1:], before) if failed else after == before[1:]
    elif operation in (_purge, _remove):
        assert set(after) <= set(before) if failed else after == []
    else:
        assert after == before
        copied = engine.queue("r").list_mids(State.ALL, 10, -1)
        assert copied in ([], [before[PAGE // 2]]) if operation is _copy else copied == []
    works(engine)


def works(engine: MemcachedEngine) -> None:
    """Everything in the queue can be received in its order and deleted, and new messages too."""
    clock = engine._clock
    assert isinstance(clock, ManualClock)
    clock.now += 1000 * SECOND
    push(engine, b"new", b"newer")
    expected = listed(engine)
    found = engine.receive(["q"], 1000, None, LOTS)
    assert [message.mid for message in found] == expected
    assert [message.payload for message in found][-2:] == [b"new", b"newer"]
    assert engine.receive(["q"], 1000, None, LOTS) == []
    assert engine.queue("q").purge(expected[-1], 1000) == len(expected)
    assert listed(engine) == []


@pytest.mark.parametrize("done", [True, False])
def test_answer_of_a_swap_is_lost(memcached: Memcached, tmp_path: Path, cut: Cut, done: bool) -> None:
    """If the answer of a swap is lost, the engine finds out whether it was made, even late: there is no error, and
    nothing is done twice."""
    engine = engine_on(memcached, root=tmp_path)
    engine.create("q", Options())
    cut.only = "cas"

    def lose() -> None:
        cut.arm(1, ConnectionResetError, done=done)

    lose()
    [mid] = push(engine, b"x")
    lose()
    [message] = engine.receive(["q"], 1, None, LOTS)
    assert (message.mid, message.receives) == (mid, 1)
    lose()
    engine.queue("q").extend(Receipt(mid, 1), 7 * SECOND)
    lose()
    assert engine.queue("q").release(Receipt(mid, 1), 0) is None
    assert listed(engine) == [mid]
    lose()
    engine.queue("q").delete(Receipt(mid, 1))
    assert listed(engine) == []
    assert cut.disarm()
    engine.close()


def test_nothing_twice_when_answers_are_lost(memcached: Memcached, tmp_path: Path, cut: Cut) -> None:
    """A push that is repeated with its key after each error, and consumers that see errors: each message comes once."""
    engine = engine_on(memcached, root=tmp_path)
    engine.create("q", Options())
    found: list[bytes | None] = []
    for number in range(60):
        cut.arm(number % 12 + 1, ConnectionResetError, done=number % 2 == 0)
        for _ in range(3):
            try:
                engine.queue("q").push([Draft(b"%d" % number, key=str(number))])
                break
            except RemoteError:
                continue
        cut.arm(number % 7 + 1, ConnectionResetError, done=number % 2 == 0)
        for _ in range(2):
            try:
                found += receive(engine, 1)
            except RemoteError:
                continue
    cut.disarm()
    clock = engine._clock
    assert isinstance(clock, ManualClock)
    clock.now += 100 * SECOND  # what an error has kept from its receiver comes back
    found += receive(engine)
    assert set(found) == {b"%d" % number for number in range(60)}
    assert len(listed(engine)) == 60
    engine.close()


def test_removal_and_push(memcached: Memcached, tmp_path: Path) -> None:
    """A removal that is overtaken by a push does not take the message along."""
    engine = engine_on(memcached, root=tmp_path)
    engine.create("q", Options())
    queue = engine.queue("q")
    look = queue.pages.look()
    assert look is not None
    assert queue.pages.seal(look)
    [mid] = push(engine, b"x")
    assert not queue.pages.drop_head(look)
    assert listed(engine) == [mid]
    engine.remove("q", force=True)
    with pytest.raises(NoSuchQueueError):
        push(engine, b"x")
    engine.close()
