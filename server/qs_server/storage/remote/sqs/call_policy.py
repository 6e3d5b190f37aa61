"""Bounds how often and for how long a call of SQS is tried."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Durations are seconds. With the defaults a call is given up after some 3 s of pauses, or a minute when no answer
    comes."""

    attempts: int = 5
    """The number of times that a call is made, the first one included; at least 1."""
    pause: float = 0.25
    """Before the second attempt, twice as long before each further one. Each lasts between half of that and all of it,
    so that many callers do not come back at the same moment."""
    longest_pause: float = 5.0
    connect_timeout: float = 3.0
    read_timeout: float = 10.0
    """For an answer, beyond what SQS was asked to wait for a message."""
    longest_poll: int = 20
    """Whole seconds that SQS is asked to wait for a message; it allows 20."""
    leave: float = 1.0
    """Seconds that `close` waits for long polls that nobody waits for any more."""
    settle: float = 5.0
    """The same for long polls of queues of which a message was made visible less than that ago: SQS may have given it
    to such a poll, and it has to be made visible again, or it is hidden until its window is over."""
