"""Looks things up in the figures of a server: sums over labels, and quantiles of histograms."""

from collections.abc import Iterable
from dataclasses import dataclass

from qs_client import Figure

_Bounds = dict[float, float]


@dataclass(frozen=True, slots=True)
class Distribution:
    """A summary of a histogram. count: how many; mean, half, most: seconds, the median and the value that 99 of 100 do
    not exceed; None if there were none."""

    count: float
    mean: float | None
    half: float | None
    most: float | None


class FigureTable:
    """The figures of one answer."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self.all = list(figures)
        self._by_name: dict[str, list[Figure]] = {}
        for figure in self.all:
            self._by_name.setdefault(figure.name, []).append(figure)

    def value(self, name: str) -> float | None:
        """Returns the sum of a figure over all its labels, None if there is none of this name."""
        found = self._by_name.get(name)
        return None if found is None else sum(figure.value for figure in found)

    def label(self, name: str, label: str) -> str | None:
        """Returns a label of a figure, None if it does not have it."""
        found = self._by_name.get(name)
        return found[0].labels.get(label) if found else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """Returns the sums of a figure for each value of a label, sorted by it."""
        sums: dict[str, float] = {}
        for figure in self._by_name.get(name, ()):
            key = figure.labels.get(label, "")
            sums[key] = sums.get(key, 0) + figure.value
        return dict(sorted(sums.items()))

    def distributions(self, name: str, label: str) -> dict[str, Distribution]:
        """Returns what a histogram says for each value of a label, those that happened most first."""
        bounds: dict[str, _Bounds] = {}
        for figure in self._by_name.get(f"{name}_bucket", ()):
            of_key = bounds.setdefault(figure.labels.get(label, ""), {})
            limit = float(figure.labels.get("le", "inf"))
            of_key[limit] = of_key.get(limit, 0) + figure.value
        sums, counts = self.by(f"{name}_sum", label), self.by(f"{name}_count", label)
        found = {key: _distribution(bounds.get(key, {}), counts[key], sums.get(key, 0.0)) for key in counts}
        return dict(sorted(found.items(), key=lambda item: -item[1].count))

    def distribution(self, name: str) -> Distribution | None:
        """Returns what a histogram without labels says, None if there is none of this name."""
        return self.distributions(name, "").get("")


def _distribution(bounds: _Bounds, count: float, total: float) -> Distribution:
    if not count:
        return Distribution(0, None, None, None)
    return Distribution(count, total / count, _quantile(bounds, count, 0.5), _quantile(bounds, count, 0.99))


def _quantile(bounds: _Bounds, count: float, share: float) -> float | None:
    """Returns the value that a share does not exceed, taken as evenly spread between the bounds on either side. Above
    the last bound: that bound."""
    wanted = count * share
    below, under = 0.0, 0.0
    for bound, reached in sorted(bounds.items()):
        if reached >= wanted:
            if bound == float("inf"):
                return below or None
            return below + (bound - below) * (wanted - under) / (reached - under) if reached > under else bound
        below, under = bound, reached
    return below or None
