"""What `forking` starts: imports what the programs import, then forks for each that it is asked for.

Run as `forked_programs.py DESCRIPTOR`, one end of a pair of sockets. A request is a JSON object (argv, env, cwd) with
three descriptors; the answer is the id of the process. Ends when the other end is closed.
"""

import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
from typing import Any

PRELOADED = ("qs_server.main.queue_server", "qs_bus.command")
LARGEST = 1 << 17
"""Bytes of a request."""
STANDARD = 3
"""Descriptors of a program: its input, its output and its errors."""
_HIGHEST = 256
"""There are no descriptors beyond it: this process opens next to none."""


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """What to be, in a child; None in the parent, when nobody asks any more."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, LARGEST, STANDARD)
        if not data:
            return None
        said, says = os.pipe()
        between = os.fork()
        if between == 0:
            middle = os.getpid()
            pid = os.fork()
            if pid == 0:
                while os.getppid() == middle:
                    os.sched_yield()  # it is about to end, and before it has the program has another parent
                for wanted, given in enumerate(descriptors):
                    os.dup2(given, wanted)
                os.closerange(STANDARD, _HIGHEST)
                requests.detach()
                program: dict[str, Any] = json.loads(data)
                return program
            os.write(says, b"%d" % pid)
            os._exit(0)
        for descriptor in (*descriptors, says):
            os.close(descriptor)
        os.waitpid(between, 0)  # when it has ended, its child is the child of whoever asks
        requests.send(os.read(said, 20))
        os.close(said)


def become(program: dict[str, Any]) -> None:
    """Runs the script as its own process would be: environment, folder, streams, signals, arguments."""
    os.environ.clear()
    os.environ.update(program["env"])
    os.chdir(program["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = program["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    if os.environ.get("PYTHONUNBUFFERED"):  # nothing is left to be written at the end, where it could fail
        sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
    runpy.run_path(sys.argv[0], run_name="__main__")


def _unbuffered(fd: int) -> io.TextIOWrapper:
    raw = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)  # type: ignore[arg-type]


def main() -> None:
    """The parent waits for requests, out of reach of the terminal's Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in PRELOADED:
        importlib.import_module(name)
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    if program is not None:
        become(program)


if __name__ == "__main__":
    main()
