"""Clients in other languages, each made of a socket and strings, do one and the same round with a real server."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import FAST, ServerProcess, exchange, serving

HERE = Path(__file__).resolve().parent
STEPS = (HERE / "steps.txt").read_text(encoding="utf-8").splitlines()
CLIENTS = {
    "bash": ["bash", str(HERE / "client.sh")],
    "node": ["node", str(HERE / "client.js")],
    "perl": ["perl", str(HERE / "client.pl")],
    "java": ["java", str(HERE / "Client.java")],
}
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


def run(language: str, host: str, port: int) -> subprocess.CompletedProcess[str]:
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
