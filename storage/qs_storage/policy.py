"""The rules of a queue's options, for every storage: capacity, retention, back-off and dead letters; and what a storage
refuses.

The rules say which options a storage accepts, and what follows from them for messages. They keep no state, except
`DeadLetterMoves`, which remembers the failures that are logged already.

Refusals. A storage that cannot do something raises an error that says what, and which storages can.

Retention. Messages are too old for their queue by their id: the time of the push, of the death in a dead-letter queue,
or for a copy of the push of the original.

Back-off. The back-off is the time for which a message that was received in vain stays hidden before it is visible
again. A receive is in vain if it counts and ends without a delete, a reject, or a delay of its own: the message is
released, its window ends, or its subscriber goes. The message is `delayed` until the back-off is over. How long follows
from the queue's options, the message's id and its receives alone. So a window that ends while no server runs leads to
the same moment, and every start computes it again.

Dead letters. A message that was received too often, or was rejected, moves to another queue of the same storage.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from .engine import (
    SECOND,
    DeadLetterCycleError,
    Draft,
    Feature,
    Message,
    NoDeadLetterQueueError,
    NoRoomError,
    Options,
    Origin,
    QueueFullError,
    StorageError,
    UnsupportedError,
)
from .shared import EngineQueue

_logger = logging.getLogger(__name__)
Kind = TypeVar("Kind")
Moved = TypeVar("Moved")

STORAGES_WITH: Mapping[Feature, tuple[str, ...]] = {
    Feature.KEY: ("journal", "postgres", "memcached"),
    Feature.UNIQUE: ("journal", "postgres"),
    Feature.PRIORITY: ("journal", "postgres"),
    Feature.EXPIRES: ("journal", "postgres"),
    Feature.GROUP: ("journal", "postgres"),
    Feature.HEADERS: ("journal", "postgres", "files", "dirq", "memcached", "sqs"),
    Feature.RETENTION: ("journal", "postgres", "files", "dirq", "dirq-simple", "sqs"),
    Feature.BACKOFF: ("journal", "postgres", "files", "dirq", "dirq-simple"),
    Feature.PACE: ("journal", "postgres"),
    Feature.DEAD: ("journal", "postgres", "files", "sqs"),
    Feature.REDRIVE: ("journal", "postgres", "files"),
    Feature.REASON: ("journal", "postgres", "files"),
}
"""The storages of this distribution with a feature, for the texts of refusals. Storages on other servers are imported
only when one is asked for, so an error cannot ask them; a test compares."""
PLAIN = Draft(b"")[2:]
"""The fields behind the delay in a draft without attributes, which every storage takes."""
_ATTRIBUTES = (
    (Feature.KEY, "key", "keeps no keys"),
    (Feature.UNIQUE, "unique", "keeps no keys for as long as a message waits"),
    (Feature.PRIORITY, "priority", "has no priorities"),
    (Feature.EXPIRES, "expires", "does not let messages expire"),
    (Feature.GROUP, "group", "has no groups"),
    (Feature.HEADERS, "headers", "keeps no headers"),
)
"""The feature that a storage needs for each attribute, in the order of `PLAIN`."""
_OPTIONS = (
    (Feature.RETENTION, "retention", "does not remove old messages"),
    (Feature.BACKOFF, "backoff", "has no back-off"),
    (Feature.GROUP, "group-in-flight", "has no groups"),
    (Feature.GROUP, "fair", "has no groups"),
    (Feature.PACE, "max-in-flight", "has no bound of messages in flight"),
    (Feature.PACE, "rate", "has no rate"),
)
"""The feature that a storage needs for each option."""

DEFAULT_MAX = 3600 * SECOND
"""The longest back-off of a queue that names none."""
_SPREAD = 10
"""A back-off is up to one tenth shorter or longer, so that jobs that failed together do not all come back together."""
_BITS = 20
"""Bits of the number that chooses within the spread."""
_FACTOR = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: the products of adjacent ids, modulo 2**64, are far apart (Knuth, TAOCP 3, 6.4).
The ids of a list of messages are adjacent."""


# -- capacity and retention -------------------------------------------------------------------------------------------


def require_room(
    qid: str,
    capacity: int | None,
    held: Callable[[], int],
    more: int,
    refresh: Callable[[], object] = lambda: None,
) -> None:
    """Checks that `more` messages fit into a queue's capacity. held: the known count of messages; refresh: looks for
    messages that others have removed. QueueFullError."""
    if capacity is None or held() + more <= capacity:
        return
    refresh()
    # What others have removed meanwhile makes room, and was not known yet.
    if (now := held()) + more > capacity:
        raise QueueFullError(f"queue {qid!r} holds {now} messages; its capacity is {capacity}")


def too_old_since(options: Options, now: int) -> int | None:
    """Returns the time up to which messages are too old, None if none is, in microseconds since the Epoch."""
    return None if options.retention is None or now < options.retention else now - options.retention


