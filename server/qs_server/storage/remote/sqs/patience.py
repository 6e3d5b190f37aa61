"""How long the engine tries before it says that SQS cannot."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Durations are seconds. The defaults: some 3 s of pauses, and a minute when no answer comes."""

    attempts: int = 5
    """How often a call is made, the first time included; at least 1."""
    pause: float = 0.25
    """Before the second attempt; twice as long before each further one, and each between half of that and all of it, so
    that many callers do not come back at the same moment."""
    longest_pause: float = 5.0
    connect_timeout: float = 3.0
    read_timeout: float = 10.0
    """For an answer, beyond what SQS was asked to wait for a message."""
    longest_poll: int = 20
    """Whole seconds that SQS is asked to wait for a message; it allows 20."""
    leave: float = 1.0
    """How long `close` waits for polls that nobody waits for any more."""
