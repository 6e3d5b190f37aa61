"""Hints between servers: that something has come into a queue, so that a receive that waits at another server is tried.

A hint is sent after the commit, by a connection of its own: NOTIFY in a transaction that commits something would make
all commits of the database wait for each other. Hints may be lost, and come together: a look every second is the net.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import LiteralString

import psycopg
from psycopg import conninfo

from ..engine import PRIORITIES
from .known import Known, Shared, level_of
from .links import PATIENCE, Watchdog, cut

_logger = logging.getLogger(__name__)
_INTERVAL = 0.01
"""Seconds between two notifications of a server, at least."""
_MOST = 200
"""Queues of one notification: it has at most 8000 bytes."""
_TELL = "SELECT pg_notify('qs', %s)"
_PAUSE = 1.0
_CUT_EVERY = 0.1
NOWHERE = PRIORITIES << 56
"""Behind all places: there may be something anywhere."""
_CHANGED = "changed"
_CHECK_EVERY = 5
"""Pauses between two questions to a database that says nothing: it may stand still while another has its place."""


class _Wire:
    """A connection for hints, which another thread may cut. For one thread at a time otherwise."""

    def __init__(self, watch: Watchdog) -> None:
        self._watch = watch
        self.connection: psycopg.Connection[tuple[object, ...]] | None = None

    def execute(self, statement: LiteralString, given: Sequence[object] = ()) -> None:
        """Runs a statement. psycopg.Error, also after some time without an answer."""
        if self.connection is not None:
            self._watch.begin(self, PATIENCE)
            try:
                self.connection.execute(statement, given)
            finally:
                self._watch.end(self)

    def cut(self) -> None:
        if self.connection is not None:
            cut(self.connection)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class Hints:
    """Sends and receives hints, in two threads with a connection each.

    Never raises, and never holds anybody up: what cannot be sent is dropped."""

    def __init__(
        self,
        shared: Shared,
        arrived: Callable[[int, int | None], object],
        changed: Callable[[], object],
        again: Callable[[], object],
    ) -> None:
        """arrived: called with (number of a queue, a place or None) for a hint of another; changed: when queues have
        come or gone; again: when hints may have been lost."""
        self._shared = shared
        self._links = shared.links
        self._arrived = arrived
        self._changed = changed
        self._again = again
        self._told: dict[tuple[int, int], int] = {}
        self._queues_changed = False
        self._more = threading.Event()
        self._stopping = threading.Event()
        self._telling, self._listening = _Wire(shared.links.watchdog), _Wire(shared.links.watchdog)
        self._threads = [
            threading.Thread(target=self._tell, name="postgres tells", daemon=True),
            threading.Thread(target=self._listen, name="postgres listens", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def tell(self, known: Known, places: Collection[int]) -> None:
        """Tells others that there is something at places of a queue, or for no places that there may be something."""
        for place in places or (NOWHERE,):
            told = known.number, level_of(place)
            self._told[told] = min(self._told.get(told, place), place)
        self._more.set()

    def tell_of_change(self) -> None:
        """Tells others that queues have come, gone or changed."""
        self._queues_changed = True
        self._more.set()

    def close(self) -> None:
        self._stopping.set()
        self._more.set()
        for wire, thread in zip((self._telling, self._listening), self._threads, strict=True):
            while thread.is_alive():  # one that connects just now may wait for an answer later
                wire.cut()
                thread.join(_CUT_EVERY)

    def _connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        # A hint need not be durable, and must not wait for a standby.
        options = f"{conninfo.conninfo_to_dict(self._links.dsn).get('options', '')} -c synchronous_commit=off"
        return psycopg.connect(conninfo.make_conninfo(self._links.dsn, options=options), autocommit=True)

    def _tell(self) -> None:
        wire = self._telling
        while True:
            self._more.wait()
            self._more.clear()
            if self._stopping.is_set():
                break
            told, self._told = self._told, {}
            changed, self._queues_changed = self._queues_changed, False
            lines = [f"{number}:{place}" for (number, _), place in list(told.items())]
            parts = [" ".join(lines[at : at + _MOST]) for at in range(0, len(lines), _MOST)]
            try:
                if wire.connection is None or wire.connection.closed:
                    wire.connection = self._connect()
                for part in [*parts, *([_CHANGED] if changed else [])]:
                    wire.execute(_TELL, [f"{self._shared.server} {part}"])
            except psycopg.Error as error:
                _logger.debug("a hint was not sent: %s", error)
                wire.close()
                self._stopping.wait(_PAUSE)
            self._stopping.wait(_INTERVAL)
        wire.close()

    def _listen(self) -> None:
        wire = self._listening
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    wire.connection = connection
                    wire.execute("LISTEN qs")
                    self._again()  # what came while nobody listened
                    while not self._stopping.is_set():
                        for _ in range(_CHECK_EVERY):
                            for notice in connection.notifies(timeout=_PAUSE):
                                self._hear(notice.payload)
                        wire.execute("SELECT 1")
            except psycopg.Error as error:
                _logger.debug("hints are not heard: %s", error)
                self._stopping.wait(_PAUSE)

    def _hear(self, payload: str) -> None:
        server, *lines = payload.split()
        if server == str(self._shared.server):
            return
        if lines == [_CHANGED]:
            self._changed()
            return
        for line in lines:
            number, _, place = line.partition(":")
            if number.isdigit() and place.isdigit():
                self._arrived(int(number), None if int(place) >= NOWHERE else int(place))
