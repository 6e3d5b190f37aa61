"""The storage `postgres`, beside what else one does with a PostgreSQL: pgbench, a queue in a table, pgmq.

Both sides of a ratio use the same new PostgreSQL, over TCP on loopback, each its own database of it, and are measured
in turn, with messages of 1 KiB that do not compress. PostgreSQL syncs each commit. The clients of all sides are in
processes of their own: see postgres_load.py. Beside each rate stands what a message costs the processor: of the queue
server, of PostgreSQL with all its processes, and of the clients. On a machine with few cores that tells what bounds
the rate, because all of them share its cores.
"""

import os
import re
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psycopg
from journal_load import fill, new_queue
from measuring import Figure, Run, in_turn, ratio
from postgres_load import PGMQ, SIZE, TABLE, Clients, payload
from postgres_server import Postgres, programs
from processes import Process, queue_server

from qs_storage.postgres.known import PLAIN_PLACE
from qs_storage.postgres.schema import migrate

_CLIENTS = 32
_DEEP, _SHALLOW = 1_000_000, 1_000
_CYCLES = 3_000_000
_HELD = 600.0
_CHUNK = 10.0
"""Seconds of load at a time, when the load itself is not the figure."""

_PUSH = """
WITH pushed AS (
    INSERT INTO qs.messages (queue, id, pushed_at, stored_at, priority, payload)
    VALUES (1, nextval('qs.mids'), :now, :now, 0, :payload) RETURNING id
)
INSERT INTO qs.line (queue, place, id, receives, size) SELECT 1, {place} + id, id, 0, {size} FROM pushed;
"""
"""The rows of a push, as one statement and so as one transaction, which is the quickest way to insert them singly."""


class _Spent(NamedTuple):
    """Messages, and the seconds of processor time that they took."""

    messages: int
    server: float
    database: float
    clients: float


class _Side:
    """Clients of one kind, what they talk to, and what their messages have cost. `rate` measures."""

    def __init__(self, postgres: Postgres, clients: Sequence[Clients], servers: Sequence[Process] = ()) -> None:
        self._postgres = postgres
        self._clients = clients
        self._servers = servers
        self.spent: list[_Spent] = []

    def rate(self, seconds: float) -> float:
        """Lets all clients work for that many seconds. Returns messages a second."""
        database, server = self._postgres.all_processor_seconds(), self._server_seconds()
        done, slowest, used = self._work(seconds)
        database, server = self._postgres.all_processor_seconds() - database, self._server_seconds() - server
        self.spent.append(_Spent(done, server, database, used))
        return done / slowest

    def _work(self, seconds: float) -> tuple[int, float, float]:
        for client in self._clients:
            client.begin(seconds)
        results = [client.result() for client in self._clients]
        return (
            sum(rounds for rounds, _, _ in results),
            max(took for _, took, _ in results),
            sum(used for _, _, used in results),
        )

    def _server_seconds(self) -> float:
        return sum(server.processor_seconds() for server in self._servers)

    def cost(self, name: str) -> Figure:
        """Returns what a message has cost the processor: the median of all rounds."""
        parts = {
            "the queue server": [spent.server / spent.messages for spent in self.spent],
            "PostgreSQL": [spent.database / spent.messages for spent in self.spent],
            "the clients": [spent.clients / spent.messages for spent in self.spent],
        }
        each = {part: median(seconds) * 1e6 for part, seconds in parts.items()}
        of = ", ".join(f"{part} {microseconds:.0f} us" for part, microseconds in each.items() if microseconds)
        return Figure(f"processor time of {name}", sum(each.values()), unit=" us", of=of, digits=0)


