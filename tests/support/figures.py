"""The figures of a server or a bus, looked up by name and labels."""

from qs_client import Figure, QueueClient


class Figures:
    """What a server has answered."""

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
        """How many requests of an operation there were, by code."""
        return self.by("requests_total", "code", operation=operation)


def look(client: QueueClient) -> Figures:
    """Asks for the figures."""
    return Figures(client.server_stats())
