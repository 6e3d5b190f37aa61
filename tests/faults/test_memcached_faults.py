"""The `memcached` engine when memcached is restarted, killed, stopped, full or forgetful."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storage.engines import LOTS, ManualClock
from support.storage.memcached import Memcached, engine_on, listed, needs_memcached, push, receive

from qs_storage.engine import (
    SECOND,
    NoSuchMessageError,
    Options,
    QueueFullError,
    Receipt,
    RemoteError,
)
from qs_storage.remote import memcached_servers as servers_module
from qs_storage.remote.memcached import MemcachedEngine

pytestmark = needs_memcached


@pytest.fixture
def engine(memcached: Memcached, tmp_path: Path) -> Iterator[MemcachedEngine]:
    engine = engine_on(memcached, root=tmp_path)
    engine.create("q", Options())
    yield engine
    engine.close()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# -- memcached ends


def test_restart(engine: MemcachedEngine, memcached: Memcached, caplog: pytest.LogCaptureFixture) -> None:
    """After a restart of memcached the queue is there and empty, which is logged once, and ids still increase."""
    [old] = push(engine, b"old")
    receive(engine)
    memcached.restart()
    assert receive(engine) == []
    assert listed(engine) == []
    with pytest.raises(NoSuchMessageError):
        engine.queue("q").delete(Receipt(old, 1))
    assert engine.queue("q").last_mid == old
    [new] = push(engine, b"new")
    assert new > old
    assert receive(engine) == [b"new"]
    [message] = warnings_in(caplog)
    assert f"127.0.0.1:{memcached.port}" in message
    assert "begun anew" in message


def test_ids_after_a_restart(memcached: Memcached, tmp_path: Path) -> None:
    """New ids are greater than all that any server gave before, though another one began the queue anew."""
    engines = []
    for name in ("a", "b"):
        root = tmp_path / name
        root.mkdir()
        engines.append(engine_on(memcached, root=root, clock=ManualClock(), namespace="shared"))
        engines[-1].create("q", Options())
    [last] = push(engines[0], b"x")
    memcached.restart()
    clock = engines[1]._clock
    assert isinstance(clock, ManualClock)
    clock.now -= 1000
    push(engines[1], b"y")
    clock.now += 1000
    assert push(engines[0], b"z")[0] > last
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("first", ["push", "delete", "list", "stats", "purge", "get", "release", "copy", "remove"])
def test_restart_seen_first_by(engine: MemcachedEngine, memcached: Memcached, first: str) -> None:
    """Any first operation after a restart works as on an empty queue, over connections that the restart closed."""
    [mid] = push(engine, b"x")
    engine.create("r", Options())
    memcached.restart()
    if first == "push":
        push(engine, b"y")
        assert receive(engine) == [b"y"]
    elif first == "list":
        assert listed(engine) == []
    elif first == "stats":
        assert engine.queue("q").stats().ready == 0
    elif first == "purge":
        assert engine.queue("q").purge(mid, 10) == 0
    elif first == "remove":
        engine.remove("q", force=False)
    else:
        calls: dict[str, Callable[[], object]] = {
            "delete": lambda: engine.queue("q").delete(Receipt(mid)),
            "get": lambda: engine.queue("q").get(mid, peek=True, visibility=None),
            "release": lambda: engine.queue("q").release(Receipt(mid), 0),
            "copy": lambda: engine.copy("q", mid, ["r"]),
        }
        with pytest.raises(NoSuchMessageError):
            calls[first]()


def test_killed(engine: MemcachedEngine, memcached: Memcached) -> None:
    """While there is no memcached every operation says where none is and what to do; afterwards all goes on."""
    [mid] = push(engine, b"x")
    memcached.kill()
    operations: list[Callable[[], object]] = [
        lambda: push(engine, b"y"),
        lambda: receive(engine),
        lambda: listed(engine),
        lambda: engine.queue("q").stats(),
        lambda: engine.queue("q").delete(Receipt(mid)),
        lambda: engine.queue("q").last_mid,
        lambda: engine.create("other", Options()),
        lambda: engine.remove("q", force=True),
        lambda: engine.receive(["q"], 1, None, LOTS, wait=5),
    ]
    for operation in operations:
        with pytest.raises(RemoteError, match=f"127.0.0.1:{memcached.port} cannot be used: .*refused.*start it"):
            operation()
    assert list(engine.queues()) == ["q"]
    memcached.start(memcached.port)
    push(engine, b"z")
    assert receive(engine) == [b"z"]


def test_killed_while_somebody_waits(engine: MemcachedEngine, memcached: Memcached) -> None:
    """A waiting receive fails when memcached ends."""
    threading.Timer(0.1, memcached.kill).start()
    with pytest.raises(RemoteError, match="cannot be used"):
        engine.receive(["q"], 1, None, LOTS, wait=20)


def test_one_of_several_killed(tmp_path: Path) -> None:
    """With several servers, what is at the one that was killed is an error, and is not looked for elsewhere; when it is
    back, empty, the queues go on."""
    with Memcached() as a, Memcached() as b:
        engine = engine_on(a, b, root=tmp_path)
        engine.create("q", Options())
        payloads = [b"%d" % number for number in range(50)]
        push(engine, *payloads)
        b.kill()
        errors = []
        for number in range(20):
            try:
                push(engine, b"late %d" % number)
            except RemoteError as error:
                errors.append(str(error))
        assert errors
        assert all(f"127.0.0.1:{b.port}" in error for error in errors)
        b.start(b.port)
        push(engine, b"last")
        found = receive(engine)
        assert b"last" in found
        assert None not in found
        assert b"" not in found
        engine.close()


def test_stopped(engine: MemcachedEngine, memcached: Memcached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests, also those that wait for each other, give up a memcached that does not answer; what it does when it
    goes on harms nothing."""
    monkeypatch.setattr(servers_module, "CALL_TIMEOUT", 0.2)
    monkeypatch.setattr("qs_storage.remote.memcached_pages.CALL_TIMEOUT", 0.2)
    engine.close()
    push(engine, b"x")
    errors: list[str] = []

    def ask() -> None:
        try:
            receive(engine)
        except RemoteError as error:
            errors.append(str(error))

    memcached.send(signal.SIGSTOP)
    try:
        start = time.monotonic()
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start < 5
    finally:
        memcached.send(signal.SIGCONT)
    assert len(errors) == 5
    assert all(f"127.0.0.1:{memcached.port} does not answer" in error for error in errors)
    push(engine, b"y")
    assert receive(engine) == [b"x", b"y"]


