"""The real server process: how it starts, what it says when it cannot, and how it stops."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from zlib import crc32

import pytest
from support.clients.documents import (
    PING,
    code,
    mids,
    new_queue,
    payloads,
    push,
    receive,
    req,
    request,
)
from support.servers.processes import COMMAND, FAST, ServerProcess, Wire, serving

from qs_client import QueueClient
from qs_schemas.command_line import version_line
from qs_testing.programs import READY_WITHIN


def start_that_fails(*flags: str, **options: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that cannot start."""
    done = subprocess.run(
        [*COMMAND, *flags], capture_output=True, text=True, timeout=READY_WITHIN, check=False, **options
    )  # type: ignore[call-overload]
    return done.returncode, done.stdout, done.stderr


def one_line(error: str) -> bool:
    return error.startswith("queue-server.py: ") and error.count("\n") == 1


def test_server_root_is_a_file(tmp_path: Path) -> None:
    """A root that is a file, or below one: one line that says so, which, and what to do, exit code 1."""
    file = tmp_path / "file"
    file.write_text("")
    for root in (file, file / "below"):
        exit_code, out, error = start_that_fails("--root", str(root), "--port", "0")
        assert (exit_code, out, one_line(error)) == (1, "", True), error
        assert "--root" in error
        assert "is a file, not a directory" in error
        assert str(file) in error


def test_log_begins_with_the_version(tmp_path: Path) -> None:
    """With -v, the first line of the log says which version runs, on which interpreter."""
    with serving(tmp_path / "root", *FAST, "-v") as server:
        assert server.log().partition("\n")[0].endswith(f"INFO qs_serving.command: {version_line('queue-server.py')}")


def give_up_roots_rights() -> None:
    """In a child of root's: from the next exec on it may write only where permissions say so."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH (capabilities(7))
        if libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            raise OSError(ctypes.get_errno(), "prctl")


def test_the_root_is_not_writable(tmp_path: Path) -> None:
    """A root in which the server may not write: one line, exit code 1."""
    root = tmp_path / "root"
    root.mkdir()
    options: dict[str, object] = {}
    if os.geteuid() == 0:
        options["preexec_fn"] = give_up_roots_rights
    root.chmod(0o555)
    try:
        exit_code, out, error = start_that_fails("--root", str(root), "--port", "0", **options)
    except subprocess.SubprocessError:
        pytest.skip("NOT TESTED: this is root, who may write anywhere and cannot give that up here")
    assert (exit_code, out, one_line(error)) == (1, "", True), error
    assert "Permission denied" in error


def test_server_port_in_use(tmp_path: Path) -> None:
    """A port that another one has: one line that says so and what to do, exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        exit_code, out, error = start_that_fails("--root", str(tmp_path / "two"), "--port", port)
    assert (exit_code, out, one_line(error)) == (1, "", True), error
    assert "in use" in error
    assert not (tmp_path / "two").exists()  # nothing is made before
    assert "--port" in error


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a..b", "x" * 300])
def test_server_host_of_another_machine(tmp_path: Path, host: str) -> None:
    """An address that is not of this machine, or a name that means none: one line, exit code 1."""
    exit_code, out, error = start_that_fails("--root", str(tmp_path / "root"), "--port", "0", "--host", host)
    assert (exit_code, out, one_line(error)) == (1, "", True), error
    assert "--host" in error


BAD_FLAGS = [
    ["--port", "70000"], ["--port", "-1"], ["--port", "x"], ["--nope"], ["--durability", "maybe"],
    ["--storage", "punchcards"], ["--document-time", "nan"], ["--document-time", "0"], ["--max-connections", "0"],
    ["--max-document", "1.5"], ["--grace", "-1"], ["extra"],
]  # fmt: skip


