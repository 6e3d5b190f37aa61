"""Three layouts for a queue in tables of PostgreSQL, from which that of the storage `postgres` was chosen.

All of them keep a message, say whether it is visible, and hand out the oldest first. They differ in what a receive
writes, and so in the dead rows that it leaves:

- `rows that move`: a message is never updated. A receive deletes a row of one table and inserts one into another.
- `one update in place`: a receive updates columns that no index has, on a page with room for the new row (a HOT
  update).
- `a state under indexes`: a receive updates a column on which partial indexes depend.

The statements are those of a server: lists, several statements a transaction, and an index for each statement.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import LiteralString

import psycopg
from measuring import Figure, Run, in_turn
from postgres_server import Postgres

_PAYLOAD = b"x" * 1024
_LIST = 32
"""Messages of a transaction: what comes together from as many clients."""
_WORKERS = 2
_SECONDS, _QUICK = 12.0, 2.0
"""Of one measurement, of which the second half counts: what dead rows cost comes with time."""
_ROUNDS = 3
_Side = Callable[[], float]
_SPARE = 20
"""Lists below its last message at which a worker begins to read: there may be messages that another one has skipped."""
_WINDOW = 30_000_000
_PLANNER = ("seqscan", "bitmapscan", "hashjoin", "mergejoin")
"""What the planner is told not to use: as it believes that the tables are as small as at their last ANALYZE."""

_OFTEN: LiteralString = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0"
_NOW: LiteralString = "(extract(epoch FROM now()) * 1e6)::bigint"
_UNTIL: LiteralString = f"{_NOW} + {_WINDOW}"
_NEW: LiteralString = """
    WITH new AS MATERIALIZED (
        SELECT nextval('ids') AS id, payload FROM unnest(%b::bytea[]) WITH ORDINALITY AS one (payload, n) ORDER BY n
    )"""


@dataclass(frozen=True)
class Layout:
    """Tables, and three statements: push a list; receive (from which place on, up to how many) ids, places and
    payloads; delete a list."""

    name: str
    tables: LiteralString
    push: LiteralString
    receive: LiteralString
    delete: LiteralString


MOVING = Layout(
    "rows that move",
    f"""
    CREATE TABLE messages (id bigint PRIMARY KEY, pushed_at bigint NOT NULL, payload bytea NOT NULL) WITH ({_OFTEN});
    ALTER TABLE messages ALTER payload SET STORAGE EXTERNAL;
    CREATE TABLE line (id bigint PRIMARY KEY, place bigint NOT NULL, receives int NOT NULL) WITH ({_OFTEN});
    CREATE INDEX line_place ON line (place);
    CREATE TABLE hidden (id bigint PRIMARY KEY, place bigint NOT NULL, until bigint NOT NULL, receives int NOT NULL)
        WITH ({_OFTEN});
    CREATE INDEX hidden_until ON hidden (until);
    """,
    f"""{_NEW},
    one AS (INSERT INTO messages SELECT id, {_NOW}, payload FROM new),
    two AS (INSERT INTO line SELECT id, id, 0 FROM new)
    SELECT id FROM new""",
    f"""
    WITH found AS MATERIALIZED (
        SELECT ctid FROM line WHERE place >= %b ORDER BY place LIMIT %b FOR UPDATE SKIP LOCKED
    ),
    gone AS (DELETE FROM line WHERE ctid = ANY (ARRAY (SELECT ctid FROM found)) RETURNING *),
    come AS (INSERT INTO hidden SELECT id, place, {_UNTIL}, receives + 1 FROM gone)
    SELECT gone.id, gone.place, messages.payload FROM gone JOIN messages USING (id)""",
    """
    WITH these AS (SELECT unnest(%b::int8[]) AS id),
    one AS (DELETE FROM messages USING these WHERE messages.id = these.id)
    DELETE FROM hidden USING these WHERE hidden.id = these.id""",
)


def _updated(name: str, room: LiteralString, indexes: LiteralString, visible: LiteralString) -> Layout:
    """Returns a layout whose receives update a row; payloads are in a table of their own, which is not updated. room:
    the fill factor; visible: the condition of a receive."""
    return Layout(
        name,
        f"""
        CREATE TABLE messages (id bigint PRIMARY KEY, state smallint NOT NULL, place bigint NOT NULL, until bigint,
            receives int NOT NULL, pushed_at bigint NOT NULL) WITH (fillfactor = {room}, {_OFTEN});
        CREATE TABLE payloads (id bigint PRIMARY KEY, payload bytea NOT NULL) WITH ({_OFTEN});
        ALTER TABLE payloads ALTER payload SET STORAGE EXTERNAL;
        {indexes}
        """,
        f"""{_NEW},
        one AS (INSERT INTO payloads SELECT id, payload FROM new),
        two AS (INSERT INTO messages SELECT id, 0, id, NULL, 0, {_NOW} FROM new)
        SELECT id FROM new""",
        f"""
        WITH found AS MATERIALIZED (
            SELECT ctid FROM messages WHERE {visible} AND place >= %b ORDER BY place LIMIT %b FOR UPDATE SKIP LOCKED
        )
        UPDATE messages SET state = 1, until = {_UNTIL}, receives = receives + 1 FROM payloads
        WHERE messages.ctid = ANY (ARRAY (SELECT ctid FROM found)) AND payloads.id = messages.id
        RETURNING messages.id, messages.place, payloads.payload""",
        """
        WITH these AS (SELECT unnest(%b::int8[]) AS id),
        one AS (DELETE FROM payloads USING these WHERE payloads.id = these.id)
        DELETE FROM messages USING these WHERE messages.id = these.id""",
    )


IN_PLACE = _updated(
    "one update in place",
    "50",
    "CREATE INDEX ready ON messages (place);",
    f"(until IS NULL OR until <= {_NOW})",
)
STATE = _updated(
    "a state under indexes",
    "90",
    "CREATE INDEX ready ON messages (place) WHERE state = 0;CREATE INDEX hidden ON messages (until) WHERE state = 1;",
    "state = 0",
)


class _Worker(threading.Thread):
    """Pushes, receives and deletes lists until a time. done: rounds of a message, with the time at their end."""

    def __init__(self, dsn: str, layout: Layout, until: float, *, from_place: bool) -> None:
        super().__init__()
        self._dsn, self._layout, self._until, self._from_place = dsn, layout, until, from_place
        self.done: list[tuple[float, int]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True, prepare_threshold=0) as connection:
                self._work(connection)
        except BaseException as error:  # `rate` raises it
            self.error = error

    def _work(self, connection: "psycopg.Connection[tuple[int, int, bytes]]") -> None:
        taken: list[int] = []
        place = 0
        while (now := time.monotonic()) < self._until:
            pushed, received, deleted = (connection.cursor(binary=True) for _ in range(3))
            with connection.pipeline():
                connection.execute("BEGIN")
                pushed.execute(self._layout.push, [[_PAYLOAD] * _LIST])
                received.execute(self._layout.receive, [place, _LIST])
                deleted.execute(self._layout.delete, [taken])
                connection.execute("COMMIT")
            if deleted.rowcount != len(taken):
                raise RuntimeError(f"{deleted.rowcount} of {len(taken)} messages were deleted")
            rows = received.fetchall()
            taken = [mid for mid, _, _ in rows]
            if self._from_place and rows:
                place = max(place, min(at for _, at, _ in rows) - _SPARE * _LIST)
            self.done.append((now, len(rows)))


@contextmanager
def _snapshot(dsn: str, *, held: bool) -> Iterator[None]:
    """Holds a snapshot, which keeps all rows from being removed that are deleted after its beginning."""
    if not held:
        yield
        return
    with psycopg.connect(dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM messages")
        yield


def cost(
    postgres: Postgres, layout: Layout, seconds: float, *, held: bool, planner: bool = True, from_place: bool = True
) -> float:
    """Returns the microseconds of processor time of PostgreSQL, with all its processes, for a message that is pushed,
    received and deleted, in the second half of the time. Other work on the machine hardly changes it, as it does a
    rate. held: beside a snapshot; planner: is told to use indexes; from_place: a receive begins to read where the last
    one ended, not at the beginning."""
    database = "layout"
    dsn = postgres.new_database(database)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE ids")
        connection.execute(layout.tables)
    if planner:
        told = [f"-c enable_{name}=off" for name in _PLANNER]
        dsn += f" options='{' '.join([*told, '-c plan_cache_mode=force_generic_plan', '-c jit=off'])}'"
    with _snapshot(dsn, held=held):
        begun = time.monotonic()
        workers = [_Worker(dsn, layout, begun + seconds, from_place=from_place) for _ in range(_WORKERS)]
        for worker in workers:
            worker.start()
        time.sleep(seconds / 2)
        half, used = time.monotonic(), postgres.all_processor_seconds()
        for worker in workers:
            worker.join()
        used = postgres.all_processor_seconds() - used
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    postgres.execute("postgres", f"DROP DATABASE {database}", "CHECKPOINT")  # its files are of some GB
    return used * 1e6 / sum(count for worker in workers for at, count in worker.done if at >= half)


def postgres_layouts(run: Run) -> list[Figure]:
    """Compares layouts of tables for a queue in PostgreSQL, each alone and beside a snapshot that is held."""
    seconds = run.options.seconds or (_QUICK if run.quick else _SECONDS)
    postgres = Postgres(run.folder)

    def side(layout: Layout, *, held: bool = True, planner: bool = True, from_place: bool = True) -> _Side:
        return lambda: cost(postgres, layout, seconds, held=held, planner=planner, from_place=from_place)

    sides: dict[str, _Side] = {}
    for layout in (MOVING, IN_PLACE, STATE):
        sides[layout.name] = side(layout, held=False)
        sides[f"{layout.name}, beside a snapshot"] = side(layout)
    sides[f"{MOVING.name}, beside a snapshot, the planner as it is"] = side(MOVING, planner=False)
    sides[f"{MOVING.name}, beside a snapshot, read from the beginning"] = side(MOVING, from_place=False)
    with postgres:
        found = in_turn(sides, 1 if run.quick else _ROUNDS)
    return [
        Figure(f"a queue in tables, processor time of a message: {name}", median(costs), unit=" us", digits=1)
        for name, costs in found.items()
    ]
