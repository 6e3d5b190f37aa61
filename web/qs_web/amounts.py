"""Writes numbers, sizes, times and spans as people read them.

Each function returns a dash for None, as a figure that nobody knows must not look like 0. Only `plain`, for fields of
forms, and `ahead` have another meaning for it. Templates have this module as `fmt`.
"""

from datetime import UTC, datetime

NONE = "\N{EN DASH}"
_SPANS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def count(value: float | None) -> str:
    """Writes a whole number: "12,345"."""
    return NONE if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Writes how often something happens in a second: "0", "<0.1", "0.4", "12", "3,400"."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if value < 0.05:  # it would be rounded to 0.0, which is not the same as nothing
        return "<0.1"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Writes a number of bytes: "512 B", "1.5 KiB", "8.0 MiB"."""
    if value is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def span(seconds: float | None) -> str:
    """Writes a time in seconds with its two largest units: "0.4 s", "42 s", "5 min 3 s", "2 d 4 h"."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
    for large, name, small, smaller in _SPANS:
        if seconds >= large:
            rest = int(seconds % large // small)
            return f"{int(seconds // large)} {name} {rest} {smaller}" if rest else f"{int(seconds // large)} {name}"
    raise AssertionError(seconds)  # the last of `_SPANS` begins where the first test ends


def ahead(micros: int | None, now: float) -> str:
    """Writes when a message becomes visible: "in 42 s", or "now". micros: microseconds since the Epoch, None for a
    visible message; now: seconds since the Epoch."""
    left = 0.0 if micros is None else micros / 1e6 - now
    return f"in {span(left)}" if left > 0 else "now"


def seconds(value: float | None) -> str:
    """Writes a latency in seconds: "0.12 ms", "3.4 ms", "1.2 s"."""
    if value is None:
        return NONE
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.3g} ms"


def plain(value: float | None) -> str:
    """Writes a number for a field of a form: "60", "0.5", "" for None."""
    return "" if value is None else f"{value:.15g}"


def moment(micros: int | None) -> str:
    """Writes a time in microseconds since the Epoch: "2026-11-22 13:19:05 UTC"."""
    if micros is None:
        return NONE
    try:
        return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):  # no such year: other programs can choose any id, which has the time
        return NONE
