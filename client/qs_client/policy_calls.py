"""Calls for what becomes of messages that fail or age, and of queues that have to wait: options of a queue, dead
letters, pause. See `calls`."""

from collections.abc import Iterable
from enum import Enum
from typing import Any

from qs_schemas import GetQueue, PauseQueue, QueueOptions, RedriveMessages, ResumeQueue, SetQueue
from qs_schemas.checked import text

from .asking import Call, ask, required
from .batches import MOST, in_batches
from .bounds import checked_options, whole


class Keep(Enum):
    """Stands for an option that `set_queue` leaves as it is, where None removes the option."""

    KEEP = "KEEP"

    def __repr__(self) -> str:
        return self.value


KEEP = Keep.KEEP


def set_queue(
    qid: str,
    *,
    visibility: float | Keep | None = KEEP,
    capacity: int | Keep | None = KEEP,
    retention: float | Keep | None = KEEP,
    dead_letter: str | Keep | None = KEEP,
    max_receives: int | Keep | None = KEEP,
    backoff: float | Keep | None = KEEP,
    backoff_max: float | Keep | None = KEEP,
    group_in_flight: int | Keep | None = KEEP,
    fair: bool | Keep | None = KEEP,
    max_in_flight: int | Keep | None = KEEP,
    rate: float | Keep | None = KEEP,
    schema: str | Keep | None = KEEP,
    where: str | Keep | None = KEEP,
) -> Call[None]:
    """Changes options of a queue, durably and at once. Options that are not given stay as they are; None removes an
    option, so that its default holds again.

    The options are those of `new_queue`. A changed dead_letter, max_receives or backoff applies to a message when it is
    next released, or its window next ends; group_in_flight, fair, max_in_flight and rate apply to what is handed out
    from now on, schema to what is pushed from now on; where is of a bus. Raises Conflict when dead-letter queues would
    form a cycle, NotImplementedByServer when a storage lacks an option, ValueError when no option is given.
    """
    named = {
        "visibility": visibility, "capacity": capacity, "retention": retention, "dead_letter": dead_letter,
        "max_receives": max_receives, "backoff": backoff, "backoff_max": backoff_max,
        "group_in_flight": group_in_flight, "fair": fair, "max_in_flight": max_in_flight, "rate": rate,
        "schema": schema, "where": where,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not KEEP}
    if not given:
        raise ValueError("the options to change are missing: name at least one, with a value or None")
    # None in the options would mean "not given", so what is to be removed is named apart.
    removed = frozenset(name for name, value in given.items() if value is None)
    yield from ask(SetQueue(qid, checked_options(QueueOptions(**given, removed=removed))))


def queue_options(qid: str) -> Call[QueueOptions]:
    """Returns the options of a queue; None for those that are not set."""
    return required((yield from ask(GetQueue(qid))).options, "options")


def redrive(
    qid: str,
    mids: Iterable[int] | None = None,
    *,
    to: str | None = None,
    max: int = MOST,  # noqa: A002 - named as the protocol names it
) -> Call[list[int]]:
    """Moves dead letters back, each to the end of the queue that it came from, where it has never been received.
    Returns their new ids.

    qid: the dead-letter queue. mids: those to move, in lists of at most 1000, each moved whole or not at all; None for
    the oldest, at most max (1 to 1000) in one transaction: call it again to move more. to: a queue to move all of them
    to. Raises NotFound when a destination does not exist: then nothing, or nothing of the current list, was moved.
    """
    targets = [] if to is None else [text("to", to)]
    if mids is None:
        return _ids((yield from ask(RedriveMessages(qid, queues=targets, max=whole(max, "max", 1, MOST)))))
    moved: list[int] = []
    # No ids are no request: one without ids would move all dead letters.
    for batch in in_batches(mids):
        checked = [required(whole(mid, "mid"), "mid") for mid in batch]
        moved += _ids((yield from ask(RedriveMessages(qid, list(checked), targets))))
    return moved


def _ids(answer: RedriveMessages) -> list[int]:
    return [mid if isinstance(mid, int) else mid.mid for mid in answer.mids]


def pause(qid: str) -> Call[None]:
    """Pauses a queue: it takes pushes and gives nothing out until `resume`, also over restarts. Receives and
    subscriptions wait as if it were empty. May be repeated."""
    yield from ask(PauseQueue(qid))


def resume(qid: str) -> Call[None]:
    """Ends the pause of a queue. May be repeated."""
    yield from ask(ResumeQueue(qid))
