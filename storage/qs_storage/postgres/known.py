"""The queues of the database as this server knows them, and what the parts of the storage share."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..engine import PRIORITIES, Clock, NoSuchQueueError, Options, Stats
from ..policy import DeadLetterMoves
from .links import Links

FOREVER = 1 << 62
"""The end of what no time ends: microseconds."""
IN_FLIGHT, DELAYED, PARKED, CLAIMED = 1, 2, 3, 4
"""The states of hidden messages. PARKED: the message waits for others of its group."""
_NUMBERS = 56
"""Bits of the number in a place."""
PLAIN_PLACE = (PRIORITIES - 1) << _NUMBERS
"""Added to the id, the place of a message without a priority, except in a fair queue."""
LEVELS = [level << _NUMBERS for level in range(PRIORITIES)]
"""The first place of each priority, the highest first."""
_REMEMBERED = 256
"""Calls of `Floors.lower` that are remembered: more than come while a receive reads."""
_LEAST_LOOK = 1.0
"""Seconds between two looks at a whole line, at least."""
_LOOKING = 50
"""A look at a whole line may take one part in so many of the time."""


def place_of(priority: int, number: int) -> int:
    """Returns where a message stands in the line: those of higher priority first, within one by number."""
    return (PRIORITIES - 1 - priority) << _NUMBERS | number


def level_of(place: int) -> int:
    """Returns the number of a priority in `LEVELS`."""
    return place >> _NUMBERS


def priority_at(place: int) -> int:
    return PRIORITIES - 1 - level_of(place)


def number_at(place: int) -> int:
    return place & ((1 << _NUMBERS) - 1)


class Floors:
    """Remembers from where a queue's line has to be read.

    Rows that were taken stay in the index until no transaction sees them any more, which may be hours: a read from the
    line's beginning would pass all of them. So each priority has a floor, below which this server knows of no row.

    Only a hint: what others put below a floor is found by the next look at the whole line. So looks come about once a
    second, and more rarely if one takes long. `lower` makes a floor right at once."""

    __slots__ = ("_floors", "_look_at", "_lowered", "changes")

    def __init__(self) -> None:
        self._floors = [0] * PRIORITIES
        self._look_at = 0.0
        self._lowered: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)  # the last calls of `lower`
        self.changes = 0
        """Counts calls of `lower` and `forget`: a read that began before such a call does not know of the row."""

    def ranges(self, arrived: Mapping[int, int]) -> tuple[list[int], bool]:
        """Returns from which place each priority has to be read, the highest first, and whether this is a look at the
        whole line. arrived: what this transaction has brought, see `Transaction.arrived`."""
        if time.monotonic() >= self._look_at:
            return list(LEVELS), True
        lows = list(map(max, LEVELS, self._floors))
        for level, place in arrived.items():
            lows[level] = min(lows[level], place)
        return lows, False

    def looked(self, seconds: float) -> None:
        """Notes that a look at the whole line took so long."""
        self._look_at = time.monotonic() + max(_LEAST_LOOK, _LOOKING * seconds)

    def taken(self, places: Iterable[int], changes: int) -> None:
        """Notes that these rows were the first of their priorities. changes: `changes` as it was before the read. What
        has come since keeps the floor below it: pushes come all the time, and must not keep it from rising."""
        since = [place for number, place in list(self._lowered) if number > changes]
        if len(since) == self.changes - changes:  # else some are not remembered any more, or may be anywhere
            for place in places:
                level = place >> _NUMBERS
                below = [one for one in since if one >> _NUMBERS == level]
                self._floors[level] = min([place + 1, *below])

    def lower(self, place: int) -> None:
        """Notes that there is a row at this place, and maybe more behind it."""
        self.changes += 1
        self._lowered.append((self.changes, place))
        level = place >> _NUMBERS
        self._floors[level] = min(self._floors[level], place)

    def forget(self) -> None:
        """Notes that there may be a row anywhere."""
        self.changes += 1
        self._look_at = 0.0


@dataclass(eq=False)
class Known:
    """A queue of the database. number: its number there; counts: the events since this server's start; moves: moves its
    dead letters."""

    number: int
    qid: str
    options: Options
    counts: Stats = field(default_factory=Stats)
    floors: Floors = field(default_factory=Floors)
    moves: DeadLetterMoves = field(init=False)
    counts_in_flight: bool = False
    """True if all messages in flight are marked as counted, as `max_in_flight` needs them."""

    def __post_init__(self) -> None:
        self.moves = DeadLetterMoves(self.qid, self.options)


@dataclass(eq=False)
class Shared:
    """What all parts of the storage have in common. now: the database's time in microseconds; arrived: called with
    (queue, the lowest places, how many) when rows have come into a line, after the commit, in any thread; due: called
    with the end of what was hidden, after the commit; wake_at: called with (queue, time, how many) when a rate will let
    messages out, after the commit; end_due: called with a transaction, ends what is due;
    made: called with a queue that a transaction of this server has made, after the commit."""

    links: Links
    now: Clock
    arrived: Callable[[Known, Collection[int], int], None]
    due: Callable[[int], None]
    wake_at: Callable[[Known, int, int], None]
    end_due: Callable[[Any], object]
    made: Callable[[Known], object]
    server: int = 0
    """This server's number in the table `servers`."""
    queues: dict[str, Known] = field(default_factory=dict)
    """Replaced as a whole when queues come or go, so that threads can read it without a lock."""
    numbers: dict[int, Known] = field(default_factory=dict)
    """The same queues by their numbers."""
    counting: threading.Lock = field(default_factory=threading.Lock)
    """Held while counts of queues change."""
    behind: dict[tuple[Known, str], int] = field(default_factory=dict)
    """Groups that have to be put right soon, see `order.py`, each with a number that grows when it is noted again."""

    def fall_behind(self, groups: Iterable[tuple[Known, str]]) -> None:
        """Notes groups that have to be put right soon."""
        for group in groups:
            self.behind[group] = self.behind.get(group, 0) + 1

    def caught_up(self, groups: Mapping[tuple[Known, str], int]) -> None:
        """Notes groups that were put right, as they were in `behind` before."""
        for group, number in groups.items():
            if self.behind.get(group) == number:
                self.behind.pop(group, None)

    def known(self, qid: str) -> Known:
        """Returns a queue. NoSuchQueueError."""
        found = self.queues.get(qid)
        if found is None:
            raise NoSuchQueueError(f"there is no queue {qid!r}")
        return found


_DEFAULTS = asdict(Options())


def options_as_json(options: Options) -> str:
    """Returns the options that differ from the defaults, as text."""
    return json.dumps({name: value for name, value in asdict(options).items() if value != _DEFAULTS[name]})


def options_from(found: dict[str, Any], storage: str) -> Options:
    """Returns the options in a row of `queues`. Leaves out those of a later version."""
    return Options(**{**{name: found[name] for name in found if name in _DEFAULTS}, "storage": storage})
