"""Starts Python programs as forks of a process that has imported their modules already: a start takes a tenth of the
processor time, most of which goes into imports. The program runs in a process of its own, with its own id, arguments,
environment and standard streams, and is stopped or killed like any other. This file is run in the process that
forks."""

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO

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
    """A process that has imported some modules, and forks. It ends with the tests' process."""

    def __init__(self, *modules: str) -> None:
        self._lock = threading.Lock()  # some tests start servers in threads
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def start(self, script: Path, *arguments: str, log: BinaryIO, **variables: str) -> ForkedProcess:
        """Runs a script in a new process, with the present environment and directory, and without an input. log: a file
        for its stderr; variables: are added to the environment."""
        given = {"argv": [str(script), *arguments], "environ": {**os.environ, **variables}, "cwd": os.getcwd()}
        reading, writing = os.pipe()
        with open(os.devnull, "rb") as nothing, open(writing, "wb") as stdout:
            pid = self._ask(given, nothing.fileno(), stdout.fileno(), log.fileno())
        assert pid is not None
        return ForkedProcess(self, pid, open(reading, "rb"))

    def run(self, script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
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

    def end(self) -> None:
        """Ends the process that forks, and leaves alone the processes that it has started."""
        self._orders.close()
        self._process.wait()

    def _ask(self, order: dict[str, object], *descriptors: int) -> int | None:
        data = json.dumps(order).encode()
        assert len(data) <= _ORDER
        try:
            with self._lock:
                socket.send_fds(self._orders, [data], descriptors)
                answer = self._orders.recv(100)
        except OSError:
            answer = b""
        assert answer, "the process that forks has ended"
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
    """Answers orders until there are no more, and returns None. In a process forked from this one, returns the
    process's order."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(orders, _ORDER, 3)
        if not data:
            return None
        order = json.loads(data)
        if "ended" in order:
            pid, status = os.waitpid(order["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif "stops" in order:
            os.waitid(os.P_PID, order["stops"], os.WSTOPPED)
            answer = None
        else:
            answer = os.fork()
            if answer == 0:
                return order, descriptors
            for each in descriptors:
                os.close(each)
        orders.send(json.dumps(answer).encode())


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
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main(*sys.argv[1:])
