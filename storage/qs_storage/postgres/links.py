"""Connections to the database: how they are made, what is sent through them, and what an error means.

Each transaction goes through `Link.transact`. Before its COMMIT is sent, an error means that nothing was changed, and
the caller may repeat it. From then on, an error means that nobody knows, and the answer has to say so.
"""

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import conninfo
from psycopg import errors as pg

from ..engine import NotKnownError, QueueFullError, StorageError, UnavailableError
from . import schema
from .error_text import line_of
from .pipeline import Connection, Pipeline

_logger = logging.getLogger(__name__)
T = TypeVar("T")

PATIENCE = 10.0
"""Seconds for which a request waits for a database that does not answer, before it is refused."""
COMMIT_PATIENCE = 30.0
"""Seconds for which a commit waits for its answer, before it is said to be not known. A commit that waits for a standby
waits for as long as that takes: a short bound would call every slow standby a fault."""
BUSY = (
    "PostgreSQL has not answered earlier requests for so long that this one was not begun, and nothing was changed: "
    "its log, and pg_stat_activity, say what it waits for"
)
_SILENT = "it has not answered in time, and the connection was given up"
_PLANS_LAST = 1.0
"""Seconds after which a connection has its statements planned anew. A plan that was made just after VACUUM had found
the tables empty reads whole tables, and PostgreSQL would keep it until its next look at them."""
_LONGEST_PAUSE = 1.0
_STOPPING = 2.0
"""Seconds that a stop leaves to what is under way: with the second until that is noticed, less than the time after
which a stop is cut short."""
_SETTINGS = {
    # The planner knows these tables as they were at the last ANALYZE, when they may have been empty: then it would read
    # whole tables, with all their dead rows. Each statement here is for one index.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # A timeout that ended a COMMIT would end its wait for a standby: see `Link._commit`. The links have bounds of their
    # own.
    "statement_timeout": "0",
    "lock_timeout": "0",
    # The locks of a server that has stopped in the middle of a transaction must not hold others up.
    "idle_in_transaction_session_timeout": "10s",
    # A session whose connection was given up ends, and does not wait for a lock until a standby is back.
    "client_connection_check_interval": "5s",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read\\ committed",
    "bytea_output": "hex",
}
_KEPT_ALIVE = {
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "application_name": "qs",
    "target_session_attrs": "read-write",  # nothing is read from a standby
}
"""Parameters of libpq that a DSN may replace."""
_FINAL = (pg.InvalidAuthorizationSpecification, pg.InvalidCatalogName, pg.InsufficientPrivilege, pg.UndefinedTable)
"""Errors that no repetition ends: an operator has to do something."""
_PASSING = (
    pg.TransactionRollback,  # a deadlock, or a conflict with what others do
    pg.QueryCanceled,
    pg.LockNotAvailable,
    pg.ReadOnlySqlTransaction,  # a primary that has become a standby
    pg.OperatorIntervention,
    pg.InsufficientResources,
    pg.InvalidSqlStatementName,  # a prepared statement of another session, behind a pool
)


def with_settings(dsn: str) -> str:
    """Returns a DSN with this program's settings, where it says nothing else. UnavailableError for one that cannot be
    read."""
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        # libpq's text has a part of the DSN, which may be of a password.
        raise UnavailableError(
            "the DSN of PostgreSQL cannot be read: it is a URL (postgresql://USER@HOST/DATABASE), or a list of "
            "KEYWORD=VALUE as 'host=… dbname=… user=…'"
        ) from None
    options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
    given["options"] = f"{options} {given.get('options') or ''}".strip()
    return conninfo.make_conninfo("", **{**_KEPT_ALIVE, **given})


def is_full(error: Exception) -> bool:
    """Tells whether the database's disk is full."""
    return isinstance(error, pg.DiskFull)


def is_passing(error: Exception) -> bool:
    """Tells whether an error may be gone when the same is tried again, maybe with a new connection."""
    if isinstance(error, _FINAL) or is_full(error):
        return False
    if isinstance(error, _PASSING):
        return True
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


