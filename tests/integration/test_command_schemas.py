"""Schemas and conditions of queues with the command `qs` and a real server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.orders import INVALID, VALID, schemas_in
from support.servers.processes import FAST, ServerProcess, serving

from qs_client import QueueClient, command

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server with the schema `order` for all tests of this file."""
    folder = tmp_path_factory.mktemp("shared")
    with serving(folder / "root", *FAST, "--schemas", str(schemas_in(folder / "schemas"))) as server:
        yield server


@pytest.fixture
def qs(shared_server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs qs in this process: its exit code, stdout and stderr."""
    monkeypatch.setenv("QS_SERVER", f"{shared_server.host}:{shared_server.port}")

    def run(*argv: str) -> tuple[int, str, str]:
        code = command.main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def shown(qs: Run, qid: str) -> dict[str, str]:
    """Returns the figures of a queue, by the head of their column."""
    heading, line = qs("stats", qid)[1].splitlines()
    return dict(zip(heading.split(), line.split(), strict=True))


def test_a_queue_with_a_schema(qs: Run, qid: str, tmp_path: Path) -> None:
    """A push of what the schema does not allow names input and reason, stores what comes before it, and is counted."""
    name = f"{qid}-orders"
    assert qs("new", name, "--schema", "order") == (0, "", "")
    assert "schema order" in qs("options", name)[1].splitlines()
    lines = tmp_path / "lines"
    lines.write_text(f"{VALID}\n{VALID}\n{INVALID}\n{VALID}\n")
    code, out, err = qs("push", name, "--lines", "--file", str(lines))
    assert (code, out.count("\n"), err.count("\n")) == (1, 2, 1)
    assert err.startswith(f"qs: 422 invalid: {lines}, line 3: ")
    assert "line 1, element 'total'" in err
    assert "much" in err
    assert (shown(qs, name)["READY"], shown(qs, name)["SCHEMA"]) == ("2", "order")
    assert int(shown(qs, name)["REFUSED"]) > 0
    assert json.loads(qs("stats", name, "--json")[1])["schema"] == "order"


def test_a_schema_that_is_set_and_removed(qs: Run, client: QueueClient, qid: str) -> None:
    """`qs set --schema` holds for what is pushed from then on, and --remove ends that. A queue without one shows
    dashes."""
    assert (shown(qs, qid)["SCHEMA"], shown(qs, qid)["REFUSED"]) == ("-", "-")
    assert qs("push", qid, INVALID)[0] == 0
    assert qs("set", qid, "--schema", "order") == (0, "", "")
    assert qs("push", qid, INVALID)[0] == 1
    assert qs("set", qid, "--remove", "schema") == (0, "", "")
    assert qs("push", qid, INVALID)[0] == 0
    assert client.queue_options(qid).schema is None
    assert client.stats(qid)[0].ready == 2


def test_a_schema_that_the_server_does_not_have(qs: Run, qid: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that the server does not know is one line that says which there are; a path is wrong usage."""
    code, out, err = qs("set", qid, "--schema", "invoice")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "400 bad-request" in err
    assert "order" in err
    with pytest.raises(SystemExit, match="2"):
        qs("set", qid, "--schema", "../order")
    assert "argument --schema: it names a file of the server's schemas" in capsys.readouterr().err


def test_the_condition_of_a_name(qs: Run, client: QueueClient, qid: str) -> None:
    """`qs set --where` changes the condition that a bus keeps with the queue of a name, and --remove ends it."""
    where = "/order[@priority='high']/total > 100"
    assert qs("set", qid, "--where", where) == (0, "", "")
    assert f"where {where}" in qs("options", qid)[1].splitlines()
    assert qs("set", qid, "--remove", "where") == (0, "", "")
    assert client.queue_options(qid).where is None
