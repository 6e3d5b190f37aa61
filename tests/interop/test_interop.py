"""Clients in other languages, each made of a socket and strings, do one and the same round with a real server."""

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.processes import FAST, ServerProcess, exchange, serving
from support.servers.tls import authority, local

HERE = Path(__file__).resolve().parent
STEPS = (HERE / "steps.txt").read_text(encoding="utf-8").splitlines()
CLIENTS = {
    "bash": ["bash", str(HERE / "client.sh")],
    "node": ["node", str(HERE / "client.js")],
    "perl": ["perl", str(HERE / "client.pl")],
    # With these options it takes half the time.
    "java": ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", str(HERE / "Client.java")],
}
SECURE = ["bash", "node", "java"]
"""Those that speak TLS with what they bring along; that of bash is the command openssl."""
TOKEN = "qs_" + "interop" * 6 + "x"
TIME_LIMIT = 100


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all of them: each leaves it as it was."""
    with serving(tmp_path_factory.mktemp("interop") / "root", *FAST) as process:
        yield process


def asked(server: ServerProcess, op: str) -> str:
    """The answer to an operation on the queue that the clients use."""
    with server.connect() as connection:
        document = f'<qs xmlns="http://purl.oclc.org/DEFUZE/qs"><op><{op}/></op><qid>interop</qid></qs>'
        return exchange(connection, document)[0]


def run(language: str, host: str, port: int, **environment: str) -> subprocess.CompletedProcess[str]:
    command = CLIENTS[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed, so the {language} client was not run")
    return subprocess.run(
        [*command, host, str(port)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=TIME_LIMIT,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("language", CLIENTS)
def test_a_full_round(language: str, server: ServerProcess) -> None:
    """A client without any library sees, in every language, the same answers to the same steps."""
    done = run(language, server.host, server.port)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == STEPS


@pytest.mark.parametrize("language", CLIENTS)
def test_a_surprise_is_told(language: str, server: ServerProcess) -> None:
    """A client ends with 1 and says what it saw when an answer is not the one it counts on: the checks do check."""
    assert 'type="response"' in asked(server, "new-queue")
    done = run(language, server.host, server.port)
    assert 'type="response"' in asked(server, "delete-queue")
    assert done.returncode == 1
    assert "the queue interop is there already" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("language", CLIENTS)
def test_no_server(language: str) -> None:
    """A client that cannot connect ends with 1 and a text, instead of hanging or claiming success."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port meanwhile
        done = run(language, "127.0.0.1", closed.getsockname()[1])
    assert done.returncode == 1
    assert "client." in done.stderr.lower()


@pytest.fixture(scope="module")
def closed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with TLS, which lets only the owner of the token in."""
    folder = tmp_path_factory.mktemp("closed")
    access = folder / "access.toml"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    rights = "\n".join(f'{right} = ["interop"]' for right in ("read", "write", "configure"))
    access.write_text(f'[principals.interop]\ntokens = ["sha256:{digest}"]\n{rights}\n')
    access.chmod(0o600)
    certificate = local()
    flags = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key), "--access", str(access))
    with serving(folder / "root", *FAST, *flags) as process:
        yield process


@pytest.mark.parametrize("language", SECURE)
def test_a_full_round_over_tls(language: str, closed_server: ServerProcess) -> None:
    """Each trusts the server's CA, checks its name, says who it is, and then sees the same answers."""
    done = run(language, "localhost", closed_server.port, QS_CA=str(authority().cert), QS_TOKEN=TOKEN)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == STEPS


@pytest.mark.parametrize("language", SECURE)
def test_another_ca_over_tls(language: str, closed_server: ServerProcess) -> None:
    """A server with a certificate of another CA gets no token: the client ends with 1 and a text."""
    other = str(authority("another CA").cert)
    done = run(language, "localhost", closed_server.port, QS_CA=other, QS_TOKEN=TOKEN)
    assert (done.returncode, done.stdout) == (1, "")
    assert "certif" in done.stderr


@pytest.mark.parametrize("language", SECURE)
def test_a_wrong_token_over_tls(language: str, closed_server: ServerProcess) -> None:
    """A client with a wrong token learns that, and gets no further."""
    done = run(language, "localhost", closed_server.port, QS_CA=str(authority().cert), QS_TOKEN="qs_wrong")
    assert (done.returncode, done.stdout) == (1, "")
    assert 'code="401"' in done.stderr
