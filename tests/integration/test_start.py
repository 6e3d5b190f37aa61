"""`scripts/start.py`, which runs the server, the bus and the page as one: its flags, and how they end together."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.processes import PROJECT

from qs_testing.programs import READY_WITHIN

COMMAND = [sys.executable, str(PROJECT / "scripts" / "start.py")]


class Started:
    """`start.py` with a server, a bus and a page on free ports, ready. server, bus, web: their process ids."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--root", str(folder / "root"), "--port", "0", "--durability", "none", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Ctrl-C"):
                break
        else:
            raise AssertionError(f"it did not start: {self.process.communicate()[1]}")
        self.server, self.bus = self._of("queue-server.py"), self._of("queue-bus.py")
        self.web = self._of("queue-web.py")

    def _of(self, script: str) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (pid,) = [int(pid) for pid in children if script in Path(f"/proc/{pid}/cmdline").read_text()]
        return pid

    def end(self) -> tuple[int, str]:
        """Waits for the end: exit code and standard error. Nothing of it is left."""
        _, error = self.process.communicate(timeout=READY_WITHIN)
        for pid in (self.server, self.bus, self.web):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        return self.process.returncode, error


@contextlib.contextmanager
def started(folder: Path, *flags: str) -> Iterator[Started]:
    start = Started(folder, *flags)
    try:
        yield start
    finally:
        if start.process.poll() is None:
            start.process.terminate()
            start.process.communicate(timeout=READY_WITHIN)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_stop_all(tmp_path: Path, sig: signal.Signals) -> None:
    """SIGTERM, Ctrl-C and a terminal that is closed stop all, with exit code 0 and without a word."""
    with started(tmp_path) as start:
        start.process.send_signal(sig)
        assert start.end() == (0, "")


def test_nohup(tmp_path: Path) -> None:
    """SIGHUP stays ignored where nohup ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        start = Started(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    ignored = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{start.process.pid}/status").read_text(), re.MULTILINE)
    assert ignored is not None
    assert int(ignored.group(1), 16) & 1 << signal.SIGHUP - 1
    start.process.terminate()
    assert start.end() == (0, "")


@pytest.mark.parametrize(("who", "said"), [
    ("web", "the page has ended (killed by signal 9); stopping the queue server; stopping the bus\n"),
    ("bus", "the bus has ended (killed by signal 9); stopping the queue server; stopping the page\n"),
    ("server", "the queue server has ended (killed by signal 9); stopping the bus; stopping the page\n"),
])  # fmt: skip
def test_one_ends(tmp_path: Path, who: str, said: str) -> None:
    """When one of them ends by itself, a line says which and how, and the others are stopped."""
    with started(tmp_path) as start:
        os.kill(getattr(start, who), signal.SIGKILL)
        code, error = start.end()
    assert code == 137
    assert said in error  # the bus may log that the server has gone


@pytest.mark.parametrize("sig", [None, signal.SIGTERM])
def test_all_end_at_once(tmp_path: Path, sig: signal.Signals | None) -> None:
    """All may end at the same time, also together with a signal to stop: there is no traceback."""
    with started(tmp_path) as start:
        start.process.send_signal(signal.SIGSTOP)  # so that it finds all ended
        for pid in (start.server, start.bus, start.web):
            end = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([end], [], [], READY_WITHIN)
            os.close(end)
        if sig is not None:
            start.process.send_signal(sig)
        start.process.send_signal(signal.SIGCONT)
        code, error = start.end()
    assert code == 137
    assert "Traceback" not in error


def test_run_gives_flags_to_their_program(tmp_path: Path) -> None:
    """Flags that only the bus has go to the bus, those of the page to the page, with the addresses of server and bus;
    --log-format goes to all."""
    of_bus = ("-q", "a", "-q", "b,c", "--policy", "disconnect", "--settle", "0", "--max-hold=7", "--outbox", "4096")
    with started(tmp_path, *of_bus, "--read-only", "--open", "--log-format", "json") as start:
        server, bus, web = (
            Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in (start.server, start.bus, start.web)
        )
        start.process.terminate()
        assert start.end() == (0, "")
    assert all("--log-format=json" in given for given in (server, bus, web))
    passed_on = {"--queue=a", "--queue=b,c", "--policy=disconnect", "--settle=0", "--max-hold=7", "--outbox=4096"}
    assert passed_on | {"--port=0"} <= set(bus)
    assert not passed_on & {*server, *web}
    assert {"--read-only", "--open", "--port=0", "--host=127.0.0.1"} <= set(web)
    assert "--read-only" not in {*server, *bus}
    assert [flag for flag in web if re.fullmatch(r"--(server|bus)=127\.0\.0\.1:[1-9]\d*", flag)]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "abc"], "argument --port: 'abc' is not a port: a number between 0 and 65535"),
        (["--bus-port", "65536"], "argument --bus-port: '65536' is not a port: a number between 0 and 65535"),
        (
            ["--port", "65535"],
            "--port 65535 leaves no port for the bus, which takes the server's plus 2: give --bus-port",
        ),
        (
            ["--port", "65533"],
            "--port 65533 leaves no port for the page, which takes the server's plus 4: give --web-port",
        ),
        (["--policy", "odd"], "argument --policy: invalid choice: 'odd'"),
    ],
)
def test_wrong_flags(tmp_path: Path, flags: list[str], said: str) -> None:
    """Wrong flags exit with 2, say what is wrong, and start nothing."""
    done = subprocess.run(
        [*COMMAND, "--root", str(tmp_path / "root"), *flags],
        capture_output=True, text=True, timeout=READY_WITHIN, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert f"run: error: {said}" in done.stderr
    assert not (tmp_path / "root").exists()


def test_without_the_page(tmp_path: Path) -> None:
    """--no-web and --no-bus leave the queue server alone."""
    command = [*COMMAND, "--root", str(tmp_path / "root"), "--port", "0", "--no-web", "--no-bus"]
    alone = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert alone.stdout is not None
    printed = printed_until_ready(alone)
    assert printed.count("listening on ") == 1
    assert "QS_BUS" not in printed
    alone.terminate()
    assert alone.communicate(timeout=READY_WITHIN) == ("", "")
    assert alone.returncode == 0


def printed_until_ready(process: "subprocess.Popen[str]") -> str:
    """Returns what start.py prints before it has nothing more to say."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith("Ctrl-C"):
        lines.append(process.stdout.readline())
        assert lines[-1], f"it did not start: {''.join(lines)}"
    return "".join(lines)


