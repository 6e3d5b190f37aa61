"""The real bus process: how it starts, what it says when it cannot, and how it stops."""

import os
import re
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bus.clients import stored
from support.clients.documents import PING, code, delete, mids, new_queue, push, push_list, release, req, subscribe
from support.servers.processes import BUS_COMMAND, FAST, BusProcess, ServerProcess, Wire, bus_serving, run_bus, serving

from qs_bus.command import read_options
from qs_bus.options import Policy
from qs_testing.programs import READY_WITHIN


def run(*flags: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that ends by itself."""
    done = run_bus(*flags, **environment)
    return done.returncode, done.stdout, done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


FLAGS = [
    "--help", "--version", "--verbose", "-v", "--server", "-s", "--queue", "-q", "--host", "--port", "--policy",
    "--settle", "--outbox", "--max-hold", "--max-document", "--max-depth", "--max-attributes", "--max-elements",
    "--max-list", "--max-connections", "--max-handshakes", "--max-pipeline", "--document-time", "--linger", "--grace",
    "--end-of-document", "--tls-cert", "--tls-key", "--tls-client-ca", "--access", "--open",
    "--check", "--config", "--log-format",
    "--server-tls", "--server-ca", "--server-cert", "--server-key", "--server-token-file", "--server-tls-insecure",
]  # fmt: skip


def test_bus_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names every flag and nothing that is none, what QS_SERVER is for, and the defaults."""
    with pytest.raises(SystemExit) as ended:
        read_options(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said))
    assert set(FLAGS) <= named
    assert named - set(FLAGS) <= {"--max-outbox", "--print-completion", "-h"}
    for text in ("queue-bus.py", "QS_SERVER", "9878", "9876", "listening on HOST:PORT"):
        assert text in said


def test_the_process_says_help_and_version() -> None:
    """--help and --version of the script end with exit code 0 and say nothing on standard error."""
    for flag, starts in (("--help", "usage: queue-bus.py"), ("--version", "qs ")):
        exit_code, out, error = run(flag)
        assert (exit_code, error) == (0, "")
        assert out.startswith(starts)


BAD_FLAGS = [
    ["--port", "70000"], ["--port", "x"], ["--nope"], ["--sever", "a:1"], ["--policy", "drop"], ["--settle", "soon"],
    ["--settle", "-1"], ["--settle", "nan"], ["--outbox", "0"], ["--max-hold", "0"], ["--max-connections", "0"],
    ["--document-time", "0"], ["--grace", "-1"], ["--server", "nowhere:port"], ["--server", ":1"], ["-s", "host:0"],
    ["-s", "host:99999"], ["--queue", ""], ["-q", "a,,b"], ["-q", "a,"], ["extra"], ["--polic", "hold"],
    ["--end-of-document", "dot"],
]  # fmt: skip


def test_bus_refuses_bad_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that is wrong ends the command with exit code 2 and a line that says which and why. So does a
    name that no queue can have."""
    for flags in [*BAD_FLAGS, *(["-q", name] for name in ("x" * 201, "a\nb", "a\0b", "a\udcffb"))]:
        with pytest.raises(SystemExit) as ended:
            read_options(flags)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("queue-bus.py: error: ")
        assert flags[0].lstrip("-") in said.splitlines()[-1]
        assert len(said.splitlines()[-1]) > len("queue-bus.py: error: ") + len(flags[0])


def test_flags_to_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag arrives in the options; QS_SERVER says where the server is when -s does not."""
    monkeypatch.setenv("QS_SERVER", "elsewhere:1234")
    options, verbose = read_options([])
    assert (options.server, options.queues, options.port, verbose) == (("elsewhere", 1234), (), 9878, 0)
    arguments = "-vv -s [::1]:99 -q a,b -q b -q c --policy disconnect --outbox 5 --max-hold 6 --settle 0 --port 7"
    options, verbose = read_options(arguments.split())
    assert (options.server, options.queues, options.port, verbose) == (("::1", 99), ("a", "b", "c"), 7, 2)
    assert (options.policy, options.limits.outbox, options.hold, options.settle) == (Policy.DISCONNECT, 5, 6, 0)
    monkeypatch.setenv("QS_SERVER", "nonsense:x")
    with pytest.raises(SystemExit) as ended:
        read_options([])
    assert ended.value.code == 2
    monkeypatch.delenv("QS_SERVER")
    assert read_options([])[0].server == ("127.0.0.1", 9876)


def test_a_wrong_variable() -> None:
    """A QS_SERVER that is wrong ends the command with exit code 2, and the text names the variable."""
    exit_code, out, error = run("--port", "0", QS_SERVER="nonsense:x")
    assert (exit_code, out) == (2, "")
    assert "QS_SERVER" in error.splitlines()[-1]


