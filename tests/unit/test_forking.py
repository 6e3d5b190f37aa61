"""What starts the servers of tests: a program that it forks is as one that was started alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from forking import Forked, started

Started = Forked | subprocess.Popen[bytes]
Start = Callable[..., Started]

TOLD = """
import json, os, signal, sys
print(json.dumps([
    __name__, sys.argv[1:], os.environ["QS_TOLD"], os.getcwd(), os.getppid(), os.getsid(0), os.getpgid(0),
    sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")), sys.stdin.read(), sys.path[0],
    signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
]), flush=True)
print("to the log", file=sys.stderr)
sys.exit(7)
"""
WAITS = "import sys, threading; print('ready', flush=True); threading.Event().wait()"


@pytest.fixture(params=["yes", "no"])
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a script, forked or not."""
    monkeypatch.setenv("QS_TESTS_FORK", request.param)
    monkeypatch.chdir(tmp_path)

    def start(script: str, arguments: Sequence[str] = (), more: Mapping[str, str] | None = None) -> Started:
        path = tmp_path / "script.py"
        path.write_text(script)
        with (tmp_path / "log").open("ab") as log:
            env = {**os.environ, "PYTHONUNBUFFERED": "1", **(more or {})}
            child = started([sys.executable, str(path), *arguments], log, env)
        assert isinstance(child, Forked) == (request.param == "yes")
        return child

    return start


def read(child: Started) -> str:
    assert child.stdout is not None
    with child.stdout:
        return child.stdout.read().decode()


def test_what_it_has(start: Start, tmp_path: Path) -> None:
    """Arguments, environment, folder, streams, signals, its parent: its own, and no descriptor of anybody else's."""
    child = start(TOLD, ["a", "b c"], {"QS_TOLD": "\N{SNOWMAN}"})
    told = read(child)
    assert child.wait(30) == child.poll() == child.returncode == 7
    assert (tmp_path / "log").read_text() == "to the log\n"
    expected = ["__main__", ["a", "b c"], "\N{SNOWMAN}", str(tmp_path), os.getpid(), os.getsid(0), os.getpgid(0)]
    expected += [["0", "1", "2"], 4, "", str(tmp_path), True, True]
    assert json.loads(told) == expected


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_signals(start: Start, sig: signal.Signals) -> None:
    """What ends it is told, as often as one asks; then it is sent no more."""
    child = start(WAITS)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    child.send_signal(sig)
    assert child.wait(30) == -sig
    child.kill()
    child.terminate()
    assert child.wait(30) == child.poll() == -sig
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    child.stdout.close()


def test_a_traceback(start: Start, tmp_path: Path) -> None:
    """What goes wrong in it is in its log."""
    child = start("raise ValueError('it is so')")
    assert read(child) == ""
    assert child.wait(30) == 1
    assert "ValueError: it is so" in (tmp_path / "log").read_text()


def test_another_environment_of_python(tmp_path: Path) -> None:
    """What Python looks at when it starts is not ignored: then it is started alone."""
    (tmp_path / "log").touch()
    (tmp_path / "script.py").write_text("import sys; print(sys.flags.optimize)")
    with (tmp_path / "log").open("ab") as log:
        child = started([sys.executable, str(tmp_path / "script.py")], log, {**os.environ, "PYTHONOPTIMIZE": "2"})
    assert read(child) == "2\n"
    assert child.wait(30) == 0
