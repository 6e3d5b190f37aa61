"""docs/storage.md: its example is run."""

from collections.abc import Callable

from support.serving import PROJECT


def test_the_example(run_console_blocks: Callable[..., int]) -> None:
    """The example prints what the page shows."""
    assert run_console_blocks(PROJECT / "docs" / "storage.md") > 8
