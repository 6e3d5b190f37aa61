"""The errors that a command says in one line, and the text of that line."""

from ..storage.disk import has_no_room


class UsageError(Exception):
    """Flags do not go with each other, or with the directory: exit code 2."""


def described(error: Exception, path: str | None = None) -> str:
    """Says what is wrong, and where. path: of what the error is about if it does not say so itself; None: not known."""
    if isinstance(error, MemoryError):
        return "there is not enough memory (a message is in it as a whole, more than once)"
    where = getattr(error, "filename", None) or path
    if not isinstance(error, OSError) or not error.strerror or where is None:
        return str(error)
    return f"{where}: {'the disk is full: ' if has_no_room(error) else ''}{error.strerror}"
