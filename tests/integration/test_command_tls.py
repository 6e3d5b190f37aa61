"""`qs` with TLS and tokens: flags, variables, errors, and that no token is shown."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.clients.every_client import healthy
from support.clients.scripted_server import GIVE_UP, Conversation, ScriptedServer, accept, scripted
from support.servers.tls import authority, serving_context

from qs_client import Authenticate, Error, Ping, command

CA = str(authority().cert)
SECRET = "qs_MARKED-a-secret"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def qs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs qs in this process, with these variables of the environment: its exit code, stdout and stderr. None of
    stdout and stderr ever shows the token."""
    for name in ("QS_SERVER", "QS_BUS", "QS_TOKEN", "QS_TOKEN_FILE", "QS_CA"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: str, **variables: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                code = command.main(argv)
            except SystemExit as exited:
                code = int(str(exited.code))
        captured = capsys.readouterr()
        assert "MARKED" not in captured.out + captured.err
        return code, captured.out, captured.err

    return run


def at(server: ScriptedServer) -> str:
    return f"qss://localhost:{server.port}"


def test_tls_of_flags_and_variables(qs: Run) -> None:
    """The address, --tls and --ca ask for TLS; QS_CA says whom to trust; before or after the subcommand."""
    with scripted(healthy, context=serving_context()) as server:
        plain = f"localhost:{server.port}"
        assert qs("-s", at(server), "ping", QS_CA=CA)[0] == 0
        assert qs("ping", QS_CA=CA, QS_SERVER=at(server))[0] == 0
        assert qs("--ca", CA, "ping", "-s", plain)[0] == 0
        assert qs("ping", "--tls", QS_CA=CA, QS_SERVER=plain)[0] == 0


def test_a_client_certificate(qs: Run) -> None:
    """--cert and --client-key show a certificate; without, the error says so."""
    certificate = authority().sign("DNS:me")
    with scripted(healthy, context=serving_context(None, authority())) as server:
        shown = ("--cert", str(certificate.cert), "--client-key", str(certificate.key))
        assert qs("-s", at(server), *shown, "ping", QS_CA=CA)[0] == 0
        assert qs("-s", at(server), "--cert", str(certificate.chain), "ping", QS_CA=CA)[0] == 0
        code, _, said = qs("-s", at(server), "ping", QS_CA=CA)
        assert code == 1
        assert "--cert and --client-key" in said


def test_insecure(qs: Run) -> None:
    """--tls-insecure takes any certificate, and warns each time."""
    with scripted(healthy, context=serving_context(authority().sign("DNS:elsewhere"))) as server:
        for _ in range(2):
            code, _, said = qs("-s", f"127.0.0.1:{server.port}", "--tls-insecure", "ping")
            assert (code, said.count("\n")) == (0, 1)
            assert "not verified" in said


@pytest.mark.parametrize(
    ("argv", "variables", "code", "says"),
    [
        (["--client-key", "k", "ping"], {}, 2, "give --cert too"),
        (["--cert", "c", "--key", "k", "ping"], {}, 2, "is --client-key FILE"),
        (["ping", "--cert", "c", "--key", "k"], {}, 2, "is --client-key FILE"),
        (["--key", "k", "push", "q", "x"], {}, 2, "is --client-key FILE"),
        (["push", "q", "x", "--cert", CA, "--key", "k"], {}, 1, "in a file of its own, give --client-key"),
        (["-s", "qs://h", "--tls", "ping"], {}, 2, "without TLS"),
        (["tail", "q", "--bus", "qs://h", "--tls"], {}, 2, "without TLS"),
        (["-s", f"qss://me:{SECRET}@h", "ping"], {}, 2, "no password"),
        (["ping"], {"QS_SERVER": f"qss://me:{SECRET}@h"}, 2, "QS_SERVER: an address holds no user"),
        (["-s", "https://h", "ping"], {}, 2, "unknown scheme"),
        (["--ca", "/missing/ca.pem", "ping"], {}, 1, "/missing/ca.pem: No such file"),
        (["--token-file", "/missing/token", "ping"], {}, 1, "/missing/token: No such file"),
        (["tail", "q"], {"QS_TOKEN_FILE": "/missing/token"}, 1, "/missing/token: No such file"),
        (["ping"], {"QS_TOKEN": f"{SECRET} x"}, 1, "QS_TOKEN: a token has no spaces"),
        (["--ca", __file__, "ping"], {}, 1, "no CA certificates in PEM format"),
        (["--token", SECRET, "ping"], {}, 2, "everybody on this machine"),
        (["tail", "q", f"--token={SECRET}"], {}, 2, "everybody on this machine"),
    ],
)
def test_what_is_wrong(qs: Run, argv: list[str], variables: dict[str, str], code: int, says: str) -> None:
    """Wrong flags are wrong usage; files that do not help are errors with their names."""
    result, _, said = qs(*argv, **variables)
    assert result == code
    assert says in said


def _checking(*answers: Error | None) -> Callable[[Conversation], None]:
    """Reads the token, answers with the error or accepts it; then the same for a ping."""

    def script(conversation: Conversation) -> None:
        for answer in answers:
            request = conversation.read()
            assert isinstance(request, Authenticate | Ping), request
            assert not isinstance(request, Authenticate) or request.token == SECRET
            conversation.answer(request, answer)
        conversation.wait_for_close()

    return script


_401 = Error(401, "unauthorized", "no such token")
_403 = Error(403, "forbidden", "the right read of 'q' is needed")


def test_tokens(qs: Run, tmp_path: Path) -> None:
    """QS_TOKEN, QS_TOKEN_FILE and --token-file say who qs is; errors say what to do about it."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{SECRET}\n")
    with scripted(_checking(None, None)) as server:
        where = f"--server={server.host}:{server.port}"
        assert qs(where, "ping", QS_TOKEN=SECRET)[0] == 0
        assert qs(where, "ping", QS_TOKEN_FILE=str(path))[0] == 0
        assert qs(where, "ping", "--token-file", str(path), QS_TOKEN="another")[0] == 0
    with scripted(_checking(_401), _checking(None, _403), _checking(_403), _checking(_401)) as server:
        where = f"--server={server.host}:{server.port}"
        assert "is it in the server's access file?" in qs(where, "ping", QS_TOKEN=SECRET)[2]
        assert "the owner of this token has no such right" in qs(where, "ping", QS_TOKEN=SECRET)[2]
        assert "a client without a token has no such right" in qs(where, "ping")[2]
        code, _, said = qs(where, "ping")
        assert code == 1
        assert "give a token with QS_TOKEN or --token-file" in said


def test_tail_over_tls_with_a_token(qs: Run) -> None:
    """`qs tail` speaks TLS to the bus, and says its token before it subscribes."""

    def script(conversation: Conversation) -> None:
        request = conversation.read()
        assert isinstance(request, Authenticate)
        conversation.answer(request)
        accept(conversation, 1)
        conversation.answer(conversation.read())
        conversation.wait_for_close()

    with scripted(script, context=serving_context()) as server:
        assert qs("tail", "q", "-n", "1", QS_BUS=at(server), QS_CA=CA, QS_TOKEN=SECRET) == (0, "1\n", "")
    with scripted(_checking(_401)) as server:
        code, _, said = qs("tail", "q", "--bus", f"{server.host}:{server.port}", QS_TOKEN=SECRET)
        assert code == 1
        assert "is it in the server's access file?" in said


def test_a_new_token(qs: Run) -> None:
    """`qs token` prints a token and the line for the access file, or both as JSON; each time another."""
    code, out, _ = qs("token")
    assert code == 0
    found = re.fullmatch(r'(qs_[\w-]{43})\ntokens = \["(sha256:[0-9a-f]{64})"\]\n', out)
    assert found is not None
    assert found[2] == f"sha256:{hashlib.sha256(found[1].encode()).hexdigest()}"
    record = json.loads(qs("--json", "token")[1])
    assert record["hash"] == f"sha256:{hashlib.sha256(record['token'].encode()).hexdigest()}"
    assert record["token"] != found[1]


def test_the_process_list(tmp_path: Path) -> None:
    """A list of processes shows no token."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(SECRET)
    asked, end = threading.Event(), threading.Event()

    def script(conversation: Conversation) -> None:
        request = conversation.read()
        assert isinstance(request, Authenticate)
        asked.set()
        assert end.wait(GIVE_UP)
        conversation.answer(request, Error(401, "unauthorized", "no"))
        conversation.wait_for_close()

    with scripted(script) as server:
        program = "import sys; from qs_client.command import main; sys.exit(main())"
        argv = [sys.executable, "-c", program, "-s", f"127.0.0.1:{server.port}", "--token-file", str(path), "ping"]
        child = subprocess.Popen(argv, stderr=subprocess.PIPE, env=os.environ.copy())
        with child:
            assert asked.wait(GIVE_UP)
            assert b"MARKED" not in Path(f"/proc/{child.pid}/cmdline").read_bytes()
            end.set()
            _, said = child.communicate(timeout=GIVE_UP)
    assert b"401 unauthorized" in said
    assert b"MARKED" not in said
