"""Pipelines requests: the server works on the next while the last answer is read. Lists ids by such requests."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TypeVar

from qs_client import Error, ListMessages, Message, NoAnswer, QueueClient, ServerError, ServerUnavailable
from qs_client.errors import exception_for
from qs_schemas.errors import BAD_REQUEST

M = TypeVar("M", bound=Message)

GREATEST = 10**18 - 1
"""The greatest possible mid: the protocol's bound of 18 digits."""


def exchanges(client: QueueClient, requests: Iterable[M], ahead: int) -> Iterator[M | ServerError]:
    """Yields the answer to each request, in order; a ServerError in place of an error. ahead: unanswered requests, at
    most.

    Raises ServerUnavailable when the connection is lost, the network cuts a request off, or no answer comes within the
    client's timeout. Closes the connection if the iteration is left early, as answers may be outstanding.
    """
    remaining, numbers = iter(requests), count(1)
    asked: list[type[M]] = []
    done = False
    try:
        while True:
            # Refilled after each answer, and not when all have come: the server would be idle meanwhile.
            while len(asked) < ahead and (request := next(remaining, None)) is not None:
                # An error that does not repeat it is about a request that has arrived in part.
                request.req = f"qs-pipeline-{next(numbers)}"
                client.send(request)
                asked.append(type(request))
            if not asked:
                break
            yield _answer(client, asked.pop(0))
        done = True
    finally:
        if not done:  # or the next request would get an answer to one of these
            client.disconnect()


def answers(client: QueueClient, requests: Iterable[M], ahead: int = 1) -> Iterator[M]:
    """Yields answers like `exchanges`, but raises the server's errors."""
    for answer in exchanges(client, requests, ahead):
        if isinstance(answer, ServerError):
            raise answer
        yield answer


def _answer(client: QueueClient, kind: type[M]) -> M | ServerError:
    try:
        answer = client.recv()
    except NoAnswer:  # is a TimeoutError too, and has its text already
        raise
    except TimeoutError as error:
        raise NoAnswer(f"no answer from {client.host}:{client.port} within {client.timeout:g} s") from error
    if isinstance(answer, Error):
        if answer.code == BAD_REQUEST.code and answer.req is None:  # the server has not read the whole request
            raise ServerUnavailable(
                f"the network cut off a request to {client.host}:{client.port} ({answer.text}); ask again"
            )
        return exception_for(answer)
    if not isinstance(answer, kind):
        raise AssertionError(f"a {answer.op} came in answer to {kind.op}")
    return answer


def greatest(after: Callable[[int], int | None]) -> int:
    """Returns the greatest of a set of numbers from 1 to GREATEST, 0 for an empty set. after: returns the least number
    above a given one.

    Gallops from the least number in doubling steps, then bisects: some 2 * log2(last - first) questions.
    """
    found, step = after(0) or 0, 1
    if not found:
        return 0
    # The ids are times in microseconds with gaps: bisecting from 1 to the greatest possible one would take longer.
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
    """Returns the greatest mid of all messages of a queue, visible or not; 0 for an empty queue."""

    def after(mid: int) -> int | None:
        mids: Sequence[int] = ids(client, qid, "all", mid, 1)
        return mids[0] if mids else None

    return greatest(after)


def ids(client: QueueClient, qid: str, state: str, after: int, most: int) -> list[int]:
    """Returns the ids of at most `most` messages above `after`, in ascending order. Raises what the client's methods
    raise."""
    (answer,) = answers(client, [ListMessages(qid, state=state, max=most, after=after)])
    return answer.mids
