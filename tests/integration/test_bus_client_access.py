"""Bus clients and `qs tail` against a real bus and server, both with TLS and an access file."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.every_client import both, run
from support.clients.scripted_server import GIVE_UP
from support.servers.processes import FAST, BusProcess, ServerProcess, bus_serving, serving
from support.servers.tls import authority, tls_flags

from qs_client import AsyncBusClient, BusClient, Forbidden, QueueClient, Unauthorized, command

CA = authority().cert
TOKENS = {name: f"qs_MARKED-{name}" for name in ("ops", "reader", "writer", "wrong")}


def _section(name: str, rights: str) -> str:
    return f'[principals.{name}]\ntokens = ["sha256:{hashlib.sha256(TOKENS[name].encode()).hexdigest()}"]\n{rights}\n'


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    for name, text in (
        (
            "access.toml",
            _section("ops", "admin = true") + _section("reader", 'read = ["orders*"]') + _section("writer", ""),
        ),
        ("token", TOKENS["ops"]),
    ):
        (folder / name).touch(0o600)
        (folder / name).write_text(text)
    return folder / "access.toml"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, access: Path) -> Iterator[ServerProcess]:
    """The server. What it logs shows no token."""
    root = tmp_path_factory.mktemp("server") / "root"
    with serving(root, *FAST, *tls_flags(), "--access", str(access), "-vv") as process:
        yield process
    assert "MARKED" not in process.log()


@pytest.fixture(scope="module")
def bus(server: ServerProcess, access: Path) -> Iterator[BusProcess]:
    """The bus. What it logs shows no token."""
    towards = ("--server-ca", str(CA), "--server-token-file", str(access.with_name("token")))
    with bus_serving(server, *tls_flags(), *towards, "--access", str(access), "-vv") as process:
        yield process
    assert "MARKED" not in process.log()


def _push(server: ServerProcess, qid: str, *payloads: str) -> None:
    with QueueClient("localhost", server.port, tls=CA, token=TOKENS["ops"]) as client:
        client.new_queue(qid, exist_ok=True)
        for payload in payloads:
            client.push(qid, payload)


def _client(bus: BusProcess, name: str | None) -> BusClient:
    token = None if name is None else TOKENS[name]
    return BusClient(f"qss://localhost:{bus.port}", tls=CA, token=token, timeout=GIVE_UP, on_trouble=lambda text: None)


def test_who_gets_messages(server: ServerProcess, bus: BusProcess) -> None:
    """A client gets the messages of queues that it may read; any other subscription is refused, and raised, whatever
    `reconnect` says."""
    _push(server, "orders", "one", "two")
    with _client(bus, "reader").subscribe("orders", ack=True) as messages:
        assert [next(messages).text, next(messages).text] == ["one", "two"]
    for name, raises in (("writer", Forbidden), ("wrong", Unauthorized), (None, Unauthorized)):
        with pytest.raises(raises):
            next(_client(bus, name).subscribe("orders"))


def test_bus_client_authenticates_again_after_restart(server: ServerProcess, bus: BusProcess) -> None:
    """After a restart of the bus, its clients authenticate again and go on."""
    _push(server, "orders-again", "one")
    with _client(bus, "reader").subscribe("orders-again", ack=True) as messages:
        assert next(messages).text == "one"
        bus.stop()
        bus.start()
        _push(server, "orders-again", "two")
        while next(messages).text != "two":
            pass  # the first one may not have been acknowledged in time


@both
def test_async_bus_client_authenticates(backend: str, server: ServerProcess, bus: BusProcess) -> None:
    """The async client gets the same, and authenticates again after a restart."""
    qid = f"orders-{backend}"
    _push(server, qid, "one")

    async def main() -> None:
        async with (
            AsyncBusClient(f"qss://localhost:{bus.port}", tls=CA, token=TOKENS["reader"]) as client,
            client.subscribe(qid, ack=True) as messages,
        ):
            assert (await anext(messages)).text == "one"
        refused = AsyncBusClient("localhost", bus.port, tls=CA, token=TOKENS["wrong"])
        with pytest.raises(Unauthorized):
            await anext(refused.subscribe(qid))

    run(backend, main)


def test_tail(
    server: ServerProcess,
    bus: BusProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`qs tail` prints what its token may read, and says what to do about a refusal."""
    _push(server, "orders-tail", "one")
    monkeypatch.setenv("QS_BUS", f"qss://localhost:{bus.port}")
    monkeypatch.setenv("QS_CA", str(CA))
    monkeypatch.setenv("QS_TOKEN", TOKENS["reader"])
    assert command.main(["tail", "orders-tail", "-n", "1"]) == 0
    assert capsys.readouterr().out == "one\n"
    assert command.main(["tail", "others"]) == 1
    assert "403 forbidden" in capsys.readouterr().err
    monkeypatch.delenv("QS_TOKEN")
    assert command.main(["tail", "orders-tail"]) == 1
    assert "give a token with QS_TOKEN or --token-file" in capsys.readouterr().err
