"""All faults as a list, for tests that have to hold for each of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .server import Server

Test = TypeVar("Test", bound=Callable[..., object])


@dataclass(frozen=True)
class NamedFault:
    """A fault that a test can be run with. Called with a server, it happens; what lasts is over at the end of the
    `with` block that the call may be used in, or after `Server.heal`."""

    name: str
    begin: Callable[["Server"], object]
    end: Callable[["Server"], object] = lambda server: server.heal()

    def __call__(self, server: "Server") -> AbstractContextManager[None]:
        """Makes the fault happen now."""
        self.begin(server)
        return _until(server, self.end)

    def __repr__(self) -> str:
        return self.name


@contextmanager
def _until(server: "Server", end: Callable[["Server"], object]) -> "Iterator[None]":
    try:
        yield
    finally:
        end(server)


def _kill(server: "Server") -> None:
    server.kill()
    server.restart()


def _replace_disk(server: "Server") -> None:
    """Ends a failing disk. A journal that has seen one trusts it no more until the server is started again."""
    server.heal()
    server.restart()


FAULTS: tuple[NamedFault, ...] = (
    NamedFault("kill", _kill),
    NamedFault("restart", lambda server: server.restart()),
    NamedFault("power_loss", lambda server: server.power_loss()),
    NamedFault("cut", lambda server: server.cut()),
    NamedFault("cut_in_answer", lambda server: server.cut(in_answer=True)),
    NamedFault("lose_answer", lambda server: server.lose_answer()),
    NamedFault("full_disk", lambda server: server.full_disk()),
    NamedFault("failing_disk", lambda server: server.failing_disk(), _replace_disk),
    NamedFault("slow", lambda server: server.slow(0.2)),
    NamedFault("skew_clock", lambda server: server.skew_clock(3600)),
    NamedFault("delay", lambda server: server.proxy.delay(0.05)),
)
"""Every fault that needs nothing else of a test. A server that was killed or has lost its power is up again."""


def every_fault(test: Test) -> Test:
    """Runs a test once for each fault, with a server of its own. The test takes `fault`, and makes it happen with
    `fault(qs_server)`."""
    import pytest  # noqa: PLC0415 - only who uses pytest has it

    marked: Any = pytest.mark.qs_faults(test)
    found: Test = pytest.mark.parametrize("fault", FAULTS, ids=repr)(marked)
    return found
