"""The figures of a server or a bus, looked up by name and labels."""

from typing import NamedTuple

from qs_client import Figure, QueueClient
from support.serving import Wire

CONNECTION = ("connection_start_time_seconds", "connection_subscriptions")
"""The figures of each connection."""


class Figures:
    """The figures that a server has answered."""

    def __init__(self, figures: list[Figure]) -> None:
        self.all = figures

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The figures of a name with these labels, by another label."""
        chosen = [each for each in self.all if each.name == name and labels.items() <= each.labels.items()]
        return {each.labels[label]: each.value for each in chosen}

    def get(self, name: str, **labels: str) -> float:
        """One figure; 0 if it is not there."""
        return sum(each.value for each in self.all if (each.name, each.labels) == (name, labels))

    def requests(self, operation: str) -> dict[str, float]:
        """Returns how many requests of an operation there were, by code."""
        return self.by("requests_total", "code", operation=operation)


def look(client: QueueClient) -> Figures:
    """Asks for the figures."""
    return Figures(client.server_stats())


def address(wire: Wire) -> str:
    """The address that the server knows a connection by."""
    host, port = wire.socket.getsockname()
    return f"{host}:{port}"


class Connected(NamedTuple):
    """The figures of one connection."""

    peer: str
    principal: str
    started: float
    subscriptions: float


def look_at_connections(client: QueueClient) -> list[Connected]:
    """Asks for the figures of each connection, in their order."""
    found = [figure for figure in client.server_stats(connections=True) if figure.name in CONNECTION]
    assert [figure.name for figure in found] == [*CONNECTION] * (len(found) // 2)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(first.labels == second.labels for first, second in pairs)
    return [Connected(**first.labels, started=first.value, subscriptions=second.value) for first, second in pairs]
