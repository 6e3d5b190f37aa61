"""Tests of payloads make schemas from a few lines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qs_payloads import PayloadSchema, Schemas

MakeSchema = Callable[..., PayloadSchema]


@pytest.fixture
def make_schema(tmp_path: Path) -> MakeSchema:
    """Makes a schema of a body: of `xs:schema`, or of JSON if it begins with a brace. Fails if it does not compile."""

    def make(body: str, name: str = "order") -> PayloadSchema:
        if body.startswith("{"):
            (tmp_path / f"{name}.json").write_text(body)
        else:
            head = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">'
            (tmp_path / f"{name}.xsd").write_text(f"{head}{body}</xs:schema>")
        schemas = Schemas(tmp_path)
        assert schemas.reload() == []
        return schemas.get(name)

    return make
