"""Compiles the source of a schema, by its kind."""

from typing import Protocol

from .faults import PayloadFault
from .sources import Source


class Compiled(Protocol):
    """A schema that payloads can be checked with, from one thread at a time."""

    is_plain: bool
    """True if a check of a short payload cannot take long, whatever the payload: nothing backtracks or grows."""

    def fault(self, payload: bytes) -> PayloadFault | None:
        """Returns the first thing that is wrong with a payload, or None."""


def compile_source(source: Source) -> Compiled:
    """Compiles a schema. Reads no file and opens no connection. Raises SchemaError."""
    if source.is_xsd:
        from .xsd import Xsd  # noqa: PLC0415 - each kind needs its own library

        return Xsd(source)
    from .json_schema import JsonSchema  # noqa: PLC0415

    return JsonSchema(source)
