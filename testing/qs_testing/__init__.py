"""A queue in your tests: a real server and a real bus, with real faults. docs/testing.md shows how.

With pytest, the fixtures qs_server, qs_bus, qs_client and qs_queue are there by themselves. Anything else uses
`serving()` and `bus_serving()`. No library for tests is imported here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import Event, Life, Stored
    from .faults import FAULTS, every_fault
    from .programs import Fault
    from .proxy import Proxy
    from .schedules import Schedule, fault_schedules
    from .server import Bus, Server, bus_serving, serving

__all__ = [
    "FAULTS", "Bus", "Event", "Fault", "Life", "Proxy", "Schedule", "Server", "Stored", "bus_serving", "every_fault",
    "fault_schedules", "serving",
]  # fmt: skip

_MODULES = {
    "checks": ("Event", "Life", "Stored"),
    "faults": ("FAULTS", "every_fault"),
    "programs": ("Fault",),
    "proxy": ("Proxy",),
    "schedules": ("Schedule", "fault_schedules"),
    "server": ("Bus", "Server", "bus_serving", "serving"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
