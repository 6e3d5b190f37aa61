"""docs/security.md: its example is run. tests/integration/test_packaging.py has the units."""

from collections.abc import Callable
from typing import Any

from support.serving import PROJECT

PAGE = PROJECT / "docs" / "security.md"


def test_the_example(run_console_blocks: Callable[..., int]) -> None:
    """The CA, the certificates, the access file, the server, the bus and the clients do what the page shows."""
    assert run_console_blocks(PAGE) > 20


def test_five_commands(fenced_blocks: Callable[..., list[Any]]) -> None:
    """The first block makes the CA and the certificates, with as many commands of openssl as the page says."""
    first = fenced_blocks(PAGE.read_text(encoding="utf-8"), "console")[0]
    assert first.body.count("$ openssl ") == 5
