"""The engine over PostgreSQL when the database is down, stands still, is full, or refuses: a clear error, nothing lost,
and everything goes on by itself."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.faults import small_disk
from support.servers.processes import PROJECT
from support.storage.engines import LOTS, ManualClock
from support.storage.postgres import LONG, Database, Postgres, Standby, engine_on, finish, needs_postgres

from qs_storage.engine import (
    SECOND,
    Draft,
    NotKnownError,
    Options,
    QueueFullError,
    Receipt,
    RemoteError,
    State,
    StorageError,
    UnavailableError,
)
from qs_storage.postgres.schema import migrate

pytestmark = needs_postgres
BACKENDS = "FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """A server that tests stop, freeze and kill."""
    with Postgres("max_connections=25") as server:
        yield server


@pytest.fixture
def own(mortal: Postgres) -> Iterator[Database]:
    with mortal.database() as database:
        yield database


@pytest.fixture
def engine(own: Database, tmp_path: Path) -> Iterator[Any]:
    engine = engine_on(own, tmp_path)
    engine.create("q", Options())
    yield engine
    engine.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request gives the database up after a second, and a start at once."""
    monkeypatch.setattr("qs_storage.postgres.engine._FIRST_CONTACT", 0.1)
    monkeypatch.setattr("qs_storage.postgres.links.PATIENCE", 1.0)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(20) as threads:
        yield threads


def push(engine: Any, *payloads: bytes) -> list[int]:
    found: list[int] = engine.queue("q").push([Draft(payload) for payload in payloads])
    return found


def receive(engine: Any, count: int = 1000) -> list[bytes]:
    return [message.payload for message in engine.receive(["q"], count, None, LOTS)]


def stored(database: Database) -> list[bytes]:
    """Returns the payloads that are in the database."""
    return database.sql("SELECT payload FROM qs.messages ORDER BY id")


def until_waits(database: Database, event: str) -> int:
    """Waits until a connection waits for that event. Returns the id of its process."""
    for _ in range(LONG * 50):
        found = database.sql(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = %s", event
        )
        if found:
            pid: int = found[0]
            return pid
        threading.Event().wait(0.02)
    raise AssertionError(f"nobody waits for {event}")


# -- the database ends


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "push": lambda engine: push(engine, b"new"),
    "receive": receive,
    "delete": lambda engine: engine.queue("q").delete(Receipt(1)),
    "list": lambda engine: engine.queue("q").list_mids(State.ALL, 10, -1),
    "stats": lambda engine: engine.queue("q").stats(),
    "create": lambda engine: engine.create("other", Options()),
}


@pytest.mark.usefixtures("impatient")
def test_database_killed(own: Database, engine: Any, mortal: Postgres, threads: ThreadPoolExecutor) -> None:
    """While there is no database each operation fails with its address, and changes nothing; afterwards all goes on."""
    push(engine, b"x")
    mortal.kill()
    try:
        for asked in [threads.submit(operation, engine) for operation in OPERATIONS.values()]:
            with pytest.raises(UnavailableError, match=f"nothing was changed.*{mortal.port}"):
                asked.result(LONG)
        assert list(engine.queues()) == ["q"]
    finally:
        mortal.start()
    assert stored(own) == [b"x"]
    push(engine, b"y")
    assert receive(engine) == [b"x", b"y"]


def test_restarted_meanwhile(own: Database, engine: Any, mortal: Postgres, threads: ThreadPoolExecutor) -> None:
    """A request that comes while the database restarts is answered when it is back."""
    push(engine, b"x")
    mortal.kill()
    asked = threads.submit(push, engine, b"y")
    mortal.start()
    asked.result(LONG)
    assert stored(own) == [b"x", b"y"]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGQUIT])
def test_database_stopped(own: Database, engine: Any, mortal: Postgres, sig: int) -> None:
    """The first request after an orderly restart, or one after a crash, finds new connections."""
    push(engine, b"x")
    mortal.stop(sig)
    mortal.start()
    push(engine, b"y")
    assert receive(engine) == [b"x", b"y"]
    assert stored(own) == [b"x", b"y"]


def test_a_backend_dies(own: Database, engine: Any, mortal: Postgres) -> None:
    """If one of the server's processes is killed, the server ends all others and recovers; messages stay."""
    push(engine, b"x")
    os.kill(own.sql(f"SELECT pid {BACKENDS} ORDER BY backend_start LIMIT 1", own.name)[0], signal.SIGKILL)
    for number in range(20):
        with contextlib.suppress(NotKnownError):
            engine.queue("q").push([Draft(b"y", key=f"{number // 10}")])
    assert stored(own) == [b"x", b"y", b"y"]


# -- the database stands still


