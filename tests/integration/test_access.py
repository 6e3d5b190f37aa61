"""Tokens and rights on a real server: what a client sees, what ends when the access file is read again, what the flags
refuse."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.access import Caller, authenticate, hashed, principal, section, write_access
from support.clients.documents import code, mids, push, receive, request, subscribe, text
from support.servers.processes import FAST, ServerProcess, run_server, serving

NAMES = ("a*", "a?c", "a.c", "a[b]c", "a\\c", "bus:q:n", "Ärger-日本", "abc")


def new(qid: str) -> str:
    return request("new-queue", f"<qid>{qid}</qid>")


@pytest.fixture
def access(tmp_path: Path) -> Path:
    return write_access(
        tmp_path / "access.toml",
        [
            principal("admin", admin=True),
            principal("reader", read=["a*", "a[b]c", "bus:*"]),
            principal("writer", write=["abc"]),
            principal("monitor", monitor=True),
        ],
    )


@pytest.fixture
def server(tmp_path: Path, access: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path / "root", *FAST, "--access", str(access), "-v") as running:
        with Caller(running, "admin-token") as admin:
            for name in NAMES:
                assert code(admin.ask(new(name))) == 0
        yield running


def queues(line: str) -> set[str]:
    """The queues that an answer lists."""
    return {part.partition("</queue>")[0].rpartition(">")[2] for part in line.split("<queue")[1:] if "</queue>" in part}


def test_lists_have_only_what_one_may_know(server: ServerProcess) -> None:
    """`list-queues` needs any right on a queue. `queue-stats` needs read, or shows all to a monitor, whose list of
    queues is empty."""
    readable = {"a*", "a?c", "a.c", "a[b]c", "a\\c", "bus:q:n", "abc"}
    for name, listed, figures in (
        ("admin", {*NAMES}, {*NAMES}),
        ("reader", readable, readable),
        ("writer", {"abc"}, set()),
        ("monitor", set(), {*NAMES}),
    ):
        with Caller(server, f"{name}-token") as caller:
            assert queues(caller.ask(request("list-queues"))) == listed, name
            assert queues(caller.ask(request("queue-stats"))) == figures, name


def test_the_name_of_a_dead_letter_queue(server: ServerProcess) -> None:
    """`queue-stats` names the queue of a queue's dead letters to those who may see its figures too."""
    with Caller(server, "admin-token") as admin:
        for qid, dead in (("abc", "a.c"), ("a.c", "Ärger-日本")):
            options = f'<options dead-letter="{dead}" max-receives="2"/>'
            assert code(admin.ask(request("set-queue", f"<qid>{qid}</qid>{options}"))) == 0
    for name, secret in (("monitor", True), ("reader", False)):
        with Caller(server, f"{name}-token") as caller:
            for figures in (request("queue-stats"), request("queue-stats", "<qid>abc</qid>")):
                assert 'dead-letter="a.c">abc<' in caller.ask(figures), name
            assert ('dead-letter="Ärger-日本">a.c<' in caller.ask(request("queue-stats"))) == secret, name


def test_requests_in_one_piece(server: ServerProcess) -> None:
    """In one packet, requests behind an `authenticate` have the new principal's rights, those before it the old
    ones."""
    with Caller(server) as caller:
        caller.send(push("abc", "1"), authenticate("writer-token"), *[push("abc", "2")] * 20, push("a.c", "3"))
        codes = [code(caller.line()) for _ in range(23)]
    assert codes == [401, 0, *[0] * 20, 403]


def test_another_principal(server: ServerProcess) -> None:
    """Authenticating again replaces the principal; a wrong token leaves nobody."""
    with Caller(server, "writer-token") as caller:
        assert "<principal>writer</principal>" in caller.greeting
        assert code(caller.ask(push("abc", "x"))) == 0
        assert code(caller.ask(authenticate("reader-token"))) == 0
        assert code(caller.ask(push("abc", "x"))) == 403
        assert code(caller.ask(authenticate("Reader-token"))) == 401
        assert code(caller.ask(receive("abc"))) == 401
        assert code(caller.ask(authenticate("reader-token"))) == 0
        assert code(caller.ask(receive("abc"))) == 0


def test_wrong_tokens(server: ServerProcess) -> None:
    """A wrong token is 401, or 400 for an empty element. Others go on."""
    for token in ("", "x", "reader-toke", "reader-token2", "é" * 600, "a" * 60_000, "&#x10FFFF;"):
        with Caller(server) as caller, Caller(server, "writer-token") as other:
            caller.send(authenticate(token))
            assert code(other.ask(push("abc", "x"))) == 0
            answer = caller.line()
            assert code(answer) == 401, answer
            assert token not in answer or len(token) < 2


