"""What a server does by itself: it ends what is due, removes what is too old, and looks what others have done.

All of it runs in one thread with a connection of its own, once a second or when something is due.
"""

import logging
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from ..engine import SECOND, StorageError, UnavailableError
from ..policy import too_old_since
from . import order, removing
from .error_text import line_of
from .known import Known, Shared, options_from
from .leaving import Leaver, drop
from .links import Link
from .running import run, run_on
from .settling import end_due
from .transaction import Transaction

if TYPE_CHECKING:
    from .pipeline import Row

_logger = logging.getLogger(__name__)
LOOK = 1.0
"""Seconds between two looks at what others have done."""
_RARELY = 10.0
"""Seconds between two looks at what nobody waits for: old keys, old snapshots."""
OLD_SNAPSHOT = 60.0
"""Seconds after which the log warns of a transaction that keeps dead rows from being removed."""
_SLICE = 500
"""The most messages that are ended or removed in one transaction."""
_SLICES = 20
"""The most slices in a second of messages that are removed because they are too old."""
_MARGIN = 5 * SECOND
"""Ends are looked for from so long before the last look: others' commits may come late. A whole look comes about once
a second."""
_LOOKING = 50
"""A whole look takes at most one part in so many of the time."""

_QUEUES = "SELECT queue, qid, options FROM qs.queues"
_CHANGES = "SELECT last_value + is_called::int FROM qs.changes"
_OLDEST = """
SELECT p.queue, p.id, p.grp, p.ukey, p.stored_at, h.state FROM (
    SELECT queue, id, grp, ukey, stored_at FROM qs.messages WHERE queue = %b::int AND id > %b::bigint
    ORDER BY id LIMIT %b::int) AS p
LEFT JOIN qs.hidden AS h ON h.queue = p.queue AND h.id = p.id
ORDER BY p.id"""
_OVER = """
SELECT m.queue, m.id, m.grp, m.ukey FROM qs.messages AS m
WHERE m.expires_at <= %b::bigint
    AND coalesce((SELECT h.state FROM qs.hidden AS h WHERE h.queue = m.queue AND h.id = m.id), 0) NOT IN (1, 4)
ORDER BY m.expires_at LIMIT %b::int"""
_OLD_KEYS = "DELETE FROM qs.keys WHERE until <= %b::bigint"
_SNAPSHOT = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - coalesce(xact_start, clock_timestamp()))), 0)::float8
FROM pg_stat_activity WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""
"""Knows transactions that have a snapshot, and those that have only written. The VACUUM of the server keeps nothing."""