@pytest.mark.usefixtures("impatient")
def test_frozen(own: Database, engine: Any, mortal: Postgres, threads: ThreadPoolExecutor) -> None:
    """Requests to a database that stands still are given up after a while; those that come later are answered when it
    goes on."""
    push(engine, b"x")
    with mortal.frozen():
        for asked in [threads.submit(push, engine, b"y"), threads.submit(receive, engine)]:
            with pytest.raises(RemoteError):
                asked.result(LONG)
        later = threads.submit(engine.queue("q").stats)
    with contextlib.suppress(UnavailableError):
        later.result(LONG)
    for _ in range(2):
        engine.queue("q").push([Draft(b"z", key="k")])
    assert stored(own).count(b"z") == 1
    assert b"x" in stored(own)


def test_a_stop_while_the_database_is_frozen(own: Database, mortal: Postgres, tmp_path: Path) -> None:
    """A server ends soon, also one that was just telling others of a change."""
    engine = engine_on(own, tmp_path)
    engine.create("q", Options())  # tells others: its connection for that is there
    until_sent = f"SELECT count(*) {BACKENDS} AND query LIKE '%%pg_notify%%' AND state = 'idle'"
    while own.sql(until_sent, own.name) == [0]:
        time.sleep(0.01)
    with mortal.frozen():
        engine._hints.tell_of_change()
        time.sleep(0.2)
        closing = threading.Thread(target=engine.close, daemon=True)
        closing.start()
        closing.join(20)
        hangs = closing.is_alive()
    closing.join()
    assert not hangs


def test_frozen_for_a_moment(own: Database, engine: Any, mortal: Postgres, threads: ThreadPoolExecutor) -> None:
    """A request waits for a database that stands still for a moment."""
    with mortal.frozen():
        asked = [threads.submit(push, engine, b"%d" % number) for number in range(10)]
        assert not any(each.done() for each in asked)
    for each in asked:
        each.result(LONG)
    assert sorted(stored(own)) == [b"%d" % number for number in range(10)]


# -- locks, and who cancels


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_cancelled_while_it_waits_for_a_lock(own: Database, engine: Any, threads: ThreadPoolExecutor, how: str) -> None:
    """A statement that an administrator cancels is repeated, and what it does is done once."""
    [mid] = push(engine, b"x")
    engine.receive(["q"], 1, None, LOTS)
    operations: list[Callable[[], object]] = [
        lambda: push(engine, b"y"),
        lambda: engine.queue("q").release(Receipt(mid, 1), 0),
        lambda: engine.queue("q").delete(Receipt(mid)),
    ]
    for operation in operations:
        with contextlib.closing(own.connect()) as holder:
            with holder.transaction():
                holder.execute("LOCK TABLE qs.line, qs.hidden, qs.messages IN ACCESS EXCLUSIVE MODE")
                asked = threads.submit(operation)
                own.sql(f"SELECT pg_{how}_backend(%s)", until_waits(own, "relation"))
            asked.result(LONG)
    assert stored(own) == [b"y"]


# -- the commit waits for a standby


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Standby]]:
    """A primary whose commits wait for its only standby."""
    with Postgres(name="first") as primary, primary.standby("second") as standby:
        primary.set("synchronous_standby_names", "ANY 1 (second)")
        yield primary, standby  # type: ignore[misc] # the standby is a Standby


@pytest.fixture
def safe(pair: tuple[Postgres, Standby]) -> Iterator[Database]:
    with pair[0].database() as database:
        yield database


@pytest.fixture
def safe_engine(safe: Database, tmp_path: Path) -> Iterator[Any]:
    engine = engine_on(safe, tmp_path)
    engine.create("q", Options())
    yield engine
    engine.close()


def test_commit_waits_for_a_standby(
    safe: Database, safe_engine: Any, pair: tuple[Postgres, Standby], threads: ThreadPoolExecutor
) -> None:
    """A push is answered when the standby has it, and not before. A `statement_timeout` of the role ends no wait."""
    safe.sql(f"ALTER DATABASE {safe.name} SET statement_timeout = '50ms'")
    with pair[1].frozen():
        asked = threads.submit(push, safe_engine, b"x")
        until_waits(safe, "SyncRep")
        threading.Event().wait(0.2)
        assert not asked.done()
    assert asked.result(LONG)
    assert stored(safe) == [b"x"]


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_cancelled_wait_for_a_standby(
    safe: Database, safe_engine: Any, pair: tuple[Postgres, Standby], threads: ThreadPoolExecutor, how: str
) -> None:
    """PostgreSQL says that a cancelled wait for a standby is a success, with a warning. That is no answer: it is not
    known, and repeating it with its key stores nothing twice."""
    push(safe_engine, b"x")
    [message] = safe_engine.receive(["q"], 1, None, LOTS)
    operations: list[Callable[[], object]] = [
        lambda: safe_engine.queue("q").push([Draft(b"y", key="k")]),
        lambda: safe_engine.queue("q").delete(Receipt(message.mid, 1)),
    ]
    for operation in operations:
        with pair[1].frozen():
            asked = threads.submit(operation)
            safe.sql(f"SELECT pg_{how}_backend(%s)", until_waits(safe, "SyncRep"))
            with pytest.raises(NotKnownError):
                asked.result(LONG)
    safe_engine.queue("q").push([Draft(b"y", key="k")])
    assert stored(safe) == [b"y"]


