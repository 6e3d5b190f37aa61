"""`qs-dir ls`: lists the messages of a directory, and counts those of each state."""

import json
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator

from .element_listing import IN_FLIGHT, REMOVED, STATES, WRITTEN, Element, elements
from .layouts import layout_of
from .meter import counted
from .output import say

_WORDS = {IN_FLIGHT: "in flight", WRITTEN: "being written", REMOVED: "being removed"}
_NAME, _FIGURE = 23, 8
"""Widths of columns, fixed as lines are written as they come."""


def ls(arguments: Namespace) -> int:
    """Returns the exit code."""
    layout = layout_of(arguments.directory, arguments.layout)
    for line in _lines(arguments, layout):
        say(line, flush=False)
    say("")
    return 0


def _lines(arguments: Namespace, layout: str | None) -> Iterator[str]:
    found = elements(arguments.directory, layout, time.time()) if layout is not None else iter(())
    figures = _Figures()
    if not arguments.json and not arguments.summary:
        yield _line("MESSAGE", "AGE", "SIZE", "STATE")
    for element in found:
        figures.add(element)
        if arguments.json:
            yield json.dumps(_record(element)) + "\n"
        elif not arguments.summary:
            yield _line(element.name, f"{element.age:.1f}", str(element.size), _state(element))
    if not arguments.json:
        yield figures.summary(layout) + "\n"


def _line(*cells: str) -> str:
    name, age, size, state = cells
    return f"{name.ljust(_NAME)}  {age.rjust(_FIGURE)}  {size.rjust(_FIGURE)}  {state}\n"


def shown(state: str) -> str:
    return _WORDS.get(state, state)


def _state(element: Element) -> str:
    text = shown(element.state)
    if element.left is not None:
        return f"{text}, {element.left:.1f} s left"
    return text if element.since is None else f"{text}, for {element.since:.1f} s"


def _record(element: Element) -> dict[str, object]:
    return {
        key: round(value, 3) if isinstance(value, float) else value
        for key, value in element._asdict().items()
        if value is not None
    }


class _Figures:
    def __init__(self) -> None:
        self._states: Counter[str] = Counter()
        self._bytes = 0
        self._oldest: float | None = None

    def add(self, element: Element) -> None:
        self._states[element.state] += 1
        self._bytes += element.size
        self._oldest = element.age if self._oldest is None else max(self._oldest, element.age)

    def summary(self, layout: str | None) -> str:
        states = ", ".join(f"{self._states[state]} {shown(state)}" for state in STATES if state in self._states)
        text = f"{counted(self._states.total(), 'message')}, {counted(self._bytes, 'byte')}"
        text += f": {states}" if states else ""
        text += f"; the oldest is {self._oldest:.1f} s old" if self._oldest is not None else ""
        return f"{text} ({layout})" if layout else text
