"""`qs check`: payloads in files against a schema, without a server."""

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from qs_payloads import Checker, NoSuchSchemaError, SchemaError, find_schema

from .command_output import INCOMPLETE, OK, Output, complain

if TYPE_CHECKING:
    from qs_payloads import PayloadFault, PayloadSchema

_NO_SCHEMA = 2
"""The exit code if there is no schema to check with: that of a wrong flag."""


def check(arguments: Namespace, out: Output) -> int:
    """Checks each file, also after one that is not valid or cannot be read."""
    try:
        schema = _schema(arguments)
    except (NoSuchSchemaError, SchemaError) as error:
        complain(str(error))
        return _NO_SCHEMA
    except OSError as error:  # of the directory
        complain(f"{error.filename}: {error.strerror}")
        return _NO_SCHEMA
    code = OK
    # In a process of its own, as in a server: a check that takes too long could not be interrupted here.
    checker = Checker()
    try:
        for name in arguments.files:
            try:
                found = checker.check(schema, [_content(name)])
            except SchemaError as error:
                complain(str(error))
                return _NO_SCHEMA
            except OSError as error:
                complain(f"{name}: {error.strerror or error}")
                code = INCOMPLETE
                continue
            fault = None if found is None else found[1]
            _write(out, name, fault)
            out.flush()
            if fault is not None:
                code = INCOMPLETE
    finally:
        checker.close()
    return code


def _schema(arguments: Namespace) -> "PayloadSchema":
    """Reads the schema. Raises NoSuchSchemaError, SchemaError, and OSError if there is no such directory."""
    if os.sep in arguments.schema:
        path = Path(arguments.schema)
        return find_schema(path.parent, path.name)
    return find_schema(arguments.schemas or os.environ.get("QS_SCHEMAS") or ".", arguments.schema)


def _content(name: str) -> bytes:
    if name != "-":
        return Path(name).read_bytes()
    if sys.stdin is None:
        raise OSError("standard input is closed: name a file, or redirect it")
    if sys.stdin.isatty():
        complain("reading from the terminal: end the input with Ctrl-D on a line of its own")
    return sys.stdin.buffer.read()


def _write(out: Output, name: str, fault: "PayloadFault | None") -> None:
    shown = "standard input" if name == "-" else name
    if fault is None:
        out.line(f"{shown}: valid", {"file": name, "valid": True})
        return
    place = shown if fault.line is None else f"{shown}:{fault.line}"
    element = f"element '{fault.element}': " if fault.element else ""
    fields = {"file": name, "valid": False, **fault._asdict()}
    out.line(f"{place}: {element}{fault.reason}", fields)
