"""The plots of `compare`: a few PNG files, from its results."""

from collections.abc import Callable, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # without a display

from compare_cells import Point
from compare_tables import Results, figures_of, grouped
from matplotlib import pyplot

_STYLES = {"always": "-", "interval": "--", "none": ":"}
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:gray")
_FAMILIES = ("qs", "beanstalkd", "redis", "rabbitmq", "nats", "vsqs", "dirq", "persist-queue", "litequeue")
_WIDE, _HIGH = 9.0, 5.5


def draw(results: Results, folder: Path) -> list[Path]:
    """Draws the plots for which there are figures. Returns the files."""
    base = Point("push")
    by_clients = [Point("push", "clients" if n != 32 else "base", n) for n in (1, 8, 32, 128)]
    by_size = [Point("push", "base" if size == 1024 else "size", size=size) for size in (100, 1024, 65536)]
    made = [
        _lines(results, folder / "push-by-clients.png", "Pushes, 1 KiB, one at a time", by_clients, "clients"),
        _lines(results, folder / "push-by-size.png", "Pushes, 32 clients, one at a time", by_size, "size"),
    ]
    for work, shown in (("push", "Pushes"), ("cycle", "Push + receive + delete")):
        by_depth = [Point(work, "depth", depth=depth) for depth in (1000, 100_000, 1_000_000)]
        made.append(_lines(results, folder / f"{work}-by-depth.png", f"{shown}, 1 KiB, 32 clients", by_depth, "depth"))
    cycle = Point("cycle", "clients", 8)
    for work, point in (("push", base), ("cycle", cycle if _peers(results, cycle) else Point("cycle"))):
        shown = "Pushes" if work == "push" else "Push + receive + delete"
        title = f"{shown}, 1 KiB, {point.clients} clients"
        made.append(_bars(results, folder / f"{work}-latency.png", f"{title}: latency, ms", point, _latency, log=True))
        made.append(_bars(results, folder / f"{work}-cpu.png", f"{title}: CPU s per 10,000 messages", point, _cpu))
    return [path for path in made if path is not None]


def _peers(results: Results, *points: Point) -> list[dict[str, Any]]:
    """Returns the peers with a figure at one or more of the points."""
    found = [peer for _, peers in grouped(results) for peer in peers]
    return [peer for peer in found if any(figures_of(results, peer["key"], point) for point in points)]


def _colour(key: str) -> str:
    family = max((name for name in _FAMILIES if key.startswith(name)), key=len)
    return _COLOURS[_FAMILIES.index(family) % len(_COLOURS)] if family != "litequeue" else "tab:olive"


def _lines(results: Results, path: Path, title: str, points: Sequence[Point], varied: str) -> Path | None:
    """Draws rates by the thing that varies, on logarithmic axes. Draws nothing for a single point."""
    peers = _peers(results, *points)
    if not peers or sum(bool(_peers(results, point)) for point in points) < 2:
        return None
    figure, axes = pyplot.subplots(figsize=(_WIDE, _HIGH), layout="constrained")
    for peer in peers:
        found = [(getattr(point, varied), figures_of(results, peer["key"], point)) for point in points]
        xs = [x for x, figures in found if figures]
        ys = [figures["rate"] for _, figures in found if figures]
        marker = "x" if peer["raw"] else "o"
        style = {"color": _colour(peer["key"]), "linestyle": _STYLES[peer["durability"]], "marker": marker}
        axes.plot(xs, ys, label=peer["name"], linewidth=2.5 if peer["key"] == "qs" else 1.4, markersize=5, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [getattr(point, varied) for point in points]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    rates = axes.get_ylim()
    axes.set_ylim(10 ** floor(log10(rates[0])), 10 ** ceil(log10(rates[1])))  # whole decades, so that ticks are there
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel({"clients": "clients", "size": "bytes of a message", "depth": "messages in the queue"}[varied])
    axes.set_ylabel("messages a second")
    axes.set_title(f"{title}  (solid: survives power loss; dashed: synced later; dotted: not)", fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _saved(figure, path)


Parts = Callable[[dict[str, Any]], dict[str, float]]


def _latency(figures: dict[str, Any]) -> dict[str, float]:
    return {"p50": figures["p50"] * 1000, "p99": figures["p99"] * 1000}


def _cpu(figures: dict[str, Any]) -> dict[str, float]:
    return {"server": figures["server"] or 0.0, "clients": figures["clients"]}


def _bars(results: Results, path: Path, title: str, point: Point, parts: Parts, log: bool = False) -> Path | None:
    """Draws two bars for each peer."""
    peers = _peers(results, point)[::-1]
    if not peers:
        return None
    figure, axes = pyplot.subplots(figsize=(_WIDE, 1.2 + 0.36 * len(peers)), layout="constrained")
    found = [parts(figures_of(results, peer["key"], point) or {}) for peer in peers]
    for number, part in enumerate(found[0]):
        places = [place + (0.2 if number == 0 else -0.2) for place in range(len(peers))]
        bars = axes.barh(places, [values[part] for values in found], 0.38, label=part)
        axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    if log:
        axes.set_xscale("log")
    axes.set_yticks(range(len(peers)), [peer["name"] for peer in peers], fontsize=8)
    axes.margins(x=0.12)
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _saved(figure, path)


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
