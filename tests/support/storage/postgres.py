"""A real PostgreSQL for tests: servers of their own, standbys, databases that are made in milliseconds, and an engine
over them.

PostgreSQL refuses to run as root: then its processes belong to the user `postgres`, or `nobody`. The servers of a test
process share a directory, in memory where that is possible. A guard, a shell that waits for the end of the test
process, ends what has been left and removes the directory, also after a kill.
"""

import atexit
import contextlib
import importlib.util
import itertools
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qs_testing.programs import until
from support.servers.processes import lasting_port
from support.storage.engines import ManualClock

if TYPE_CHECKING:
    import psycopg

    from qs_storage.postgres.engine import PostgresEngine


def _newest_binaries() -> Path | None:
    """Returns the directory of the server's programs: that in PATH, or Debian's newest."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    installed = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(installed, key=lambda path: float(path.parent.name), default=None)


BINARIES = _newest_binaries()
NOT_TESTED = (
    "NOT TESTED: the storage 'postgres', because there is no PostgreSQL on this machine (apt install postgresql)"
    if BINARIES is None
    else "NOT TESTED: the storage 'postgres', because psycopg is not installed (pip install 'qsbus[postgres]')"
)
IS_THERE = BINARIES is not None and importlib.util.find_spec("psycopg") is not None
needs_postgres = pytest.mark.skipif(not IS_THERE, reason=NOT_TESTED)
LONG = 30
"""Seconds: only a failure waits that long."""
_SETTINGS = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "autovacuum_naptime=30s",
    "wal_keep_size=256MB",
    "dynamic_shared_memory_type=mmap",
    "log_line_prefix=%m [%p] %q%a ",
)
"""Of each server: no syncs, as no test here cuts the power, and no shared memory outside of its directory."""

_GUARD = """
read -r line && exit
for process in /proc/[0-9]*; do
    case $(readlink "$process/cwd") in "$1"/*) kill -KILL "${process#/proc/}" ;; esac
done 2>/dev/null
for lock in "$1"/*/data/postmaster.pid; do
    ipcrm -m "$(sed -n '7s/.* //p' "$lock")"
done 2>/dev/null
rm -rf "$1"
"""
"""Runs when the pipe ends without a line, because the test process was killed: a server and its children work in their
data directory. The lock file names the segment of shared memory by which a server knows that its directory is free."""
_numbers = itertools.count(1)


@cache
def _home() -> Path:
    """Returns the directory of this test process's servers. It belongs to the servers' user."""
    shm = Path("/dev/shm")
    home = Path(tempfile.mkdtemp(prefix="qs-postgres-", dir=shm if os.access(shm, os.W_OK) else None))
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "guard", str(home)], stdin=subprocess.PIPE, start_new_session=True
    )

    def end() -> None:
        shutil.rmtree(home)
        guard.communicate(b"\n")

    atexit.register(end)
    if (user := _user()) is not None:
        os.chown(home, user, -1)
    return home


@cache
def _user() -> int | None:
    """Returns the id of the user who runs the servers, None for that of the tests."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    return 65534


def _identity() -> dict[str, Any]:
    """Returns the arguments for `subprocess` with which a program runs as the servers' user."""
    user = _user()
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}


