"""What the subcommands raise for `qs-dir` to say in a line, and how an error is said."""

from ..storage.disk import has_no_room


class UsageError(Exception):
    """Flags that do not go with each other, or with the directory: exit code 2."""


class CutShortError(Exception):
    """Something failed while messages went through; the text says what, and how many had gone: exit code 1."""


def described(error: Exception, path: str | None = None) -> str:
    """What is wrong, and where. path: what it is about when the error does not say; None: that is not known."""
    if isinstance(error, MemoryError):
        return "there is not enough memory (a message is in it as a whole, more than once)"
    where = getattr(error, "filename", None) or path
    if not isinstance(error, OSError) or not error.strerror or where is None:
        return str(error)
    return f"{where}: {'the disk is full: ' if has_no_room(error) else ''}{error.strerror}"