def test_it_says_what_listens_where(tmp_path: Path) -> None:
    """Each port has a line that names what listens there, and what the address is for; then come the commands with
    which README.md begins, told where the server is."""
    command = [*COMMAND, "--root", str(tmp_path / "root"), "--port", "0", "--durability", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        printed = printed_until_ready(process)
    finally:
        process.terminate()
        process.communicate(timeout=READY_WITHIN)
    listening, _, commands = printed.partition("\n\nIn a second terminal:\n")
    addresses = re.findall(r"listening on (\S+) \(the (queue server|bus|page): (.*)\)", listening)
    assert [(name, text) for _, name, text in addresses] == [
        ("queue server", "give this address to QueueClient and qs"),
        ("bus", "give this address to BusClient and qs tail"),
        ("page", f"open http://{addresses[2][0]}/"),
    ]
    assert f"    export QS_SERVER={addresses[0][0]} QS_BUS={addresses[1][0]}\n" in commands
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    first = re.findall(r"^\$ (qs .*)$", readme, re.MULTILINE)[:3]
    assert [line.strip() for line in commands.splitlines() if line.startswith("    qs ")] == first


def test_a_bus_that_cannot_start(tmp_path: Path) -> None:
    """If the bus refuses to start, the server ends too, with the bus's exit code."""
    done = subprocess.run(
        [*COMMAND, "--root", str(tmp_path / "root"), "--port", "0", "--settle", "soon"],
        capture_output=True, text=True, timeout=READY_WITHIN, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.endswith("the bus has ended (exit code 2); stopping the queue server\n")


def test_a_server_that_cannot_start(tmp_path: Path) -> None:
    """If the server refuses to start, only its error is printed."""
    (tmp_path / "root").write_text("")
    done = subprocess.run(
        [*COMMAND, "--root", str(tmp_path / "root"), "--port", "0"],
        capture_output=True, text=True, timeout=READY_WITHIN, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("queue-server.py: ")
