"""The text of an error of psycopg, as logs and answers have it."""

_NOISE = ("cannot exit pipeline mode while busy",)
"""Lines in the error of a lost connection that say nothing to an operator."""
_HOSTS = "All failures were:"
"""The line before the errors of all hosts. What stands before it is the error of the last one, once more."""


def line_of(error: Exception) -> str:
    """Returns the text of an error in one line, without the lines with a tab, which advise people at a terminal."""
    said, _, hosts = str(error).partition(_HOSTS)
    lines = [line for line in (hosts or said).splitlines() if not line.startswith("\t") and line not in _NOISE]
    return " ".join(" ".join(lines).split())
