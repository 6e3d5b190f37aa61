"""Lists as arrays of PostgreSQL in its binary form, each with one type whatever its values.

psycopg would choose the type by the values, so that one statement would be prepared anew for each size of number, and
could not send a list of NULLs.
"""

from collections.abc import Sequence
from itertools import chain
from struct import pack
from typing import ClassVar

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format

NULL = -1


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


class _Numbers(Dumper):
    format = Format.BINARY
    element: ClassVar[int]
    letter: ClassVar[str]
    size: ClassVar[int]

    def dump(self, obj: Sequence[int | None]) -> bytes:
        if None in obj:
            items = b"".join(
                [pack(">i", NULL) if one is None else pack(">i" + self.letter, self.size, one) for one in obj]
            )
        else:
            items = pack(">" + ("i" + self.letter) * len(obj), *chain.from_iterable([(self.size, one) for one in obj]))
        return _header(self.element, obj) + items


class _Bytes(Dumper):
    format = Format.BINARY
    element: ClassVar[int]

    def dump(self, obj: Sequence[bytes | None]) -> bytes:
        parts = [_header(self.element, obj)]
        for one in obj:
            if one is None:
                parts.append(pack(">i", NULL))
            else:
                parts += (pack(">i", len(one)), one)
        return b"".join(parts)


class _Int2sDumper(_Numbers):
    oid, element, letter, size = 1005, 21, "h", 2


class _Int4sDumper(_Numbers):
    oid, element, letter, size = 1007, 23, "i", 4


class _Int8sDumper(_Numbers):
    oid, element, letter, size = 1016, 20, "q", 8


class _BoolsDumper(_Numbers):
    oid, element, letter, size = 1000, 16, "?", 1


class _BlobsDumper(_Bytes):
    oid, element = 1001, 17


class _TextsDumper(_Bytes):
    oid, element = 1009, 25

    def dump(self, obj: Sequence[str | None]) -> bytes:  # type: ignore[override]
        return super().dump([None if one is None else one.encode() for one in obj])


def _header(element: int, items: Sequence[object]) -> bytes:
    if not items:
        return pack(">iii", 0, 0, element)
    return pack(">iiiii", 1, None in items, element, len(items), 1)


_DUMPERS: dict[type[Array], type[_Numbers] | type[_Bytes]] = {
    Int2s: _Int2sDumper,
    Int4s: _Int4sDumper,
    Int8s: _Int8sDumper,
    Bools: _BoolsDumper,
    Texts: _TextsDumper,
    Blobs: _BlobsDumper,
}


def register(context: AdaptContext) -> None:
    """Makes a connection send arrays."""
    for kind, dumper in _DUMPERS.items():
        context.adapters.register_dumper(kind, dumper)


def columns(table: Sequence[Sequence[object]], kinds: Sequence[type[Array]]) -> list[Array]:
    """Returns the columns of a table, each as an array of its kind."""
    return [kind(column) for kind, column in zip(kinds, zip(*table, strict=True), strict=True)]