def test_bus_port_in_use() -> None:
    """A port that another one has: one line that says so and what to do, exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        exit_code, out, error = run("--port", str(other.getsockname()[1]))
    assert (exit_code, out, error.count("\n")) == (1, "", 1), error
    assert error.startswith("queue-bus.py: cannot listen on 127.0.0.1:")
    assert "in use" in error
    assert "--port" in error


def test_bus_host_of_another_machine() -> None:
    """An address that is not of this machine: one line, exit code 1."""
    exit_code, out, error = run("--port", "0", "--host", "192.0.2.1")
    assert (exit_code, out, error.count("\n")) == (1, "", 1), error
    assert "--host" in error


def test_bus_says_once_that_it_listens() -> None:
    """With standard output a pipe, the line is there as soon as clients can connect, once, also without a server."""
    process = subprocess.Popen(
        [*BUS_COMMAND, "--port", "0", "-s", f"127.0.0.1:{free_port()}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    listening = re.fullmatch(r"listening on 127\.0\.0\.1:([1-9]\d*)\n", line)
    assert listening is not None, line
    with socket.create_connection(("127.0.0.1", int(listening[1])), 20) as client:
        client.sendall(PING.encode())
        with client.makefile() as lines:
            assert code(lines.readline()) == 0
    process.terminate()
    out, error = process.communicate(timeout=READY_WITHIN)
    assert (process.returncode, out) == (0, "")
    assert error.count("\n") == 1
    assert "no queue server at 127.0.0.1:" in error


class Nowhere:
    """An address where no server listens yet."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.port = free_port()


def test_it_starts_before_the_server(tmp_path: Path) -> None:
    """Without a server it listens, says once that it has none, and keeps its clients waiting; when there is one, they
    are subscribed and get what comes."""
    place = Nowhere()
    bus = BusProcess(place, "-q", "q", log=tmp_path / "bus.log")
    try:
        with Wire(bus) as monitored, Wire(bus) as named:
            assert code(monitored.ask(subscribe("q"))) == 0
            named.send(subscribe("q", name="n", req="named"))
            assert not select.select([named.socket], [], [], 0.3)[0]
            with serving(tmp_path / "root", *FAST, port=place.port) as server, Wire(server) as wire:
                answer = named.line()
                assert (code(answer), req(answer)) == (0, "named")
                pushed = mids(wire.ask(push("q", "first")))
                assert mids(monitored.line()) == mids(named.line()) == pushed
            assert bus.log().count("no queue server at") == 1
    finally:
        assert bus.stop() == 0
    assert "Traceback" not in bus.log()


@pytest.fixture
def bus(shared_server: ServerProcess) -> Iterator[BusProcess]:
    """A bus to be stopped, on a server that goes on."""
    with bus_serving(shared_server, "--linger", "5", "--grace", "60") as process:
        yield process


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_bus_stops_gracefully(sig: int, bus: BusProcess, producer: Wire, qid: str) -> None:
    """On SIGTERM and Ctrl-C clients get 503 and the end; what was acknowledged is deleted on the server, the rest is
    visible at once; exit code 0."""
    careful, plain, silent = Wire(bus), Wire(bus), Wire(bus)
    careful.ask(subscribe(qid, ack="client"))
    plain.ask(subscribe(qid))
    sent = mids(producer.ask(push_list(qid, "a", "b", "c")))
    assert [mids(careful.line())[0] for _ in sent] == sent
    assert [mids(plain.line())[0] for _ in sent] == sent
    careful.ask(delete(qid, sent[0]))
    release_later = careful.ask(release(qid, sent[1], delay=3600))
    assert code(release_later) == 0
    began = time.monotonic()
    bus.process.send_signal(sig)
    for client in (careful, plain, silent):
        assert code(client.line()) == 503
        assert client.line() == ""
        client.close()
    assert bus.wait() == 0
    assert time.monotonic() - began < 20  # nobody is waited for: not even the one that is delayed for an hour
    assert stored(producer, qid, "in-flight") == []
    # What one of them has handled and another has not is not over: both are to come back.
    assert stored(producer, qid, "ready") == sent[1:] == stored(producer, qid)


def test_the_outbox_is_read_to_its_end(shared_server: ServerProcess, bus: BusProcess, producer: Wire, qid: str) -> None:
    """A client that is slow to read gets what is in its outbox, then 503; that counts as handled, the rest stays."""
    with Wire(bus) as slow:
        slow.ask(subscribe(qid))
        sent = []
        for _ in range(30):
            sent += mids(producer.ask(push(qid, "x" * 1_000_000)))
        shared_server.until(lambda: len(stored(producer, qid, "in-flight")) >= 5 and not stored(producer, qid, "ready"))
        bus.process.send_signal(signal.SIGTERM)
        lines = list(iter(slow.line, ""))
        assert code(lines[-1]) == 503
        got = [mids(line)[0] for line in lines[:-1]]
        assert got == sent[: len(got)]
        assert len(got) > 5
    assert bus.wait() == 0
    assert stored(producer, qid, "ready") == sent[len(got) :] == stored(producer, qid)


