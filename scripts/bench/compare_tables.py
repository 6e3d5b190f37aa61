"""The tables of `compare`, as Markdown, from its results; and the generated parts of the pages."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compare_cells import WORKS, Point, in_table
from measuring import MARKDOWN_HEAD, Figure, markdown_row, replaced
from processes import PROJECT

Results = dict[str, Any]
"""The content of results.json: machine, versions, peers, missing, cells, ratios, notes, as `compare` writes it."""

_GROUPS = {
    "always": "an answer survives power loss",
    "interval": "power loss may take the last moments",
    "none": "nothing, or not all, is synced",
}

RESULTS_PAGE = PROJECT / "docs" / "performance.md"
METHOD_PAGE = PROJECT / "docs" / "performance-method.md"
COMPARE_PAGE = PROJECT / "docs" / "compare.md"
PLOTS = PROJECT / "docs" / "performance"
BEGIN = "<!-- made by scripts/bench/run.py --only compare --docs: do not edit from here -->"
BEGIN_SHORT = "<!-- made by scripts/bench/run.py --only compare --docs, in short: do not edit from here -->"
_COMPARED = ("qs", "beanstalkd", "redis", "rabbitmq", "nats-always")
"""The peers in the columns of the page that compares, but for the last column, a service that is not measured."""
_COMPARED_ROWS = {
    "durable pushes of 1 KiB by 32 Python clients": Point("push"),
    "durable push + receive + delete, the same": Point("cycle"),
}
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


def figures_of(results: Results, peer: str, point: Point) -> dict[str, Any] | None:
    """Returns the cell of a peer at a point, None without figures."""
    for cell in results["cells"]:
        if cell["peer"] == peer and Point(**cell["point"]) == point:
            found: dict[str, Any] | None = cell["figures"]
            return found
    return None


def measured_points(results: Results, work: str) -> list[Point]:
    """Returns the points for which some peer has figures, in the order of the plan."""
    there = {Point(**cell["point"]) for cell in results["cells"] if cell["figures"]}
    planned = [Point(work, point.row, point.clients, point.batch, point.size, point.depth) for point in in_table()]
    return [point for point in planned if point in there]


def grouped(results: Results) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Returns the common properties of each group of peers, and its peers that have a cell."""
    there = {cell["peer"] for cell in results["cells"]}
    for durability, shown in _GROUPS.items():
        found = [peer for peer in results["peers"] if peer["durability"] == durability and peer["key"] in there]
        if found:
            yield shown, found


def ratio_table(results: Results) -> list[str]:
    """Returns the table of ratios with their targets."""
    return [*MARKDOWN_HEAD, *(markdown_row(Figure(**written)) for written in results["ratios"])]


def rate_table(results: Results, work: str) -> list[str]:
    """Returns a table of messages a second: a row for each peer, a column for each point."""
    points = measured_points(results, work)
    head = f"| {WORKS[work]}, messages/s | {' | '.join(point.name for point in points)} |"
    lines = [head, "|---" + "|---:" * len(points) + "|"]
    for shown, peers in grouped(results):
        lines.append(f"| *{shown}* |" + " |" * len(points))
        for peer in peers:
            cells = (figures_of(results, peer["key"], point) for point in points)
            lines.append(f"| {peer['name']} | {' | '.join(_rate(found) for found in cells)} |")
    return lines


