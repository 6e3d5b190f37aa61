"""The plugin of pytest: the fixtures qs_server, qs_bus, qs_client and qs_queue.

A server is started when the first test asks for one, and shared by all tests of a process; what a test has left in it
is removed afterwards. A test with the marker qs_faults has a server, and a bus, of its own.
"""

import itertools
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from .forking import end_forking

if TYPE_CHECKING:
    from qs_client import QueueClient

    from .server import Bus, Server

_numbers = itertools.count(1)
_KEY = pytest.StashKey["_Shared"]()
_LOGS = pytest.StashKey[list[tuple["Server | Bus", int]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("qs_server_flags", "more flags of queue-server.py, for all servers of tests", type="args")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "qs_faults: the test has a server and a bus of its own, whose faults it may use")
    config.addinivalue_line("markers", "qs_queue(**options): options of the queue that the fixture qs_queue makes")
    config.stash[_KEY] = _Shared()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_KEY].close()


class _Shared:
    """The server and the bus that tests of this process share. Starts them when they are first asked for."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._server: Server | None = None
        self._bus: Bus | None = None

    def server(self, flags: list[str]) -> "Server":
        if self._server is None:
            from .server import serving  # noqa: PLC0415 - not in a run that needs no server

            self._server = self._stack.enter_context(serving(*flags))
        return self._server

    def bus(self, flags: list[str]) -> "Bus":
        if self._bus is None:
            from .server import bus_serving  # noqa: PLC0415

            self._bus = self._stack.enter_context(bus_serving(self.server(flags)))
        return self._bus

    def close(self) -> None:
        try:
            self._stack.close()
        finally:
            end_forking()


def _has_faults(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("qs_faults") is not None


@pytest.fixture
def qs_server(request: pytest.FixtureRequest) -> Iterator["Server"]:
    """A queue server without queues: `qs_testing.Server`. With the marker qs_faults it is one of the test's own."""
    flags = request.config.getini("qs_server_flags")
    if _has_faults(request):
        from .server import serving  # noqa: PLC0415

        with serving(*flags, faults=True) as server:
            _show_log(request, server)
            yield server
        return
    server = request.config.stash[_KEY].server(flags)
    _show_log(request, server)
    yield server
    server.reset()


@pytest.fixture
def qs_bus(request: pytest.FixtureRequest, qs_server: "Server") -> Iterator["Bus"]:
    """A bus in front of `qs_server`: `qs_testing.Bus`."""
    if _has_faults(request):
        from .server import bus_serving  # noqa: PLC0415

        with bus_serving(qs_server, faults=True) as bus:
            _show_log(request, bus)
            yield bus
        return
    bus = request.config.stash[_KEY].bus(request.config.getini("qs_server_flags"))
    _show_log(request, bus)
    yield bus


@pytest.fixture
def qs_client(qs_server: "Server") -> Iterator["QueueClient"]:
    """A client of `qs_server`: `qs_client.QueueClient`."""
    with qs_server.client() as client:
        yield client


@pytest.fixture
def qs_queue(request: pytest.FixtureRequest, qs_server: "Server") -> str:
    """The name of a new queue of `qs_server`. The marker qs_queue has its options, those of QueueClient.new_queue; a
    dead-letter queue that they name is made too."""
    marker = request.node.get_closest_marker("qs_queue")
    options = {} if marker is None else dict(marker.kwargs)
    name = f"{re.sub('[^A-Za-z0-9_.-]+', '-', request.node.name)[:100]}-{next(_numbers)}"
    with qs_server.client() as client:
        if options.get("dead_letter") is not None:
            client.new_queue(options["dead_letter"], storage=options.get("storage"), exist_ok=True)
        client.new_queue(name, **options)
    return name


# -- the logs of a test that fails


def _show_log(request: pytest.FixtureRequest, program: "Server | Bus") -> None:
    """Notes a program whose log is to be a section of the report, from here on, if the test fails."""
    noted = request.node.stash.setdefault(_LOGS, [])
    noted.append((program, len(program.log())))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for program, since in item.stash.get(_LOGS, []):
            with suppress(FileNotFoundError):  # the end of the program has failed, and its files are gone
                if text := program.log()[since:].strip():
                    report.sections.append((f"log of the {program.program.name}", text))
    return report
