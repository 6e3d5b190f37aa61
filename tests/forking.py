"""Starts servers as processes of their own that need not import first what each of them imports.

A parent, one for each process that runs tests, has imported it and forks: what takes 0.7 s of a processor otherwise
takes a few hundredths. The program is a child of this process like any other, with an environment, descriptors and
signals of its own, and can be killed. Tests of how programs are started start them with subprocess, as people do, and
`QS_TESTS_FORK=no` makes all of them start so.
"""

import ctypes
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_PROGRAM = Path(__file__).with_name("forked_programs.py")
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_ENVIRONMENT = dict(os.environ)
"""As it is before any test changes it."""
_asking = threading.Lock()


class Forked:
    """A child, with the part of Popen's interface that tests of servers use."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, or minus the signal; None while it runs."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. subprocess.TimeoutExpired after so many seconds."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                poll = select.poll()  # unlike select(), it takes any descriptor
                poll.register(descriptor, select.POLLIN)
                ended = poll.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(descriptor)
            if not ended:
                raise subprocess.TimeoutExpired(str(_PROGRAM), timeout or 0)
            self.poll()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Nothing happens when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _parent() -> socket.socket:
    """Asks the parent, which ends when this process does."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), str(its.fileno())],
            pass_fds=[its.fileno()],
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    process.returncode = 0  # never waited for: it ends only after the interpreter that would
    return ours


def _of_python(env: Mapping[str, str]) -> dict[str, str]:
    """What only a start of Python looks at."""
    found = {name: env[name] for name in env if name.startswith(("PYTHON", "LC_", "LANG", "TZ"))}
    return {name: found[name] for name in found if name != "PYTHONUNBUFFERED"}


def started(command: Sequence[str], log: IO[bytes], env: Mapping[str, str]) -> Forked | subprocess.Popen[bytes]:
    """`[sys.executable, script, *arguments]`, with its output in a pipe and its errors in the log."""
    if os.environ.get("QS_TESTS_FORK") == "no" or _of_python(env) != _of_python(_ENVIRONMENT):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=dict(env))
    request = json.dumps({"argv": command[1:], "env": dict(env), "cwd": os.getcwd()}).encode()
    reads, writes = os.pipe()
    with _asking, open(os.devnull, "rb") as nothing:
        libc = ctypes.CDLL(None)
        # For the moment only: elsewhere, who is left alone by its parent is not this process's child.
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(_parent(), [request], [nothing.fileno(), writes, log.fileno()])
            answer = _parent().recv(20)
        finally:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            os.close(writes)
    output = os.fdopen(reads, "rb")
    if not answer:
        output.close()
        raise RuntimeError(f"{_PROGRAM.name} has ended, and says why on stderr; QS_TESTS_FORK=no does without it")
    return Forked(int(answer), output)
