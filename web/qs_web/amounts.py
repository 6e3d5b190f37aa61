"""Numbers, sizes, times and spans as people read them. Each function returns a dash for None, but `plain` and
`ahead`."""

from datetime import UTC, datetime

NONE = "\N{EN DASH}"
_SPANS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def count(value: float | None) -> str:
    """12345 -> "12,345"."""
    return NONE if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Per second: "0", "0.4", "12", "3,400"."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    if value < 0.05:
        return "<0.1"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes: "512 B", "1.5 KiB", "8.0 MiB"."""
    if value is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def span(seconds: float | None) -> str:
    """Seconds: "0 s", "0.4 s", "42 s", "5 min 3 s", "2 d 4 h"."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
    for large, name, small, smaller in _SPANS:
        if seconds >= large:
            rest = int(seconds % large // small)
            return f"{int(seconds // large)} {name} {rest} {smaller}" if rest else f"{int(seconds // large)} {name}"
    raise AssertionError(seconds)  # units from a minute up have been found


def ahead(micros: int | None, now: float) -> str:
    """When a message is visible, by microseconds since the Epoch: "in 42 s", "now". now: seconds since the Epoch."""
    left = 0.0 if micros is None else micros / 1e6 - now
    return f"in {span(left)}" if left > 0 else "now"


def seconds(value: float | None) -> str:
    """A latency: "0.12 ms", "3.4 ms", "1.2 s"."""
    if value is None:
        return NONE
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.3g} ms"


def plain(value: float | None) -> str:
    """A number for a field of a form: "60", "0.5", "" for None."""
    return "" if value is None else f"{value:.15g}"


def moment(micros: int | None) -> str:
    """Microseconds since the Epoch: "2026-11-22 13:19:05 UTC"."""
    if micros is None:
        return NONE
    try:
        return f"{datetime.fromtimestamp(micros / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):  # no such year: other programs can choose any id
        return NONE