def test_server_refuses_bad_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that is wrong ends the command with exit code 2 and says which."""
    from qs_server.main.queue_server import read_options

    for flags in BAD_FLAGS:
        with pytest.raises(SystemExit) as ended:
            read_options(flags)
        assert ended.value.code == 2
        assert flags[0].lstrip("-") in capsys.readouterr().err


def test_bad_flags_of_the_process(tmp_path: Path) -> None:
    """A wrong flag of the process ends it in the same way, and nothing is created."""
    exit_code, out, error = start_that_fails("--root", str(tmp_path / "root"), "--port", "nine")
    assert (exit_code, out) == (2, "")
    assert "Traceback" not in error
    assert not (tmp_path / "root").exists()


def test_a_settings_file_that_is_wrong(tmp_path: Path) -> None:
    """A queue whose .queue.toml cannot be understood: one line that names the file, exit code 1."""
    directory = tmp_path / "root" / "q"
    directory.mkdir(parents=True)
    (directory / ".queue.toml").write_text("visibility = 'long'\n")
    exit_code, out, error = start_that_fails("--root", str(tmp_path / "root"), "--port", "0")
    assert (exit_code, out, one_line(error)) == (1, "", True), error
    assert ".queue.toml" in error


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_server_says_once_that_it_listens(tmp_path: Path, host: str) -> None:
    """With standard output a pipe, the line is there as soon as clients can connect, once; port 0 picks a free port.
    A client that connects to what the line says is served."""
    if host == "::1" and not ipv6():
        pytest.skip("NOT TESTED: this machine has no IPv6")
    process = subprocess.Popen(
        [*COMMAND, "--root", str(tmp_path / "root"), "--port", "0", "--host", host, *FAST],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    listening = re.fullmatch(r"listening on (\[::1\]|127\.0\.0\.1):([1-9]\d*)\n", line)
    assert listening is not None, line
    with socket.create_connection((listening[1].strip("[]"), int(listening[2])), 20) as client:
        client.sendall(PING.encode())
        with client.makefile() as lines:
            assert "<ping/>" in lines.readline()
    process.terminate()
    out, error = process.communicate(timeout=READY_WITHIN)
    assert (process.returncode, out, error) == (0, "", "")


def ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_server_stops_gracefully(tmp_path: Path, sig: int) -> None:
    """On SIGTERM and SIGINT a waiting receive gets an empty answer, an idle client 503, then the end; exit code 0,
    nothing lost."""
    with serving(tmp_path / "root", *FAST) as server, Wire(server) as idle, Wire(server) as waiting:
        assert "<ping/>" in idle.ask(PING)
        waiting.ask(new_queue("q"))
        waiting.send(push("q", "kept"), receive("q"), receive("q", wait=60, req="w"), request("ping", req="p"))
        waiting.line()
        waiting.line()
        server.process.send_signal(sig)
        assert code(idle.line()) == 503
        answers = [waiting.line(), waiting.line()]
        assert req(answers[0]) == "w"
        assert mids(answers[0]) == []
        assert (req(answers[1]), code(answers[1])) in (("p", 0), ("p", 503))
        idle.close()
        waiting.close()
        assert server.wait() == 0
    with serving(tmp_path / "root", *FAST) as server, Wire(server) as wire:
        assert len(mids(wire.ask(request("list-messages", "<qid>q</qid>", state="in-flight")))) == 1


def test_second_signal_cuts_off_server_clients(tmp_path: Path) -> None:
    """A second signal cuts off the clients that keep it, at once; what was answered is there. Exit code 0."""
    server = ServerProcess(tmp_path / "root", "--grace", "60", "--linger", "60")
    with Wire(server) as wire:
        wire.ask(new_queue("q"), push("q", "kept"))
        server.process.send_signal(signal.SIGTERM)
        assert code(wire.line()) == 503  # and it lingers for the client to close
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10
    assert "Traceback" not in server.log()
    with serving(tmp_path / "root") as again, Wire(again) as wire:
        assert payloads(wire.ask(receive("q"))) == ["kept"]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_time_goes_on_over_a_restart(tmp_path: Path, sig: signal.Signals) -> None:
    """A server whose clock was set back by an hour while it was down goes on from its time: a window of a second ends
    after a second, a key is remembered, ids increase, and one line says how far the clocks are apart."""
    root = tmp_path / "root"
    with serving(root) as server:
        with QueueClient(server.host, server.port) as client:
            client.new_queue("q")
            client.push("q", "x")
        server.stop(sig)
        file = root / ".clock"
        name, version, boot, since, offset, target, seen, _ = file.read_text().split()
        ahead = [str(int(number) + 3_600_000_000) for number in (offset, seen)]
        text = " ".join((name, version, boot, since, ahead[0], target, ahead[1]))
        file.write_text(f"{text} {crc32(text.encode()):08x}".ljust(159) + "\n")
        server.start()
        with QueueClient(server.host, server.port) as client:
            first = client.push("q", "y", key="k")
            assert 3500 < first / 1e6 - time.time() < 3700
        server.stop(sig)
        server.start()
        with QueueClient(server.host, server.port) as client:
            assert client.push("q", "y", key="k") == first
            assert client.push("q", "z") > first
            assert len(client.receive("q", max=3, visibility=1)) == 3
            assert client.receive("q", wait=20)
        assert server.log().count("60.0 minutes behind the server's time") == 2


def test_a_graceful_stop_is_no_failed_receive(tmp_path: Path) -> None:
    """Messages that subscribers hold when the server stops are visible at the next start, although their queue backs
    off."""
    root = tmp_path / "root"
    with serving(root, *FAST) as server, Wire(server) as wire:
        assert code(wire.ask(new_queue("q", "<options backoff='3600'/>"))) == 0
        wire.ask(push("q", "x"))
        assert code(wire.ask(request("subscribe", "<qid>q</qid>", req="s"))) == 0
        assert payloads(wire.line()) == ["x"]
        assert server.stop() == 0
    with serving(root, *FAST) as server, Wire(server) as wire:
        assert payloads(wire.ask(receive("q"))) == ["x"]
