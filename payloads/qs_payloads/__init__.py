"""Schemas of payloads: a directory of XSDs and JSON Schemas, checks of payloads, and a process for long ones.

A check that surely takes at most a millisecond or so is made where it is wanted: `PayloadSchema.is_quick` says which.
Everything else belongs into a `Checker`, whose processes can be ended: nothing can stop libxml2 in the middle of a
check, and a regular expression of an XSD against one value can take it for ever.

Names are imported when they are first asked for, so that the process of a checker starts without the rest.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checker import Checker as Checker
    from .faults import NoSuchSchemaError as NoSuchSchemaError
    from .faults import PayloadFault as PayloadFault
    from .faults import SchemaError as SchemaError
    from .faults import UncheckedError as UncheckedError
    from .schemas import PayloadSchema as PayloadSchema
    from .schemas import Schemas as Schemas
    from .schemas import find_schema as find_schema

_WHERE = {
    "Checker": "checker", "NoSuchSchemaError": "faults", "PayloadFault": "faults", "SchemaError": "faults",
    "UncheckedError": "faults",
    "PayloadSchema": "schemas", "Schemas": "schemas", "find_schema": "schemas",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports the module of a name when the name is asked for."""
    from importlib import import_module  # noqa: PLC0415

    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
