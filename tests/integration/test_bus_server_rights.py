"""The real bus as a principal of a real queue server: TLS, a token, rights that it lacks, and those that change."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import pytest
from support.bus.clients import gone, known, push_one, reload, shows_no_token, stored, token_of
from support.clients.access import principal, section, write_access
from support.clients.documents import code, mids, request, subscribe, text
from support.servers.processes import FAST, BusProcess, Listening, ServerProcess, Wire, bus_serving, run_bus, serving
from support.servers.tls import TlsWire, authority, tls_flags

OPS = principal("ops", admin=True)
OF_THE_BUS = {"read": ["orders", "bus:*"], "write": ["bus:*", "letters"], "configure": ["bus:*"]}
NEW = [request("new-queue", f"<qid>{qid}</qid>") for qid in ("orders", "letters", "secret")]


@pytest.fixture
def access(tmp_path: Path) -> Path:
    """The access file of the server."""
    return write_access(tmp_path / "server.toml", [OPS, principal("bus", **OF_THE_BUS)])


@pytest.fixture
def closed_server(tmp_path: Path, access: Path) -> Iterator[ServerProcess]:
    """A server with an access file and three queues."""
    with serving(tmp_path / "root", *FAST, "-v", "--access", str(access)) as server:
        with known(server, "ops") as ops:
            for document in NEW:
                assert code(ops.ask(document)) == 0
        yield server


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return token_file(tmp_path / "bus.token", "bus")


def token_file(path: Path, name: str) -> Path:
    new = path.with_suffix(".new")
    new.write_text(token_of(name) + "\n")
    new.chmod(0o600)
    new.rename(path)
    return path


@contextmanager
def bus_of(server: ServerProcess, token: Path, *flags: str) -> Iterator[BusProcess]:
    with bus_serving(server, "-v", "--server-token-file", str(token), *flags) as bus:
        yield bus
        bus.stop()
        assert shows_no_token(bus.log() + server.log())


def test_the_rights_that_the_page_names(closed_server: ServerProcess, token: Path) -> None:
    """With the rights of docs/bus.md: messages, names, acknowledging, and what is noted on the server."""
    with bus_of(closed_server, token) as bus, Wire(bus) as wire, known(closed_server, "ops") as ops:
        assert code(wire.ask(subscribe("orders", req="plain", ack="client"))) == 0
        with Wire(bus) as member:
            assert code(member.ask(subscribe("orders", name="n"))) == 0
            mid = push_one(ops, "orders")
            assert mids(wire.line()) == [mid]
            assert mids(member.line()) == [mid]
            wire.send(request("delete-message", f"<qid>orders</qid><mid>{mid}</mid>"))
            assert code(wire.line()) == 0
            assert gone(ops, "orders")
            assert gone(ops, "bus:orders:n")
        host = f"bus::{bus.host}:{bus.port}"
        closed_server.until(lambda: stored(ops, host) != [])
        assert "could not" not in bus.log()


def test_a_policy_that_a_name_takes_over(
    tmp_path: Path, access: Path, closed_server: ServerProcess, token: Path
) -> None:
    """The bus needs `configure` to a queue to see its policy, without which a name copies none, and then `write` to the
    dead-letter queue; a client whose name cannot be made gets the reason."""
    policy = request("set-queue", "<qid>orders</qid><options dead-letter='failed' max-receives='1'/>")
    own = request("get-queue", "<qid>bus:orders:{}</qid>")
    with bus_of(closed_server, token) as bus, Wire(bus) as wire, known(closed_server, "ops") as ops:
        assert code(ops.ask(policy)) == 0
        assert code(wire.ask(subscribe("orders", name="before"))) == 0
        assert "dead-letter" not in ops.ask(own.format("before"))
        sees = {**OF_THE_BUS, "configure": ["orders", "bus:*"]}
        write_access(access, [OPS, principal("bus", **sees)])
        reload(closed_server, signal.SIGHUP)
        with Wire(bus) as other:
            refused = other.ask(subscribe("orders", name="n"))
            assert (code(refused), "'failed'" in text(refused)) == (403, True)
            may = {**sees, "write": ["bus:*", "failed"]}
            write_access(access, [OPS, principal("bus", **may)])
            reload(closed_server, signal.SIGHUP, 2)
            assert code(other.ask(subscribe("orders", name="n", ack="client"))) == 0
            assert 'dead-letter="failed" max-receives="1"' in ops.ask(own.format("n"))
            mid = push_one(ops, "orders")
            assert mids(other.line()) == [mid]
            assert code(other.ask(request("release-message", f"<qid>orders</qid><mid>{mid}</mid>"))) == 0
            closed_server.until(lambda: len(stored(ops, "failed")) == 1)


@pytest.mark.parametrize("qid", ["letters", "secret", "absent"])
def test_a_queue_that_the_bus_may_not_read(closed_server: ServerProcess, token: Path, qid: str) -> None:
    """For a queue that the bus may not read, its clients get 403 with the server's reason, whether it exists or not,
    also with -q."""
    for flags in ((), ("-q", f"{qid},orders")):
        with bus_of(closed_server, token, *flags) as bus, Wire(bus) as wire:
            bus.until_logged("connected to")
            assert code(wire.ask(subscribe("orders"))) == 0
            answer = wire.ask(subscribe(qid, req="x"))
            assert code(answer) == 403, answer
            assert f"the bus may not read '{qid}' on the queue server: 403 forbidden" in text(answer)


def test_rights_of_the_bus_that_change(closed_server: ServerProcess, access: Path, token: Path) -> None:
    """When the server takes a right from the bus, subscriptions end with 403 under their req, and the messages are
    for others; when it gives the right, the next client gets the queue."""
    with bus_of(closed_server, token) as bus, Wire(bus) as wire, known(closed_server, "ops") as ops:
        assert code(wire.ask(subscribe("orders", req="mine", ack="client"))) == 0
        mid = push_one(ops, "orders")
        assert mids(wire.line()) == [mid]
        write_access(access, [OPS, principal("bus", **{**OF_THE_BUS, "read": ["bus:*"]})])
        reload(closed_server, signal.SIGHUP)
        line = wire.line()
        assert code(line) == 403, line
        assert 'req="mine"' in line
        closed_server.until(lambda: stored(ops, "orders", "ready") == [mid])
        assert code(wire.ask(subscribe("orders"))) == 403
        write_access(access, [OPS, principal("bus", **OF_THE_BUS)])
        reload(closed_server, signal.SIGHUP, 2)
        assert code(wire.ask(subscribe("orders"))) == 0
        assert mids(wire.line()) == [mid]
        assert gone(ops, "orders")


def test_bus_goes_on_with_replaced_token(
    closed_server: ServerProcess, access: Path, token: Path, tmp_path: Path
) -> None:
    """The server takes the bus's principal out: the bus is in an outage, says why once, and goes on with the new token
    that it has read on SIGHUP. Its clients stay, and miss nothing."""
    with bus_of(closed_server, token) as bus, Wire(bus) as wire, known(closed_server, "ops") as ops:
        assert code(wire.ask(subscribe("orders", ack="client"))) == 0
        mid = push_one(ops, "orders")
        assert mids(wire.line()) == [mid]
        write_access(access, [OPS, principal("new", **OF_THE_BUS)])
        reload(closed_server, signal.SIGHUP)
        bus.until_logged("--server-token-file says who the bus is")
        later = push_one(ops, "orders")
        token_file(token, "new")
        reload(bus, signal.SIGHUP)
        assert mids(wire.line()) == [later]
        assert code(wire.ask(request("delete-message", f"<qid>orders</qid><mid>{mid}</mid>"))) == 0
        assert code(wire.ask(request("delete-message", f"<qid>orders</qid><mid>{later}</mid>"))) == 0
        assert gone(ops, "orders")
        assert bus.log().count("says 401 unauthorized") <= 2  # the connection that ends, and the next one's token


def test_not_let_in(closed_server: ServerProcess, tmp_path: Path) -> None:
    """With a wrong token, or none, the bus runs and says why it does not work, once; its clients wait."""
    wrong = token_file(tmp_path / "wrong.token", "nobody")
    for flags in (("--server-token-file", str(wrong)), ()):
        with bus_serving(closed_server, *flags) as bus, Wire(bus) as wire:
            wire.send(subscribe("orders"))
            bus.until_logged("--server-token-file says who the bus is")
            bus.stop()
            assert bus.log().count("401 unauthorized") == 1
            assert shows_no_token(bus.log())


def test_over_tls(tmp_path: Path, access: Path, token: Path) -> None:
    """TLS on both sides, with a certificate that the server asks for. The server is restarted in between."""
    clients = authority("clients of the server")
    shown = clients.sign("DNS:bus.example")
    flags = (*FAST, "--access", str(access), *tls_flags(clients_of=clients))
    towards = (
        "--server-ca", str(authority().cert), "--server-cert", str(shown.cert), "--server-key", str(shown.key),
        "--server-token-file", str(token),
    )  # fmt: skip
    ops_of = authority().trusting(shown)

    def ask(server: Listening, *documents: str) -> list[str]:
        from support.bus.clients import authenticate

        with TlsWire(server, ops_of) as wire:
            return [wire.ask(document) for document in (authenticate(token_of("ops")), *documents)][1:]

    with serving(tmp_path / "root", *flags) as server:
        ask(server, *NEW)
        with bus_serving(server, *towards, *tls_flags()) as bus, TlsWire(bus) as wire:
            assert code(wire.ask(subscribe("orders", ack="client"))) == 0
            mid = mids(ask(server, request("push-message", "<qid>orders</qid><payload>x</payload>"))[0])
            assert mids(wire.line()) == mid
            server.stop()
            server.start()
            later = mids(ask(server, request("push-message", "<qid>orders</qid><payload>y</payload>"))[0])
            while (got := mids(wire.line())) == mid:
                """It comes again, as it was not acknowledged."""
            assert got == later


def run_in(folder: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a bus that ends by itself."""
    with chdir(folder):
        return run_bus("--port", "0", *flags, **variables)