def test_not_memcached(tmp_path: Path) -> None:
    """Something else that answers there is an error that says so."""

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        engine = MemcachedEngine(str(tmp_path), clock=ManualClock(), servers=[("127.0.0.1", listener.getsockname()[1])])
        with pytest.raises(RemoteError, match="see whether it is a memcached"):
            engine.create("q", Options())
        thread.join()
        assert list(engine.queues()) == []


# -- memcached is full


def test_full_refusing(tmp_path: Path) -> None:
    """With -M a full memcached refuses pushes, and what makes room goes on; nothing is lost."""
    with Memcached("-m", "2", "-M") as memcached:
        engine = engine_on(memcached, root=tmp_path)
        engine.create("q", Options())
        for _ in range(2):
            pushed = fill(engine, 7_000)
            assert len(pushed) > 20
            received = []
            while messages := engine.receive(["q"], 3, None, LOTS):
                for message in messages:
                    received.append(message.mid)
                    assert message.payload == b"x" * 7_000
                    assert engine.queue("q").extend(Receipt(message.mid, 1), 100 * SECOND)
                    engine.queue("q").delete(Receipt(message.mid, 1))
            assert received == pushed
        engine.close()


@pytest.mark.parametrize("size", [10, 300, 100_000])
def test_full_refusing_any_size(tmp_path: Path, size: int) -> None:
    """The size of the messages that fill memcached makes no difference."""
    with Memcached("-m", "2", "-M") as memcached:
        engine = engine_on(memcached, root=tmp_path)
        engine.create("q", Options())
        pushed = fill(engine, size, at_once=100 if size < 1000 else 1)
        found = engine.receive(["q"], len(pushed), None, LOTS)
        assert [message.mid for message in found] == pushed
        assert {message.payload for message in found} == {b"x" * size}
        assert engine.queue("q").purge(pushed[-1], len(pushed)) == len(pushed)
        assert len(fill(engine, size, at_once=100 if size < 1000 else 1)) >= len(pushed) * 0.9
        engine.close()


