"""Writes the generated parts of docs/performance.md, between marks, and keeps the rest of the page."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from compare_plan import WORKS, Point
from compare_table import (
    Results,
    dashes,
    figures_of,
    measured_points,
    peer_table,
    point_table,
    rate_table,
    ratio_table,
    short_table,
)
from processes import PROJECT

PAGE = PROJECT / "docs" / "performance.md"
PLOTS = PROJECT / "docs" / "performance"
BEGIN = "<!-- made by scripts/bench/compare.py --docs: do not edit from here -->"
BEGIN_SHORT = "<!-- made by scripts/bench/compare.py --docs, in short: do not edit from here -->"
END = "<!-- to here -->"
_CAPTIONS = {
    "push-by-clients": "Pushes of 1 KiB, one at a time, by clients",
    "push-by-size": "Pushes by 32 clients, by size",
    "push-by-depth": "Pushes by 32 clients, by depth of the queue",
    "cycle-by-depth": "Push, receive and delete by 32 clients, by depth of the queue",
    "push-latency": "Latency of a push, 32 clients",
    "cycle-latency": "Latency of push, receive and delete together",
    "push-cpu": "CPU of a push",
    "cycle-cpu": "CPU of push, receive and delete together",
}


def generated(results: Results, plots: Sequence[str]) -> str:
    """Returns the generated part. plots: names of files in docs/performance."""
    lines = [f"Measured on {results['date']}: {results['machine']}.", "", *results["notes"], ""]
    lines += ["### Peers", "", *peer_table(results)]
    if results["missing"]:
        lines += ["", *(f"- {name} was left out: {why}" for name, why in results["missing"].items())]
    for work, shown in WORKS.items():
        if not measured_points(results, work):
            continue
        lines += ["", f"### {shown[0].upper()}{shown[1:]}", "", *rate_table(results, work)]
        for point in (Point(work), Point(work, "clients", 8)):
            if any(figures_of(results, peer["key"], point) for peer in results["peers"]):
                lines += [
                    "",
                    f"In detail, {point.clients} clients, 1 KiB, one at a time:",
                    "",
                    *point_table(results, point),
                ]
    lines += ["", "### Plots", ""]
    lines += [f"![{_CAPTIONS.get(Path(name).stem, name)}](performance/{name})" for name in plots]
    why = dashes(results)
    if why:
        lines += ["", "### Dashes", "", *why]
    lines += ["", "### Ratios with a target", "", *ratio_table(results)]
    return "\n".join(lines)


def replaced(page: str, part: str, mark: str = BEGIN) -> str:
    """Returns the page with a generated part replaced. mark: where it begins. ValueError if the page has no marks."""
    head, begin, rest = page.partition(mark)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks its marks: {mark} and {END}")
    return f"{head}{begin}\n\n{part}\n\n{end}{tail}"


def write(results: Results, plots: Sequence[Path]) -> None:
    """Writes the page and its plots; removes the plots of an earlier run."""
    PLOTS.mkdir(exist_ok=True)
    for old in PLOTS.glob("*.png"):
        old.unlink()
    for plot in plots:
        shutil.copyfile(plot, PLOTS / plot.name)
    page = replaced(PAGE.read_text(encoding="utf-8"), "\n".join(short_table(results)), BEGIN_SHORT)
    PAGE.write_text(replaced(page, generated(results, [plot.name for plot in plots])), encoding="utf-8")