def too_old_upto(options: Options, now: int, unit: int) -> int:
    """Returns the greatest id that is too old, -1 if none is. now: microseconds; unit: the microseconds of 1 in an
    id."""
    time = too_old_since(options, now)
    return -1 if time is None else time // unit


def end_of(options: Options, pushed_at: int) -> int | None:
    """Returns when a message gets too old, None for never, in microseconds since the Epoch."""
    return None if options.retention is None else pushed_at + options.retention


# -- back-off ---------------------------------------------------------------------------------------------------------


def backoff_of(options: Options, mid: int, receives: int) -> int:
    """Returns for how long a message is hidden that was received in vain: microseconds, 0 without back-off. receives:
    how often the message was received, this time included."""
    if options.backoff is None or receives < 1:
        return 0
    longest = DEFAULT_MAX if options.backoff_max is None else options.backoff_max
    # No more doublings than reach the longest of all: 2**1000 is too large a number to multiply with.
    wanted = min(options.backoff << min(receives - 1, 60), longest)
    # No random number: a restart, and other servers that share the directory, come to the same moment.
    chosen = ((mid + receives) * _FACTOR & (1 << 64) - 1) >> 64 - _BITS
    return max(wanted + wanted * (2 * chosen - (1 << _BITS)) // (_SPREAD << _BITS), 1)


def contradiction_in(options: Options) -> str | None:
    """Returns what is wrong about the back-off of these options, None if nothing is."""
    if options.backoff is None:
        return None if options.backoff_max is None else "'backoff-max' needs a 'backoff', which is what it bounds"
    longest = DEFAULT_MAX if options.backoff_max is None else options.backoff_max
    if options.backoff <= longest:
        return None
    return f"'backoff' is longer than 'backoff-max', which is {longest / SECOND:g} seconds"


# -- what a storage refuses -------------------------------------------------------------------------------------------


def storages_with(feature: Feature) -> str:
    """Returns the storages that have a feature, as a text: `'journal' and 'files'`."""
    *others, last = map(repr, STORAGES_WITH[feature])
    return f"{', '.join(others)} and {last}" if others else last


def _lacking(storage: str, feature: Feature, name: str, lack: str) -> UnsupportedError:
    storages = "storage" if len(STORAGES_WITH[feature]) == 1 else "storages"
    return UnsupportedError(
        f"the storage {storage!r} {lack}: {name!r} is for queues of the {storages} {storages_with(feature)}"
    )


def refuse_attributes(storage: str, draft: Draft) -> None:
    """Refuses a message with an attribute that the storage cannot keep. UnsupportedError. Call it only for a draft that
    is not `PLAIN`, as most are."""
    for (feature, name, lack), value, default in zip(_ATTRIBUTES, draft[2:], PLAIN, strict=True):
        if feature is Feature.KEY and draft.unique:
            continue  # 'unique' is refused instead: some storages with keys do not have it
        if value != default and storage not in STORAGES_WITH[feature]:
            raise _lacking(storage, feature, name, lack)


def refuse_options(options: Options) -> None:
    """Refuses options that the storage cannot obey. UnsupportedError. `check_dead_letter` refuses dead letters."""
    for feature, name, lack in _OPTIONS:
        if getattr(options, name.replace("-", "_")) and options.storage not in STORAGES_WITH[feature]:
            raise _lacking(options.storage, feature, name, lack)


def obeyed(options: Options, storage: str) -> tuple[Options, list[str]]:
    """Returns options for a queue that gets another storage, and the names of those that this storage cannot obey,
    which are left out."""
    lost = [
        name
        for feature, name, _ in _OPTIONS
        if getattr(options, name.replace("-", "_")) and storage not in STORAGES_WITH[feature]
    ]
    defaults = Options()
    left_out = {name.replace("-", "_"): getattr(defaults, name.replace("-", "_")) for name in lost}
    return replace(options, storage=storage, **left_out), lost


# -- dead letters -----------------------------------------------------------------------------------------------------


def refuse_uncounted(storage: str, *, count: bool) -> None:
    """Refuses count=False, for a storage that cannot take a receive back. UnsupportedError."""
    if not count:
        raise UnsupportedError(
            f"the storage {storage!r} cannot take a receive back (count='no'): {storages_with(Feature.REDRIVE)} can"
        )


def refuse_reason(storage: str, reason: str | None) -> None:
    """Refuses a reason, for a storage that keeps none. UnsupportedError."""
    if reason is not None:
        raise UnsupportedError(f"the storage {storage!r} keeps no reasons: {storages_with(Feature.REASON)} can")


def refuse_reject(storage: str) -> UnsupportedError:
    """Returns the error of a storage that cannot reject messages."""
    return UnsupportedError(f"the storage {storage!r} rejects no messages: {storages_with(Feature.REASON)} can")


def refuse_dead_letters(options: Options) -> None:
    """Refuses a dead-letter queue, for a storage without dead letters. UnsupportedError."""
    if options.dead_letter and options.storage not in STORAGES_WITH[Feature.DEAD]:
        raise _lacking(options.storage, Feature.DEAD, "dead-letter", "has no dead letters")


def check_dead_letter(qid: str, options: Options, queues: Mapping[str, Options], storage: str | None) -> None:
    """Checks the dead-letter queue that options name. queues: the options of all queues; storage: the dead-letter
    queue's storage, None if the queue does not exist. UnsupportedError for another storage, DeadLetterCycleError."""
    refuse_dead_letters(options)
    name = options.dead_letter
    if name and name != qid and storage not in (None, options.storage):
        raise UnsupportedError(
            f"the dead-letter queue {name!r} has the storage {storage!r}: it has to be that of the queue, "
            f"{options.storage!r}"
        )
    chain = [qid]
    while name and name not in chain[1:]:
        chain.append(name)
        if name == qid:
            # Names no other queue of the cycle: the client may have no right to know of them.
            raise DeadLetterCycleError(
                f"dead-letter queues must not form a cycle: dead letters of {options.dead_letter!r} come to {qid!r}"
            )
        name = queues[name].dead_letter if name in queues else ""


def is_exhausted(options: Options, receives: int) -> bool:
    """Tells whether a message with so many receives becomes a dead letter when its window ends."""
    return options.max_receives is not None and receives >= options.max_receives


def new_origin(
    qid: str, mid: int, receives: int, now: int, *, pushed_at: int, before: Origin | None, reason: str = "receives"
) -> Origin:
    """Returns the origin of a message that becomes a dead letter now. before: its origin so far, for a dead letter that
    moves on."""
    return Origin(qid, mid, receives, now, reason, pushed_at if before is None else before.pushed_at)


def with_origin(message: Message, origins: Mapping[int, Origin]) -> Message:
    """Sets the origin of a message that is a dead letter. origins: the origins of its queue, by id."""
    origin = origins.get(message.mid)
    if origin is not None:
        message.origin, message.pushed_at = origin, origin.pushed_at
    return message


def dead_letter_queue(find_or_make: Callable[[str, str], EngineQueue], options: Options, kind: type[Kind]) -> Kind:
    """Returns the dead-letter queue that options name. find_or_make: see EngineContext. StorageError, OSError."""
    queue = find_or_make(options.dead_letter, options.storage)
    if not isinstance(queue, kind) or queue.options.storage != options.storage:
        raise UnsupportedError(f"its storage is {queue.options.storage!r}, and not {options.storage!r}")
    if not queue.in_place():
        raise StorageError("its directory is gone")
    return queue


def other_storage(storage: str, other: str) -> UnsupportedError:
    """Returns the error for a dead letter that should move to a queue of another storage."""
    return UnsupportedError(f"dead letters of a queue of the storage {storage!r} cannot go to one of {other!r}")


class DeadLetterMoves:
    """Moves messages of one queue to its dead-letter queue.

    Ensures that a failure loses no message and does not fill the server's log: the message stays, and only the first of
    several failures is logged. Assumes that a move that raises has changed nothing. Never hides a NoRoomError, which
    ends the batch: with more room the move may succeed."""

    def __init__(self, qid: str, options: Options) -> None:
        self._qid = qid
        self._options = options
        self._failing = False  # whether the last message could not be moved, and the log says so

    def reject(self, mid: int, move: Callable[[], Moved]) -> Moved:
        """Calls move for a rejected message. Returns the result of move. If it raises, nothing has changed:
        NoDeadLetterQueueError if the queue names no dead-letter queue; the errors of move, with the name of the queue
        in the text of a StorageError.
        """
        name = self._options.dead_letter
        if not name:
            raise NoDeadLetterQueueError(
                f"message {mid} of queue {self._qid!r} cannot be rejected: the queue names no dead-letter queue "
                "('dead-letter' in set-queue)"
            )
        try:
            return move()
        except StorageError as error:
            # The type stays, as it decides the code of the answer.
            raise type(error)(
                f"message {mid} of queue {self._qid!r} cannot be rejected, as the dead-letter queue {name!r} cannot "
                f"take it: {error}"
            ) from None

    def attempt(self, move: Callable[[], object]) -> bool:
        """Calls move. Returns False if move raised, and nothing has changed. NoRoomError: nothing has changed, and the
        caller can try again in the next batch."""
        try:
            move()
        except NoRoomError:
            raise
        except (OSError, StorageError) as error:
            if not self._failing:
                _logger.error(
                    "messages of queue %r that were received %s times cannot be moved to the dead-letter queue %r, and "
                    "stay: %s",
                    self._qid,
                    self._options.max_receives,
                    self._options.dead_letter,
                    error,
                )
            self._failing = True
            return False
        self._failing = False
        return True