def run(program: str, *arguments: str) -> None:
    """Runs a program of PostgreSQL as the servers' user. Raises AssertionError with its output if it fails."""
    assert BINARIES is not None
    done = subprocess.run(
        [str(BINARIES / program), *arguments],
        cwd=_home(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **_identity(),
    )
    assert done.returncode == 0, f"{program}: {done.stdout}"


@cache
def _empty_data() -> Path:
    """Returns a data directory to copy: initdb takes ten times as long."""
    data = _home() / "empty"
    run(
        "initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C",
        "--no-sync", "--no-instructions",
    )  # fmt: skip
    return data


@dataclass(frozen=True)
class Database:
    """A database of a server."""

    server: "Postgres"
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn_of(self.name)

    def connect(self) -> "psycopg.Connection[Any]":
        """Returns a connection of the administrator, with autocommit."""
        return self.server.connect(self.name)

    def sql(self, text: str, *parameters: object) -> list[Any]:
        """Runs a statement as the administrator. Returns its rows, those of one column as plain values."""
        return self.server.sql(text, *parameters, dbname=self.name)


class Postgres:
    """A PostgreSQL server on the loopback interface. Use it in a with statement.

    Ensures that its directory is gone, and that none of its processes is left, when the block ends or when the test
    process ends in any way."""

    def __init__(self, *settings: str, name: str | None = None, port: int | None = None) -> None:
        """settings: as for `postgres -c`, such as `max_connections=10`. name: the server's name for others, as in
        `synchronous_standby_names`. port: None for a free one."""
        if not IS_THERE:
            pytest.skip(NOT_TESTED)
        self.name = name or f"node{next(_numbers)}"
        self._settings = [*_SETTINGS, *settings]
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=_home()))
        if (user := _user()) is not None:
            os.chown(self._folder, user, -1)
        self.data = self._folder / "data"
        self.log_file = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._kept: psycopg.Connection[Any] | None = None
        self._has_template = False
        self._used: list[str] = []
        """Databases to remove."""
        try:
            self._fill()
            self._start_somewhere() if port is None else self._start_at(port)
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        """Makes the data directory."""
        subprocess.run(["cp", "-a", str(_empty_data()), str(self.data)], check=True)

    # -- the process

    def _start_somewhere(self) -> None:
        """Starts the server on a free port: another program may take the port in between."""
        for attempt in range(5):
            self.port = lasting_port()
            try:
                self.start()
                return
            except AssertionError:
                if attempt == 4 or "could not bind" not in self.log():
                    raise

    def _start_at(self, port: int) -> None:
        self.port = port
        self.start()

    def start(self) -> None:
        """Starts the server, after `stop` or `kill` again on its port, and waits until it takes connections. A server
        that was killed recovers first."""
        assert BINARIES is not None
        flags = [word for setting in self._settings for word in ("-c", setting)]
        command = [str(BINARIES / "postgres"), "-D", str(self.data), "-p", str(self.port), *flags]
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the tests, which end the server
                **_identity(),
            )
        self._process = process

        def is_ready() -> bool:
            assert process.poll() is None, f"PostgreSQL has ended:\n{self.log()}"
            return self._status() == (str(process.pid), "ready")

        until(is_ready, self.data, within=LONG)

    def _status(self) -> tuple[str, str]:
        """Returns the process id and the status that stand in the lock file."""
        lines = self._lock_lines()
        return (lines[0], lines[7].strip()) if len(lines) > 7 else ("", "")

    def _lock_lines(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None

    def _children(self) -> list[int]:
        """Returns the ids of the server's other processes."""
        try:
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:
            return []

    def stop(self, sig: int = signal.SIGINT) -> None:
        """Stops the server, and returns when it has ended. sig: SIGINT ends connections, SIGTERM waits for them,
        SIGQUIT is a crash that the server tells its clients of."""
        if self._process is not None:
            self._process.send_signal(sig)
            self._process.wait(LONG)
            self._process = None

    def kill(self) -> None:
        """Ends all processes of the server with SIGKILL, as when its machine dies, and returns when they have ended."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # so that no process is started while the others are killed
        handles = []
        for pid in self._children():
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
                signal.pidfd_send_signal(handles[-1], signal.SIGKILL)
        self._process.kill()
        self._process.wait(LONG)
        self._process = None
        for handle in handles:
            assert select.select([handle], [], [], LONG)[0]
            os.close(handle)
        segment = self._lock_lines()[6].split()[1]
        subprocess.run(["ipcrm", "-m", segment], check=True)  # the death of a machine leaves none

    def freeze(self) -> None:
        """Stops all processes of the server (SIGSTOP): connections stay, and nothing is answered. New connections are
        taken by the kernel, and wait."""
        self._process_of_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets the server go on after `freeze`."""
        self._process_of_all(signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freezes the server for the length of a with block."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def _process_of_all(self, sig: int) -> None:
        if self._process is not None:
            self._process.send_signal(sig)  # first, so that it starts no more
            for pid in self._children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sig)

    def log(self) -> str:
        """Returns what the server has written."""
        return self.log_file.read_text("utf-8", "replace") if self.log_file.exists() else ""

    def close(self) -> None:
        """Ends the server, and removes its directory."""
        if self._kept is not None:
            self._kept.close()
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Postgres":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- SQL

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def dsn_of(self, dbname: str, *, port: int | None = None, user: str = "postgres") -> str:
        """Returns what a client needs to connect. port: that of a proxy."""
        return f"host=127.0.0.1 port={port or self.port} dbname={dbname} user={user} sslmode=disable"

    def connect(self, dbname: str = "postgres") -> "psycopg.Connection[Any]":
        """Returns a connection of the administrator, with autocommit."""
        import psycopg  # only where PostgreSQL is: many tests use none

        return psycopg.connect(self.dsn_of(dbname), autocommit=True, connect_timeout=LONG)

    def sql(self, text: str, *parameters: object, dbname: str = "postgres") -> list[Any]:
        """Runs a statement as the administrator. Returns its rows, those of one column as plain values."""
        with contextlib.closing(self.connect(dbname)) as connection:
            cursor = connection.execute(text, parameters or None)
            rows = cursor.fetchall() if cursor.description else []
            return [row[0] for row in rows] if cursor.description and len(cursor.description) == 1 else rows

    def set(self, name: str, value: str) -> None:
        """Changes a setting of the running server, and waits until the server's processes have it."""
        with contextlib.closing(self.connect()) as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        self._until_sql(f"SHOW {name}", value)

    def _until_sql(self, text: str, value: object) -> None:
        """Asks again and again, as PostgreSQL tells nobody of such changes."""
        for _ in range(LONG * 100):
            if self.sql(text) == [value]:
                return
            select.select([], [], [], 0.01)
        raise AssertionError(f"{text} does not become {value!r}: {self.sql(text)}")

    @contextlib.contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[Database]:
        """Makes a database for the length of a with block, as a copy of one that has the schema. migrated: False for an
        empty one."""
        name = f"qs{next(_numbers)}"
        if migrated and not self._has_template:
            self._make_template()
        template = "migrated" if migrated else "template1"
        self._drop_used()
        self._administer(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        try:
            yield Database(self, name)
        finally:
            self._used.append(name)

    def _drop_used(self) -> None:
        """Removes databases that tests have left: at the next test, as PostgreSQL waits 0.1 s for a connection that is
        just being closed."""
        while self._used:
            self._administer(f"DROP DATABASE IF EXISTS {self._used[-1]} WITH (FORCE)")
            self._used.pop()

    def _administer(self, statement: str) -> None:
        """Runs a statement on a connection that is kept, as long as the server does not end: a new one takes as long as
        a new database."""
        import psycopg

        if self._kept is not None:
            with contextlib.suppress(psycopg.OperationalError):
                self._kept.execute(statement)
                return
            self._kept.close()
        self._kept = self.connect()
        self._kept.execute(statement)

    def _make_template(self) -> None:
        from qs_storage.postgres.schema import migrate

        self.sql("CREATE DATABASE migrated")
        migrate(self.dsn_of("migrated"))
        self._has_template = True

    # -- standbys

    def standby(self, name: str, *settings: str) -> "Standby":
        """Starts a standby of this server."""
        return Standby(self, *settings, name=name)

    def until_streaming(self, *standbys: "Postgres") -> None:
        """Waits until these standbys follow this server."""
        wanted = ", ".join(f"'{standby.name}'" for standby in standbys)
        self._until_sql(
            f"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name IN ({wanted})",
            len(standbys),
        )

    def received(self) -> int:
        """Returns up to where this standby has the log of its primary, in bytes."""
        found: int = self.sql("SELECT (coalesce(pg_last_wal_receive_lsn(), '0/0') - '0/0')::bigint")[0]
        return found


class Standby(Postgres):
    """A server that follows another one, from which it is copied."""

    def __init__(self, primary: Postgres, *settings: str, name: str, port: int | None = None) -> None:
        self._primary = primary
        super().__init__(*settings, name=name, port=port)
        primary.until_streaming(self)

    def _fill(self) -> None:
        run(
            "pg_basebackup", "-D", str(self.data), "-R", "--no-sync", "--checkpoint=fast", "--wal-method=stream",
            "-d", self._follow_dsn(self._primary),
        )  # fmt: skip

    def _follow_dsn(self, primary: Postgres) -> str:
        return (
            f"host=127.0.0.1 port={primary.port} user=postgres sslmode=disable application_name={self.name}"
            " connect_timeout=2"
        )

    def promote(self) -> None:
        """Makes this standby a primary, and returns when it takes writes."""
        assert self.sql("SELECT pg_promote()") == [True]
        self._until_sql("SELECT pg_is_in_recovery()", False)

    def follow(self, primary: Postgres) -> None:
        """Follows another server from now on, whose log begins with this one's."""
        self.set("primary_conninfo", self._follow_dsn(primary))
        primary.until_streaming(self)


def most_advanced(standbys: Sequence[Standby]) -> Standby:
    """Returns the standby that has most of the log: after the death of a primary, the one to promote."""
    return max(standbys, key=lambda standby: standby.received())


# -- engines


@cache
def _calm_upkeep() -> None:
    """Keeps the thread of engines with a clock of tests from ending anything by itself: whoever asks at that very
    moment would miss it. `finish` does the same when a test wants it."""
    from qs_storage.postgres.heartbeat import DatabaseClock
    from qs_storage.postgres.upkeep import Upkeep

    once = Upkeep._once

    def calm(upkeep: Upkeep) -> None:
        if isinstance(upkeep._shared.now, DatabaseClock):
            once(upkeep)
        else:
            upkeep.read_queues()

    Upkeep._once = calm


def finish(engine: "PostgresEngine") -> None:
    """Ends and removes all that is due, as the engine's thread does, and looks at what other servers have done."""
    from qs_storage.postgres.running import run

    look_anew(engine)
    upkeep = engine._upkeep
    while run(engine.shared, upkeep.end_due):
        pass
    run(engine.shared, upkeep._retire)


def look_anew(engine: "PostgresEngine") -> None:
    """Lets the engine look at everything with its next request, as it does after a hint or a second."""
    engine._upkeep._whole_at = 0.0
    engine._upkeep.read_queues_now()
    for known in engine.shared.queues.values():
        known.floors.forget()


def engine_on(
    database: Database,
    root: Path,
    clock: Callable[[], int] | None = None,
    *,
    of_database: bool = False,
    dsn: str | None = None,
    **more: Any,
) -> "PostgresEngine":
    """Returns an engine over a database. clock: the time for server and database, a new ManualClock if there is none.
    of_database: the time is the database's. dsn: another way to the database, such as a proxy."""
    from qs_storage.postgres.engine import PostgresEngine

    _calm_upkeep()
    clock = clock or ManualClock()
    return PostgresEngine(str(root), clock=clock, dsn=dsn or database.dsn, now=None if of_database else clock, **more)
