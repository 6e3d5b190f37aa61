"""Headers, priority, expiry, groups and pace with the command `qs`, a real server and a real bus."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.servers.processes import BusProcess, ServerProcess

from qs_client import Draft, QueueClient, command
from qs_client.command_labels import read

SECOND = 1_000_000  # microseconds
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def qs(shared_server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs qs in this process: its exit code, stdout and stderr."""
    monkeypatch.setenv("QS_SERVER", f"{shared_server.host}:{shared_server.port}")

    def run(*argv: str) -> tuple[int, str, str]:
        code = command.main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_push_with_flags(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """The flags hold for each message of a push: arguments, files, and every line with --lines."""
    flags = ["--header", "a=1=2", "--header", "B=\xe9", "--priority", "3", "--group", "g", "--expires", "3600"]
    (tmp_path / "lines").write_text("one\ntwo\n")
    assert qs("push", qid, "x", "y", *flags)[0] == 0
    assert qs("push", qid, "-f", str(tmp_path / "lines"), *flags)[0] == 0
    assert qs("push", qid, "-f", str(tmp_path / "lines"), "--lines", *flags)[0] == 0
    found = client.peek_many(qid, client.list_messages(qid))
    assert [each.text for each in found] == ["x", "y", "one\ntwo\n", "one", "two"]
    for each in found:
        assert (each.headers, each.priority, each.group) == ({"a": "1=2", "B": "\xe9"}, 3, "g")
        assert each.expires_at is not None
        assert abs(each.expires_at - (each.pushed_at or 0) - 3600 * SECOND) < SECOND


def test_a_unique_push_with_flags(qs: Run, client: QueueClient, qid: str) -> None:
    """With --key and --unique a second push stores nothing as long as the first message is there; other flags hold."""
    _, first, _ = qs("push", qid, "x", "--key", "k", "--unique", "--priority", "9", "--header", "a=b")
    assert qs("push", qid, "y", "--key", "k", "--unique") == (0, first, "")
    [message] = client.receive(qid)
    assert (message.text, message.priority, message.headers) == ("x", 9, {"a": "b"})
    client.delete(message)
    assert qs("push", qid, "y", "--key", "k", "--unique")[1] != first


def test_headers_that_are_not_allowed(qs: Run, client: QueueClient, qid: str) -> None:
    """A header that the protocol does not have is one line on stderr, and nothing is stored."""
    code, out, err = qs("push", qid, "x", "--header", "qs-mine=1")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "'qs-mine'" in err
    assert client.stats(qid)[0].ready == 0


def test_what_is_shown(qs: Run, client: QueueClient, qid: str) -> None:
    """`qs receive` and `qs peek` show headers with --headers, priority and group with -v, and all of it with --json.
    `qs ls -l` has priority and group."""
    mid = client.push(qid, "x", priority=9, group="g", headers={"a": "b"})
    heading = f"==> {qid} {mid} (receives 0; priority 9; group g; headers a) <==\n"
    assert qs("peek", qid) == (0, "x\n", "")
    assert qs("peek", qid, "-v") == (0, f"{heading}x\n", "")
    assert qs("peek", qid, "--headers") == (0, f"{heading}a: b\n\nx\n", "")
    shown = json.loads(qs("peek", qid, "--json")[1])
    assert (shown["priority"], shown["group"], shown["headers"], shown["payload"]) == (9, "g", {"a": "b"}, "x")
    heading = heading.replace("receives 0", "receives 1")
    assert qs("receive", qid, "--headers") == (0, f"{heading}a: b\n\nx\n", "")
    head, row = qs("ls", qid, "-l")[1].splitlines()
    assert (row.index("9", head.index("PRIORITY")), row.index("g", head.index("GROUP"))) == (
        head.index("PRIORITY") + len("PRIORITY") - 1, head.index("GROUP")
    )  # fmt: skip
    fields = json.loads(qs("ls", qid, "-l", "--json")[1])
    assert (fields["priority"], fields["headers"]) == (9, {"a": "b"})


def test_tail_shows_headers(qs: Run, shared_bus: BusProcess, client: QueueClient, qid: str) -> None:
    """`qs tail` shows the headers of the bus's deliveries."""
    client.push(qid, "x", headers={"a": "b"})
    code, out, _ = qs("tail", qid, "--bus", f"{shared_bus.host}:{shared_bus.port}", "-n", "1", "--headers")
    assert code == 0
    assert re.fullmatch(rf"==> {qid} \d+ \(receives 1; headers a\) <==\na: b\n\nx\n", out)


def test_receive_in_the_given_order(qs: Run, client: QueueClient, qid: str) -> None:
    """With --order given the first queue is emptied first; otherwise the oldest message comes first."""
    client.new_queue(f"{qid}-b")
    client.push(f"{qid}-b", "old")
    client.push_many(qid, ["1", "2"])
    assert qs("receive", qid, f"{qid}-b", "--order", "given")[1] == "1\n"
    assert qs("receive", qid, f"{qid}-b")[1] == "old\n"


def test_options_of_order_and_pace(qs: Run, client: QueueClient, qid: str) -> None:
    """`qs new` and `qs set` have a flag for each; `qs options` shows them; `qs set` removes them."""
    name = f"{qid}-new"
    flags = ["--group-in-flight", "4", "--fair", "--max-in-flight", "5", "--rate", "0.5"]
    assert qs("new", name, *flags) == (0, "", "")
    assert qs("options", name)[1].splitlines()[1:] == [
        "visibility 30", "group-in-flight 4", "fair yes", "max-in-flight 5", "rate 0.5",
    ]  # fmt: skip
    assert qs("set", name, "--no-fair", "--remove", "rate", "--remove", "max-in-flight") == (0, "", "")
    options = client.queue_options(name)
    assert (options.group_in_flight, options.max_in_flight, options.rate) == (4, None, None)
    assert not options.fair
    assert qs("new", name, "--exist-ok", "--group-in-flight", "4")[0] == 0
    assert qs("new", name, "--exist-ok", "--group-in-flight", "3")[0] == 1


def test_why_nothing_comes_out(qs: Run, client: QueueClient, qid: str) -> None:
    """A column of stats has the reason: of a queue that is empty, that waits, is in flight, limited, paused."""

    def idle() -> str:
        heading, line = qs("stats", qid)[1].splitlines()
        return dict(zip(heading.split(), line.split(), strict=True))["IDLE"]

    assert idle() == "empty"
    client.push(qid, "later", delay=600)
    assert idle() == "delayed"
    client.purge(qid)
    client.push(qid, "now")
    assert idle() == "-"
    client.receive(qid)
    assert idle() == "in-flight"
    client.push(qid, "next")
    client.set_queue(qid, max_in_flight=1)
    assert idle() == "limited-by-max-in-flight"
    assert json.loads(qs("stats", qid, "--json")[1])["limited"] == "max-in-flight"
    client.pause(qid)
    assert idle() == "paused"


@pytest.mark.parametrize("flags", [[], ["--delete"]], ids=["copied", "moved"])
def test_an_export_keeps_what_messages_say(
    qs: Run, client: QueueClient, qid: str, tmp_path: Path, flags: list[str]
) -> None:
    """An export keeps headers, priority and group with the files, and a push of the files brings them back; what the
    flags of the push say goes first."""
    long = {f"h{number}": "\xe9" * 100 for number in range(30)}
    mids = client.push_many(qid, ["plain", Draft("full", priority=9, group="g", headers={"a": "b"})])
    mids.append(client.push(qid, "long", headers=long))
    out = tmp_path / "out"
    assert qs("export", qid, str(out), *flags)[0] == 0
    files = [str(out / str(mid)) for mid in mids]
    assert [read(file).headers for file in files] == [{}, {"a": "b"}, long]
    client.new_queue(f"{qid}-in")
    assert qs("push", f"{qid}-in", *(word for file in files for word in ("-f", file)))[0] == 0
    assert [
        (each.text, each.priority, each.group, each.headers)
        for each in client.peek_many(f"{qid}-in", client.list_messages(f"{qid}-in"))
    ] == [("plain", None, None, {}), ("full", 9, "g", {"a": "b"}), ("long", None, None, long)]
    client.purge(f"{qid}-in")
    flags = ["--priority", "0", "--group", "other", "--header", "A=c", "--header", "d=e"]
    assert qs("push", f"{qid}-in", "-f", files[1], *flags)[0] == 0
    [pushed] = client.receive(f"{qid}-in")
    assert (pushed.priority, pushed.group, pushed.headers) == (None, "other", {"A": "c", "d": "e"})


def test_an_export_as_a_queue_of_files(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """A server with queues of files that starts on exported messages hands them out with their headers."""
    client.push(qid, "full", headers={"a": "b"})
    client.push(qid, "long", headers={"a": "\xe9" * 2000})
    root = tmp_path / "root"
    root.mkdir()
    assert qs("export", qid, str(root / "q"))[0] == 0
    process = ServerProcess(root, "--storage", "files")
    try:
        with QueueClient(process.host, process.port, timeout=20) as other:
            assert [each.headers for each in other.receive("q", 2)] == [{"a": "b"}, {"a": "\xe9" * 2000}]
    finally:
        process.stop()
