"""Checks payloads with a JSON Schema, by the library jsonschema-rs.

The library is imported when the first JSON Schema is compiled. It would get a `$ref` from the network by itself; here
everything comes from the bytes of the source. Its regular expressions take time in proportion to a value's length.
"""

import json
from typing import Any

from qs_schemas.extras import NotInstalledError

from .faults import PayloadFault, SchemaError, shortened
from .sources import JSON_BASE, Source, parse_json_schema

_EXTRA = "json-schema"
_MASK = "\N{REPLACEMENT CHARACTER}"
"""Stands in the library's texts where the value would: a value may be the whole payload."""
_VALUE = 100


class JsonSchema:
    """A compiled JSON Schema."""

    def __init__(self, source: Source) -> None:
        """Compiles a source. Raises SchemaError."""
        try:
            import jsonschema_rs as library  # noqa: PLC0415 - of an extra
        except ModuleNotFoundError as error:
            raise SchemaError(f"{source.main}: {NotInstalledError(_EXTRA, error)}") from None
        self._files = source.files
        uri = f"{JSON_BASE}{source.main}"
        try:
            self._validator: Any = library.validator_for(
                parse_json_schema(source.main, source.files[uri]),
                retriever=self._retrieve,
                base_uri=uri,
                pattern_options=library.RegexOptions(),
                mask=_MASK,
            )
        except (ValueError, library.ValidationError, library.ReferencingError) as error:
            text = getattr(error, "message", None) or str(error)
            raise SchemaError(f"{source.main}: {shortened(text)}") from None
        self.is_plain = False

    def _retrieve(self, uri: str) -> Any:
        found = self._files.get(uri)
        if found is None:
            raise LookupError(f"{uri} is no file in the directory of the schemas")
        return parse_json_schema(uri.removeprefix(JSON_BASE), found)

    def fault(self, payload: bytes) -> PayloadFault | None:
        """Returns the first thing that is wrong with a payload, or None."""
        try:
            document = _parsed(payload)
        except _NoJsonError as error:
            return error.args[0]  # type: ignore[no-any-return]
        try:
            if self._validator.is_valid(document):
                return None
        except UnicodeEncodeError:
            return PayloadFault(None, "", "has half of a surrogate pair, which is no character")
        found = next(self._validator.iter_errors(document))
        path = "".join(f"/{step}" for step in found.instance_path)
        value = shortened(json.dumps(found.instance, ensure_ascii=False), _VALUE)
        return PayloadFault(None, shortened(path, 200), shortened(found.message).replace(_MASK, value))


class _NoJsonError(Exception):
    """Reports that a payload is no JSON. Its argument is the fault."""


def _parsed(payload: bytes) -> Any:
    """Parses a payload. Raises _NoJsonError."""
    if not payload:
        raise _NoJsonError(PayloadFault(None, "", "is empty: a JSON document is wanted"))
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        line = payload.count(b"\n", 0, error.start) + 1
        raise _NoJsonError(PayloadFault(line, "", f"is not UTF-8 at byte {error.start}")) from None
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        reason = f"is no JSON, column {error.colno}: {error.msg}"
        raise _NoJsonError(PayloadFault(error.lineno, "", reason)) from None
    except RecursionError:
        raise _NoJsonError(PayloadFault(None, "", "is nested too deeply")) from None
    except ValueError as error:
        raise _NoJsonError(PayloadFault(None, "", shortened(str(error)))) from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"has the name {shortened(json.dumps(twice, ensure_ascii=False), _VALUE)} twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"is no JSON: {name} is no number of JSON")
