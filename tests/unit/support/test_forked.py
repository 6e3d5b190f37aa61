"""A forked process is as one that was started: what it is given, what it says, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qs_testing.forking import ForkedProcess, Forking

SHOWS = """
import json, os, signal, sys
said = {
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "environ": dict(os.environ), "name": __name__,
    "open": sorted(os.listdir("/proc/self/fd")), "input": sys.stdin.read(),
    "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
}
print(json.dumps(said))
print("an error", file=sys.stderr)
sys.exit(3)
"""
STAYS = "import signal\nprint('ready', flush=True)\nsignal.pause()\n"


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    """One process that forks, for all tests of this file."""
    forking = Forking("json")
    yield forking
    forking.end()


def start(forking: Forking, folder: Path, program: str, *arguments: str) -> ForkedProcess:
    script = folder / "script.py"
    script.write_text(program)
    with (folder / "log").open("ab") as log:
        return forking.start(script, *arguments, log=log)


def test_it_is_given_the_same(forking: Forking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that is forked has the arguments, paths, environment, directory, descriptors and signals that
    `python script` has, and its outputs and its exit code come back."""
    monkeypatch.setenv("QS_OF_THE_TEST", "given later")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    monkeypatch.chdir(tmp_path)
    process = start(forking, tmp_path, SHOWS, "--flag", "value")
    with process.stdout:
        shown = json.loads(process.stdout.read())
    assert process.wait(30) == 3
    assert (tmp_path / "log").read_text() == "an error\n"
    command = [sys.executable, str(tmp_path / "script.py"), "--flag", "value"]
    usual = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False, env=dict(os.environ)
    )
    assert shown == json.loads(usual.stdout)
    assert shown["environ"]["QS_OF_THE_TEST"] == "given later"


def test_it_ends_by_itself(forking: Forking, tmp_path: Path) -> None:
    """`run()` returns what was printed and the exit code; its variables are set there, and not here."""
    script = tmp_path / "script.py"
    script.write_text(SHOWS)
    done = forking.run(script, "--flag", QS_OF_THE_TEST="added")
    assert (done.returncode, done.stderr) == (3, "an error\n")
    shown = json.loads(done.stdout)
    assert (shown["argv"], shown["environ"]["QS_OF_THE_TEST"]) == ([str(script), "--flag"], "added")
    assert "QS_OF_THE_TEST" not in os.environ


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_it_is_ended(forking: Forking, tmp_path: Path, sig: int) -> None:
    """A signal ends it, and wait() returns as with Popen; what is sent later reaches nobody."""
    process = start(forking, tmp_path, STAYS)
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        process.send_signal(sig)
        assert process.wait(30) == process.poll() == -sig
        process.send_signal(sig)
    assert not os.path.exists(f"/proc/{process.pid}")


def test_it_stands_still(forking: Forking, tmp_path: Path) -> None:
    """After until_stopped() it has stopped; it goes on with SIGCONT."""
    process = start(forking, tmp_path, STAYS)
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGSTOP)
        process.until_stopped()
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        process.send_signal(signal.SIGCONT)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL


def test_a_module_that_cannot_be_imported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The start fails at once, and stderr says why."""
    forking = Forking("no_such_module")
    with pytest.raises(RuntimeError, match="the process that forks has ended"):
        start(forking, tmp_path, SHOWS)
    forking.end()
    assert "No module named 'no_such_module'" in capfd.readouterr().err
