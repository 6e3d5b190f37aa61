"""A queue of the storage `postgres`, as the interface of the storage wants it."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from ..engine import Draft, Message, Options, Receipt, State, Stats
from ..remote_engine import Delete, Extend, Operation, Push, Reject, Release
from . import looking
from .batches import PostgresBatches
from .claims import PostgresClaims
from .known import Known, Shared
from .letters import PostgresRedrive


class PostgresQueue:
    """See Queue. Any thread may use it. Pushes, deletes and the ends of windows are gathered with those of others; the
    rest runs in this thread, in transactions of its own."""

    push_payloads: ClassVar[None] = None

    def __init__(self, known: Known, shared: Shared, do: Callable[[Operation[Any]], Any]) -> None:
        """do: does a gathered operation, and waits for it."""
        self._known = known
        self._shared = shared
        self._do = do

    @property
    def qid(self) -> str:
        return self._known.qid

    @property
    def known(self) -> Known:
        return self._known

    @property
    def options(self) -> Options:
        return self._known.options

    @property
    def last_mid(self) -> int:
        return looking.last_mid(self._shared, self._known)

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        return cast(list[int], self._do(Push(self._known.qid, drafts))) if drafts else []

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        return looking.get(self._shared, self._known, mid, peek=peek, visibility=visibility)

    def read(self, receipt: Receipt) -> Message:
        return looking.read(self._shared, self._known, receipt)

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        return looking.list_mids(self._shared, self._known, state, count, after)

    def delete(self, receipt: Receipt) -> None:
        (error,) = self._do(Delete(self._known.qid, [receipt]))
        if error is not None:
            raise error

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        operation = Release(self._known.qid, receipt, delay, counts=count, reason=reason)
        return cast(int | None, self._do(operation))

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        self._do(Reject(self._known.qid, receipt, reason))

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        return cast(int, self._do(Extend(self._known.qid, receipt, visibility)))

    def purge(self, upto: int, count: int) -> int:
        return looking.purge(self._shared, self._known, upto, count)

    @property
    def claims(self) -> PostgresClaims:
        return PostgresClaims(self._shared, self._known)

    @property
    def batches(self) -> PostgresBatches:
        return PostgresBatches(self._shared, self._known)

    @property
    def redrive(self) -> PostgresRedrive:
        return PostgresRedrive(self._shared, self._known)

    def prepare_stats(self) -> bool:
        return False

    def stats(self) -> Stats:
        return looking.stats(self._shared, self._known)
