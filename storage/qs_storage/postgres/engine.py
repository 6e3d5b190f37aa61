"""The `postgres` engine: queues in a PostgreSQL database, which any number of servers share. docs/postgres.md is its
page for operators."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ..engine import (
    SECOND,
    Clock,
    Feature,
    Message,
    NoSuchQueueError,
    NotKnownError,
    Options,
    QueueExistsError,
    StorageError,
    UnsupportedError,
)
from ..names import directory_of
from ..policy import check_dead_letter, contradiction_in
from ..remote_engine import Operation, Receive
from ..settings import storage_in
from . import order, removing
from .heartbeat import DatabaseClock, Heartbeat
from .hints import Hints
from .known import Known, Shared, options_as_json
from .links import Links, Watchdog
from .looking import copy
from .queue import PostgresQueue
from .regrouping import regroup
from .running import run
from .sweep import Sweeps
from .transaction import Transaction
from .upkeep import Upkeep
from .waiting import Waiting

_logger = logging.getLogger(__name__)
_FIRST_CONTACT = 5.0
"""Seconds for which a start waits for the database, to know its queues. Without it the server starts all the same."""
_STOP_INTERVAL = 0.2
"""Seconds between two looks at `stop`."""
_MAKE = """
INSERT INTO qs.queues (qid, paused, options) VALUES (%b::text, %b::boolean, %b::text::jsonb)
ON CONFLICT (qid) DO NOTHING RETURNING queue"""
_CHANGE = "UPDATE qs.queues SET paused = %b::boolean, options = %b::text::jsonb WHERE queue = %b::int RETURNING queue"
_TOUCH = "SELECT nextval('qs.changes')"


class PostgresEngine:
    """The engine over a PostgreSQL database. See RemoteEngine and GatheringEngine.

    Ensures:
    1. An answer means that the change is committed as the database was told: to its disk, and with synchronous standbys
       to theirs. If that is not known, the error says so (NotKnownError).
    2. Several servers may use one database. What one brings is handed out by another within milliseconds, and what a
       dead one's subscribers held comes back.

    Assumes a schema that `schema.migrate` has made. Never makes SQL from what a client says."""

    name: ClassVar[str] = "postgres"
    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.TELLS, Feature.MILLISECONDS})

    def __init__(
        self, root: str, *, clock: Clock, dsn: str = "", connections: int = 2, now: Clock | None = None
    ) -> None:
        """root: where the server's own queues are; clock: not used, as times are the database's; dsn: of libpq, a URL
        or a list of keys; connections: for gathered requests, and as many for others; now: a clock in place of the
        database's. UnavailableError for a DSN that cannot be read, UnsupportedError without one."""
        if not dsn:
            raise UnsupportedError("the storage 'postgres' needs a database: start the server with --postgres DSN")
        self._root = root
        database = DatabaseClock() if now is None else None
        self._shared = Shared(
            Links(dsn, connections),
            now or database or clock,
            self._arrived,
            self._due,
            self._wake_at,
            self._end_due,
            self._made,
        )
        self._waiting = Waiting(self._again, self._sooner)
        self._upkeep = Upkeep(self._shared, self._look)
        self._heartbeat = Heartbeat(self._shared, database)
        self._hints = Hints(self._shared, self._heard, self._upkeep.refresh, self._look)
        self._sweeps = Sweeps(self._shared, connections, self._end_due, self._waiting.add)
        # A receive that a crash of the database takes back is a message that is visible again sooner, as any consumer
        # must expect. So receives wait for no disk and no standby, nor for the transactions that do.
        self._receives = Sweeps(self._shared, 1, self._end_due, self._waiting.add, durable=False)
        self._timer_wakes = threading.Event()
        self._closed = False
        self._timer = threading.Thread(target=self._keep_time, name="postgres timer", daemon=True)
        self._timer.start()
        self._heartbeat.start()
        self._upkeep.start()
        self._hints.start()
        self._upkeep.known.wait(_FIRST_CONTACT)

    def describe(self) -> str:
        return ""

    @property
    def shared(self) -> Shared:
        """The parts that the queues use."""
        return self._shared

    # -- gathered requests

    def submit(self, operations: Sequence[Operation[Any]]) -> None:
        receives = [operation for operation in operations if isinstance(operation, Receive)]
        if receives:
            for receive in receives:
                receive.deadline = time.monotonic() + receive.wait_seconds
            self._again(receives)
        if len(receives) < len(operations):
            self._sweeps.submit([operation for operation in operations if not isinstance(operation, Receive)])

    def stop(self, operation: Operation[Any]) -> None:
        if isinstance(operation, Receive):
            self._waiting.stop(operation)

    def _again(self, operations: Sequence[Operation[Any]]) -> None:
        for operation in operations:
            if isinstance(operation, Receive):
                self._waiting.begin(operation)
        self._receives.submit(operations)

    def do(self, operation: Operation[Any]) -> Any:
        """Does one operation, and waits for it in this thread."""
        operation.begin_wait()
        self.submit([operation])
        return operation.wait()

    def receive(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float = 0,
        stop: threading.Event | None = None,
        held: bool = False,
        given: bool = False,
    ) -> list[Message]:
        wanted = tuple(dict.fromkeys(qids))
        operation = Receive(wanted, count, visibility, max_bytes, wait=wait, held=held, given=given)
        operation.begin_wait()
        self.submit([operation])
        while wait and stop is not None and not operation.ends_within(_STOP_INTERVAL):
            if stop.is_set():
                self.stop(operation)
                break
        return operation.wait()

    # -- what happens

    def _arrived(self, known: Known, places: Collection[int], number: int) -> None:
        for place in places:
            known.floors.lower(place)
        self._waiting.wake(known, number)
        if self._heartbeat.others:
            self._hints.tell(known, places)

    def _heard(self, number: int, place: int | None) -> None:
        known = self._shared.numbers.get(number)
        if known is not None:
            if place is not None:
                known.floors.lower(place)
            self._waiting.wake(known, 1 << 30)

    def _due(self, until: int) -> None:
        self._upkeep.due(until)

    def _made(self, known: Known) -> None:
        self._upkeep.add(known)

    def _end_due(self, tx: Transaction) -> None:
        self._upkeep.end_due(tx)
        order.arrange(tx)  # what is visible now may be received in the same transaction

    def _wake_at(self, known: Known, at: int, number: int) -> None:
        seconds = max(at - self._shared.now(), 0) / SECOND
        self._waiting.wake_at(known, time.monotonic() + seconds, number)

    def _look(self) -> None:
        self._waiting.wake_all()

    def _sooner(self) -> None:
        self._timer_wakes.set()

    def _keep_time(self) -> None:
        """Ends waits whose time is over, and cuts links that hang. Asks the database nothing, so nothing holds it
        up."""
        while not self._closed:
            end = self._waiting.next_end
            self._timer_wakes.wait(min(1.0, max(end - time.monotonic(), 0.0)) if end is not None else 1.0)
            self._timer_wakes.clear()
            self._waiting.tick()
            self._sweeps.give_up()
            self._receives.give_up()
            self._shared.links.watchdog.look()

    # -- queues

    def queues(self) -> Collection[str]:
        return self._shared.queues.keys()

    def knows(self, qid: str) -> bool:
        return self._upkeep.known.is_set()

    def answers(self) -> bool:
        return self._upkeep.answers

    def queue(self, qid: str) -> PostgresQueue:
        return PostgresQueue(self._shared.known(qid), self._shared, self.do)

    def options(self, qid: str) -> Options:
        return self._shared.known(qid).options

    def check_options(self, qid: str, options: Options) -> None:
        """Refuses options that queues of this storage do not have. UnsupportedError, DeadLetterCycleError."""
        if options.timestamps != "us":
            raise UnsupportedError("the storage 'postgres' has no timestamps in milliseconds")
        if options.pieces or options.body:
            raise UnsupportedError("the storage 'postgres' has no pieces of data: they are for the storage 'dirq'")
        if said := contradiction_in(options):
            raise UnsupportedError(said)
        queues = {other: known.options for other, known in self._shared.queues.items()}
        name = options.dead_letter
        storage = "postgres" if name in queues or not name else storage_in(self._root, name, "of the server's own")
        check_dead_letter(qid, options, queues, storage)

    def create(self, qid: str, options: Options) -> None:
        options = replace(options, storage=self.name)
        directory_of(qid)  # a name that no storage takes is refused here too
        self.check_options(qid, options)

        def step(tx: Transaction) -> None:
            tx.rows(_TOUCH)
            if not tx.rows(_MAKE, [qid, options.paused, options_as_json(options)]):
                raise QueueExistsError(f"'{qid}' is already an existing queue")

        self._change(step)

    def configure(self, qid: str, options: Options) -> None:
        known = self._shared.known(qid)
        options = replace(options, storage=self.name)
        self.check_options(qid, options)

        def step(tx: Transaction) -> None:
            tx.rows(_TOUCH)
            if not tx.rows(_CHANGE, [options.paused, options_as_json(options), known.number]):
                raise NoSuchQueueError(f"there is no queue {qid!r} any more")
            regroup(tx, known, options)

        self._change(step)
        known.floors.forget()
        self._waiting.wake(known, 1 << 30)

    def _change(self, step: Callable[[Transaction], object]) -> None:
        """Changes queues, here at once and at other servers soon. NotKnownError also if the change is done, and this
        server cannot read it."""
        run(self._shared, step)
        self._hints.tell_of_change()
        try:
            self._upkeep.read_queues_now()
        except StorageError as error:
            self._upkeep.refresh()
            raise NotKnownError(f"the change is done, and this server does not know of it yet: {error}") from None

    def remove(self, qid: str, *, force: bool) -> None:
        known = self._shared.known(qid)

        def step(tx: Transaction) -> None:
            tx.rows(_TOUCH)
            if not removing.remove(tx, known, force=force):
                raise NoSuchQueueError(f"there is no queue {qid!r} any more")

        self._change(step)
        try:
            while run(self._shared, lambda tx: removing.empty(tx, known.number)):
                pass
        except StorageError as error:  # the queue is gone, and the upkeep removes the rest
            _logger.warning("what the removed queue %r held is removed later: %s", qid, error)

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        copy(self._shared, self._shared.known(qid), mid, [self._shared.known(each) for each in into])

    # -- figures

    def figures(self) -> Mapping[str, float]:
        """Returns figures of the whole engine by their names in docs/protocol.md. None while the database does not
        answer: an old figure would say something of now."""
        return {"postgres_oldest_snapshot_seconds": self._upkeep.snapshot} if self._upkeep.answers else {}

    def close(self) -> None:
        self._waiting.close()
        self._shared.links.stop()
        self._heartbeat.stop()
        self._upkeep.stop()
        self._sweeps.close()
        self._receives.close()
        self._hints.close()
        self._upkeep.close()
        self._heartbeat.close()
        self._closed = True
        self._timer_wakes.set()
        self._timer.join()
        self._shared.links.close()


__all__ = ["PostgresEngine", "Watchdog"]
