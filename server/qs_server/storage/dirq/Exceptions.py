# ruff: noqa: N999 - programs import the module under this name
"""What the queues raise, beside OSError from the file system and TypeError for arguments of a wrong type."""

from ..engine import StorageError


class QueueError(StorageError):
    """A schema, an element's data, an element's name or its state is not as the call needs it."""


class QueueLockError(QueueError):
    """Somebody else has locked the element, or it is gone."""