def test_who_leaves_while_it_waits_for_the_server(tmp_path: Path) -> None:
    """A client that goes before the server has come is forgotten at once, and takes no descriptor any more: a bus that
    may have ten more than it has serves thirty of them, one after the other, and then one more."""
    bus = BusProcess(Nowhere(), log=tmp_path / "bus.log")
    used = max(int(name) for name in os.listdir(f"/proc/{bus.process.pid}/fd")) + 1
    resource.prlimit(bus.process.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
    for _ in range(30):
        with Wire(bus) as waiting:
            assert code(waiting.ask(PING)) == 0
            waiting.send(subscribe("q", ack="client"))
    with Wire(bus) as last:
        assert code(last.ask(PING)) == 0
    assert bus.stop() == 0


def test_a_stop_while_a_subscriber_waits_for_the_server(tmp_path: Path) -> None:
    """A client whose subscription waits for a server that is not there gets 503 when the bus stops, at once."""
    bus = BusProcess(Nowhere(), "--grace", "60", log=tmp_path / "bus.log")
    with Wire(bus) as waiting:
        waiting.send(subscribe("q"))
        assert not select.select([waiting.socket], [], [], 0.1)[0]
        bus.process.send_signal(signal.SIGTERM)
        assert code(waiting.line()) == 503
        assert waiting.line() == ""
    assert bus.wait() == 0
    assert "Traceback" not in bus.log()


def test_second_signal_cuts_off_bus_clients(shared_server: ServerProcess, producer: Wire, qid: str) -> None:
    """A second signal cuts off the clients that keep it, at once; what was not handled is visible. Exit code 0."""
    bus = BusProcess(shared_server, "--grace", "60", "--linger", "60")
    with Wire(bus) as client:
        client.ask(subscribe(qid, ack="client"))
        sent = mids(producer.ask(push(qid, "kept")))
        assert mids(client.line()) == sent
        bus.process.send_signal(signal.SIGTERM)
        assert code(client.line()) == 503  # and it lingers for the client to close
        began = time.monotonic()
        assert bus.stop() == 0
        assert time.monotonic() - began < 20
    assert "Traceback" not in bus.log()
    assert stored(producer, qid, "ready") == sent


def test_a_stop_without_the_server(tmp_path: Path) -> None:
    """When the server has gone the bus still stops soon; what it could not delete comes again later."""
    server = ServerProcess(tmp_path / "root", *FAST)
    bus = BusProcess(server, "--grace", "60")
    with Wire(server) as wire, Wire(bus) as client:
        wire.ask(new_queue("q"))
        client.ask(subscribe("q", ack="client"))
        sent = mids(wire.ask(push("q", "x")))
        assert mids(client.line()) == sent
        server.kill()
        assert code(client.ask(delete("q", sent[0]))) == 0
        bus.process.send_signal(signal.SIGTERM)
        assert code(client.line()) == 503
    began = time.monotonic()
    assert bus.wait() == 0
    assert time.monotonic() - began < 20
    assert "Traceback" not in bus.log()
    with serving(tmp_path / "root", *FAST) as again, Wire(again) as wire:
        assert stored(wire, "q") == sent


@pytest.mark.parametrize(("grace", "signals"), [("1", 1), ("60", 2)])
def test_a_stop_with_a_server_that_does_not_answer(tmp_path: Path, grace: str, signals: int) -> None:
    """When the server is there and silent the bus ends within --grace and 5 s, or after a second signal within 5 s; it
    says that the server was not told, and what was handled comes again."""
    server = ServerProcess(tmp_path / "root", *FAST)
    bus = BusProcess(server, "--grace", grace, log=tmp_path / "bus.log")
    with Wire(server) as wire, Wire(bus) as client:
        wire.ask(new_queue("q"))
        client.ask(subscribe("q", ack="client"))
        sent = mids(wire.ask(push("q", "x")))
        assert mids(client.line()) == sent
        server.process.send_signal(signal.SIGSTOP)
        assert code(client.ask(delete("q", sent[0]))) == 0
        began = time.monotonic()
        bus.process.send_signal(signal.SIGTERM)
        assert code(client.line()) == 503
        if signals == 2:
            bus.process.send_signal(signal.SIGTERM)
    try:
        assert bus.wait() == 0
        assert time.monotonic() - began < 6
        assert "will be delivered again" in bus.log()
    finally:
        server.process.send_signal(signal.SIGCONT)
        assert server.stop() == 0