class _PgBench(_Side):
    """PostgreSQL's own pgbench, with the rows of a push."""

    def __init__(self, postgres: Postgres, dsn: str, folder: Path) -> None:
        super().__init__(postgres, ())
        script = folder / "push.sql"
        script.write_text(" ".join(_PUSH.format(size=SIZE, place=PLAIN_PLACE).split()) + "\n")
        # pgbench would take a value of digits for a number: so this one is written as PostgreSQL writes bytes.
        values = {"now": f"{time.time_ns() // 1000}", "payload": "\\x" + payload().hex()}
        self._command = [str(postgres.programs / "pgbench"), "-n", "-M", "prepared", "-c", f"{_CLIENTS}", "-j", "2"]
        self._command += ["-f", str(script), *(word for name in values for word in ("-D", f"{name}={values[name]}"))]
        self._dsn = dsn

    def _work(self, seconds: float) -> tuple[int, float, float]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = subprocess.run(
            [*self._command, "-T", f"{max(1, round(seconds))}", self._dsn],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        ).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = int(re.findall(r"transactions actually processed: (\d+)", said)[0])
        rate = float(re.findall(r"tps = ([\d.]+)", said)[0])  # connecting is not in it
        return done, done / rate, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class _Served:
    """Databases with the schema of qs, their queue servers, and clients of these: all of one PostgreSQL."""

    def __init__(self, run: Run, postgres: Postgres, stack: ExitStack) -> None:
        self._folder = run.folder
        self._postgres = postgres
        self._stack = stack

    def dsn(self, database: str) -> str:
        """Makes a database with the schema of qs. Returns its DSN."""
        dsn = self._postgres.new_database(database)
        migrate(dsn)
        return dsn

    def server(self, name: str, dsn: str) -> Process:
        """Starts a queue server on such a database, with a queue."""
        flags = ("--storage", "postgres", "--postgres", dsn)
        return self._stack.enter_context(queue_server(self._folder / name, *flags))

    def served(self, name: str) -> Process:
        """Makes a database with a server on it, and a queue."""
        server = self.server(name, self.dsn(name))
        new_queue(server.address)
        return server

    def side(self, kind: str, *servers: Process) -> _Side:
        """Returns the clients of these servers, as many as of any other side: each server has its share."""
        clients = [
            self._stack.enter_context(Clients(kind, f"127.0.0.1:{server.port}", _CLIENTS // len(servers)))
            for server in servers
        ]
        return _Side(self._postgres, clients, servers)

    def threads(self, kind: str, dsn: str) -> _Side:
        """Returns clients that talk to PostgreSQL itself: threads in two processes, as one has a single interpreter."""
        clients = [self._stack.enter_context(Clients(kind, dsn, _CLIENTS // 2)) for _ in range(2)]
        return _Side(self._postgres, clients)


@contextmanager
def _everything(run: Run) -> Iterator[tuple[Postgres, _Served]]:
    """Starts a PostgreSQL, and ends all that is started on it before it."""
    with Postgres(run.folder) as postgres, ExitStack() as stack:
        yield postgres, _Served(run, postgres, stack)


def _measured(sides: dict[str, _Side], rounds: int, seconds: float) -> dict[str, list[float]]:
    return in_turn({name: partial(side.rate, seconds) for name, side in sides.items()}, rounds)


def _lengths(run: Run) -> tuple[int, float]:
    """Returns how many rounds, and the seconds of each."""
    return (2, 2.0) if run.quick else (5, 10.0)


def _missing(name: str) -> list[Figure] | None:
    return None if programs() else [Figure(name, None, of="PostgreSQL is not installed")]


def postgres_push(run: Run) -> list[Figure]:
    """Compares durable pushes of 32 connections with pgbench that inserts the same rows, one in a transaction."""
    name = f"durable push, {_CLIENTS} connections"
    if missing := _missing(name):
        return missing
    with _everything(run) as (postgres, served):
        rows = served.dsn("rows")
        sides = {
            "qs": served.side("push", served.served("qs")),
            "pgbench": _PgBench(postgres, rows, run.folder),
        }
        found = _measured(sides, *_lengths(run))
    return [
        ratio(f"{name}: qs with postgres / pgbench, {_CLIENTS} clients", found["qs"], found["pgbench"], 2),
        sides["qs"].cost("a durable push: qs with postgres"),
        sides["pgbench"].cost("a durable push: pgbench"),
    ]


def postgres_cycle(run: Run) -> list[Figure]:
    """Compares push, receive and delete of 32 connections with a queue in a table (SKIP LOCKED), and with pgmq."""
    name = f"push + receive + delete, {_CLIENTS} connections"
    if missing := _missing(name):
        return missing
    sql = run.options.pgmq_sql
    with _everything(run) as (postgres, served):
        others = {"a table with SKIP LOCKED": ("table", TABLE), "pgmq": ("pgmq", PGMQ)}
        if sql is None:
            del others["pgmq"]
        sides = {"qs": served.side("cycle", served.served("qs"))}
        for shown, (kind, statements) in others.items():
            dsn = postgres.new_database(kind)
            if kind == "pgmq":
                postgres.execute(kind, sql.read_text(encoding="utf-8"))
            postgres.execute(kind, statements)
            sides[shown] = served.threads(kind, dsn)
        found = _measured(sides, *_lengths(run))
    figures = [
        ratio(f"{name}: qs with postgres / {shown}, psycopg, {_CLIENTS} clients", found["qs"], found[shown], 1.5)
        for shown in others
    ]
    if sql is None:
        why = "NOT MEASURED: name pgmq's SQL with --pgmq-sql FILE; the package pgmq of PyPI has it (pgmq/sql/pgmq.sql)"
        print(f"{name}: qs / pgmq: {why}", flush=True)
        figures.append(Figure(f"{name}: qs with postgres / pgmq, psycopg, {_CLIENTS} clients", None, 1.5, of=why))
    costs = [side.cost(f"push + receive + delete: {shown}") for shown, side in sides.items()]
    return [*figures, *costs]


def postgres_depth(run: Run) -> list[Figure]:
    """Compares push, receive and delete on a database 1,000,000 messages deep with one of 1,000, with postgres."""
    deep = _DEEP // 10 if run.quick else _DEEP
    name = f"push + receive + delete, {_CLIENTS} connections, postgres: {deep:,} deep / {_SHALLOW:,} deep"
    if missing := _missing(name):
        return missing
    with _everything(run) as (postgres, served):
        sides = {}
        for depth in (deep, _SHALLOW):
            database = f"deep-{depth}"
            server = served.served(database)
            fill(server.address, depth)
            _settle(postgres, database)
            sides[database] = served.side("cycle", server)
        found = _measured(sides, *_lengths(run))
    over, under = sides
    return [
        ratio(name, found[over], found[under], 0.8),
        sides[over].cost(f"push + receive + delete, postgres: {deep:,} deep"),
        sides[under].cost(f"push + receive + delete, postgres: {_SHALLOW:,} deep"),
    ]


def _settle(postgres: Postgres, database: str) -> None:
    """Does at once what PostgreSQL does in the minutes after a queue was filled, so that it does not fall on a round
    that is measured."""
    postgres.execute(database, "VACUUM (ANALYZE)", "CHECKPOINT")


def postgres_age(run: Run) -> list[Figure]:
    """Compares push, receive and delete after 3,000,000 cycles (--cycles) with a new database; and beside a snapshot
    that is held for ten minutes (--held) with none. With the storage postgres."""
    cycles = run.options.cycles or (_CYCLES // 100 if run.quick else _CYCLES)
    held = run.options.held or (_HELD / 30 if run.quick else _HELD)
    name = f"push + receive + delete, {_CLIENTS} connections, postgres"
    if missing := _missing(name):
        return missing
    with _everything(run) as (postgres, served):
        aged, fresh = (served.side("cycle", served.served(database)) for database in ("aged", "fresh"))
        aging = _churn(aged, lambda: sum(spent.messages for spent in aged.spent) < cycles)
        done = sum(spent.messages for spent in aged.spent)
        age = _measured({"aged": aged, "fresh": fresh}, *_lengths(run))
        until = time.monotonic() + held
        with psycopg.connect(postgres.dsn("fresh")) as snapshot:
            snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            snapshot.execute("SELECT count(*) FROM qs.line")
            holding = _churn(fresh, lambda: time.monotonic() < until)
            # Another database: a snapshot holds back the dead rows of its own only.
            beside = _measured({"held": fresh, "free": aged}, *_lengths(run))
            dead = _dead_rows(postgres, "fresh")
    return [
        ratio(f"{name}: after {done:,} cycles / in a new database", age["aged"], age["fresh"], 0.8),
        _slowest(f"{name}: while these {done:,} cycles ran, slowest {_CHUNK:.0f} s / first", aging),
        ratio(f"{name}: beside a snapshot held for {held:,.0f} s / without", beside["held"], beside["free"], 0.7),
        _slowest(f"{name}: while the snapshot was held, slowest {_CHUNK:.0f} s / first", holding),
        Figure("dead rows and dead index entries kept for that snapshot", dead, digits=0),
    ]


def _churn(side: _Side, more: Callable[[], bool]) -> list[float]:
    """Lets the clients work as long as `more` says. Returns the rate of each ten seconds."""
    rates = []
    while more():
        rates.append(side.rate(_CHUNK))
    return rates


def _slowest(name: str, rates: Sequence[float]) -> Figure:
    return Figure(name, min(rates) / rates[0], of=f"{min(rates):,.0f}/s to {rates[0]:,.0f}/s")


def _dead_rows(postgres: Postgres, database: str) -> int:
    """Returns how many dead rows the tables of qs have, as PostgreSQL's statistics count them."""
    with psycopg.connect(postgres.dsn(database)) as connection:
        row = connection.execute("SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables").fetchone()
    assert row is not None
    return int(row[0])


def postgres_servers(run: Run) -> list[Figure]:
    """Compares two queue servers on one PostgreSQL with one, with the same number of clients."""
    name = f"push + receive + delete, {_CLIENTS} connections"
    if missing := _missing(name):
        return missing
    with _everything(run) as (_, served):
        one = served.served("one")
        two = served.dsn("two")
        both = [served.server(f"two-{number}", two) for number in range(2)]
        new_queue(both[0].address)
        sides = {"two": served.side("cycle", *both), "one": served.side("cycle", one)}
        found = _measured(sides, *_lengths(run))
    return [
        ratio(f"{name}: two servers on one PostgreSQL / one server", found["two"], found["one"], 1.4),
        sides["two"].cost("push + receive + delete, postgres: two servers"),
        sides["one"].cost("push + receive + delete, postgres: one server"),
    ]
