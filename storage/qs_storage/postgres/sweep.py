"""Group commit: what comes while the last transactions are under way shares the next one.

A few worker threads have a connection each. A worker takes all operations that wait, does them in one transaction, and
tells of their ends. So the database has a few large transactions, however many clients there are.

While one worker's statements are under way, others do not begin: what comes meanwhile makes the next transaction
larger. They begin as soon as it commits, so that the disk, or a standby, is waited for beside the next statements.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ..engine import NotKnownError, StorageError, UnavailableError
from ..remote_engine import Delete, Extend, Operation, Push, Receive, Reject, Release, end_all
from .known import Shared
from .links import BUSY, PATIENCE, Link, is_passing
from .pushing import push
from .running import run_on
from .settling import delete, settle
from .taking import take
from .transaction import Transaction

_logger = logging.getLogger(__name__)
_OPERATIONS = 512
"""The most operations of one transaction."""
_TURN = 0.005
"""Seconds for which a worker has the database's processor for itself. Statements that take longer wait for a lock, or
are many."""
_BYTES = 8 << 20
"""A transaction takes no more pushes when it has so many bytes of payload."""
_MESSAGES = 10_000
"""A transaction takes no more receives when it has some for so many messages."""
_NOT_DURABLE = "SET LOCAL synchronous_commit = off"


class Sweeps:
    """The operations that wait for the database, and the workers that do them.

    Ensures:
    1. An operation ends after its transaction is committed, or with an error that says whether it may be done.
    2. The fault of one operation fails that one alone: a transaction that the database refuses is divided.
    3. What fails before its commit for a reason that may pass is repeated, for some time.

    Assumes that the operations of one transaction may be done in any order: a connection of a client has one operation
    under way. Never holds a thread for each operation."""

    def __init__(
        self,
        shared: Shared,
        workers: int,
        expire: Callable[[Transaction], object],
        unmet: Callable[[Receive], object],
        *,
        durable: bool = True,
    ) -> None:
        """expire: ends what is due, before the receives of a transaction; unmet: called with receives that have found
        nothing; durable: False if no operation waits for the database's disk, and for standbys."""
        self._shared = shared
        self._durable = durable
        self._expire = expire
        self._unmet = unmet
        self._waiting: deque[tuple[float, Operation[Any]]] = deque()
        self._more = threading.Condition()
        self._idle = 0
        self._lookouts = 0  # of the idle ones, those that wait only for the end of a turn
        self._turn_ends = 0.0  # by the monotonic clock; in the past if no worker has a turn
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"postgres {number}", daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, operations: Sequence[Operation[Any]]) -> None:
        """Has operations done. Returns at once."""
        now = time.monotonic()
        with self._more:
            if not self._closed:
                self._waiting.extend([(now, operation) for operation in operations])
                if self._idle and not (self._lookouts and self._turn_ends > now):
                    self._more.notify()
                return
        self._refuse(operations)

    def give_up(self) -> None:
        """Refuses what has waited for too long, as all workers wait for the database. Call it about once a second."""
        late: list[Operation[Any]] = []
        since = time.monotonic() - PATIENCE
        with self._more:
            while self._waiting and self._waiting[0][0] < since:
                late.append(self._waiting.popleft()[1])
        if late:
            self._fail(late, UnavailableError(BUSY))

    def close(self) -> None:
        """Does what waits, and ends the workers."""
        with self._more:
            self._closed = True
            self._more.notify_all()
        for thread in self._threads:
            thread.join()
        with self._more:
            left = [operation for _, operation in self._waiting]
            self._waiting.clear()
        self._refuse(left)

    def _refuse(self, operations: Sequence[Operation[Any]]) -> None:
        for operation in operations:
            operation.fail(StorageError("the storage is closed"))
        end_all(operations)

    # -- workers

    def _work(self) -> None:
        link = self._shared.links.new()
        while batch := self._take():
            self._do_safely(link, batch)
        link.close()

    def _do_safely(self, link: Link, batch: Sequence[tuple[float, Operation[Any]]]) -> None:
        try:
            self._do(link, batch)
        except Exception as error:  # a fault of the code: it must not end the worker
            _logger.exception("a transaction failed by a fault of the program")
            self._fail([operation for _, operation in batch], StorageError(f"a fault of the storage: {error!r}"))

    def _take(self) -> list[tuple[float, Operation[Any]]]:
        """Waits for operations, and takes those of one transaction. Returns none when the sweeps are closed."""
        with self._more:
            while not self._closed:
                turn = self._turn_ends - time.monotonic() if self._waiting else 0.0
                if self._waiting and turn <= 0:
                    break
                self._wait(turn)
            self._turn_ends = time.monotonic() + _TURN
            batch: list[tuple[float, Operation[Any]]] = []
            size = wanted = 0
            while self._waiting and len(batch) < _OPERATIONS and size < _BYTES and wanted < _MESSAGES:
                one = self._waiting.popleft()
                batch.append(one)
                if isinstance(one[1], Push):
                    size += sum([len(draft.payload) for draft in one[1].drafts])
                elif isinstance(one[1], Receive):
                    wanted += one[1].count
            return batch

    def _wait(self, turn: float) -> None:
        """Waits for operations; if there are some, for the end of a worker's turn. turn: its seconds, or 0."""
        lookout = turn > 0
        self._idle += 1
        self._lookouts += lookout
        self._more.wait(turn if lookout else None)
        self._lookouts -= lookout
        self._idle -= 1

    def _end_turn(self) -> None:
        """Lets another worker begin."""
        with self._more:
            self._turn_ends = 0.0
            if self._waiting and self._idle:
                self._more.notify()

    def _do(self, link: Link, batch: Sequence[tuple[float, Operation[Any]]]) -> None:
        operations = [operation for _, operation in batch]
        tried: list[Transaction] = []

        def step(tx: Transaction) -> None:
            if tried:
                self._forget_floors(operations)
            tried[:] = [tx]
            self._sweep(tx, operations)

        try:
            self._shared.links.repeat(lambda: run_on(link, self._shared, step, self._end_turn), link, batch[0][0])
        except Exception as error:
            self._forget_floors(operations)
            if len(batch) > 1 and is_divisible(error) and not (tried and tried[0].is_committed):
                for one in batch:  # one of them is at fault: the others must not fail with it
                    self._do_safely(link, [one])
            elif isinstance(error, StorageError):
                self._fail(operations, error)
            else:
                raise
        else:
            for operation in operations:
                if not operation.has_ended and isinstance(operation, Receive):
                    self._unmet(operation)

    def _forget_floors(self, operations: Sequence[Operation[Any]]) -> None:
        """Notes that messages are in the line again which a transaction had taken that failed: other receives have
        passed them meanwhile."""
        for operation in operations:
            for qid in operation.qids if isinstance(operation, Receive) else ():
                known = self._shared.queues.get(qid)
                if known is not None:
                    known.floors.forget()

    def _sweep(self, tx: Transaction, operations: Sequence[Operation[Any]]) -> None:
        """Does operations in one transaction, those that bring something first."""
        if not self._durable:
            tx.ask(_NOT_DURABLE)
        pushes = [each for each in operations if isinstance(each, Push)]
        deletes = [each for each in operations if isinstance(each, Delete)]
        settles = [each for each in operations if isinstance(each, Release | Reject | Extend)]
        receives = [each for each in operations if isinstance(each, Receive)]
        if pushes:
            push(tx, pushes)
        if deletes:
            delete(tx, deletes)
        if settles:
            settle(tx, settles)
        if receives:
            self._expire(tx)
            take(tx, receives)

    def _fail(self, operations: Sequence[Operation[Any]], error: Exception) -> None:
        left = [operation for operation in operations if not operation.has_ended]
        for operation in left:
            operation.fail(error)
        end_all(left)


def is_divisible(error: Exception) -> bool:
    """Tells whether a transaction that failed may succeed without one of its operations. True for a fault of the
    program: what one of them asks for may have led to it."""
    cause = error.__context__
    return not (isinstance(cause, psycopg.Error) and is_passing(cause)) and not isinstance(error, NotKnownError)
