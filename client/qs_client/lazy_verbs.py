"""Names the functions of subcommands without importing them: `qs --help` needs none, and other commands those of one
module."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


class LazyVerbs:
    """Stands for a module of this package. Its attributes are functions that import the module when they are called."""

    def __init__(self, module: str) -> None:
        self._module = f".{module}"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            return getattr(import_module(self._module, __package__), name)(*arguments)

        return run
