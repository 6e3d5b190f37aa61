"""Whatever names a CA, a certificate or a key speaks TLS, or is an error: a token is never sent in the clear beside
one. A peer without TLS stands in for the server and keeps what it is sent."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from support.servers.processes import PROJECT
from support.servers.tls import authority

from qs_bus.command import read_options as bus_options
from qs_client import AsyncBusClient, AsyncQueueClient, BusClient, QueueClient, ServerUnavailable, command
from qs_pipeline.arguments import parse as pipeline_arguments
from qs_pipeline.errors import UsageError
from qs_pipeline.options import parse_options
from qs_pipeline.security import QueueServer, Security
from qs_server.main.queue_server import read_options as server_options
from qs_web.command import read_options as web_options

CA = str(authority().cert)
TOKEN = "qs_a-token-that-nobody-may-read"
_HANDSHAKE = b"\x16\x03"  # a record of TLS that holds a handshake


class Listener:
    """Takes connections, keeps the first bytes of each, and closes it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection:
                connection.settimeout(20)
                self.received.append(connection.recv(65536))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(20)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """A listener, and an environment with a token and a CA."""
    for name in ("QS_SERVER", "QS_BUS", "QS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QS_CA", CA)
    monkeypatch.setenv("QS_TOKEN", TOKEN)
    listener = Listener()
    yield listener
    listener.close()


def _qs(*argv: str) -> Callable[[int], None]:
    return lambda port: _exits(1, *argv, port=port)


def _exits(code: int, *argv: str, port: int) -> None:
    assert command.main([part.format(port=port) for part in argv]) == code


def _healthcheck(port: int) -> None:
    """Does what the image asks for its health with, once QS_SERVER names the server."""
    found = re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", (PROJECT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    _, *argv = json.loads(found[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QS_SERVER", f"localhost:{port}")
        _exits(1, *argv, port=port)


def _sync(port: int) -> None:
    with pytest.raises(ServerUnavailable):
        QueueClient("localhost", port, tls=CA, token=TOKEN, timeout=20).ping()


def _sync_bus(port: int) -> None:
    with pytest.raises(ServerUnavailable), BusClient("localhost", port, tls=CA, token=TOKEN) as bus:
        next(bus.subscribe("q"))


def _async(port: int) -> None:
    with pytest.raises(ServerUnavailable):
        trio.run(AsyncQueueClient("localhost", port, tls=CA, token=TOKEN, timeout=20).ping)


def _pipeline(port: int) -> None:
    with pytest.raises(ServerUnavailable):
        QueueServer("localhost", port).client().ping()


def _pipeline_option(port: int) -> None:
    options = parse_options({"queue": "q", "host": "localhost", "port": str(port), "ca": CA})
    with pytest.raises(ServerUnavailable):
        options.server.client().ping()


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(_qs("-s", "localhost:{port}", "ping"), id="qs"),
        pytest.param(_qs("-s", "localhost:{port}", "--ca", CA, "ping"), id="qs --ca"),
        pytest.param(_healthcheck, id="health check of the image"),
        pytest.param(_sync, id="QueueClient"),
        pytest.param(_async, id="AsyncQueueClient"),
        pytest.param(_pipeline, id="QS_CA of a Spark process"),
        pytest.param(_pipeline_option, id="Spark option ca"),
    ],
)
def test_nothing_is_sent_in_the_clear(listener: Listener, run: Callable[[int], None]) -> None:
    """The first bytes of each connection begin a TLS handshake, although the address asks for none."""
    run(listener.port)
    assert listener.received
    for received in listener.received:
        assert received.startswith(_HANDSHAKE), received


@pytest.mark.parametrize("read", [bus_options, web_options])
def test_the_bus_and_the_page(listener: Listener, read: Callable[[list[str]], tuple[object, int]]) -> None:
    """QS_CA alone makes them speak TLS to the queue server, and so does each flag."""
    assert read([])[0].security().context is not None  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("QS_CA")
        assert read([])[0].security().context is None  # type: ignore[attr-defined]
        assert read(["--server-ca", CA])[0].security().context is not None  # type: ignore[attr-defined]


