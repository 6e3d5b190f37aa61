"""Starts the queue server and the bus together, says what to do next, and ends both as one.

Each is a process of its own, out of reach of the terminal's Ctrl-C: this one gets it, and stops first the bus, then the
server; likewise when the terminal is closed. If this process is killed, so are they; if one of them ends, so does the
other.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_HERE = Path(__file__).resolve().parent
_SERVER_PORT = 9876
_BUS_PORT = 9878
_LAST_PORT = 65535
_BUS_FLAGS = ("policy", "settle", "max_hold", "outbox")
_DIE_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG
_UNKNOWN = 1  # exit code, when the system does not say how they ended


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_LAST_PORT)) and int(text) <= _LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number between 0 and {_LAST_PORT}")
    return int(text)


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="run",
        description="Runs the queue server and the bus. Every other flag goes to the queue server: see "
        "scripts/queue-server.py --help. The bus alone: scripts/queue-bus.py --help.",
        allow_abbrev=False,
    )
    parser.add_argument("-v", "--verbose", action="count", default=0, help="log what happens, of both")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on, of both (default: %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=_SERVER_PORT, help="of the queue server; 0 picks free ones (default: %(default)s)"
    )
    parser.add_argument("--no-bus", action="store_true", help="only the queue server")
    parser.add_argument(
        "--end-of-document", choices=["line", "empty-line"], default="line", help="of both: see queue-bus.py --help"
    )
    bus = parser.add_argument_group("the bus", "what these mean says scripts/queue-bus.py --help")
    bus.add_argument(
        "--bus-port", type=_port, metavar="PORT", help=f"of the bus (default: {_BUS_PORT}, two more than the server's)"
    )
    bus.add_argument("-q", "--queue", action="append", default=[], metavar="NAME", help="queue that the bus monitors")
    bus.add_argument("--policy", choices=["hold", "disconnect"], help="for subscribers that are too slow")
    bus.add_argument("--settle", metavar="S", help="seconds that subscribers have to come back after it was killed")
    bus.add_argument("--max-hold", metavar="N", help="messages that are held for one client")
    bus.add_argument("--outbox", metavar="N", help="bytes that wait to be read by one client")
    options, rest = parser.parse_known_args()
    if options.bus_port is None:
        options.bus_port = options.port and options.port + _BUS_PORT - _SERVER_PORT
        if options.bus_port > _LAST_PORT and not options.no_bus:
            parser.error(
                f"there is no room for the bus's port, which is two more than --port {options.port}: give --bus-port"
            )
    return options, rest


def _of_bus(options: argparse.Namespace) -> list[str]:
    given = {flag.replace("_", "-"): getattr(options, flag) for flag in _BUS_FLAGS}
    return [
        f"--port={options.bus_port}",
        *(f"--queue={name}" for name in options.queue),
        *(f"--{flag}={value}" for flag, value in given.items() if value is not None),
    ]


def _spawned(script: str, arguments: list[str]) -> subprocess.Popen[bytes]:
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


class _Child(NamedTuple):
    """One of the two. name: as people call it."""

    name: str
    process: subprocess.Popen[bytes]

    def terminate(self) -> None:
        """Not by its Popen, which may find it ended, and then nobody else learns that. Its id is its own until it is
        waited for."""
        os.kill(self.process.pid, signal.SIGTERM)

    def announced(self) -> str:
        """Prints the line that says where it listens. HOST:PORT, or nothing when it has ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        print(line, end="", flush=True)
        return line.rpartition(" ")[2].strip() if line.startswith("listening on ") else ""


class _Children:
    """Those that run, the bus last."""

    def __init__(self) -> None:
        self.stopping = False
        self._running: list[_Child] = []  # and have not been waited for
        self._code: int | None = None

    def start(self, name: str, script: str, arguments: list[str]) -> str:
        """HOST:PORT where it listens, or nothing when it has ended instead."""
        child = _Child(name, _spawned(script, arguments))
        self._running.append(child)
        if self.stopping:  # the signal may have come before there was anybody to tell
            child.terminate()
        return child.announced()

    def stop(self, *_: object) -> None:
        """A handler of signals."""
        # The bus first: it tells the server what was handled. A second time: both, at once.
        for child in self._running if self.stopping else self._running[-1:]:
            child.terminate()
        self.stopping = True

    def wait(self) -> int:
        """Until all have ended: with the first, the others have to. The exit code of whichever ended first, if it is
        not 0."""
        while self._running:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # all have ended, and the system has not kept how
                break
            assert ended is not None
            self._one_less(ended.si_pid)
        code = _UNKNOWN if self._code is None else self._code
        return code if code >= 0 else 128 - code

    def _one_less(self, pid: int) -> None:
        gone = [child for child in self._running if child.process.pid == pid]
        # First: once it has been waited for, its id may be another's, and a signal may come at any moment.
        self._running = [child for child in self._running if child.process.pid != pid]
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for child in gone:
            child.process.returncode = code
            self._code = self._code or code
            if not self.stopping:
                self._say_why(child.name, code)
            self.stopping = True
            for other in self._running:
                other.terminate()

    def _say_why(self, name: str, code: int) -> None:
        how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        others = "".join(f"; stopping {child.name}" for child in self._running)
        if others or code < 0:  # else it has said itself what there is to say, and nothing follows from it
            with contextlib.suppress(OSError):
                print(f"{name} has ended ({how}){others}", file=sys.stderr, flush=True)


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


def _stop_at_signals(children: _Children) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else, where it is ignored, nobody learns how they ended
    signal.signal(signal.SIGINT, children.stop)
    signal.signal(signal.SIGTERM, children.stop)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else nohup wants that it goes on
        signal.signal(signal.SIGHUP, children.stop)


def main() -> int:
    """Exit code: of whichever has ended first."""
    options, rest = _options()
    common = ["-v"] * options.verbose + [f"--host={options.host}", f"--end-of-document={options.end_of_document}"]
    children = _Children()
    _stop_at_signals(children)
    server = children.start("the queue server", "queue-server.py", [*common, f"--port={options.port}", *rest])
    if server and not options.no_bus and not children.stopping:
        bus = children.start("the bus", "queue-bus.py", [*common, f"--server={server}", *_of_bus(options)])
        if bus:
            _say_what_to_type(server, bus)
    return children.wait()


if __name__ == "__main__":
    raise SystemExit(main())
