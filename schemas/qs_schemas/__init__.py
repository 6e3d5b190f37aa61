"""The wire contract of qs: messages, XML, framing, errors and limits. No I/O, no clock.

The contract itself is `qs.xsd` beside this file. `command_line`, `terminal` and `extras` are what all commands have in
common. The contract is imported when its first name is asked for, so that a command does not wait for the contract only
to show its help.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contract import *  # noqa: F403
    from .parsing import parse as parse


def __getattr__(name: str) -> Any:
    """Imports the contract (for `parse` the XML library) when one of its names is asked for."""
    from importlib import import_module  # noqa: PLC0415

    try:
        found = getattr(import_module(".parsing" if name == "parse" else ".contract", __name__), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    if name == "__all__":
        return [*found, "parse"]
    globals()[name] = found
    return found