def test_a_token_over_the_limit(server: ServerProcess) -> None:
    """A token that makes its document longer than that of a stranger may be is 413, and is not repeated."""
    with Caller(server) as caller:
        answer = caller.ask(authenticate("a" * 1_000_000))
        assert code(answer) == 413
        assert "a" * 100 not in answer
        assert caller.line() == ""


def test_a_token_that_xml_cannot_carry(server: ServerProcess) -> None:
    """A NUL is not XML: the connection ends as for any such document."""
    with Caller(server) as caller:
        assert code(caller.ask(authenticate("reader\0token"))) == 400
        assert caller.line() == ""


def test_the_tenth_wrong_token(server: ServerProcess) -> None:
    """The tenth wrong token closes the connection with 429, whatever was right in between; requests behind it are not
    done."""
    with Caller(server) as caller:
        caller.send(*[authenticate("wrong")] * 9, authenticate("writer-token"), authenticate("wrong"), push("abc", "x"))
        assert [code(caller.line()) for _ in range(11)] == [*[401] * 9, 0, 429]
        assert caller.line() == ""
    with Caller(server, "admin-token") as admin:
        assert 'ready="0"' in admin.ask(request("queue-stats", "<qid>abc</qid>"))


def test_the_log_of_wrong_tokens(server: ServerProcess) -> None:
    """The first is logged at once, with an address and without the token; those of the next second are one line."""
    connections = [Caller(server) for _ in range(20)]
    for caller in connections:
        caller.send(*[authenticate("WRONG-TOKEN")] * 9)
    for caller in connections:
        assert [code(caller.line()) for _ in range(9)] == [401] * 9
        caller.close()
    server.stop()
    lines = [line for line in server.log().splitlines() if "wrong token" in line]
    assert 1 <= len(lines) <= 4
    assert all("127.0.0.1:" in line for line in lines)
    counts = [int(line.partition(": ")[2].split()[0]) for line in lines if "wrong tokens" in line]
    assert sum(counts) + (len(lines) - len(counts)) == 180
    assert "WRONG-TOKEN" not in server.log()


def reload(server: ServerProcess, times: int = 1) -> None:
    server.process.send_signal(signal.SIGHUP)
    server.until_logged("after SIGHUP", times)


def test_reload_without_principal_ends_its_requests(server: ServerProcess, access: Path) -> None:
    """When a principal is removed, its open connections lose their rights at SIGHUP: a subscription and a waiting
    receive end with an error, and the subscriber's messages are visible again."""
    with (
        Caller(server, "admin-token") as admin,
        Caller(server, "reader-token") as idle,
        Caller(server, "reader-token") as waiting,
        Caller(server, "reader-token") as subscriber,
    ):
        admin.ask(push("abc", "held"))
        assert code(subscriber.ask(subscribe("abc", req="s"))) == 0
        assert "held" in subscriber.line()
        waiting.send(request("ping"), receive("a.c", wait=20, req="w"))
        assert code(waiting.line()) == 0
        write_access(access, [principal("admin", admin=True)])
        reload(server)
        ended, refused = subscriber.line(), waiting.line()
        assert (code(ended), 'req="s"' in ended) == (401, True)
        assert (code(refused), 'req="w"' in refused) == (401, True)
        assert code(idle.ask(receive("abc"))) == 401
        assert "held" in admin.ask(receive("abc", wait=10))


def test_rights_that_are_taken_away(server: ServerProcess, access: Path) -> None:
    """A principal that stays keeps what it may still do; the rest is 403."""
    with Caller(server, "reader-token") as caller, Caller(server, "reader-token") as subscriber:
        assert code(subscriber.ask(subscribe("abc", "a.c", req="both"))) == 0
        assert code(subscriber.ask(subscribe("a.c", req="one"))) == 0
        write_access(access, [principal("admin", admin=True), principal("reader", read=["a.c"])])
        reload(server)
        ended = subscriber.line()
        assert (code(ended), 'req="both"' in ended) == (403, True)
        assert code(caller.ask(receive("abc"))) == 403
        assert code(caller.ask(receive("a.c"))) == 0
        with Caller(server, "admin-token") as admin:
            admin.ask(push("a.c", "still"))
        assert "still" in subscriber.line()