def test_full_refusing_where_pages_are(tmp_path: Path) -> None:
    """Messages can be deleted although others have taken all the room for items that are as large as their page."""
    with Memcached("-m", "2", "-M") as memcached:
        engine = engine_on(memcached, root=tmp_path)
        engine.create("q", Options())
        mids = push(engine, *[b"x"] * 1000)
        pages = engine.queue("q").pages
        look = pages.look()
        assert look is not None
        found = pages.page(look, 0)
        assert found is not None
        fill(engine, len(found.encode()))
        for mid in mids[:3]:
            [message] = engine.receive(["q"], 1, None, LOTS)
            assert message.mid == mid
            engine.queue("q").delete(Receipt(mid, 1))
        engine.close()


def fill(engine: MemcachedEngine, size: int, at_once: int = 1) -> list[int]:
    mids: list[int] = []
    for _ in range(20_000):
        try:
            mids += push(engine, *[b"x" * size] * at_once)
        except QueueFullError as error:
            assert "-m" in str(error)  # noqa: PT017
            return mids
    raise AssertionError("memcached is never full")


def test_full_evicting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without -M it gives messages up: those are skipped, never delivered empty, which is logged with what to do."""
    with Memcached("-m", "2") as memcached:
        engine = engine_on(memcached, root=tmp_path)
        engine.create("q", Options())
        pushed = [mid for number in range(1000) for mid in push(engine, b"%d" % number * 2000)]
        found = []
        while messages := engine.receive(["q"], 100, None, LOTS):
            for message in messages:
                number = pushed.index(message.mid)
                assert message.payload == b"%d" % number * 2000
                engine.queue("q").delete(Receipt(message.mid, 1))
                found.append(message.mid)
        assert 0 < len(found) < len(pushed)
        assert found == sorted(found)
        assert listed(engine) == []
        assert engine.queue("q").stats().bytes == 0
        assert sum("-M" in message for message in warnings_in(caplog)) >= 1
        assert len(warnings_in(caplog)) <= 2
        engine.close()


# -- memcached forgets single items


def test_payload_gone(engine: MemcachedEngine, caplog: pytest.LogCaptureFixture) -> None:
    """The next request removes a message without its payload, and the next message is delivered."""
    push(engine, b"a", b"b", b"c")
    queue = engine.queue("q")
    entries = next(iter(queue.pages.scan(-1))).entries
    queue._payloads.remove([entries[0], entries[2]])
    assert receive(engine, 1) == [b"b"]
    with pytest.raises(NoSuchMessageError):
        engine.queue("q").get(entries[2].mid, peek=True, visibility=None)
    assert listed(engine) == [entries[1].mid]
    assert len(warnings_in(caplog)) == 1


@pytest.mark.parametrize("gone", [0, 2, 5])
def test_page_gone(engine: MemcachedEngine, gone: int, caplog: pytest.LogCaptureFixture) -> None:
    """Messages of a lost page are lost; all the others are found, and pushes go on with greater ids."""
    for start in range(0, 1100, 50):
        push(engine, *[b"%d" % number for number in range(start, start + 50)])
    mids = listed(engine)
    queue = engine.queue("q")
    look = queue.pages.look()
    assert look is not None
    assert look.head.last == 5
    engine._servers.delete([queue.pages.keys.page(look.head.generation, gone)])
    left = mids[: gone * 200] + mids[(gone + 1) * 200 :]
    for mid in (mids[0], mids[450], mids[-1]):
        if mid in left:
            assert engine.queue("q").get(mid, peek=True, visibility=None).mid == mid
        else:
            with pytest.raises(NoSuchMessageError):
                engine.queue("q").get(mid, peek=True, visibility=None)
    [new] = push(engine, b"new")
    assert new > mids[-1]
    found = [message.mid for message in engine.receive(["q"], 2000, None, LOTS)]
    assert found == [*left, new]
    for mid in found:
        engine.queue("q").delete(Receipt(mid))
    assert listed(engine) == []
    assert len(warnings_in(caplog)) == 1
