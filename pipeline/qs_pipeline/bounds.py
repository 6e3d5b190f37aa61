"""Finds the greatest mid of a queue. Later pushes get greater ones, so it bounds what a run reads.

No operation returns it, but asking for one id after a given one costs the same everywhere, so it is searched for.
"""

from collections.abc import Callable, Sequence

from qs_client import ListMessages, QueueClient

from .pipelining import answers

GREATEST = 10**18 - 1
"""The greatest possible mid: the protocol's bound of 18 digits."""


def greatest(after: Callable[[int], int | None]) -> int:
    """Returns the greatest of a set of numbers from 1 to GREATEST, 0 when it is empty. after: returns the least number
    above a given one.

    Gallops from the least number in doubling steps, then bisects: some 2 * log2(last - first) questions.
    """
    found, step = after(0) or 0, 1
    if not found:
        return 0
    while (beyond := after(min(found + step, GREATEST))) is not None:
        found, step = beyond, step * 2
    most = found + step  # nothing is greater
    while found < most:
        middle = (found + most) // 2
        beyond = after(middle)
        if beyond is None:
            most = middle
        else:
            found = beyond
    return found


def greatest_mid(client: QueueClient, qid: str) -> int:
    """Returns the greatest mid of all messages of a queue, visible or not; 0 when it is empty."""

    def after(mid: int) -> int | None:
        mids: Sequence[int] = ids(client, qid, "all", mid, 1)
        return mids[0] if mids else None

    return greatest(after)


def ids(client: QueueClient, qid: str, state: str, after: int, most: int) -> list[int]:
    """Returns the ids of at most `most` messages above `after`, in ascending order. Raises what the client's methods
    raise."""
    (answer,) = answers(client, [ListMessages(qid, state=state, max=most, after=after)])
    return answer.mids
