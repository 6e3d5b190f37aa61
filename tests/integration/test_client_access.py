"""Clients and `qs` against a real server with TLS and an access file: who gets what, over restarts and reloads."""

import hashlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.every_client import both, run
from support.clients.scripted_server import GIVE_UP
from support.servers.processes import FAST, ServerProcess, serving
from support.servers.tls import authority, tls_flags

from qs_client import AsyncQueueClient, Forbidden, NotImplementedByServer, QueueClient, Unauthorized, command

CA = authority().cert
TOKENS = {name: f"qs_MARKED-{name}" for name in ("ops", "reader", "writer", "wrong")}
READ = "after SIGHUP: the files have been read again"


def _hash(name: str) -> str:
    return f"sha256:{hashlib.sha256(TOKENS[name].encode()).hexdigest()}"


def _access(reader: bool = True) -> str:
    section = f'[principals.reader]\ntokens = ["{_hash("reader")}"]\nread = ["orders"]\n' if reader else ""
    return f"""
[principals.ops]
tokens = ["{_hash("ops")}"]
admin = true
{section}
[principals.writer]
tokens = ["{_hash("writer")}"]
certificates = ["writer.example.org"]
write = ["orders"]
"""


@pytest.fixture
def access(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.touch(0o600)
    path.write_text(_access())
    return path


@pytest.fixture
def guarded(tmp_path: Path, access: Path) -> Iterator[ServerProcess]:
    """A server with TLS and the access file, which logs all that it can, with the queues `orders` and `others`. Its log
    never shows a token."""
    with serving(tmp_path / "root", *FAST, *tls_flags(), "--access", str(access), "-vv") as process:
        with _client(process, "ops") as client:
            client.new_queue("orders")
            client.new_queue("others")
        yield process
    assert "MARKED" not in process.log()


def _client(server: ServerProcess, name: str | None) -> QueueClient:
    token = None if name is None else TOKENS[name]
    return QueueClient(f"qss://localhost:{server.port}", timeout=GIVE_UP, tls=CA, token=token)


def test_who_gets_what(guarded: ServerProcess) -> None:
    """Each principal gets what the file gives it, and nothing else; without a token, or with a wrong one, nothing."""
    with _client(guarded, "writer") as writer, _client(guarded, "reader") as reader:
        writer.push("orders", "two apples")
        with pytest.raises(Forbidden, match="write") as raised:
            reader.push("orders", "x")
        assert "MARKED" not in str(raised.value)
        with pytest.raises(Forbidden):
            writer.receive("orders")
        for qid in ("others", "missing"):
            with pytest.raises(Forbidden):
                reader.receive(qid)
        assert reader.queues() == ["orders"]
        assert [each.text for each in reader.receive("orders")] == ["two apples"]
    for name in (None, "wrong"):
        with pytest.raises(Unauthorized), _client(guarded, name) as client:
            client.queues()
    with _client(guarded, None) as client:
        client.ping()


@both
def test_who_gets_what_async(backend: str, guarded: ServerProcess) -> None:
    """Async clients get the same, on each of their connections."""

    async def main() -> None:
        async with AsyncQueueClient(
            f"qss://localhost:{guarded.port}", tls=CA, token=TOKENS["reader"], timeout=GIVE_UP
        ) as client:
            assert await client.queues() == ["orders"]
            assert await client.receive("orders", wait=0.01) == []
            with pytest.raises(Forbidden):
                await client.push("orders", "x")
            with pytest.raises(Forbidden):
                await client.receive("others", wait=1)
        client = AsyncQueueClient("localhost", guarded.port, tls=CA, token=TOKENS["wrong"])
        with pytest.raises(Unauthorized):
            await client.ping()

    run(backend, main)


def test_a_certificate_instead_of_a_token(tmp_path: Path, access: Path) -> None:
    """A client whose certificate the file names needs no token."""
    flags = (*tls_flags(None, authority()), "--access", str(access))
    context = authority().trusting(authority().sign("DNS:writer.example.org"))
    with serving(tmp_path / "root", *FAST, *flags) as server:
        with QueueClient("localhost", server.port, tls=context, token=TOKENS["ops"]) as ops:
            ops.new_queue("orders")
        with QueueClient("localhost", server.port, tls=context) as writer:
            writer.push("orders", "x")
            with pytest.raises(Forbidden):
                writer.receive("orders")


def test_client_authenticates_again_after_restart(guarded: ServerProcess) -> None:
    """After a restart of the server, a client authenticates again, with its next call."""
    with _client(guarded, "reader") as reader:
        assert reader.queues() == ["orders"]
        guarded.stop()
        guarded.start()
        with _client(guarded, "ops") as ops:
            ops.new_queue("orders", exist_ok=True)
        assert reader.queues() == ["orders"]


def test_client_of_removed_principal_gets_nothing(guarded: ServerProcess, access: Path) -> None:
    """A removed principal gets nothing more, on open connections and on new ones."""
    with _client(guarded, "reader") as reader, _client(guarded, "reader") as listener:
        reader.receive("orders")
        messages = listener.subscribe("orders")
        with _client(guarded, "writer") as writer:
            writer.push("orders", "x")
        assert next(messages).text == "x"
        access.write_text(_access(reader=False))
        guarded.process.send_signal(signal.SIGHUP)
        guarded.until_logged(READ)
        with pytest.raises(Unauthorized):
            next(messages)
        with pytest.raises(Unauthorized):
            reader.receive("orders")
        reader.disconnect()
        with pytest.raises(Unauthorized):
            reader.receive("orders")


def test_a_server_without_an_access_file(shared_server: ServerProcess) -> None:
    """A token is of no use there, and the error says so."""
    client = QueueClient(shared_server.host, shared_server.port, token=TOKENS["ops"])
    with pytest.raises(NotImplementedByServer, match="access"):
        client.ping()


@pytest.fixture
def qs(
    guarded: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs qs as one of the clients: its exit code, stdout and stderr, which never show a token."""
    monkeypatch.setenv("QS_SERVER", f"qss://localhost:{guarded.port}")
    monkeypatch.setenv("QS_CA", str(CA))
    monkeypatch.delenv("QS_TOKEN_FILE", raising=False)

    def run(name: str, *argv: str) -> tuple[int, str, str]:
        monkeypatch.setenv("QS_TOKEN", TOKENS.get(name, ""))
        code = command.main(argv)
        captured = capsys.readouterr()
        assert "MARKED" not in captured.out + captured.err
        return code, captured.out, captured.err

    return run


def test_qs(qs: Callable[..., tuple[int, str, str]]) -> None:
    """`qs` says who it is with QS_TOKEN, and what to do about a refusal."""
    assert qs("reader", "ls") == (0, "orders\n", "")
    assert qs("ops", "ls") == (0, "orders\nothers\n", "")
    assert qs("nobody", "ping")[0] == 0
    code, _, said = qs("nobody", "ls")
    assert (code, "give a token with QS_TOKEN or --token-file" in said) == (1, True)
    code, _, said = qs("wrong", "ls")
    assert (code, "is it in the server's access file?" in said) == (1, True)
    code, _, said = qs("writer", "receive", "orders")
    assert (code, "the owner of this token has no such right" in said) == (1, True)
    code, _, said = qs("reader", "rm", "orders")
    assert (code, "403 forbidden" in said) == (1, True)


def test_a_new_token_gets_in(qs: Callable[..., tuple[int, str, str]], guarded: ServerProcess, access: Path) -> None:
    """`qs token` prints a token, and its line for the access file."""
    token, line = qs("nobody", "token")[1].splitlines()
    access.write_text(f"{_access()}\n[principals.new]\n{line}\nread = ['others']\n")
    guarded.process.send_signal(signal.SIGHUP)
    guarded.until_logged(READ)
    with QueueClient("localhost", guarded.port, tls=CA, token=token) as client:
        assert client.queues() == ["others"]
