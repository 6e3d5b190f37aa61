"""The door of the server while a process checks payloads, and when no process can be started."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qs_payloads import Checker, PayloadFault, PayloadSchema, Schemas
from qs_server.operations.door import Door, InvalidPayloadError
from qs_storage.engine import Options, UnavailableError

ELEMENT = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="{}" type="xs:string"/></xs:schema>'
LARGE = f"<a>{'x' * 20_000}</a>".encode()


class FakeChecker(Checker):
    """Finds all payloads valid by the schema `a`, and by no other; or raises an error."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.asked: list[str] = []

    def check(
        self, schema: PayloadSchema, payloads: Sequence[bytes], stop: object = None
    ) -> tuple[int, PayloadFault] | None:
        self.asked.append(schema.name)
        if self.error is not None:
            raise self.error
        return None if schema.name == "a" else (0, PayloadFault(1, "a", "is another one"))


def door_with(tmp_path: Path, checker: Checker) -> Door:
    for name in "ab":
        (tmp_path / f"{name}.xsd").write_text(ELEMENT.format(name))
    schemas = Schemas(tmp_path)
    assert schemas.reload() == []
    return Door(schemas, checker)


def proceed(checking: Any) -> None:
    """Runs a check up to its next pause, and the call of that pause."""
    call = next(checking).call
    call.run()


def test_another_schema_during_a_check(tmp_path: Path) -> None:
    """The schema that a queue gets while a payload is checked by an earlier one decides about it."""
    checker, options = FakeChecker(), Options(schema="a")
    checking = door_with(tmp_path, checker).checked("q", lambda: options, [LARGE])
    proceed(checking)
    options = Options(schema="b")
    proceed(checking)
    assert checker.asked == ["a", "b"]
    with pytest.raises(InvalidPayloadError, match="schema 'b' of queue 'q': line 1, element 'a': is another one"):
        next(checking)


def test_the_schema_is_removed_during_a_check(tmp_path: Path) -> None:
    """A queue whose schema was removed during a check takes the payload, and one that keeps it checks once."""
    for later in ("", "a"):
        checker, options = FakeChecker(), Options(schema="a")
        checking = door_with(tmp_path, checker).checked("q", lambda: options, [LARGE])  # noqa: B023 - used in this turn
        proceed(checking)
        options = Options(schema=later)
        assert list(checking) == []
        assert checker.asked == ["a"]


def test_no_process_can_be_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The answer and the log say so, and nothing of the disk; the payload is not counted as refused."""
    door = door_with(tmp_path, FakeChecker(OSError(errno.EAGAIN, "Resource temporarily unavailable")))
    checking = door.checked("q", lambda: Options(schema="a"), [LARGE])
    proceed(checking)
    with pytest.raises(UnavailableError, match="nothing was stored in queue 'q', as no process can be started"):
        next(checking)
    assert "Resource temporarily unavailable" in caplog.text
    assert door.refused == {}


def test_a_library_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload on which a library fails is not pushed together with those of others."""
    is_valid = door_with(tmp_path, FakeChecker()).quick_check("q", "a")
    assert (is_valid(b"<a/>"), is_valid(b"<b/>")) == (True, False)

    def fail(schema: PayloadSchema, payload: bytes) -> None:
        raise ValueError("the library fails")

    monkeypatch.setattr(PayloadSchema, "fault", fail)
    assert not is_valid(b"<a/>")
