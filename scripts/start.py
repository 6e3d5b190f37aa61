"""Starts the queue server and the bus together, says what to do next, and ends both as one.

Each is a process of its own, out of reach of the terminal's Ctrl-C: this one gets it, and stops first the bus, then the
server. If this process is killed, so are they; if one of them ends, so does the other.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_SERVER_PORT = 9876
_BUS_PORT = 9878
_DIE_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="run",
        description="Runs the queue server and the bus. Every other flag goes to the queue server: see "
        "scripts/queue-server.py --help. The bus alone: scripts/queue-bus.py --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--no-bus", action="store_true", help="only the queue server")
    parser.add_argument(
        "--bus-port", type=int, metavar="PORT", help=f"of the bus (default: {_BUS_PORT}, two more than the server's)"
    )
    parser.add_argument(
        "-q", "--queue", action="append", default=[], metavar="NAME", help="queue that the bus monitors"
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log what happens, of both")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, of both (default: %(default)s)")
    parser.add_argument("--port", default=str(_SERVER_PORT), help="of the queue server (default: %(default)s)")
    return parser.parse_known_args()


def _child(script: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen(
        [sys.executable, str(_HERE / script), *arguments],
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - there are no threads
    )


def _announced(child: subprocess.Popen[bytes]) -> str:
    """Prints the line that says where it listens. HOST:PORT, or nothing when it has ended instead."""
    assert child.stdout is not None
    line = child.stdout.readline().decode()
    print(line, end="", flush=True)
    return line.rpartition(" ")[2].strip() if line.startswith("listening on ") else ""


def _bus_port(options: argparse.Namespace) -> int:
    if options.bus_port is not None:
        return int(options.bus_port)
    port = int(options.port) if options.port.isdigit() else 0
    return port + _BUS_PORT - _SERVER_PORT if port else 0


def _say_what_to_type(server: str, bus: str) -> None:
    activate = str(_HERE.parent / ".venv/bin/activate")
    print(f"""
In a second terminal:
    . {min(activate, os.path.relpath(activate), key=len)}""")
    if not server.endswith(f":{_SERVER_PORT}") or not bus.endswith(f":{_BUS_PORT}"):
        print(f"    export QS_SERVER={server} QS_BUS={bus}")
    print(
        """    qs new orders
    qs tail orders
and in a third, likewise:
    qs push orders 'two apples'
Ctrl-C ends both.""",
        flush=True,
    )


def main() -> int:
    """Exit code: of whichever has ended first."""
    options, rest = _options()
    common = ["-v"] * options.verbose + ["--host", options.host]
    children: list[subprocess.Popen[bytes]] = []
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        # The bus first: it tells the server what was handled. A second time: both, at once.
        for child in children if stopping else children[-1:]:
            child.terminate()
        stopping = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    children.append(_child("queue-server.py", [*common, "--port", options.port, *rest]))
    server = _announced(children[0])
    if server and not options.no_bus and not stopping:
        queues = [flag for name in options.queue for flag in ("-q", name)]
        children.append(_child("queue-bus.py", [*common, "-s", server, "--port", str(_bus_port(options)), *queues]))
        bus = _announced(children[1])
        if bus:
            _say_what_to_type(server, bus)
    return _wait(children)


def _wait(children: list[subprocess.Popen[bytes]]) -> int:
    """Until all have ended: with the first, the others have to."""
    code: int | None = None
    while children:
        ended, status = os.waitpid(-1, 0)
        for child in [child for child in children if child.pid == ended]:
            child.returncode = os.waitstatus_to_exitcode(status)
            children.remove(child)
            code = child.returncode if code is None else code or child.returncode
        for child in children:
            child.terminate()
    return code if code is None or code >= 0 else 128 - code


if __name__ == "__main__":
    raise SystemExit(main())