class Upkeep:
    """The work of a server that nobody asks for.

    Ensures that what is due is ended soon after its time, whichever server has handed it out. Never raises: what
    fails is tried again, and the log says so once."""

    def __init__(self, shared: Shared, look: Callable[[], object]) -> None:
        """look: called once a second, when others may have brought something."""
        self._shared = shared
        self._look = look
        self._link: Link = shared.links.new()
        self._wake = threading.Event()
        self._closed = False
        self._complaint = ""
        self.next_due = 0
        """When something hidden is due, in microseconds. Maybe earlier than that."""
        self._dues = 0  # calls of `due`: a look that began before one does not know of it
        self._looked_at = 0  # the last look at what is due
        self._whole_at = 0.0
        self.known = threading.Event()
        """Set when the queues have been read."""
        self._changes = -1
        self._settled = 0
        self._reads = count(1)  # reads of the queues, in the order in which they began
        self._read = 0  # the one whose result is known
        self._taking_over = threading.Lock()
        self._rarely_at = self._look_at = 0.0
        self.snapshot = 0.0
        """The age of the oldest transaction that keeps rows, in seconds."""
        self._removed: list[int] = []  # the numbers of removed queues that others have not emptied
        self._thread = threading.Thread(target=self._work, name="postgres upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def answers(self) -> bool:
        """False after an error, until the database answers again."""
        return not self._complaint

    def due(self, until: int) -> None:
        """Notes an end of something hidden."""
        self._dues += 1
        if until < self.next_due:
            self.next_due = until
            self._wake.set()

    def refresh(self) -> None:
        """Has the queues read again soon."""
        self._changes = -1
        self._look_at = 0.0
        self._wake.set()

    def stop(self) -> None:
        """Begins to end: nothing more is asked."""
        self._closed = True
        self._wake.set()

    def close(self) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._link.close()

    def _work(self) -> None:
        pause = LOOK
        while not self._closed:
            try:
                self._once()
                if self._complaint:
                    _logger.warning("PostgreSQL answers again")
                self._complaint = ""
                pause = min(LOOK, max((self.next_due - self._shared.now()) / SECOND, 0.0))
            except Exception as error:
                pause = LOOK
                said = f"{type(error).__name__}: {line_of(error)}"
                if said != self._complaint:
                    _logger.error("PostgreSQL cannot be used: %s; it is tried again every second", said)
                self._complaint = said
                if not isinstance(error, UnavailableError | StorageError):
                    self._link.close()
            self._wake.wait(pause)
            self._wake.clear()

    def _once(self) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK
            self.read_queues()
            for _ in range(_SLICES):
                if not run_on(self._link, self._shared, self._retire):
                    break
            if self._removed and not run_on(self._link, self._shared, lambda tx: removing.empty(tx, self._removed[0])):
                del self._removed[0]
            self._look()
        while self._is_due() and run_on(self._link, self._shared, self.end_due):
            pass
        if now >= self._rarely_at:
            self._rarely_at = now + _RARELY
            self._settled = max(self._settled, 1)  # a change may be committed long after it was noted
            run_on(self._link, self._shared, self._rarely)

    # -- what is due

    def _is_due(self) -> bool:
        return self._shared.now() >= self.next_due or time.monotonic() >= self._whole_at

    def end_due(self, tx: Transaction, most: int = _SLICE) -> bool:
        """Ends what is due. Returns True if there may be more. psycopg.Error."""
        order.catch_up(tx)
        if not self._is_due():
            return False
        whole = time.monotonic() >= self._whole_at
        began, dues = time.monotonic(), self._dues
        ended, following = end_due(tx, 0 if whole else self._looked_at - _MARGIN, most)
        seconds = time.monotonic() - began

        def note() -> None:
            if following is None:
                return
            self._looked_at = tx.now
            if dues == self._dues:
                self.next_due = following
            if whole:
                self._whole_at = time.monotonic() + max(LOOK, _LOOKING * seconds)

        tx.later(note)
        return following is None or ended >= most

    def _retire(self, tx: Transaction) -> bool:
        """Removes messages that are too old, or expired. Returns True if there may be more."""
        over = [Leaver(self._shared.numbers[row[0]], *row[1:]) for row in tx.rows(_OVER, [tx.now, _SLICE])
                if row[0] in self._shared.numbers]  # fmt: skip
        for known in self._shared.queues.values():
            over += self._too_old(tx, known)
        removed = drop(tx, over, idle=True) if over else 0
        return len(over) >= _SLICE and removed > 0

    def _too_old(self, tx: Transaction, known: Known) -> list[Leaver]:
        since = too_old_since(known.options, tx.now)
        found: list[Leaver] = []
        after = -1
        while since is not None and len(found) < _SLICE:
            page = tx.rows(_OLDEST, [known.number, after, _SLICE])
            old = [row for row in page if row[4] <= since]
            found += [Leaver(known, *row[1:4]) for row in old if row[5] not in (1, 4)]
            if len(old) < _SLICE:
                break
            after = page[-1][1]
        return found

    def _rarely(self, tx: Transaction) -> None:
        tx.ask(_OLD_KEYS, [tx.now])
        age = float(tx.rows(_SNAPSHOT)[0][0])
        if age >= OLD_SNAPSHOT > self.snapshot:
            _logger.warning(
                "a transaction has been open for %.0f seconds: until it ends, PostgreSQL keeps all rows that were "
                "deleted since, and queues get slower; docs/postgres.md says how to find it",
                age,
            )
        self.snapshot = age
        removed = removing.given_up(tx)
        tx.later(lambda: setattr(self, "_removed", removed))

    # -- queues

    def read_queues(self) -> None:
        """Reads the queues, if they may have changed."""
        changes = run_on(self._link, self._shared, lambda tx: int(tx.rows(_CHANGES)[0][0]))
        if changes != self._changes:
            self._settled = 3  # the change may be committed a moment later
        if self._settled:
            self._settled -= 1
            began = next(self._reads)
            self._take_over(began, run_on(self._link, self._shared, lambda tx: tx.rows(_QUEUES)))
            self._changes = changes

    def read_queues_now(self) -> None:
        """Reads the queues, in any thread, after a change of this server's. StorageError."""
        began = next(self._reads)
        self._take_over(began, run(self._shared, lambda tx: tx.rows(_QUEUES)))
        self._settled = 3
        self._wake.set()

    def add(self, known: Known) -> None:
        """Adds a queue that this server has made: reads that began before do not know of it."""
        with self._taking_over:
            self._read = next(self._reads)
            shared = self._shared
            shared.numbers = {known.number: known, **shared.numbers}
            shared.queues = {**shared.queues, known.qid: shared.numbers[known.number]}

    def _take_over(self, began: int, found: "list[Row]") -> None:
        """Replaces the known queues by those of the database, unless a later read has come first. began: the number of
        the read; found: rows of `queues`."""
        with self._taking_over:
            if began > self._read:
                self._read = began
                self._replace(found)

    def _replace(self, found: "list[Row]") -> None:
        shared = self._shared
        queues: dict[str, Known] = {}
        for number, qid, options in found:
            known = shared.numbers.get(number)
            read = options_from(options, "postgres")
            if known is None:
                known = Known(number, qid, read)
            elif known.options != read:
                if known.options.max_in_flight is None:
                    known.counts_in_flight = False
                for name in read.__dataclass_fields__:
                    setattr(known.options, name, getattr(read, name))
                known.floors.forget()
            queues[qid] = known
        shared.numbers = {known.number: known for known in queues.values()}
        shared.queues = queues
        self.known.set()
