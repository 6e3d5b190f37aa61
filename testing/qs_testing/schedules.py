"""Schedules of faults, which hypothesis makes up and makes smaller: which fault happens before which step of a test."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st

from .faults import FAULTS, NamedFault

if TYPE_CHECKING:
    from .server import Server

Item = TypeVar("Item")


@dataclass(frozen=True)
class Schedule:
    """Says which faults happen before which steps, counted from 0. Faults that last end before the next fault."""

    faults: tuple[tuple[int, NamedFault], ...]

    def during(self, server: "Server", steps: Iterable[Item]) -> Iterator[Item]:
        """Yields the steps, and makes the faults happen before their steps. All are over at the end."""
        with ExitStack() as present:
            for number, step in enumerate(steps):
                for at, fault in self.faults:
                    if at == number:
                        present.close()
                        present.enter_context(fault(server))
                yield step

    def __repr__(self) -> str:
        return f"Schedule({', '.join(f'{fault.name} before {at}' for at, fault in self.faults) or 'no faults'})"


def fault_schedules(steps: int, *, most: int = 3, faults: Iterable[NamedFault] = FAULTS) -> st.SearchStrategy[Schedule]:
    """Returns a strategy of schedules for a test of so many steps. most: faults in a schedule; faults: those to choose
    from. Smaller examples have fewer faults, and earlier ones of `faults`."""
    one = st.tuples(st.integers(0, max(steps - 1, 0)), st.sampled_from(list(faults)))
    return st.lists(one, max_size=most).map(lambda found: Schedule(tuple(sorted(found, key=lambda each: each[0]))))
