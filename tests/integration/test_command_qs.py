"""The command `qs` against the real server: what each subcommand does, prints, and exits with."""

import contextlib
import itertools
import json
import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.scripted_server import GIVE_UP, Conversation, scripted
from support.servers.processes import ServerProcess

from qs_client import (
    Delivery,
    Error,
    GetMessage,
    GetQueue,
    ListMessages,
    ListQueues,
    NewQueue,
    PushMessage,
    QueueClient,
    QueueOptions,
    ReceiveMessage,
    ReleaseMessage,
    ServerError,
    SetQueue,
    command,
    command_output,
)
from qs_schemas import Message, RejectMessage

Run = Callable[..., tuple[int, str, str]]
# Where tests run in the background, a child begins with Ctrl-C ignored.
SCRIPT = """
import signal, sys
from qs_client.command import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.fixture
def qs(shared_server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs qs in this process: its exit code, stdout and stderr."""
    monkeypatch.setenv("QS_SERVER", f"{shared_server.host}:{shared_server.port}")

    def run(*argv: str) -> tuple[int, str, str]:
        code = command.main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def process(shared_server: ServerProcess, *argv: str, shell: str = "", **options: object) -> "subprocess.Popen[bytes]":
    """Starts qs as a process of its own, as a shell does. shell: what sh does with the command, which is its "$@"."""
    environment = {**os.environ, "QS_SERVER": f"{shared_server.host}:{shared_server.port}"}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [*(["sh", "-c", shell, "sh"] if shell else []), sys.executable, "-c", SCRIPT, *argv],
        env=environment,
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )


