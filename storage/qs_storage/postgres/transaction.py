"""One transaction: its statements, and its effects in memory, which count only when it is committed."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

from ..remote_engine import Operation, end_all
from .known import Known, Shared, level_of

if TYPE_CHECKING:
    from .pipeline import Answer, Pipeline, Row

Group = tuple[Known, str]


class Entrant(NamedTuple):
    """A new message of a group, which is visible. size: bytes of payload and headers."""

    mid: int
    priority: int
    size: int
    reason: str | None


# -- what a transaction notes


class Transaction:
    """Asks statements in one transaction, and collects its effects in memory.

    Ensures that nothing of it changes memory before `settle`, which comes after the commit: a transaction may fail, and
    be repeated with another object. Assumes one thread, and that each statement is a constant: values of clients are
    parameters."""

    __slots__ = (
        "_brought", "_counted", "_due", "_later", "_pipeline", "arrived", "groups", "is_committed", "made", "now",
        "results", "shared",
    )  # fmt: skip

    def __init__(self, pipeline: "Pipeline", shared: Shared) -> None:
        self._pipeline = pipeline
        self.shared = shared
        self.now = shared.now()
        """The time of the transaction, in microseconds."""
        self.is_committed = False
        self.results: list[tuple[Operation[Any], Any]] = []
        """Operations that end, with their results or errors."""
        self.made: dict[str, Known] = {}
        """The queues that this transaction has made, or found to be new."""
        self.groups: dict[Group, list[Entrant]] = {}
        """Groups that have to be put right before the commit, with their new messages: see `order.py`."""
        self.arrived: dict[Known, dict[int, int]] = {}
        """The lowest places of rows that have come into lines, by priority: see `level_of`. Empty for a queue whose
        limits may let more out."""
        self._brought: dict[Known, int] = {}
        self._counted: list[tuple[Known, str, int]] = []
        self._due: int | None = None
        self._later: list[Callable[[], object]] = []

    def ask(self, statement: LiteralString, given: Sequence[object] = ()) -> "Answer":
        """Adds a statement to those that are sent when the first answer is read: see `Pipeline.ask`. Returns what reads
        its rows. psycopg.Error, maybe at a later call."""
        return self._pipeline.ask(statement, given)

    def rows(self, statement: LiteralString, given: Sequence[object] = ()) -> "list[Row]":
        """Runs a statement that returns rows, and waits for them. psycopg.Error."""
        return self.ask(statement, given).fetchall()

    def arrive(self, known: Known, place: int, count: int = 1) -> None:
        """Notes rows that have come into a line. place: the lowest of them; all have one priority."""
        arrived = self.arrived.setdefault(known, {})
        level = level_of(place)
        arrived[level] = min(place, arrived.get(level, place))
        self._brought[known] = self._brought.get(known, 0) + count

    def wake(self, known: Known) -> None:
        """Notes that a limit of the queue may let more messages out."""
        self.arrived.setdefault(known, {})
        self._brought[known] = self._brought.get(known, 0) + 1

    def count(self, known: Known, event: str, number: int = 1) -> None:
        """Counts an event. event: a field of Stats."""
        self._counted.append((known, event, number))

    def due(self, until: int) -> None:
        """Notes when something hidden is due."""
        if self._due is None or until < self._due:
            self._due = until

    def later(self, effect: Callable[[], object]) -> None:
        """Has something done after the commit."""
        self._later.append(effect)

    def settle(self) -> None:
        """Does what was noted, and tells of the operations that have ended. Called after the commit."""
        self.is_committed = True
        with self.shared.counting:
            for known, event, number in self._counted:
                setattr(known.counts, event, getattr(known.counts, event) + number)
        for effect in self._later:
            effect()
        if self._due is not None:
            self.shared.due(self._due)
        for operation, result in self.results:
            if isinstance(result, Exception):
                operation.fail(result)
            else:
                operation.succeed(result)
        for known, places in self.arrived.items():
            self.shared.arrived(known, places.values(), self._brought[known])
        end_all([operation for operation, _ in self.results])
