"""Formats numbers, durations, times and names. A name may be any text, chosen by anybody."""

import unicodedata
from datetime import UTC, datetime

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))


def duration(seconds: float | None) -> str:
    """Formats a duration with two or three digits: `1.5 s`, `230 ms`, `2.1 h`. A dash for None."""
    if seconds is None:
        return "-"
    for size, unit in _UNITS:
        value = seconds / size
        if value >= 0.9995 or unit == "µs":
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}".replace(".0 ", " ")
    raise AssertionError("every duration has a unit")


def number(value: float) -> str:
    """Formats a number: `12,345`."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Formats bytes: `1.2 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("every size has a unit")


def share(part: float, whole: float) -> str:
    """Formats a share in per cent; a dash when the whole is 0."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def moment(time: datetime | None, missing: str = "-") -> str:
    """Formats a time to the second, in UTC."""
    return missing if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def printable(name: str) -> str:
    """Replaces control characters and unassigned ones."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs", "Cn") else c for c in name)


def short(name: str, most: int = 28) -> str:
    """Shortens a name for a plot: one line, cut in the middle, so that both ends distinguish it."""
    name = " ".join(printable(name).split()) or "(blank)"
    if len(name) > most:
        keep = (most - 1) // 2
        name = f"{name[:keep]}…{name[-keep:]}"
    return f" {name}" if name.startswith("_") else name  # matplotlib hides labels that begin with _
