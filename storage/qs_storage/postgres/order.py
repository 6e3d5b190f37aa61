"""Groups, and how many messages of a queue may be out: what keeps visible messages in the line back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .known import Known
from .transaction import Transaction

if TYPE_CHECKING:
    from .pushing import New

READY = 0


def admit(tx: Transaction, new: Sequence["New"]) -> tuple[list[int], list[int]]:
    """Returns, for each new message, PARKED if it has to wait for others of its group, else READY; and its number in
    the line: its id, or in a fair queue one that puts it behind those of other groups."""
    return [READY] * len(new), [each.mid for each in new]


def promote(tx: Transaction, left: Sequence[tuple[Known, str]]) -> None:
    """Puts the next messages of groups into the line, after messages of these groups have left. left: (queue, group),
    one for each that has left."""


def allowance(tx: Transaction, known: Known, count: int) -> int:
    """Returns how many of `count` messages a queue may hand out now: see `Options.max_in_flight` and `rate`. Locks the
    queue for others that ask, until the commit."""
    return count


def given(tx: Transaction, known: Known, count: int) -> None:
    """Counts messages as handed out, after `allowance`."""