def test_a_config_file(tmp_path: Path, listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of settings counts as a flag does: TLS, or an error that says both ways out."""
    config = tmp_path / "bus.toml"
    config.write_text(f'server = "localhost"\nserver-ca = "{CA}"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("QS_CA")
        assert bus_options(["--config", str(config)])[0].security().context is not None
        config.write_text(f'server = "qs://localhost"\nserver-ca = "{CA}"\n')
        for read in (bus_options, web_options):
            with pytest.raises(SystemExit):
                read(["--config", str(config)])
            assert "write qss://, or leave --server-ca out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda: command.main(["-s", "qs://localhost", "ping"]), id="qs"),
        pytest.param(lambda: command.main(["tail", "q", "--bus", "qs://localhost"]), id="qs tail"),
        pytest.param(lambda: bus_options(["--server", "qs://localhost"]), id="bus"),
        pytest.param(lambda: web_options(["--server", "qs://localhost"]), id="page"),
        pytest.param(lambda: pipeline_arguments(["report", "h", "--to", "d", "-s", "qs://localhost"]), id="pipeline"),
    ],
)
def test_an_address_without_tls(
    run: Callable[[], object], listener: Listener, capsys: pytest.CaptureFixture[str]
) -> None:
    """`qs://` beside QS_CA is wrong usage, and the error says both ways out."""
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "QS_CA asks for TLS: write qss://, or leave QS_CA out" in capsys.readouterr().err


@pytest.mark.parametrize("make", [QueueClient, AsyncQueueClient, BusClient, AsyncBusClient])
def test_constructors(make: type[QueueClient]) -> None:
    """Arguments that contradict the address are errors that say both ways out; an empty path is one, too."""
    with pytest.raises(ValueError, match=r"tls asks for TLS: write qss://, or leave tls out"):
        make("qs://localhost", tls=CA)
    with pytest.raises(ValueError, match=r"write qs://, or leave tls out"):
        make("qss://localhost", tls=False)
    with pytest.raises(ValueError, match="empty path"):
        make("localhost", tls="")
    assert make("localhost", tls=CA).security.context is not None


def test_spark() -> None:
    """A key without its certificate, and an address without TLS beside a CA, are errors before anything is sent."""
    with pytest.raises(UsageError, match="give --cert too"):
        QueueServer("localhost", 1, Security(client_key="k")).client()
    with pytest.raises(UsageError, match="qss://"):
        QueueServer("qs://localhost", 1, Security(ca=CA)).client()
    with pytest.raises(UsageError, match="empty"):
        QueueServer("localhost", 1, Security(ca="")).client()


@pytest.mark.parametrize("flag", ["--tls-cert", "--tls-key", "--tls-client-ca", "--access"])
@pytest.mark.parametrize("read", [server_options, bus_options])
def test_empty_names_of_what_a_port_needs(
    read: Callable[[list[str]], object], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty name, as of an unset variable, does not open a port without TLS or without an access file."""
    with pytest.raises(SystemExit):
        read([f"{name}={'' if name == flag else CA}" for name in ("--tls-cert", "--tls-key", flag)])
    assert f"argument {flag}: the name of the file is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "fits"),
    [
        (["--bus", "localhost"], True),
        (["--bus", "qs://localhost"], True),
        (["--bus", "qss://localhost"], False),
        (["--bus", "qss://localhost", "--server-ca", CA], True),
        (["--bus", "qs://localhost", "--server-ca", CA], False),
    ],
)
def test_the_bus_that_the_page_shows(
    flags: list[str], *, fits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page speaks to the bus as to the server. Another scheme in the address of the bus is wrong usage."""
    for name in ("QS_SERVER", "QS_CA"):
        monkeypatch.delenv(name, raising=False)
    if fits:
        web_options(flags)
    else:
        with pytest.raises(SystemExit):
            web_options(flags)
        assert "both addresses the same scheme" in capsys.readouterr().err