def test_commit_patience(
    safe: Database,
    safe_engine: Any,
    pair: tuple[Postgres, Standby],
    threads: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit without an answer is given up in the end: it is not known."""
    push(safe_engine, b"x")
    monkeypatch.setattr("qs_storage.postgres.links.COMMIT_PATIENCE", 0.2)
    with pair[1].frozen():
        with pytest.raises(NotKnownError):
            threads.submit(push, safe_engine, b"y").result(LONG)
        monkeypatch.undo()
    push(safe_engine, b"z")
    assert set(stored(safe)) - {b"y"} == {b"x", b"z"}


# -- the database refuses


@pytest.mark.usefixtures("impatient")
def test_read_only_standby(safe: Database, safe_engine: Any, pair: tuple[Postgres, Standby], tmp_path: Path) -> None:
    """A standby is no database for messages: with both addresses in the DSN the primary is found."""
    primary, standby = pair
    other = engine_on(safe, tmp_path, dsn=standby.dsn_of(safe.name))
    with pytest.raises(StorageError, match=r"read-only|session is read-only|not open read-write"):
        other.create("r", Options())
    other.close()
    both = f"host=127.0.0.1,127.0.0.1 port={standby.port},{primary.port} dbname={safe.name} user=postgres"
    other = engine_on(safe, tmp_path, dsn=both)
    other.create("r", Options())
    other.close()


@pytest.mark.usefixtures("impatient")
def test_too_many_connections(own: Database, engine: Any, mortal: Postgres, tmp_path: Path) -> None:
    """A server that gets no connection says so, and goes on when there is one."""
    push(engine, b"x")
    mortal.sql("SELECT pg_terminate_backend(pid) " + BACKENDS, own.name)
    hogs: list[psycopg.Connection[Any]] = []
    try:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                hogs.append(own.connect())
        with pytest.raises(UnavailableError, match=r"too many clients|remaining connection slots"):
            push(engine, b"y")
    finally:
        for hog in hogs:
            hog.close()
    push(engine, b"z")
    assert stored(own) == [b"x", b"z"]


@pytest.mark.usefixtures("impatient")
def test_wrong_password(own: Database, mortal: Postgres, tmp_path: Path) -> None:
    """The refusal of a password is the error, and the password is not in it."""
    rules = mortal.data / "pg_hba.conf"
    rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    mortal.sql("CREATE ROLE locked LOGIN PASSWORD 'right'")
    mortal.sql("SELECT pg_reload_conf()")
    dsn = f"{mortal.dsn_of(own.name, user='locked')} password=wr0ng-secret"
    engine = engine_on(own, tmp_path, dsn=dsn)
    with pytest.raises(StorageError, match="password authentication failed") as refused:
        engine.create("q", Options())
    engine.close()
    assert "wr0ng-secret" not in str(refused.value)


@pytest.mark.usefixtures("impatient")
def test_missing_rights(own: Database, mortal: Postgres, tmp_path: Path) -> None:
    """A role without rights is told what it lacks."""
    mortal.sql("CREATE ROLE nobody_here LOGIN")
    engine = engine_on(own, tmp_path, dsn=mortal.dsn_of(own.name, user="nobody_here"))
    with pytest.raises(StorageError, match="permission denied"):
        engine.create("q", Options())
    engine.close()


def granted(mortal: Postgres) -> str:
    """Makes a database as docs/postgres.md says. Returns its name."""
    blocks = re.findall(r"```sql\n(.*?)```", (PROJECT / "docs" / "postgres.md").read_text(encoding="utf-8"), re.DOTALL)
    first, second = blocks[:2]
    for statement in first.split(";"):
        mortal.sql(statement) if statement.strip().startswith(("CREATE", "GRANT")) else None
    migrate(mortal.dsn_of("qs", user="qs_owner"))
    with contextlib.closing(mortal.connect("qs")) as connection:
        connection.execute(second.replace("\\c qs", ""))
    return "qs"


def test_serving_role(mortal: Postgres, tmp_path: Path) -> None:
    """The role that the page gives to servers can do all that they do, and can neither alter nor remove tables."""
    database = Database(mortal, granted(mortal))
    engine: Any = engine_on(database, tmp_path, dsn=mortal.dsn_of("qs", user="qs_server"))
    engine.create("dead", Options())
    engine.create("q", Options(dead_letter="dead", max_receives=9, rate=1000.0, max_in_flight=100))
    queue, dead = engine.queue("q"), engine.queue("dead")
    for group in ("", "g"):
        mids = queue.push([Draft(b"x", key=f"k{group}{each}", unique=True, group=group) for each in range(5)])
    found = engine.receive(["q"], 3, None, LOTS, held=True)
    queue.extend(Receipt(found[0].mid, 1), 9 * SECOND)
    queue.release(Receipt(found[0].mid, 1), 0, reason="why")
    queue.reject(Receipt(found[1].mid, 1), "why")
    queue.delete(Receipt(found[2].mid, 1))
    dead.redrive.move([(mid, queue) for mid, _ in dead.redrive.letters((), 10)])
    engine.copy("q", mids[0], ["dead"])
    assert dead.claims.claim("c", 1, 10, None, None).count == 1
    dead.claims.acknowledge("c", 1)
    dead.batches.stage("p", (0, 0, 1), [Draft(b"y")])
    dead.batches.publish("p", 0, [(0, 1)])
    finish(engine)
    assert queue.stats().ready + queue.stats().in_flight == len(queue.list_mids(State.ALL, 100, -1)) > 0
    assert queue.purge(queue.last_mid, 100) > 0
    engine.configure("q", Options(visibility=SECOND))
    engine.remove("q", force=True)
    engine.close()
    with contextlib.closing(psycopg.connect(mortal.dsn_of("qs", user="qs_server"), autocommit=True)) as connection:
        for statement in (
            "ALTER TABLE qs.messages ADD extra int",
            "DROP TABLE qs.line",
            "TRUNCATE qs.messages",
            "CREATE TABLE qs.mine (x int)",
            "UPDATE qs.version SET version = 99",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


@pytest.mark.usefixtures("impatient")
def test_no_database(mortal: Postgres, tmp_path: Path) -> None:
    """A database that does not exist is named in the error."""
    engine = engine_on(Database(mortal, "nowhere"), tmp_path)
    with pytest.raises(StorageError, match='database "nowhere" does not exist'):
        engine.create("q", Options())
    engine.close()


@pytest.mark.usefixtures("impatient")
def test_no_schema(mortal: Postgres, tmp_path: Path) -> None:
    """Without the schema the error says how to make it, and when it is made all goes on."""
    with mortal.database(migrated=False) as empty:
        engine = engine_on(empty, tmp_path)
        with pytest.raises(StorageError, match=r"has no schema qs.*--migrate"):
            engine.create("q", Options())
        migrate(empty.dsn)
        engine.create("q", Options())
        push(engine, b"x")
        assert receive(engine) == [b"x"]
        engine.close()


@pytest.mark.usefixtures("impatient")
def test_newer_schema(own: Database, tmp_path: Path) -> None:
    """A schema of a later program is not touched."""
    own.sql("UPDATE qs.version SET version = 99")
    engine = engine_on(own, tmp_path)
    with pytest.raises(StorageError, match=r"version 99.*update it"):
        engine.create("q", Options())
    engine.close()


# -- the disk is full


def test_full_disk(tmp_path: Path) -> None:
    """While the disk is full, pushes are refused as such, and receives too if they find no room for their windows.
    Nothing is lost, and all goes on when there is room."""
    with (
        Postgres("autovacuum=off") as server,
        small_disk(server.data.parent / "small", "48m") as small,
        contextlib.closing(server),
    ):
        server.stop()
        os.chown(small, server.data.stat().st_uid, -1)
        subprocess.run(["cp", "-a", str(server.data / "base"), str(small)], check=True)  # with its owner
        shutil.rmtree(server.data / "base")
        (server.data / "base").symlink_to(small / "base")
        server.start()
        with server.database() as database:
            engine = engine_on(database, tmp_path, ManualClock())
            engine.create("q", Options())
            filler = small / "filler"
            filler.write_bytes(bytes(4 << 20))
            pushed = fill(engine)
            assert pushed > 3
            with contextlib.suppress(QueueFullError):
                engine.receive(["q"], 1, 0, LOTS)
            filler.unlink()
            found = engine.receive(["q"], 1000, 60 * SECOND, 1 << 40)
            assert len(found) == pushed
            for message in found:
                engine.queue("q").delete(Receipt(message.mid, message.receives))
            database.sql("VACUUM qs.messages")
            push(engine, b"x")
            assert receive(engine) == [b"x"]
            engine.close()


def fill(engine: Any) -> int:
    """Pushes until there is no room. Returns how many messages were stored."""
    for pushed in range(1000):
        try:
            push(engine, os.urandom(1 << 18))
        except QueueFullError as error:
            assert "disk of the database is full" in str(error)  # noqa: PT017
            return pushed
    raise AssertionError("the disk is never full")
