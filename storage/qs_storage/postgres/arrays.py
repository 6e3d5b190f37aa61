"""Lists whose classes say of which type their values are in PostgreSQL."""

from collections.abc import Sequence


class Array(list[object]):
    """A list of values, None for NULL. Its classes say which type of PostgreSQL the values have."""


class Int2s(Array):
    """smallint[]."""


class Int4s(Array):
    """int[]."""


class Int8s(Array):
    """bigint[]."""


class Bools(Array):
    """boolean[]."""


class Texts(Array):
    """text[]."""


class Blobs(Array):
    """bytea[]."""


def columns(table: Sequence[Sequence[object]], kinds: Sequence[type[Array]]) -> list[Array]:
    """Returns the columns of a table, each as an array of its kind."""
    return [kind(column) for kind, column in zip(kinds, zip(*table, strict=True), strict=True)]