def finish(child: "subprocess.Popen[bytes]", stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    with child:
        out, err = child.communicate(stdin, timeout=GIVE_UP)
    return child.returncode, out, err


def payloads(client: QueueClient, qid: str) -> list[bytes]:
    return [delivery.payload for delivery in client.receive(qid, max=1000)]


def test_push_arguments(qs: Run, client: QueueClient, qid: str) -> None:
    """Each argument is one message; their ids are printed, one a line."""
    code, out, err = qs("push", qid, "a", "h\xe9", "\udcff")  # the last as Python has a byte that is not UTF-8
    assert (code, err) == (0, "")
    assert [int(line) for line in out.splitlines()] == list(client.list_messages(qid))
    assert payloads(client, qid) == [b"a", "h\xe9".encode(), b"\xff"]


def test_push_files(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """Each file is one message, byte for byte, after the arguments."""
    (tmp_path / "one").write_bytes(b"\x00\xff\n")
    (tmp_path / "two").write_bytes(b"")
    files = ["-f", str(tmp_path / "one"), "--file", str(tmp_path / "two")]
    assert qs("push", "--allow-empty", qid, "zero", *files)[0] == 0
    assert payloads(client, qid) == [b"zero", b"\x00\xff\n", b""]


def test_push_files_of_a_pattern(
    qs: Run, client: QueueClient, qid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--file DIR/*` pushes no names of files: it is wrong usage."""
    files = [str(tmp_path / name) for name in ("one", "two")]
    for file in files:
        Path(file).write_bytes(b"x")
    with pytest.raises(SystemExit, match="2"):
        qs("push", qid, "--file", *files)
    assert f"{files[1]!r} is a file" in capsys.readouterr().err
    assert list(client.list_messages(qid)) == []


def test_push_nothing(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """An empty payload, file or input is refused in one line: often a command before the pipe has failed."""
    (tmp_path / "empty").write_bytes(b"")
    for words in (["-f", str(tmp_path / "empty")], ["-f", "/dev/null"]):
        code, out, err = qs("push", qid, *words)
        assert (code, out) == (1, "")
        assert "--allow-empty" in err
        assert err.count("\n") == 1
    with pytest.raises(SystemExit, match="2"):
        qs("push", qid, "")
    assert payloads(client, qid) == []
    assert qs("push", qid, "--allow-empty", "")[0] == 0
    assert payloads(client, qid) == [b""]


def test_push_from_a_terminal(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """A push that reads from a terminal says how to end the input. Ctrl-D at once is an empty message, which is
    refused."""
    for typed, expected, pushed in ((b"one\n\x04", 0, [b"one\n"]), (b"\x04", 1, [])):
        master, slave = os.openpty()
        with process(shared_server, "push", qid, stdin=slave) as child:
            os.close(slave)
            assert child.stderr is not None
            assert b"end the input with Ctrl-D" in child.stderr.readline()
            os.write(master, typed)
            assert child.wait(30) == expected
        os.close(master)
        assert payloads(client, qid) == pushed


def test_push_lines_of_files(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """With --lines each line is one message, without its line end, however long the file is."""
    lines = [b"first", b"", b"\xff\r", b"x" * 2_500_000, *(b"%d" % n for n in range(3000)), b"last"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    (tmp_path / "ended").write_bytes(b"ended\n")
    (tmp_path / "empty").write_bytes(b"")
    files = [f"--file={tmp_path / name}" for name in ("lines", "ended", "empty")]
    code, out, _ = qs("push", qid, "--lines", *files)
    assert code == 0
    assert len(out.splitlines()) == len(lines) + 1
    taken = [client.receive(qid, max=100) for _ in range(31)]
    assert [delivery.payload for deliveries in taken for delivery in deliveries] == [*lines, b"ended"]


def test_push_stdin(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """Without payload and file, all of stdin is one message."""
    code, out, err = finish(process(shared_server, "push", qid), b"all\nof it\xff\n")
    assert (code, err) == (0, b"")
    assert re.fullmatch(rb"\d+\n", out)
    assert payloads(client, qid) == [b"all\nof it\xff\n"]


def test_push_lines_as_they_come(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """A line is stored, and its id printed, before the next one is there: nothing waits for a full batch."""
    with process(shared_server, "push", qid, "--lines") as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for line in (b"one", b"two"):
            child.stdin.write(line + b"\n")
            child.stdin.flush()
            mid = int(child.stdout.readline())
            assert client.peek(qid, mid).payload == line
        child.stdin.close()
        assert child.wait(GIVE_UP) == 0


def test_push_with_a_key(qs: Run, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """--key makes a push safe to repeat: the second one stores nothing and prints the first one's id."""
    (tmp_path / "job").write_bytes(b"sweep")
    first = qs("push", qid, "sweep", "--key", "27 November", "--delay", "3600")
    assert first == (0, f"{next(client.list_messages(qid, state='delayed'))}\n", "")
    assert qs("push", qid, "--file", str(tmp_path / "job"), "--key", "27 November") == first
    assert qs("push", qid, "sweep", "--key", "28 November")[1] != first[1]
    assert client.stats(qid)[0].pushed == 2


@pytest.mark.parametrize(
    ("argv", "stored", "source"),
    [
        (["bad"], 0, "payload 1"),
        (["good", "good", "bad", "good"], 2, "payload 3"),
        (["--key", "k", "bad"], 0, "payload 1"),
        (["--file", "good", "--file", "bad", "--file", "good"], 1, "bad"),
        (["--file", "bad"], 0, "bad"),
        (["--lines", "--file", "good", "--file", "lines"], 3, "lines, line 3"),
        (["--lines"], 1, "standard input, line 2"),
        ([], 0, "standard input"),
    ],
)
def test_a_push_of_what_the_schema_does_not_allow(tmp_path: Path, argv: list[str], stored: int, source: str) -> None:
    """The error names the input, and the line of it, that the queue's schema does not allow. What comes before it is
    stored, and its ids are printed."""
    for name, content in (("good", b"good"), ("bad", b"bad"), ("lines", b"good\ngood\nbad\ngood\n")):
        (tmp_path / name).write_bytes(content)

    def script(conversation: Conversation) -> None:
        mids = itertools.count(1)
        while (request := conversation.read()) is not None:
            assert isinstance(request, PushMessage)
            payloads = [draft.payload for draft in request.messages] or [request.payload]
            if any(b"bad" in (payload or b"") for payload in payloads):  # type: ignore[operator]
                conversation.answer(request, Error(422, "invalid", "line 1: the root is not 'order'"))
            elif request.messages:
                conversation.answer(request, mids=[next(mids) for _ in payloads])
            else:
                conversation.answer(request, mid=next(mids))

    stdin = b"good\nbad\n" if "--lines" in argv else b"bad"
    with scripted(script) as server:
        child = process(server, "push", "q", *argv, cwd=tmp_path)  # type: ignore[arg-type] # it has host and port too
        code, out, err = finish(child, stdin)
    assert (code, out.decode()) == (1, "".join(f"{mid}\n" for mid in range(1, stored + 1)))
    assert err.decode() == f"qs: 422 invalid: {source}: line 1: the root is not 'order'\n"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["a", "b", "--key", "k"], "--key is the key of one message"),
        (["a", "--file", "f", "--key", "k"], "--key is the key of one message"),
        (["--lines", "--key", "k"], "--key is the key of one message"),
        (["a", "--key", ""], "argument --key: the key is empty"),
    ],
)
def test_a_key_of_no_single_message(
    qs: Run, client: QueueClient, qid: str, argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several messages with one key are wrong usage: all but the first would be lost. So is an empty key."""
    with pytest.raises(SystemExit, match="2"):
        qs("push", qid, *argv)
    assert says in capsys.readouterr().err
    assert list(client.list_messages(qid)) == []


def test_push_creates(qs: Run, client: QueueClient) -> None:
    """--create makes the queue, and is content when it is there."""
    for _ in range(2):
        assert qs("push", "created", "x", "--create")[0] == 0
    assert payloads(client, "created") == [b"x", b"x"]


def test_push_for_programs(qs: Run, client: QueueClient, qid: str) -> None:
    """--json gives queue and id of each message."""
    _, out, _ = qs("push", qid, "a", "b", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"qid": qid, "mid": mid} for mid in client.list_messages(qid)
    ]


def test_receive_and_delete(qs: Run, client: QueueClient, qid: str) -> None:
    """`receive` prints the payload; with --delete the message is gone afterwards."""
    client.push_many(qid, ["one", "two\n", "three"])
    assert qs("receive", qid, "--delete") == (0, "one\n", "")
    assert qs("receive", qid, "-n", "5", "--delete") == (0, "two\nthree\n", "")
    assert list(client.list_messages(qid, state="all")) == []


def test_receive_without_delete(qs: Run, client: QueueClient, qid: str) -> None:
    """Without --delete the message stays in flight; -v shows the id with which it can be deleted or released."""
    mid = client.push(qid, "one")
    assert qs("receive", qid, "-v", "--visibility", "3600") == (0, f"==> {qid} {mid} (receives 1) <==\none\n", "")
    assert qs("release", qid, str(mid)) == (0, "", "")
    code, out, _ = qs("receive", qid, "--json")
    record = json.loads(out)
    assert (code, record["mid"], record["receives"], record["payload"]) == (0, mid, 2, "one")
    assert qs("ack", qid, str(mid)) == (0, "", "")
    assert list(client.list_messages(qid, state="all")) == []


@pytest.mark.parametrize("verb", ["release", "reject"])
def test_messages_that_do_not_exist(qs: Run, client: QueueClient, qid: str, verb: str) -> None:
    """`release` and reject report a message that has gone, go on with the others, and end with 1. Of a queue that does
    not exist they say so once."""
    client.set_queue(qid, dead_letter=f"{qid}-dead", max_receives=5)
    gone, held = client.push_many(qid, ["gone", "held"])
    client.receive(qid, max=2)
    client.delete(qid, gone)
    code, _, err = qs(verb, qid, str(gone), str(held))
    assert (code, err) == (1, f"qs: queue {qid!r} holds no message {gone}\n")
    assert not list(client.list_messages(qid, state="in-flight"))
    code, _, err = qs(verb, "missing", str(gone), str(held))
    assert (code, err.count("missing")) == (1, 1)


def test_release_of_what_nobody_holds(qs: Run, client: QueueClient, qid: str) -> None:
    """`release` reports a message that is not in flight, releases the others, and ends with 1."""
    ready, held = client.push_many(qid, ["ready", "held"])
    client.get(qid, held)
    code, out, err = qs("release", qid, str(ready), str(held), "--json")
    assert (code, json.loads(out)["mid"], "not in flight" in err) == (1, held, True)
    assert list(client.list_messages(qid, state="ready")) == [ready, held]


def test_receive_nothing(qs: Run, qid: str) -> None:
    """An empty queue is exit code 3, and no output."""
    assert qs("receive", qid) == (3, "", "")
    assert qs("receive", qid, "--wait", "0.01", "--json") == (3, "", "")


def test_receive_wait_waits_for_push(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """--wait waits for what is pushed later, also longer than --timeout."""
    child = process(shared_server, "receive", qid, "--wait", "20", "--timeout", "1", "--delete")
    client.push(qid, "later")
    assert finish(child) == (0, b"later\n", b"")


def test_receive_many(qs: Run, client: QueueClient, qid: str) -> None:
    """Any number is received in order, and no more than asked for."""
    client.push_many(qid, [str(n) for n in range(250)])
    _, out, _ = qs("receive", qid, "--max", "230", "--delete")
    assert out.splitlines() == [str(n) for n in range(230)]
    assert len(list(client.list_messages(qid))) == 20


def test_receive_bytes(shared_server: ServerProcess, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """A file that is not text comes out as it was pushed, of peek and of receive: cmp finds no difference."""
    content = os.urandom(100_000).rstrip(b"\n") + b"\x00"
    (tmp_path / "image").write_bytes(content)
    assert finish(process(shared_server, "push", qid, "--file", str(tmp_path / "image")))[0] == 0
    compared = f'"$@" | cmp - {tmp_path}/image'
    assert finish(process(shared_server, "peek", qid, shell=compared)) == (0, b"", b"")
    assert finish(process(shared_server, "receive", qid, "--delete", shell=compared)) == (0, b"", b"")


def test_receive_deletes_nothing_without_reader(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """When the reader of stdout has gone, nothing is deleted, the messages are ready again, and all is quiet."""
    mids = client.push_many(qid, ["one", "two"])
    read, write = os.pipe()
    os.close(read)
    child = process(shared_server, "receive", qid, "-n", "2", "--delete", stdout=write)
    os.close(write)
    code, _, err = finish(child)
    assert (code, err) == (141, b"")
    assert list(client.list_messages(qid, state="ready")) == mids


def test_messages_lost_to_another(qs: Run, client: QueueClient, qid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that another client received before it could be deleted is not deleted, and the command says so."""
    mid = client.push(qid, "x")
    flush = command_output.Output.flush

    def slow_flush(self: command_output.Output) -> None:
        flush(self)
        with contextlib.suppress(ServerError):  # the second flush is the command's last
            client.release(qid, mid)
            client.receive(qid)

    monkeypatch.setattr(command_output.Output, "flush", slow_flush)
    code, out, err = qs("receive", qid, "--delete")
    assert (code, out, err.count("\n")) == (0, "x\n", 1)
    assert "1 of these messages" in err
    assert list(client.list_messages(qid, state="all")) == [mid]


def test_peek(qs: Run, client: QueueClient, qid: str) -> None:
    """`peek` prints messages and changes nothing: by id, or the oldest ready ones."""
    mids = client.push_many(qid, ["one", "two", "three"])
    assert qs("peek", qid) == (0, "one\n", "")
    assert qs("peek", qid, "-n", "2") == (0, "one\ntwo\n", "")
    assert qs("peek", qid, str(mids[2]), "-v") == (0, f"==> {qid} {mids[2]} (receives 0) <==\nthree\n", "")
    assert list(client.list_messages(qid)) == mids


def test_peek_nothing(qs: Run, client: QueueClient, qid: str) -> None:
    """No message to show is exit code 3, an id that does not exist an error."""
    assert qs("peek", qid) == (3, "", "")
    code, _, err = qs("peek", qid, "5")
    assert code == 1
    assert err.startswith("qs: 404 not-found")


def test_delete_says_what_was_not_there(qs: Run, client: QueueClient, qid: str) -> None:
    """`delete` removes what is there and names what is not, with exit code 1."""
    mid = client.push(qid, "x")
    code, out, err = qs("delete", qid, str(mid), "5", "--json")
    assert (code, json.loads(out), err) == (1, {"qid": qid, "mid": mid}, f"qs: no message 5 in '{qid}'\n")


def test_new_ls_rm(qs: Run) -> None:
    """Queues are made, listed and removed; one that holds messages only with --force."""
    assert qs("new", "made", "--visibility", "5", "--capacity", "10") == (0, "", "")
    assert "made" in qs("ls")[1].splitlines()
    assert {"qid": "made"} in [json.loads(line) for line in qs("ls", "--json")[1].splitlines()]
    qs("push", "made", "x")
    code, out, err = qs("rm", "made")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "409 not-empty" in err
    assert "--force" in err
    assert qs("rm", "made", "--force") == (0, "", "")
    assert "made" not in qs("ls")[1].splitlines()


def test_new_of_a_queue_that_may_exist(qs: Run) -> None:
    """`new --exist-ok` can be repeated; another option is an error that names it and the command that changes it."""
    for _ in range(2):
        assert qs("new", "may-exist", "--exist-ok", "--capacity", "10") == (0, "", "")
    assert qs("new", "may-exist", "--exist-ok") == (0, "", "")
    assert qs("push", "may-exist", "--create", "x")[0] == 0
    code, out, err = qs("new", "may-exist", "--exist-ok", "--capacity", "11")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "its capacity is 10, not 11 (qs set changes options)" in err
    code, _, err = qs("new", "may-exist")
    assert (code, err) == (
        1,
        "qs: 409 conflict: 'may-exist' is already an existing queue (with --exist-ok that is no error)\n",
    )


def test_ls_leaves_out_what_a_bus_keeps(qs: Run, client: QueueClient, qid: str) -> None:
    """`ls` shows the queues of a bus only with --all; stats shows them."""
    kept = {"bus::127.0.0.1:9878", f"bus:{qid}:name"}
    for name in kept:
        client.new_queue(name)

    def shown(*argv: str) -> set[str]:
        return {line.split()[0] for line in qs(*argv)[1].splitlines()} & {*kept, qid}

    assert shown("ls") == shown("ls", "-l") == {qid}
    assert shown("ls", "-a") == shown("ls", "--all", "-l") == shown("stats") == {*kept, qid}
    assert not any("bus:" in line for line in qs("ls", "--json")[1].splitlines())


def test_rm_goes_on(qs: Run, client: QueueClient) -> None:
    """`rm` removes what it can and names what it could not, with exit code 1."""
    for qid in ("rm-one", "rm-full", "rm-two"):
        client.new_queue(qid)
    client.push("rm-full", "x")
    code, out, err = qs("rm", "rm-one", "rm-none", "rm-full", "x" * 300, "a\x01b", "rm-two", "--json")
    assert (code, [json.loads(line)["qid"] for line in out.splitlines()]) == (1, ["rm-one", "rm-two"])
    none, full, long, odd = err.splitlines()
    assert none.startswith("qs: 404 not-found: ")
    assert "rm-none" in none
    assert full.startswith("qs: 409 not-empty: ")
    assert "--force" in full
    assert "300 characters" in long
    assert "U+0001" in odd
    assert {"rm-one", "rm-full", "rm-two"}.intersection(client.queues()) == {"rm-full"}


def test_list(qs: Run, client: QueueClient, qid: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`qs list` is `qs ls`, and the help names it."""
    client.push(qid, "one")
    assert qs("list", qid) == qs("ls", qid)
    assert qs("list", "--long") == qs("ls", "-l")
    with pytest.raises(SystemExit, match="0"):
        qs("--help")
    assert re.search(r"^    ls \(list\) ", capsys.readouterr().out, re.MULTILINE)


def test_ls_of_a_queue(qs: Run, client: QueueClient, qid: str) -> None:
    """`ls QUEUE` lists ids over all pages: all messages, or those in a state."""
    mids = client.push_many(qid, [b""] * 1500)
    assert qs("ls", qid)[1].splitlines() == [str(mid) for mid in mids]
    client.receive(qid)
    assert qs("ls", qid, "--state", "in-flight")[1] == f"{mids[0]}\n"
    assert len(qs("ls", qid, "--state", "new")[1].splitlines()) == 1499
    assert len(qs("ls", qid, "-l")[1].splitlines()) == 1501
    assert json.loads(qs("ls", qid, "--json")[1].splitlines()[0]) == {"qid": qid, "mid": mids[0]}


TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_columns_of_dirq(qs: Run, client: QueueClient) -> None:
    """The ids of dirq are longer than those of other storages: the columns are still under their heads."""
    client.new_queue("columns", storage="dirq")
    client.push("columns", "x")
    head, row = qs("ls", "columns", "-l")[1].splitlines()
    assert row.index("ready") == head.index("STATUS")
    assert row.index("now") == head.index("VISIBLE")


def test_messages_that_run_and_that_are_scheduled(qs: Run, client: QueueClient, qid: str) -> None:
    """`ls -l` shows status, size and times of messages in any state, and peek their payloads."""
    running, later, waiting = client.push(qid, "running"), client.push(qid, "later!", delay=7200), client.push(qid, "w")
    [taken] = client.receive(qid, visibility=90)
    head, *rows = qs("ls", qid, "-l")[1].splitlines()
    assert head.split() == ["MID", "STATUS", "RECEIVES", "BYTES", "PUSHED", "VISIBLE", "PRIORITY", "GROUP", "REASON"]
    expected = [
        rf"{running}   in-flight         1         7  {TIME}  {TIME} \(in (1 min )?\d+ s\)",
        rf"{later}   delayed           0         6  {TIME}  {TIME} \(in (2 h 0|1 h 59) min\)",
        rf"{waiting}   ready             0         1  {TIME}  now",
    ]
    assert [bool(re.fullmatch(*both)) for both in zip(expected, rows, strict=True)] == [True] * 3, rows
    for state, of_state in (("in-flight", rows[:1]), ("delayed", rows[1:2]), ("ready", rows[2:]), ("new", rows[1:])):
        shown = qs("ls", qid, "--state", state, "-l")[1].splitlines()[1:]
        assert [line.split()[:5] for line in shown] == [line.split()[:5] for line in of_state], state
    record = json.loads(qs("ls", qid, "--state", "in-flight", "-l", "--json")[1])
    assert record == {
        "qid": qid, "mid": running, "status": "in-flight", "receives": 1, "pushed_at": taken.pushed_at,
        "visible_at": taken.visible_at, "bytes": 7,
    }  # fmt: skip
    assert qs("peek", qid, str(later), str(running)) == (0, "later!\nrunning\n", "")
    assert qs("peek", qid, "--state", "delayed") == (0, "later!\n", "")
    assert qs("peek", qid, "--state", "all", "-n", "5")[1] == "running\nlater!\nw\n"
    heading = qs("peek", qid, str(running), "-v")[1].splitlines()[0]
    assert re.fullmatch(rf"==> {qid} {running} \(receives 1; in-flight until {TIME[:-1]}\.\d{{6}}Z\) <==", heading)


def test_messages_of_all_queues(qs: Run, client: QueueClient, qid: str) -> None:
    """`ls --state` without a queue shows the messages of all queues in that state; one that cannot is left out."""
    mid = client.push(qid, "x", delay=3600)
    assert f"{qid} {mid}" in qs("ls", "--state", "delayed")[1].splitlines()
    head, *rows = qs("ls", "--state", "delayed", "-l")[1].splitlines()
    assert head.split()[:3] == ["QUEUE", "MID", "STATUS"]
    assert [qid, str(mid), "delayed", "0", "1"] in [row.split()[:5] for row in rows]
    records = [json.loads(line) for line in qs("ls", "--state", "delayed", "-l", "--json")[1].splitlines()]
    assert [record["mid"] for record in records if record["qid"] == qid] == [mid]


def test_a_queue_that_cannot_be_looked_at(qs: Run) -> None:
    """A storage that gives no message by its id leaves its queue out of the messages of all queues, and one line says
    so; named, it is the error. Nothing is printed then but that."""

    def script(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            if isinstance(request, ListQueues):
                conversation.answer(request, queues=["closed", "open"])
            elif isinstance(request, ListMessages) and request.qid == "open":
                conversation.answer(request, qid="open", mids=[7])
            else:
                conversation.answer(request, Error(501, "not-implemented", "no lists"))

    with scripted(script) as server:
        at = ("-s", f"127.0.0.1:{server.port}")
        left_out = "qs: 'closed' is left out: 501 not-implemented: no lists\n"
        assert qs("ls", "--state", "all", *at) == (1, "open 7\n", left_out)
        assert qs("ls", "closed", "-l", *at) == (1, "", "qs: 501 not-implemented: no lists\n")


def test_messages_of_a_claim(qs: Run, client: QueueClient, qid: str) -> None:
    """The messages of a claim are listed; peek says who could show their payloads."""
    mids = client.push_many(qid, ["a", "b"])
    client.claim_messages(qid, "spark", 1)
    rows = qs("ls", qid, "-l")[1].splitlines()[1:]
    assert [row.split()[:4] for row in rows] == [[str(mid), "in-flight", "1", "-"] for mid in mids]
    code, out, err = qs("peek", qid, str(mids[0]))
    assert (code, out, f"qs claims {qid}" in err) == (3, "", True)


def test_a_peek_of_several(qs: Run, client: QueueClient, qid: str) -> None:
    """`peek` prints the messages in the order that is given; an id of no message is an error."""
    mids = client.push_many(qid, [str(n) for n in range(250)])
    assert qs("peek", qid, *map(str, reversed(mids)))[1].splitlines() == [str(n) for n in reversed(range(250))]
    code, out, err = qs("peek", qid, str(mids[1]), "5", str(mids[0]))
    assert (code, out, err.count("\n")) == (1, "1\n", 1)
    assert err.startswith("qs: 404 not-found: ")


def test_commands_send_and_show_reasons(qs: Run) -> None:
    """`release` and reject send the reason; peek -v, receive -v and ls -l show it on one line."""
    told: list[Message | None] = []
    known = {"mid": 7, "payload": b"x", "qid": "q", "receives": 2, "reason": "ValueError:\n bad\x9b2J"}

    def script(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            told.append(request)
            if isinstance(request, ListMessages):
                conversation.answer(request, qid="q", mids=[7])
            elif isinstance(request, GetMessage):
                conversation.answer(request, qid="q", messages=[Delivery(**known, status="ready")])
            elif isinstance(request, ReceiveMessage):
                conversation.answer(request, qid="q", messages=[Delivery(**known)])
            else:
                conversation.answer(request, qid="q", mid=7)

    with scripted(script) as server:
        at = ("-s", f"127.0.0.1:{server.port}")
        assert qs("release", "q", "7", "--reason", "no disk", *at) == (0, "", "")
        assert qs("reject", "q", "7", "8", "--reason", "no such file", *at) == (0, "", "")
        released, *rejected = told
        assert isinstance(released, ReleaseMessage)
        assert (released.mid, released.reason) == (7, "no disk")
        assert [(type(each), each.mid, each.reason) for each in rejected if isinstance(each, RejectMessage)] == [
            (RejectMessage, mid, "no such file") for mid in (7, 8)
        ]
        heading = "==> q 7 (receives 2; reason: ValueError: bad 2J) <==\nx\n"
        assert qs("peek", "q", "-v", *at)[1] == qs("receive", "q", "-v", *at)[1] == heading
        assert qs("ls", "q", "-l", *at)[1].splitlines()[1].endswith(f"{'now':37}  {'':8}  {'':12}  ValueError: bad 2J")
        assert json.loads(qs("peek", "q", "--json", *at)[1])["reason"] == known["reason"]
        code, out, err = qs("reject", "q", "7", "--reason", "x" * 1025, *at)
        assert (code, out, "1025 bytes" in err) == (1, "", True)


def test_backoff(qs: Run) -> None:
    """`new` and set take backoff and backoff-max, and options shows them."""
    told: list[Message | None] = []

    def script(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            told.append(request)
            shown = QueueOptions(backoff=2, backoff_max=60) if isinstance(request, GetQueue) else None
            conversation.answer(request, qid="q", options=shown)

    with scripted(script) as server:
        at = ("-s", f"127.0.0.1:{server.port}")
        assert qs("new", "q", "--backoff", "2", "--backoff-max", "60", *at) == (0, "", "")
        assert qs("set", "q", "--backoff", "2.5", "--remove", "backoff-max", *at) == (0, "", "")
        assert qs("options", "q", *at) == (0, "backoff 2\nbackoff-max 60\n", "")
    made, changed, _ = told
    assert isinstance(made, NewQueue)
    assert made.options == QueueOptions(backoff=2, backoff_max=60)
    assert isinstance(changed, SetQueue)
    assert changed.options == QueueOptions(backoff=2.5, removed=frozenset(["backoff_max"]))


def test_counts(qs: Run, client: QueueClient, qid: str) -> None:
    """`ls -l` and stats are tables with a line for each queue; stats QUEUE is of that queue alone."""
    client.push_many(qid, ["one", "two"])
    client.receive(qid)
    heading, *lines = qs("ls", "-l")[1].splitlines()
    columns = ["QUEUE", "NEW", "READY", "IN-FLIGHT", "DELAYED", "DEAD", "SUBSCRIBERS", "WAITING", "PAUSED"]
    assert heading.split() == columns
    assert [qid, "1", "1", "1", "0", "0", "0", "0", "no"] in [line.split() for line in lines]
    with client.subscribe(qid, prefetch=1) as subscription:
        assert next(subscription).text == "two"
        assert client.stats(qid)[0].subscribers == 1
        heading, line = qs("stats", qid)[1].splitlines()
    figures = dict(zip(heading.split(), line.split(), strict=True))
    assert (figures["BYTES"], figures["SUBSCRIBERS"], figures["WAITING"]) == ("6", "1", "0")
    record = json.loads(qs("stats", qid, "--json")[1])
    assert (record["qid"], record["pushed"], record["delivered"]) == (qid, 2, 2)


def test_purge(qs: Run, client: QueueClient, qid: str) -> None:
    """`purge` empties a queue and prints of how many messages."""
    client.push_many(qid, ["one", "two"])
    assert qs("purge", qid) == (0, "2\n", "")
    assert json.loads(qs("purge", qid, "--json")[1]) == {"qid": qid, "count": 0}


@contextlib.contextmanager
def asked(shared_server: ServerProcess, *argv: str) -> Iterator[tuple["subprocess.Popen[bytes]", int, str]]:
    """Starts qs on a terminal: the process, the terminal's other side, and what it shows until the question."""
    master, slave = os.openpty()
    try:
        with process(shared_server, *argv, stdin=slave, stderr=slave) as child:
            yield child, master, shown_until(master, "[y/N] ")
    finally:
        os.close(master)
        os.close(slave)


def shown_until(terminal: int, end: str) -> str:
    """Reads what a terminal shows until it ends so."""
    shown = b""
    while not shown.endswith(end.encode()):
        shown += os.read(terminal, 1000)
    return shown.decode()


@pytest.mark.parametrize(
    ("command", "refusals"), [("purge", [(b"\x04", 4), (None, 130)]), ("rm", [(b"\n", 4)])], ids=["purge", "rm"]
)
def test_removal_asks_on_a_terminal(
    shared_server: ServerProcess, client: QueueClient, command: str, refusals: list[tuple[bytes | None, int]]
) -> None:
    """`purge` and rm --force say on a terminal what would be removed. No, the end of the input, and Ctrl-C remove
    nothing, and have exit codes that say so."""
    qid = f"asked-{command}"
    client.new_queue(qid)
    argv = [command, qid, *(["--force", "nowhere"] if command == "rm" else [])]
    client.push_many(qid, ["one", "two", "three"])
    client.receive(qid, visibility=3600)
    client.push(qid, "later", delay=3600)
    for typed, expected in refusals:
        with asked(shared_server, *argv) as (child, terminal, shown):
            assert shown.startswith(f"qs: '{qid}' holds 4 messages, 1 of them in flight. qs {command}")
            if typed is None:
                child.send_signal(signal.SIGINT)
            else:
                os.write(terminal, typed)
            assert child.wait(GIVE_UP) == expected
            shown_until(terminal, "\r\nqs: nothing was removed\r\n")
    assert len(list(client.list_messages(qid, state="all"))) == 4
    with asked(shared_server, *argv) as (child, terminal, _):
        os.write(terminal, b"Yes\n")
        assert child.wait(GIVE_UP) == (1 if command == "rm" else 0)  # there is no queue `nowhere`
    assert (qid in client.queues()) is (command == "purge")


def test_removal_that_need_not_ask(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """Nobody is asked about an empty queue, with --yes, and without a terminal."""

    def purged(*flags: str, **options: object) -> tuple[int, bytes, bytes]:
        return finish(process(shared_server, "purge", qid, *flags, **options))

    master, slave = os.openpty()
    try:
        assert purged(stdin=slave, stderr=slave)[:2] == (0, b"0\n")
        for flags, options in ((["--yes"], {"stdin": slave, "stderr": slave}), ([], {"stdin": slave}), ([], {})):
            client.push(qid, "x")
            assert purged(*flags, **options)[:2] == (0, b"1\n")
    finally:
        os.close(master)
        os.close(slave)


def test_figures(qs: Run) -> None:
    """Figures are chosen by name; when there is none, the exit code is 3."""
    assert qs("figures", "build_*")[1].startswith("build_info{")
    assert qs("figures", "jurnal_*") == (3, "", "")


def test_ping(qs: Run, shared_server: ServerProcess) -> None:
    """`ping` names the server and how long it took."""
    code, out, _ = qs("ping")
    assert code == 0
    assert re.fullmatch(rf"{shared_server.host}:{shared_server.port} answered in [\d.]+ ms\n", out)
    assert json.loads(qs("ping", "--json")[1])["server"] == f"{shared_server.host}:{shared_server.port}"


@pytest.mark.parametrize(
    "argv", [["push", "nowhere", "x"], ["receive", "nowhere"], ["ls", "nowhere"], ["stats", "nowhere"]]
)
def test_command_on_unknown_queue(qs: Run, argv: list[str]) -> None:
    """A queue that does not exist is one line on stderr that says how to make it, and exit code 1."""
    code, out, err = qs(*argv)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("qs: 404 not-found: ")
    assert "qs new nowhere" in err


def test_no_server(qs: Run) -> None:
    """A server that is not there is one line on stderr that says what to do, and exit code 1."""
    code, out, err = qs("ls", "-s", "127.0.0.1:1")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("qs: no queue server at 127.0.0.1:1 (Connection refused): start one with queue-server.py")


def test_no_answer(qs: Run) -> None:
    """A server that does not answer within --timeout is an error too."""
    with scripted(Conversation.wait_for_close) as silent:
        code, _, err = qs("ping", "-s", f"127.0.0.1:{silent.port}", "--timeout", "0.02")
    assert code == 1
    assert err.startswith(f"qs: no answer from 127.0.0.1:{silent.port} within 0.02 s")


def test_an_error_of_many_lines(qs: Run) -> None:
    """An error of the server stays on one line."""

    def script(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), Error(500, "internal", "one\ntwo"))
        conversation.wait_for_close()

    with scripted(script) as failing:
        code, _, err = qs("ping", "-s", f"127.0.0.1:{failing.port}")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("qs: 500 internal: one two (in the server's log: 0")


def test_a_file_that_is_not_there(qs: Run, client: QueueClient, qid: str) -> None:
    """A file that cannot be read is named, with exit code 1."""
    code, _, err = qs("push", qid, "-f", "/nowhere/at/all")
    assert (code, err) == (1, "qs: /nowhere/at/all: No such file or directory\n")


def test_a_name_that_cannot_be(qs: Run) -> None:
    """A queue's name that XML cannot carry is an error in words."""
    code, _, err = qs("new", "a\x01b")
    assert (code, err.count("\n")) == (1, 1)
    assert "U+0001" in err


def test_ctrl_c_ends_qs_quietly(shared_server: ServerProcess) -> None:
    """Ctrl-C ends quietly with 130."""
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def script(conversation: Conversation) -> None:
        conversation.read()
        asked.put(None)
        conversation.wait_for_close()

    with scripted(script) as silent:
        child = process(shared_server, "receive", "q", "--wait", "3600", "-s", f"127.0.0.1:{silent.port}")
        asked.get(timeout=GIVE_UP)
        child.send_signal(signal.SIGINT)
        assert finish(child) == (130, b"", b"")


@pytest.mark.parametrize(
    ("closing", "argv", "says"),
    [
        ('exec "$@" >&-', ["ls"], b"standard output is closed"),
        ('exec "$@" >&-', ["push", "closed", "not stored"], b"standard output is closed"),
        ('exec "$@" <&-', ["push", "closed"], b"standard input is closed"),
        ('exec "$@" <&-', ["push", "closed", "--lines"], b"standard input is closed"),
        ('exec "$@" <&- >&- 2>&-', ["ls"], None),
    ],
)
def test_closed_from_the_start(
    shared_server: ServerProcess, client: QueueClient, closing: str, argv: list[str], says: bytes | None
) -> None:
    """A shell can start a command without stdin, stdout or stderr (`qs ls >&-`): one line where there is a stderr,
    exit code 1, and nothing is done."""
    client.new_queue("closed", exist_ok=True)
    code, out, err = finish(process(shared_server, *argv, shell=closing))
    assert (code, out) == (1, b"")
    assert err == b"" if says is None else (err.startswith(b"qs: " + says) and err.count(b"\n") == 1)
    assert list(client.list_messages("closed")) == []


def test_stdin_that_is_not_needed(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """A command that reads no stdin works without."""
    assert finish(process(shared_server, "push", qid, "stored", shell='exec "$@" <&-'))[0] == 0
    assert payloads(client, qid) == [b"stored"]