def test_two_tokens_of_a_principal(server: ServerProcess, access: Path) -> None:
    """Two tokens of one principal work side by side; the one that is taken out ends what was begun with it."""
    both = section("principals.reader", tokens=[hashed("reader-token"), hashed("second")], read=["abc"])
    write_access(access, [both])
    reload(server)
    with Caller(server, "reader-token") as old, Caller(server, "second") as fresh:
        assert code(old.ask(receive("abc"))) == code(fresh.ask(receive("abc"))) == 0
        write_access(access, [section("principals.reader", tokens=[hashed("second")], read=["abc"])])
        reload(server, 2)
        assert code(old.ask(receive("abc"))) == 401
        assert code(fresh.ask(receive("abc"))) == 0


def test_a_bad_file_changes_nothing(server: ServerProcess, access: Path) -> None:
    """A bad file is logged, without the hashes in it, and the old state stays in use."""
    write_access(access, [principal("reader", reads=["abc"])])
    reload(server)
    assert "'reads', which is unknown" in server.log()
    assert "sha256" not in server.log()
    with Caller(server, "writer-token") as caller:
        assert code(caller.ask(push("abc", "x"))) == 0


def test_everything_is_allowed_without_access_file(tmp_path: Path) -> None:
    """Everybody may do everything, and `authenticate` is 501."""
    with serving(tmp_path / "root", *FAST) as server, Caller(server, "x") as caller:
        assert (code(caller.greeting), "--access" in text(caller.greeting)) == (501, True)
        assert code(caller.ask(new("q"))) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_closed_by_default(tmp_path: Path, host: str) -> None:
    """Listening where other machines can connect needs one of two flags."""
    ended = run_server("--host", host, "--port", "0", "--root", str(tmp_path / "root"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "--access FILE" in ended.stderr
    assert "--open" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "root").exists()


def test_open_flag_listens_without_access_file(tmp_path: Path) -> None:
    """With --open, a server without an access file listens for other machines, and serves everybody."""
    with serving(tmp_path / "root", *FAST, "--host", "0.0.0.0", "--open") as server:
        server.host = "127.0.0.1"
        with Caller(server) as caller:
            assert code(caller.ask(new("q"))) == 0


def test_server_check_prints_files(tmp_path: Path, access: Path) -> None:
    """--check prints the contents of the files, listens nowhere and makes nothing; an error is one line and exit code
    1."""
    root = tmp_path / "root"
    ended = run_server("--check", "--access", str(access), "--root", str(root), "--host", "0.0.0.0")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "4 principals, 4 tokens" in ended.stdout
    assert "other machines can connect" in ended.stdout
    assert not root.exists()
    access.write_text("[principals]\nreader = 3\n")
    ended = run_server("--check", "--access", str(access), "--root", str(root))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "principals.reader has to be a table" in ended.stderr


def test_flags_that_contradict(access: Path) -> None:
    """--access and --open together are a usage error, which says to give one of them."""
    ended = run_server("--access", str(access), "--open")
    assert ended.returncode == 2
    assert "give one of them" in ended.stderr
    assert sys.executable not in ended.stderr


def test_no_error_names_a_hidden_queue(tmp_path: Path) -> None:
    """The queue that a dead letter came from, and those of a cycle of dead-letter queues, are named only to those who
    have a right to them."""
    rights = {"configure": ["failed", "mine"], "write": ["failed"]}
    sections = [principal("admin", admin=True), principal("blind", **rights)]
    sections.append(principal("reader", read=["hidden"], **rights))
    access = write_access(tmp_path / "access.toml", sections)
    with serving(tmp_path / "root", *FAST, "--access", str(access)) as server:
        with Caller(server, "admin-token") as admin:
            dies = "<options dead-letter='{}' max-receives='1'/>"
            for qid, options in (("failed", ""), ("hidden", dies.format("failed")), ("mine", "")):
                assert code(admin.ask(request("new-queue", f"<qid>{qid}</qid>{options}"))) == 0
            admin.ask(push("hidden", "x"))
            [mid] = mids(admin.ask(receive("hidden")))
            admin.ask(request("release-message", f"<qid>hidden</qid><mid>{mid}</mid>"))
            redrive, into_cycle = request("redrive-messages", "<qid>failed</qid>"), dies.format("failed")
            for name, knows in (("blind", False), ("reader", True)):
                with Caller(server, f"{name}-token") as caller:
                    refused = caller.ask(redrive)
                    assert (code(refused), "hidden" in refused) == (403, knows), refused
            assert code(admin.ask(redrive)) == 0  # there was one
            admin.ask(request("set-queue", f"<qid>hidden</qid>{dies.format('mine')}"))
            admin.ask(request("set-queue", f"<qid>failed</qid>{dies.format('hidden')}"))
        with Caller(server, "blind-token") as blind:
            cycle = blind.ask(request("set-queue", f"<qid>mine</qid>{into_cycle}"))
            assert (code(cycle), "hidden" in cycle) == (409, False), cycle
