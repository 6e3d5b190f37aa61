# ruff: noqa: N999 - programs import the module under this name
"""The errors of the queues, beside OSError from the file system and TypeError for arguments of a wrong type."""

from ..engine import StorageError


class QueueError(StorageError):
    """The call cannot use a schema, an element's data, its name or its state."""


class QueueLockError(QueueError):
    """Somebody else has locked the element, or it is gone."""