@pytest.mark.parametrize(
    ("flags", "variables", "text", "code"),
    [
        (("--server-token-file", "absent.token"), {}, "absent.token", 1),
        (("--server-ca", "absent.pem"), {}, "absent.pem", 1),
        (("--server-key", "key.pem"), {}, "--server-cert", 2),
        (("--server", "qs://127.0.0.1", "--server-tls"), {}, "qss://", 2),
        (("--server", "http://127.0.0.1"), {}, "qss://", 2),
        ((), {"QS_TOKEN": "marked token"}, "QS_TOKEN", 1),
        ((), {"QS_TOKEN_FILE": "absent.token"}, "absent.token", 1),
    ],
)
def test_flags_that_cannot_be(
    tmp_path: Path, flags: tuple[str, ...], variables: dict[str, str], text: str, code: int
) -> None:
    """One line says what is wrong, and shows no token."""
    ended = run_in(tmp_path, *flags, **variables)
    assert ended.returncode == code, ended
    last = ended.stderr.splitlines()[-1]
    assert text in last
    assert "marked" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_bus_check_listens_nowhere(tmp_path: Path, token: Path, access: Path) -> None:
    """--check says what the files are for and ends; it does not listen, and needs no server."""
    files = ("--server-ca", str(authority().cert), "--server-token-file", str(token), "--access", str(access))
    ended = run_in(tmp_path, "--check", *files, "--server", "queues.example", *tls_flags())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "queue server queues.example:9876: with TLS, with a token" in ended.stdout.splitlines()
    assert str(access) in ended.stdout
    assert "listening" not in ended.stdout
    assert "marked" not in ended.stdout
    ended = run_in(tmp_path, "--check", "--server-token-file", "absent.token")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "absent.token" in ended.stderr


