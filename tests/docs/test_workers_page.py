"""docs/workers.md is true: its workers are started, killed and stopped, and print what it shows."""

from collections.abc import Callable

from support.serving import PROJECT


def test_the_workers(run_console_blocks: Callable[..., int]) -> None:
    """The sync one and the async one handle, try again, give up and stop; a repeated message changes nothing."""
    assert run_console_blocks(PROJECT / "docs" / "workers.md") > 10
