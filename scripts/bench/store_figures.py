"""A figure of the store with its target, and the table of all of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Bound = Literal["at least", "at most"]


@dataclass(frozen=True)
class Figure:
    """One measured value. target: None when the value is only information; of: what the value was made of."""

    name: str
    value: float
    target: float | None = None
    bound: Bound = "at least"
    unit: str = ""
    of: str = ""

    @property
    def reached(self) -> bool | None:
        """Tells whether the value is as good as the target; None without a target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.bound == "at least" else self.value <= self.target

    def line(self) -> str:
        """The figure in one line of text: value, target, and whether it is reached."""
        measured = f"{self.name}: {self.value:,.2f}{self.unit}"
        if self.target is not None:
            verdict = "reached" if self.reached else "NOT reached"
            measured += f" (target: {self.bound} {self.target:,g}{self.unit}, {verdict})"
        return f"{measured}  {self.of}".rstrip()

    def content(self) -> dict[str, Any]:
        """The figure as JSON has it."""
        return {**asdict(self), "reached": self.reached}


def summary(figures: Sequence[Figure]) -> str:
    """The table of all figures, and how many targets are met."""
    aimed = [figure for figure in figures if figure.target is not None]
    reached = sum(bool(figure.reached) for figure in aimed)
    return "\n".join([*(figure.line() for figure in figures), f"{reached} of {len(aimed)} targets are met"])
