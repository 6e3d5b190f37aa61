"""The tables of the storage `postgres`: the schema `qs` of a database, and how it is made and checked.

A message is one row of `messages`, which is never updated, and one row of either `line` (visible, in the order in which
messages are handed out) or `hidden` (in flight, delayed, waiting for its group, or claimed). Receiving moves it from
one to the other: rows are inserted and deleted, and on the way of most messages none is updated. docs/postgres.md says
why.

Times are microseconds since the Epoch, ids come from one sequence for all queues.
"""

from contextlib import closing

import psycopg
from psycopg import errors as pg

from ..engine import StorageError
from .error_text import line_of

VERSION = 1
"""The version of the schema that this program reads and writes."""

_QUEUE_TABLE = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0"
)
"""Of tables whose rows come and go: autovacuum comes when two of a hundred rows are dead, and does not sleep."""

_TABLES = f"""
CREATE TABLE qs.version (version int NOT NULL);
CREATE SEQUENCE qs.mids AS bigint;
CREATE SEQUENCE qs.changes AS bigint;

CREATE TABLE qs.queues (
    queue int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    qid text COLLATE "C" NOT NULL UNIQUE,
    paused boolean NOT NULL,
    options jsonb NOT NULL
);

CREATE TABLE qs.removals (
    queue int PRIMARY KEY,
    since bigint NOT NULL
);

CREATE TABLE qs.messages (
    queue int NOT NULL,
    id bigint NOT NULL,
    pushed_at bigint NOT NULL,
    stored_at bigint NOT NULL,
    expires_at bigint,
    priority smallint NOT NULL,
    grp text COLLATE "C",
    ukey text COLLATE "C",
    origin jsonb,
    headers bytea,
    payload bytea NOT NULL,
    PRIMARY KEY (queue, id)
) WITH ({_QUEUE_TABLE});
ALTER TABLE qs.messages ALTER payload SET STORAGE EXTERNAL;
CREATE INDEX messages_expires ON qs.messages (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX messages_letters ON qs.messages (queue, id) WHERE origin IS NOT NULL;

CREATE TABLE qs.line (
    queue int NOT NULL,
    place bigint NOT NULL,
    id bigint NOT NULL,
    receives int NOT NULL,
    size int NOT NULL,
    grp text COLLATE "C",
    reason text,
    PRIMARY KEY (queue, id)
) WITH ({_QUEUE_TABLE});
CREATE INDEX line_place ON qs.line (queue, place);
CREATE INDEX line_group ON qs.line (queue, grp) WHERE grp IS NOT NULL;

CREATE TABLE qs.hidden (
    queue int NOT NULL,
    id bigint NOT NULL,
    place bigint NOT NULL,
    until bigint NOT NULL,
    receives int NOT NULL,
    size int NOT NULL,
    server int,
    seq int,
    state smallint NOT NULL,
    held boolean NOT NULL,
    counted boolean NOT NULL DEFAULT false,
    grp text COLLATE "C",
    reason text,
    consumer text COLLATE "C",
    PRIMARY KEY (queue, id)
) WITH ({_QUEUE_TABLE});
CREATE INDEX hidden_until ON qs.hidden (until);
CREATE INDEX hidden_held ON qs.hidden (server) WHERE held;
CREATE INDEX hidden_group ON qs.hidden (queue, grp, state, id) WHERE grp IS NOT NULL;
CREATE INDEX hidden_counted ON qs.hidden (queue) WHERE counted;
CREATE INDEX hidden_claim ON qs.hidden (queue, consumer, seq, id) WHERE consumer IS NOT NULL;

CREATE TABLE qs.keys (
    queue int NOT NULL,
    key text COLLATE "C" NOT NULL,
    id bigint NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (queue, key)
) WITH ({_QUEUE_TABLE});
CREATE INDEX keys_until ON qs.keys (until);

CREATE TABLE qs.paces (
    queue int PRIMARY KEY,
    begin bigint NOT NULL,
    given int NOT NULL,
    spread boolean NOT NULL,
    rate float8 NOT NULL
) WITH (fillfactor = 50, {_QUEUE_TABLE});

CREATE TABLE qs.claims (
    queue int NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    seq int NOT NULL,
    since bigint NOT NULL,
    size bigint NOT NULL,
    checksum text NOT NULL,
    mids bigint[] NOT NULL,
    PRIMARY KEY (queue, consumer, seq)
) WITH ({_QUEUE_TABLE});
CREATE TABLE qs.consumers (
    queue int NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    acknowledged int NOT NULL,
    PRIMARY KEY (queue, consumer)
);

CREATE TABLE qs.staged (
    queue int NOT NULL,
    producer text COLLATE "C" NOT NULL,
    batch bigint NOT NULL,
    part bigint NOT NULL,
    attempt bigint NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    staged_at bigint NOT NULL,
    expires_at bigint,
    priority smallint NOT NULL,
    grp text COLLATE "C",
    headers bytea,
    payload bytea,
    PRIMARY KEY (queue, producer, batch, part, attempt, number)
) WITH ({_QUEUE_TABLE});
ALTER TABLE qs.staged ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE qs.producers (
    queue int NOT NULL,
    producer text COLLATE "C" NOT NULL,
    published bigint NOT NULL,
    PRIMARY KEY (queue, producer)
);

CREATE TABLE qs.servers (
    server int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    beat bigint NOT NULL
) WITH (fillfactor = 50);
"""