def test_bus_refuses_other_machines_without_access_file(tmp_path: Path) -> None:
    """Listening for other machines needs an access file, or --open."""
    ended = run_in(tmp_path, "--host", "0.0.0.0")
    assert ended.returncode == 1
    assert "--access" in ended.stderr
    assert "--open" in ended.stderr


def test_a_token_in_the_environment(closed_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """QS_TOKEN, as for the command qs."""
    monkeypatch.setenv("QS_TOKEN", token_of("bus"))
    with bus_serving(closed_server) as bus, Wire(bus) as wire:
        assert code(wire.ask(subscribe("orders"))) == 0


def test_an_anonymous_bus(tmp_path: Path) -> None:
    """A bus without a token may have the rights of clients that say nothing. Without any to `bus:*`, it passes messages
    on and refuses durable names; the log says once that it cannot make its notes."""
    access = write_access(tmp_path / "server.toml", [OPS, section("anonymous", read=["orders"])])
    with serving(tmp_path / "root", *FAST, "--access", str(access)) as server, known(server, "ops") as ops:
        for document in NEW:
            ops.ask(document)
        with bus_serving(server) as bus:
            for _ in range(2):
                with Wire(bus) as wire:
                    assert code(wire.ask(subscribe("orders", ack="client"))) == 0
                    mid = push_one(ops, "orders")
                    assert mids(wire.line()) == [mid]
                    assert code(wire.ask(request("delete-message", f"<qid>orders</qid><mid>{mid}</mid>"))) == 0
                    assert gone(ops, "orders")
            with Wire(bus) as wire:
                answer = wire.ask(subscribe("orders", name="n"))
                assert (code(answer), "401 unauthorized" in text(answer)) == (403, True)
                answer = wire.ask(subscribe("secret"))
                assert (code(answer), "may not read 'secret'" in text(answer)) == (403, True)
            assert bus.log().count("the number of subscribers could not be stored") == 1
