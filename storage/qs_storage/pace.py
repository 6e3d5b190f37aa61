"""How fast a queue hands messages out: at most so many a second."""

from typing import Self

from .engine import SECOND


class Pace:
    """Counts what a queue hands out, and says how many more may go now.

    Time is cut into windows of a second (or as long as one message takes, if that is longer), and none has more
    messages than the rate. After a window that was not used up, all messages of the next one may go at once. After one
    that was, they are spread evenly over the next: a queue that is always behind hands out as many in any ten seconds
    as ten times the rate, and not a second's worth more.

    Kept in memory, so that a restart begins with a new window, or by the caller, from `state`. Assumes that time does
    not go back; if it does, a new window begins."""

    __slots__ = ("_begin", "_given", "_length", "_most", "_rate", "_spread")

    def __init__(self) -> None:
        self._rate = 0.0
        self._length = SECOND
        self._most = 1  # messages of a window
        self._begin = 0
        self._given = 0
        self._spread = False

    @classmethod
    def of(cls, rate: float, begin: int, given: int, spread: bool) -> Self:
        """Makes a pace from the `state` of another."""
        made = cls()
        made._set_rate(rate)
        made._begin, made._given, made._spread = begin, given, spread
        return made

    @property
    def state(self) -> tuple[float, int, int, bool]:
        """What `of` takes: the rate, the beginning of the window, what was handed out in it, and whether the window's
        messages are spread over it."""
        return self._rate, self._begin, self._given, self._spread

    def _set_rate(self, rate: float) -> None:
        self._rate = rate
        self._most = max(int(rate), 1)
        self._length = max(round(self._most * SECOND / rate), 1)

    def room(self, rate: float, now: int) -> int:
        """Returns how many messages may be handed out now. rate: messages a second; now: microseconds."""
        if rate != self._rate:
            self._set_rate(rate)
            self._begin = self._given = 0
        passed = now - self._begin
        if passed < 0 or passed >= self._length:
            # Else a window without a pause before it would begin with a second's worth, right after one.
            self._spread = 0 <= passed < 2 * self._length and self._given >= self._most
            self._begin = self._begin + self._length if self._spread else now
            self._given = 0
            passed = now - self._begin
        elif not (self._given or self._spread):
            # A window begins with its first message. Else one that began with a push would end soon after a burst, and
            # the next one would follow at once.
            self._begin, passed = now, 0
        due = 1 + passed * self._most // self._length if self._spread else self._most
        return max(min(due, self._most) - self._given, 0)

    def count(self, number: int) -> None:
        """Counts messages as handed out, after `room`."""
        self._given += number

    @property
    def next(self) -> int:
        """When the next message may go, if `room` has none: microseconds."""
        if not self._spread or self._given >= self._most:
            return self._begin + self._length
        return self._begin + -(-self._given * self._length // self._most)
