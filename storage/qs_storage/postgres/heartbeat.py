"""Signs of life: each server says every two seconds that it is there, and takes over what dead ones have left.

A server whose process was killed leaves messages that its subscribers held. They are visible again some ten seconds
later, long before their windows end.
"""

import logging
import os
import threading
import time

from ..engine import SECOND
from .arrays import Int4s
from .known import Shared
from .running import run_on
from .transaction import Transaction

_logger = logging.getLogger(__name__)
_INTERVAL = 2.0
"""Seconds between two signs of life."""
DEAD = 7 * SECOND
"""A server that has given no sign of life for so long is taken for dead."""
_IN_TOUCH = 4.0
"""Seconds: only who has given his own signs so often says that another one is dead. After the database has stood still,
all signs are old."""

_JUMP = SECOND
"""The clock that jumps is that of another machine, which has become the primary. Signs by the old clock say nothing."""

_LOCALLY = "SET LOCAL synchronous_commit = off"
"""A sign of life is nothing that has to survive, and must not wait for a standby."""
_TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_REGISTER = "INSERT INTO qs.servers (name, beat) VALUES (%b::text, %b::bigint) RETURNING server"
_BEAT = "UPDATE qs.servers SET beat = %b::bigint WHERE server = %b::int RETURNING server"
_COUNT = "SELECT count(*) FROM qs.servers"
_BURY = "DELETE FROM qs.servers WHERE beat < %b::bigint AND server <> %b::int RETURNING server"
_LEAVE = "DELETE FROM qs.servers WHERE server = %b::int"
_GIVE_BACK = "UPDATE qs.hidden SET until = %b::bigint WHERE server = ANY (%b::int[]) AND held RETURNING queue"


class DatabaseClock:
    """The database's time, kept as an offset to this machine's monotonic clock. Before the first `read`, the time of
    this machine."""

    def __init__(self) -> None:
        self._offset = time.time_ns() // 1000 - time.monotonic_ns() // 1000

    def __call__(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset

    def read(self, tx: Transaction) -> int:
        """Reads the database's time, which was read at some moment between the question and the answer. Moves the
        offset no further than that says: a slow answer must not make time go back. Returns by how much the time has
        jumped."""
        began = time.monotonic_ns() // 1000
        found = int(tx.rows(_TIME)[0][0])
        ended = time.monotonic_ns() // 1000
        before, self._offset = self._offset, min(max(self._offset, found - ended), found - began)
        return abs(self._offset - before)


class Heartbeat:
    """Gives this server's signs of life, in a thread with a connection of its own: nothing else holds it up.

    Ensures that `Shared.server` is a number that no other server has, and a new one after this server was taken for
    dead. Never raises."""

    def __init__(self, shared: Shared, clock: DatabaseClock | None) -> None:
        """clock: is kept right, None for a clock that is not the database's."""
        self._shared = shared
        self._clock = clock
        self._link = shared.links.new()
        self._stopping = threading.Event()
        self._last = self._jumped = 0.0
        self.others = True
        """True if another server is alive, or may be."""
        self._thread = threading.Thread(target=self._work, name="postgres heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begins to end: nothing more is asked."""
        self._stopping.set()

    def close(self) -> None:
        """Ends, and says to others that this server is gone, unless the database has not answered for some time."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        try:
            if self._shared.server and time.monotonic() - self._last <= _IN_TOUCH:
                run_on(self._link, self._shared, self._leave)
        except Exception as error:
            _logger.info("the database was not told of the end of this server: %s", error)
        self._link.close()

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                run_on(self._link, self._shared, self.beat)
            except Exception as error:  # the upkeep says that the database cannot be used
                _logger.debug("no sign of life: %s", error)
                self._link.close()  # the next connection may find another server, which is the primary now
            self._stopping.wait(_INTERVAL)

    def beat(self, tx: Transaction) -> None:
        """Gives a sign of life, and gives back what dead servers' subscribers held. psycopg.Error."""
        tx.ask(_LOCALLY)
        if self._clock is not None and self._clock.read(tx) > _JUMP:
            self._jumped = time.monotonic()
        now, server = self._shared.now(), self._shared.server
        if not server or not tx.rows(_BEAT, [now, server]):
            server = int(tx.rows(_REGISTER, [f"{os.uname().nodename}:{os.getpid()}", now])[0][0])
        began = time.monotonic()
        if began - self._last <= _IN_TOUCH and began - self._jumped > DEAD / SECOND:
            self._give_back(tx, [row[0] for row in tx.rows(_BURY, [now - DEAD, server])])
        others = tx.rows(_COUNT)[0][0] > 1

        def note() -> None:
            self._shared.server, self.others, self._last = server, others, began

        tx.later(note)

    def _leave(self, tx: Transaction) -> None:
        tx.ask(_LEAVE, [self._shared.server])
        self._give_back(tx, [self._shared.server])

    def _give_back(self, tx: Transaction, servers: list[int]) -> None:
        """Makes visible what the subscribers of servers held: their windows end now."""
        if servers and tx.rows(_GIVE_BACK, [tx.now, Int4s(servers)]):
            tx.due(tx.now)
