"""Starts Python programs as forks of a process that has imported their modules already: a start takes a tenth of the
processor time, most of which goes into imports. The program runs in a process of its own, with its own id, arguments,
environment and standard streams, and is stopped or killed like any other.

Nothing is left behind: when the tests' process ends, however it ends, the process that forks kills what it has started,
removes the folders that it was told of, and ends. This file is run in the process that forks."""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO

_PR_SET_PDEATHSIG = 1
_ORDER = 1 << 17
"""Bytes of the largest order: arguments and the environment."""


class ForkedProcess:
    """A process that `Forking.start` has started, with the interface of `subprocess.Popen`. stdout: its output."""

    def __init__(self, forking: "Forking", pid: int, stdout: BinaryIO) -> None:
        self._forking = forking
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._lock = threading.Lock()  # its end is told once

    def poll(self) -> int | None:
        """Returns the exit code, minus the number of the signal that ended it, None while it runs."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._forking.exit_code(self.pid)
            return self.returncode

    def wait(self, timeout: float) -> int:
        """Sleeps until the process ends, and returns its exit code. timeout: seconds. Raises
        subprocess.TimeoutExpired."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                ends = select.poll()  # unlike select(), it takes any descriptor
                ends.register(descriptor, select.POLLIN)
                ends.poll(timeout * 1000)
            finally:
                os.close(descriptor)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def send_signal(self, sig: int) -> None:
        """Sends a signal, unless the process has ended: another process may have its id."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def until_stopped(self) -> None:
        """Waits until the process, which was sent SIGSTOP, has stopped."""
        self._forking.await_stop(self.pid)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forking:
    """A process that has imported some modules, and forks. It ends with the tests' process, and with it ends all that
    it has started. A Ctrl-C in the terminal does not reach it: the tests end what they have started."""

    def __init__(self, *modules: str) -> None:
        self._lock = threading.Lock()  # some tests start servers in threads
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own file
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def start(self, script: Path | str, *arguments: str, log: BinaryIO, **variables: str) -> ForkedProcess:
        """Runs a program in a new process, with the present environment and directory, and without an input. script:
        the path of a script, or the name of a module; log: a file for its stderr; variables: are added to the
        environment."""
        given = {
            "module": isinstance(script, str),
            "argv": [str(script), *arguments],
            "environ": {**os.environ, **variables},
            "cwd": os.getcwd(),
        }
        reading, writing = os.pipe()
        with open(os.devnull, "rb") as nothing, open(writing, "wb") as stdout:
            pid = self._ask(given, nothing.fileno(), stdout.fileno(), log.fileno())
        if pid is None:
            raise RuntimeError("the process that forks has not said what it has started")
        return ForkedProcess(self, pid, open(reading, "rb"))

    def run(self, script: Path | str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a script that ends by itself, and returns what it printed."""
        with tempfile.TemporaryFile() as log:
            process = self.start(script, *arguments, log=log, **variables)
            with process.stdout:
                printed = process.stdout.read().decode()
            code = process.wait(60)
            log.seek(0)
            return subprocess.CompletedProcess([str(script), *arguments], code, printed, log.read().decode())

    def exit_code(self, pid: int) -> int | None:
        """Returns the exit code of a process that has ended, once; None for one that runs."""
        return self._ask({"ended": pid})

    def await_stop(self, pid: int) -> None:
        """Waits until a process that was sent SIGSTOP has stopped."""
        self._ask({"stops": pid})

    def remove_at_end(self, folder: Path) -> None:
        """Notes a folder that is to be removed if the tests' process ends without having removed it."""
        self._ask({"folder": str(folder)})

    def end(self) -> None:
        """Ends the process that forks, and all processes that it has started and that still run."""
        self._orders.close()
        self._process.wait()

    def _ask(self, order: dict[str, object], *descriptors: int) -> int | None:
        data = json.dumps(order).encode()
        if len(data) > _ORDER:
            raise ValueError(f"the arguments and the environment have {len(data)} bytes, and at most {_ORDER} are sent")
        try:
            with self._lock:
                socket.send_fds(self._orders, [data], descriptors)
                answer = self._orders.recv(100)
        except OSError:
            answer = b""
        if not answer:
            raise RuntimeError("the process that forks has ended")
        number: int | None = json.loads(answer)
        return number


_forking: dict[tuple[str, ...], Forking] = {}


def forking(*modules: str) -> Forking:
    """Returns the process that forks for these modules. A test process has one for each combination of the settings
    that Python itself reads when it starts, because a fork cannot change them."""
    key = *modules, *sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("PYTHON"))
    if key not in _forking:
        _forking[key] = Forking(*modules)
    return _forking[key]


def end_forking() -> None:
    """Ends all processes that fork."""
    while _forking:
        _forking.popitem()[1].end()


def _serve(orders: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Answers orders until there are no more, ends what was started, and returns None. In a process forked from this
    one, returns the process's order."""
    running: set[int] = set()
    folders: set[str] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(orders, _ORDER, 3)
        if not data:
            _end_all(running, folders)
            return None
        order = json.loads(data)
        if "ended" in order:
            pid, status = os.waitpid(order["ended"], os.WNOHANG)
            running.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif "folder" in order:
            folders.add(order["folder"])
            answer = None
        elif "stops" in order:
            os.waitid(os.P_PID, order["stops"], os.WSTOPPED)
            answer = None
        else:
            answer = os.fork()
            if answer == 0:
                return order, descriptors
            running.add(answer)
            for each in descriptors:
                os.close(each)
        orders.send(json.dumps(answer).encode())


def _end_all(pids: set[int], folders: set[str]) -> None:
    """Kills processes of this one, and removes folders."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _main(descriptor: str, *modules: str) -> None:
    """Imports the modules and forks. Runs the script in the forked process, as `python script` does."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal all get it: the tests end servers
    for module in modules:
        __import__(module)
    gc.collect()
    gc.freeze()  # so that a collection in a forked process copies no pages
    with socket.socket(fileno=int(descriptor)) as orders:
        served = _serve(orders)
    if served is None:
        return
    order, descriptors = served
    signal.signal(signal.SIGINT, usual)
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["cwd"])
    sys.argv = order["argv"]
    # Whoever is killed himself must not leave this process alone.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if order["module"]:
        sys.modules.pop(sys.argv[0], None)  # it is run anew; with an import of it, runpy would warn in the log
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
