"""Counts the messages that the subscribers of a bus have been sent since it was started."""

from dataclasses import dataclass, field

BYTES, MESSAGES = "bytes", "messages"
"""The bounds that a slow subscriber can exceed: --outbox, and --max-hold."""


@dataclass(slots=True)
class DeliveryCounts:
    """Counts deliveries: a message that goes to three subscribers is three. disconnected: subscribers that were too
    slow, by the bound that they exceeded."""

    deliveries: int = 0
    disconnected: dict[str, int] = field(default_factory=lambda: {BYTES: 0, MESSAGES: 0})
