"""How transactions are run: a step of the storage, then its groups, then the commit, then the effects in memory."""

from collections.abc import Callable
from typing import TypeVar

from . import order
from .known import Shared
from .links import Link
from .pipeline import Pipeline
from .transaction import Transaction

T = TypeVar("T")


def run_on(
    link: Link, shared: Shared, step: Callable[[Transaction], T], asked: Callable[[], object] | None = None
) -> T:
    """Runs a step as one transaction on a link, and settles it: see `Link.transact`."""
    transaction, result = link.transact(lambda pipeline: _begin(pipeline, shared, step), asked)
    transaction.settle()
    return result


def run(shared: Shared, step: Callable[[Transaction], T]) -> T:
    """Runs a step as one transaction, again if it fails for a reason that may pass, and settles it: see `Links.run`."""
    transaction, result = shared.links.run(lambda pipeline: _begin(pipeline, shared, step))
    transaction.settle()
    return result


def _begin(pipeline: Pipeline, shared: Shared, step: Callable[[Transaction], T]) -> tuple[Transaction, T]:
    transaction = Transaction(pipeline, shared)
    result = step(transaction)
    order.arrange(transaction)
    return transaction, result
