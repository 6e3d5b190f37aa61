"""Short words for tests of what other queue systems promise too, through the client."""

from collections.abc import Iterable

from qs_client import Delivery, GetMessage, QueueClient, QueueInfo

PATIENCE = 10
"""Seconds of a waiting receive whose message comes at once, or soon."""

SOON = 0.03
"""Seconds of a delay or a window that is to end while a receive waits."""


def texts(messages: Iterable[Delivery | GetMessage]) -> list[str | None]:
    """Returns the payloads."""
    return [message.text for message in messages]


def take(client: QueueClient, *queues: str, count: int = 1000) -> list[str | None]:
    """Receives what can be had now. Returns the payloads in the order of the answer."""
    return texts(client.receive(queues, max=count))


def drain(client: QueueClient, *queues: str) -> list[str | None]:
    """Receives and deletes message by message. Returns the payloads in that order."""
    found = []
    while messages := client.receive(queues):
        client.delete(messages[0])
        found += texts(messages)
    return found


def awaited(client: QueueClient, *queues: str, visibility: float | None = None) -> Delivery:
    """Waits for a message and returns it."""
    (message,) = client.receive(queues, wait=PATIENCE, visibility=visibility)
    return message


def end_window(client: QueueClient, message: Delivery) -> None:
    """Ends the window of a message now, as if its time had passed."""
    client.extend(message, visibility=0)


def figures(client: QueueClient, qid: str) -> QueueInfo:
    """Returns the figures of a queue."""
    (found,) = client.stats(qid)
    return found
