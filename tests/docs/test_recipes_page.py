"""docs/recipes.md is true: its recipes run, and their workers print what it shows."""

from collections.abc import Callable

from support.serving import PROJECT


def test_the_recipes(run_console_blocks: Callable[..., int]) -> None:
    """Tasks are done, tried again and redriven; keys make one job of two; urgent ones come first; answers come back;
    one step follows the other."""
    assert run_console_blocks(PROJECT / "docs" / "recipes.md") > 30
