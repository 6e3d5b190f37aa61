"""Checks payloads against a schema, in tasks, a column of payloads at a time.

Each process compiles the XSD only once.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.types import StructType

from .document_shape import shape_of
from .xml_parsing import MisfitError, PayloadParser, Xsd

VERDICT = "struct<misfit: string, doubt: string>"
"""The result for a payload. misfit: why it does not fit, null when it does; doubt: a value that Spark may be unable to
read."""

_LONGEST = 500  # characters of a reason
_KEPT = 8  # checkers: one for each queue


@dataclass(frozen=True, slots=True)
class Rules:
    """The requirements for payloads. columns: for documents, as JSON of Spark; root: the required name of the root
    element, None for any; xsd: to validate by, if any."""

    columns: str
    root: str | None = None
    xsd: Xsd | None = None


class Checker:
    def __init__(self, rules: Rules) -> None:
        self._parser = PayloadParser(rules.xsd, rules.root)
        self._shape = shape_of(StructType.fromJson(json.loads(rules.columns)))

    def check(self, body: bytes | None) -> tuple[str | None, str | None]:
        """Returns why the payload does not fit, or None, and a value that Spark may be unable to read, if any."""
        doubts: list[str] = []
        try:
            self._shape.check(self._parser.parse(body or b""), doubts)
        except MisfitError as misfit:
            return _bounded(str(misfit)), None
        return None, _bounded(doubts[0]) if doubts else None


@lru_cache(_KEPT)
def checker(rules: Rules) -> Checker:
    """Returns this process's checker for the rules."""
    return Checker(rules)


def check_payloads(bodies: pa.Array, rules: Rules) -> pa.Array:
    """Returns the verdict on each payload, in order."""
    check = checker(rules).check
    verdicts = [check(body) for body in bodies.to_pylist()]
    columns = [pa.array([verdict[number] for verdict in verdicts], pa.string()) for number in (0, 1)]
    return pa.StructArray.from_arrays(columns, names=["misfit", "doubt"])


def _bounded(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