def short_table(results: Results) -> list[str]:
    """Returns a table of messages a second of the peers whose answers survive power loss, and the memory of their
    servers. It is the table that most readers want first."""
    asked = [Point("push"), Point("push", "batch", batch=100), Point("cycle"), Point("cycle", "clients", 1)]
    heads = ("push", "push in batches of 100", "push + receive + delete", "the same, 1 client", "memory of the server")
    lines = [f"| messages/s, with 1 KiB and 32 clients | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
    for peer in dict(grouped(results)).get(_GROUPS["always"], []):
        if not peer["raw"]:
            found = [figures_of(results, peer["key"], point) for point in asked]
            cells = [*map(_rate, found), _memory(found[2])]
            lines.append(f"| {peer['name']} | {' | '.join(cells)} |")
    return lines


def _memory(found: dict[str, Any] | None) -> str:
    return "-" if not found or found["memory"] is None else f"{found['memory'] / 1e6:,.0f} MB"


def _rate(found: dict[str, Any] | None) -> str:
    return f"{found['rate']:,.0f}" if found else "-"


def point_table(results: Results, point: Point) -> list[str]:
    """Returns the table of all figures of one point."""
    lines = [
        "| peer | messages/s | p50 | p99 | CPU s per 10,000: server | clients | memory of the server | limit |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for shown, peers in grouped(results):
        lines.append(f"| *{shown}* |" + " |" * 7)
        lines += [_line(peer["name"], figures_of(results, peer["key"], point)) for peer in peers]
    return lines


def _line(name: str, found: dict[str, Any] | None) -> str:
    if found is None:
        return f"| {name} |" + " - |" * 7
    server = "-" if found["server"] is None else f"{found['server']:.2f}"
    columns = (
        _rate(found),
        _time(found["p50"]),
        _time(found["p99"]),
        server,
        f"{found['clients']:.2f}",
        _memory(found),
    )
    return f"| {name} | {' | '.join(columns)} | {found['limit']} |"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:,.2f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


def peer_table(results: Results) -> list[str]:
    """Returns a table of the peers: a description of each, and what is left after a power loss."""
    lines = ["| peer | driven by | a power loss leaves | versions |", "|---|---|---|---|"]
    for _, peers in grouped(results):
        lines += [
            f"| {peer['name']} | {peer['client']} | {peer['survives']} | {', '.join(peer['versions'])} |"
            for peer in peers
        ]
    return lines


def dashes(results: Results) -> list[str]:
    """Returns a line for each reason why cells have no figure, with the peer and the cells."""
    names = {peer["key"]: peer["name"] for peer in results["peers"]}
    reasons: dict[tuple[str, str], list[str]] = {}
    for cell in results["cells"]:
        if cell["note"]:
            point = Point(**cell["point"])
            reasons.setdefault((names[cell["peer"]], cell["note"]), []).append(f"{point.work}, {point.name}")
    return [f"- {name}: {note} ({'; '.join(where)})" for (name, note), where in reasons.items()]


def whole(results: Results) -> str:
    """Returns the content of table.md."""
    lines = ["# Comparison", "", results["machine"], "", *results["notes"], "", "## Ratios", "", *ratio_table(results)]
    lines += ["", "## Peers", "", *peer_table(results)]
    lines += [f"- {name}: left out: {why}" for name, why in results["missing"].items()]
    for work, shown in WORKS.items():
        points = measured_points(results, work)
        if points:
            lines += ["", f"## {shown}", "", *rate_table(results, work)]
        for point in points:
            lines += ["", f"### {shown}: {point.name}", "", *point_table(results, point)]
    lines += ["", "## Dashes", "", *(dashes(results) or ["None."])]
    return "\n".join(lines) + "\n"


def generated(results: Results, plots: Sequence[str]) -> str:
    """Returns the generated part of the page. plots: names of files in docs/performance."""
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


def compared(page: str, results: Results) -> str:
    """Returns the page that compares with its two rows of rates. A rate that was not measured now stays."""
    lines = page.split("\n")
    for number, line in enumerate(lines):
        cells = line.split(" | ")
        point = _COMPARED_ROWS.get(cells[0].removeprefix("| "))
        if point is not None:
            for column, peer in enumerate(_COMPARED, 1):
                if found := figures_of(results, peer, point):
                    cells[column] = f"{_rate(found)}/s"
            lines[number] = " | ".join(cells)
    return "\n".join(lines)


def write(results: Results, plots: Sequence[Path]) -> None:
    """Writes the pages and the plots; removes the plots of an earlier run. Raises ValueError if a page has no marks.

    The short table goes into the page of the results, two rows into the page that compares, everything else into that
    of the method.
    """
    PLOTS.mkdir(exist_ok=True)
    for old in PLOTS.glob("*.png"):
        old.unlink()
    for plot in plots:
        shutil.copyfile(plot, PLOTS / plot.name)
    lines = [*short_table(results), "", f"Measured on {results['date']}: {results['machine']}."]
    short = replaced(RESULTS_PAGE.read_text(encoding="utf-8"), BEGIN_SHORT, "\n".join(lines))
    long = replaced(METHOD_PAGE.read_text(encoding="utf-8"), BEGIN, generated(results, [plot.name for plot in plots]))
    RESULTS_PAGE.write_text(short, encoding="utf-8")
    METHOD_PAGE.write_text(long, encoding="utf-8")
    COMPARE_PAGE.write_text(compared(COMPARE_PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
