"""Looks at messages, and what is not gathered: see `queue.py`."""

from collections.abc import Sequence

from ..engine import Message, Receipt, State, Stats
from .known import Known, Shared


def last_mid(shared: Shared, known: Known) -> int:
    raise NotImplementedError


def get(shared: Shared, known: Known, mid: int, *, peek: bool, visibility: int | None) -> Message:
    raise NotImplementedError


def read(shared: Shared, known: Known, receipt: Receipt) -> Message:
    raise NotImplementedError


def list_mids(shared: Shared, known: Known, state: State, count: int, after: int) -> list[int]:
    raise NotImplementedError


def purge(shared: Shared, known: Known, upto: int, count: int) -> int:
    raise NotImplementedError


def copy(shared: Shared, known: Known, mid: int, into: Sequence[Known]) -> None:
    raise NotImplementedError


def stats(shared: Shared, known: Known) -> Stats:
    raise NotImplementedError
