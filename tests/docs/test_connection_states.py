"""The states of a connection in docs/architecture.md are those of the code."""

import re
from pathlib import Path

from qs_serving.connection import TRANSITIONS, Cause, Phase

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
SECTION = PAGE.split("## The states of a connection\n")[1].split("\n## ")[0]


def rows() -> list[list[str]]:
    """Returns the cells of the table, an empty first cell as the one above."""
    found: list[list[str]] = []
    for line in SECTION.splitlines():
        if line.startswith("| ") and not line.startswith("| phase"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found.append([cells[0] or found[-1][0], *cells[1:]])
    return found


def test_connection_table_has_all_transitions() -> None:
    """Each row of the page is one or several of the code, and none is missing."""
    said = {
        (Phase[phase.strip().upper()], Cause[cause.partition(":")[0].upper()]): Phase[after.upper()]
        for phases, _, cause, after in rows()
        if cause
        for phase in phases.split(",")
    }
    assert said == TRANSITIONS


def test_connection_table_says_what_phases_and_causes_are() -> None:
    """The page has the words of the code."""
    waits = {phases: waits for phases, waits, _, _ in rows() if waits not in ("", "as above")}
    assert waits == {phase.name.lower(): phase.value for phase in Phase}
    causes = dict(cause.split(": ", 1) for _, _, cause, _ in rows() if ": " in cause)
    assert causes == {cause.name.lower(): cause.value for cause in Cause}


def test_connection_drawing_has_all_causes() -> None:
    """Each phase and each cause is a word of the drawing."""
    drawing = re.search(r"```text\n(.*?)```", SECTION, re.DOTALL)
    assert drawing
    words = set(re.findall(r"\w+", drawing.group(1)))
    assert {each.name.lower() for each in (*Phase, *Cause)} <= words