class Link:
    """One connection, made again when it is lost. For one thread at a time.

    Ensures that `transact` has changed nothing if it raises anything but NotKnownError."""

    def __init__(self, dsn: str, watch: "Watchdog") -> None:
        self._dsn = dsn
        self._watch = watch
        self._connection: Connection | None = None
        self._pipeline: Pipeline | None = None
        self._warned = ""
        """The last warning of the server."""
        self._given_up = False
        """True if the watchdog has cut the connection. For libpq, the server has closed it."""
        self._planned_at = 0.0

    def _connected(self) -> tuple[Connection, Pipeline]:
        """Returns the open connection. Connects if there is none. psycopg.Error, StorageError."""
        connection, pipeline = self._connection, self._pipeline
        if connection is None or pipeline is None or connection.closed:
            if self._watch.hurries:
                raise UnavailableError("the storage is being closed, and connects to PostgreSQL no more")
            connection = psycopg.connect(self._dsn, autocommit=True)
            self._connection, self._pipeline, self._given_up = connection, None, False
            self._watch.begin(self, PATIENCE)
            try:
                schema.check(connection)
            except BaseException:
                self.close()
                raise
            finally:
                self._watch.end(self)
            connection.add_notice_handler(self._note)
            # A large transaction, as a publication of a million messages, has its time for each answer.
            pipeline = Pipeline(connection, lambda: self._watch.begin(self, PATIENCE))
            self._pipeline, self._planned_at = pipeline, time.monotonic()
        return connection, pipeline

    def _note(self, notice: pg.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warned = notice.message_primary or "a warning"

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def transact(self, step: "Callable[[Pipeline], T]", asked: Callable[[], object] | None = None) -> T:
        """Runs a step as one transaction. asked: called when only the commit is left to do. The step may be repeated if
        this raises a psycopg.Error. NotKnownError if the outcome of the commit is not known; StorageError as the step
        raises; then nothing has changed."""
        connection, pipeline = self._connected()
        self._watch.begin(self, PATIENCE)
        try:
            pipeline.begin()
            try:
                pipeline.ask("BEGIN")  # goes with the first statements
                if (now := time.monotonic()) - self._planned_at >= _PLANS_LAST:
                    self._planned_at = now
                    pipeline.ask("DISCARD PLANS")
                result = step(pipeline)
            finally:
                pipeline.end()
        except BaseException as error:
            self._roll_back(connection)
            if self._given_up and isinstance(error, psycopg.OperationalError):
                raise psycopg.OperationalError(_SILENT) from None
            raise
        finally:
            self._watch.end(self)
        if asked is not None:
            asked()
        self._commit(connection, pipeline)
        return result

    def _commit(self, connection: Connection, pipeline: Pipeline) -> None:
        """Commits. A commit that waits for a standby, and whose wait is cancelled, succeeds with a warning: it is
        durable here and maybe nowhere else, which is less than was asked for."""
        self._warned = ""
        self._watch.begin(self, COMMIT_PATIENCE)
        try:
            pipeline.begin()
            try:
                status = pipeline.ask("COMMIT").status
            finally:
                pipeline.end()
        except psycopg.Error as error:
            # Only an ERROR, on a connection that goes on, says that nothing was committed. A FATAL ends the connection:
            # it may come after the commit.
            if error.diag.severity_nonlocalized == "ERROR" and not (connection.closed or connection.broken):
                raise
            self.close()
            raise NotKnownError(
                "the connection was lost during a commit, which may be done: "
                f"{_SILENT if self._given_up else line_of(error)}"
            ) from None
        finally:
            self._watch.end(self)
        if status != "COMMIT":
            raise pg.InternalError(f"the database answered a commit with {status}")
        if self._warned:
            raise NotKnownError(f"a commit is not known to be where it should be: {self._warned}")

    def _roll_back(self, connection: Connection) -> None:
        try:
            if not connection.closed:
                connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def cut(self) -> None:
        """Ends the connection, from any thread: a thread that waits for an answer gets an error."""
        if self._connection is not None:
            self._given_up = True
            cut(self._connection)


class Cuttable(Protocol):
    """What a watchdog watches."""

    def cut(self) -> None:
        """Ends the connection, from any thread."""


class Watchdog:
    """Cuts links whose server has not answered in time: libpq has no bound on the wait for an answer."""

    def __init__(self) -> None:
        self._until: dict[Cuttable, float] = {}
        self._end = math.inf
        self.hurries = False
        """True when this server stops: a connection that has to be made anew would take too long."""

    def begin(self, link: Cuttable, seconds: float) -> None:
        self._until[link] = min(time.monotonic() + seconds, self._end)

    def hurry(self, seconds: float) -> None:
        """Gives all answers so much time at most from now on, as this server stops."""
        self.hurries = True
        self._end = time.monotonic() + seconds
        for link, until in list(self._until.items()):
            self._until[link] = min(until, self._end)

    def end(self, link: Cuttable) -> None:
        self._until.pop(link, None)

    def look(self) -> None:
        """Cuts what is late. Call it about once a second."""
        now = time.monotonic()
        for link, until in list(self._until.items()):
            if until < now:
                _logger.warning("PostgreSQL has not answered in time: the connection is given up")
                self._until.pop(link, None)
                link.cut()


class Links:
    """The connections for requests that are not gathered, and the way in which all requests try again.

    Ensures that at most `most` connections are open. Several threads may use it."""

    def __init__(self, dsn: str, most: int) -> None:
        self.dsn = with_settings(dsn)
        self.watchdog = Watchdog()
        self.stopping = threading.Event()
        self._free = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        self._closed = False

    def new(self) -> Link:
        """Returns a link of the caller's own, which connects when it is used."""
        return Link(self.dsn, self.watchdog)

    def run(self, step: "Callable[[Pipeline], T]") -> T:
        """Runs a step as one transaction, again if it fails before its commit for a reason that may pass.
        UnavailableError after `PATIENCE`; NotKnownError; StorageError as the step raises."""
        begun = time.monotonic()
        if not self._free.acquire(timeout=PATIENCE):
            raise UnavailableError(BUSY)
        try:
            link = self._take()
            try:
                return self.repeat(lambda: link.transact(step), link, begun)
            finally:
                self._put_back(link)
        finally:
            self._free.release()

    def repeat(self, attempt: Callable[[], T], link: Link, begun: float | None = None) -> T:
        """Calls attempt until it succeeds. begun: since when the request waits, by the monotonic clock. Raises as
        `run`."""
        until = (time.monotonic() if begun is None else begun) + PATIENCE
        pause = 0.02
        while True:
            try:
                return attempt()
            except psycopg.Error as error:
                if isinstance(error, pg.ReadOnlySqlTransaction):
                    link.close()  # the next connection finds the primary
                if not is_passing(error) or time.monotonic() + pause >= until or self.stopping.is_set():
                    raise translated(error) from None
            self.stopping.wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def stop(self) -> None:
        """Lets what is under way end soon, and has nothing tried again."""
        self.stopping.set()
        self.watchdog.hurry(_STOPPING)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for link in self._idle:
                link.close()

    def _take(self) -> Link:
        with self._lock:
            if self._closed:
                raise StorageError("the storage is closed")
            return self._idle.pop() if self._idle else self.new()

    def _put_back(self, link: Link) -> None:
        with self._lock:
            if self._closed:
                link.close()
            else:
                self._idle.append(link)


def migrate(dsn: str) -> str:
    """Makes the schema, or brings it up to date: see `schema.migrate`. Of several hosts it takes the primary."""
    return schema.migrate(with_settings(dsn))


def describe(dsn: str) -> str:
    """Connects once, and returns what was found. A database that does not answer is no error: it may come back.
    StorageError for a DSN that cannot be read, for a database without the schema, and for a role that cannot serve."""
    try:
        with psycopg.connect(with_settings(dsn)) as connection:
            schema.check(connection)
            schema.check_rights(connection)
            info = connection.info  # of an open connection alone
            where = f"the database {info.dbname} on {info.host}:{info.port}"
        return f"{where} has the schema qs in version {schema.VERSION}"
    except psycopg.Error as error:
        return f"cannot be asked now: {line_of(error)}"


def translated(error: psycopg.Error) -> StorageError:
    """Returns the error for a client: nothing was changed."""
    if is_full(error):
        return QueueFullError(f"the disk of the database is full: {line_of(error)}")
    return UnavailableError(f"PostgreSQL refuses or does not answer, and nothing was changed: {line_of(error)}")


def cut(connection: "psycopg.Connection[Any]") -> None:
    """Ends a connection under a thread that waits for it."""
    try:
        if not connection.closed:
            with socket.socket(fileno=socket.dup(connection.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        pass  # it has ended by itself