_STEPS: dict[int, str] = {1: _TABLES}
"""By version: the statements that make it from the version before."""
_GRANTS = "the role that serves needs the rights on the schema qs that docs/postgres.md grants"
_LACKING = """
SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = to_regnamespace('qs') AND c.relname <> 'version' AND NOT
    CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'SELECT')
    WHEN 'r' THEN has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') ELSE true END
ORDER BY c.relname"""
_LOCK = 0x7173
"""The advisory lock under which a schema is made, so that two who do it at once do it one after the other."""


def migrate(dsn: str) -> str:
    """Makes the schema, or brings it up to this program's version: in one transaction, with what exists kept. Returns a
    sentence that says what was done. StorageError."""
    try:
        with closing(psycopg.connect(dsn)) as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            found = _version(connection)
            if found > VERSION:
                raise StorageError(_newer(found))
            if found == VERSION:
                return f"the schema qs has version {VERSION} already: nothing to do"
            if not found:
                connection.execute("CREATE SCHEMA qs")
            for version in range(found + 1, VERSION + 1):
                connection.execute(_STEPS[version])
            connection.execute("DELETE FROM qs.version")
            connection.execute("INSERT INTO qs.version VALUES (%s)", [VERSION])
            return (
                f"the schema qs was made, with version {VERSION}"
                if not found
                else f"the schema qs has version {VERSION} now"
            )
    except psycopg.Error as error:
        raise StorageError(f"the schema qs could not be made: {line_of(error)}") from None


def check(connection: "psycopg.Connection[object]") -> None:
    """Checks that the database has the schema in the version of this program. StorageError with what to do."""
    try:
        found = _version(connection)
    except pg.InsufficientPrivilege as error:
        raise StorageError(f"{line_of(error)}: {_GRANTS}") from None
    if found > VERSION:
        raise StorageError(_newer(found))
    if found < VERSION:
        has = f"has version {found} of the schema qs" if found else "has no schema qs"
        raise StorageError(
            f"the database {has}, and version {VERSION} is needed: run queue-server.py --postgres … --migrate"
        )


def check_rights(connection: "psycopg.Connection[object]") -> None:
    """Checks that the role may do with the tables and sequences what serving takes. StorageError that names those that
    it may not use."""
    lacking = [str(row[0]) for row in connection.execute(_LACKING).fetchall() if isinstance(row, tuple)]
    if lacking:
        raise StorageError(f"the role {connection.info.user} may not use {', '.join(lacking)}: {_GRANTS}")


def _newer(found: int) -> str:
    return f"the database has version {found} of the schema qs; this program knows version {VERSION}: update it"


def _version(connection: "psycopg.Connection[object]") -> int:
    """Returns the version of the schema, 0 if there is none."""
    if connection.execute("SELECT to_regclass('qs.version')").fetchone() == (None,):
        return 0
    row = connection.execute("SELECT max(version) FROM qs.version").fetchone()
    return int(row[0]) if isinstance(row, tuple) and row[0] is not None else 0
