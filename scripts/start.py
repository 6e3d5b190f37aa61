"""Starts the queue server, the bus and the page, prints what to type next, and stops all together.

All are separate processes that do not get the terminal's Ctrl-C. This process gets it, and stops first the page, then
the bus, then the server. It does the same when the terminal is closed. If this process is killed, all end; if one of
them ends, this process stops the others.
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

from entry import too_old

if too_old(sys.version_info):
    sys.exit(f"run: {too_old(sys.version_info)}")

_HERE = Path(__file__).resolve().parent
_SERVER_PORT = 9876
_BUS_PORT = 9878
_WEB_PORT = 9880
_LAST_PORT = 65535
_BUS_FLAGS = ("policy", "settle", "max_hold", "outbox")
_DIE_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG
_UNKNOWN = 1  # exit code if the system does not say how they ended


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_LAST_PORT)) and int(text) <= _LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number between 0 and {_LAST_PORT}")
    return int(text)


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="run",
        description="Runs the queue server, the bus and the page. Flags that are not listed here go to the queue "
        "server: scripts/queue-server.py --help lists them. scripts/queue-bus.py runs the bus alone, and "
        "scripts/queue-web.py the page.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="log what each of them does; twice: connections too"
    )
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="form of the log of all")
    parser.add_argument("--host", default="127.0.0.1", help="address that all listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=_port,
        default=_SERVER_PORT,
        help="port of the queue server; 0 picks free ports (default: %(default)s)",
    )
    parser.add_argument("--open", action="store_true", help="lets everybody do everything, from other machines too")
    parser.add_argument("--no-bus", action="store_true", help="run without the bus")
    parser.add_argument("--no-web", action="store_true", help="run without the page")
    parser.add_argument(
        "--end-of-document",
        choices=["line", "empty-line"],
        default="line",
        help="what follows each document that the server and the bus send: see queue-bus.py --help",
    )
    _add_bus_flags(parser)
    _add_page_flags(parser)
    options, rest = parser.parse_known_args()
    options.bus_port = _port_beside(parser, options, "bus", _BUS_PORT)
    options.web_port = _port_beside(parser, options, "web", _WEB_PORT)
    return options, rest


def _add_bus_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the bus", "scripts/queue-bus.py --help explains these")
    group.add_argument(
        "--bus-port", type=_port, metavar="PORT", help=f"port of the bus (default: {_BUS_PORT}, the server's plus 2)"
    )
    group.add_argument(
        "-q",
        "--queue",
        action="append",
        default=[],
        metavar="NAME",
        help="a queue for the bus to monitor; repeat it for several",
    )
    group.add_argument("--policy", choices=["hold", "disconnect"], help="what to do with slow subscribers")
    group.add_argument("--settle", metavar="S", help="seconds for subscribers to return after the bus was killed")
    group.add_argument("--max-hold", metavar="N", help="messages that may be held for one client")
    group.add_argument("--outbox", metavar="N", help="bytes that may wait to be read by one client")


def _add_page_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the page", "scripts/queue-web.py --help explains these")
    group.add_argument(
        "--web-port", type=_port, metavar="PORT", help=f"port of the page (default: {_WEB_PORT}, the server's plus 4)"
    )
    group.add_argument("--read-only", action="store_true", help="the page changes nothing")


def _port_beside(parser: argparse.ArgumentParser, options: argparse.Namespace, name: str, default: int) -> int:
    """Returns the port of the bus or the page: as the flag says, or as far from the server's as the defaults are. Ends
    the process if there is no such port. name: as in the flags; default: the port beside the server's default."""
    given: int | None = getattr(options, f"{name}_port")
    if given is not None or options.port == 0:
        return given or 0
    far = default - _SERVER_PORT
    if options.port + far > _LAST_PORT and not getattr(options, f"no_{name}"):
        what = {"bus": "bus", "web": "page"}[name]
        parser.error(
            f"--port {options.port} leaves no port for the {what}, which takes the server's plus {far}: "
            f"give --{name}-port"
        )
    return int(options.port + far)


def _bus_arguments(options: argparse.Namespace) -> list[str]:
    given = {flag.replace("_", "-"): getattr(options, flag) for flag in _BUS_FLAGS}
    return [
        f"--port={options.bus_port}",
        *(f"--queue={name}" for name in options.queue),
        *(f"--{flag}={value}" for flag, value in given.items() if value is not None),
    ]


def _spawn(script: str, arguments: list[str]) -> subprocess.Popen[bytes]:
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


_FOR = {
    "the queue server": "give this address to QueueClient and qs",
    "the bus": "give this address to BusClient and qs tail",
    "the page": "open http://{}/",
}
"""The use of each address, for people."""


class _Child(NamedTuple):
    """The server, the bus or the page. name: as messages call it."""

    name: str
    process: subprocess.Popen[bytes]

    def terminate(self) -> None:
        """Sends SIGTERM without Popen, which might reap an ended process and hide its end from `wait`. The pid is valid
        until the process has been waited for."""
        os.kill(self.process.pid, signal.SIGTERM)

    def announced(self) -> str:
        """Prints where the process listens, and what for. Returns HOST:PORT, or "" if it has ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if not line.startswith("listening on "):
            print(line, end="", flush=True)
            return ""
        address = line.rpartition(" ")[2].strip()
        # The address ends at a space, for programs that look for it.
        print(f"listening on {address} ({self.name}: {_FOR[self.name].format(address)})", flush=True)
        return address


class _Children:
    """The running processes, in the order of their start."""

    def __init__(self) -> None:
        self.stopping = False
        self._running: list[_Child] = []  # not waited for yet
        self._code: int | None = None
        self._told: _Child | None = None  # the last one that was told to stop

    def start(self, name: str, script: str, arguments: list[str]) -> str:
        """Starts a process. Returns HOST:PORT where it listens, or "" if it has ended instead."""
        child = _Child(name, _spawn(script, arguments))
        self._running.append(child)
        if self.stopping:  # a signal may have come before the process existed
            self._stop_last()
        return child.announced()

    def stop(self, *_: object) -> None:
        """Stops the processes. A signal handler."""
        # The last one first: the bus tells the server what was handled. At a second signal: all at once.
        if self.stopping:
            for child in self._running:
                child.terminate()
        self.stopping = True
        self._stop_last()

    def _stop_last(self) -> None:
        """Stops the process that was started last, unless it has been told to."""
        last = self._running[-1] if self._running else None
        if last is not self._told and last is not None:
            self._told = last
            last.terminate()

    def wait(self) -> int:
        """Waits until all have ended, and stops the others when one ends. Returns the first exit code other than 0."""
        while self._running:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # all have ended, and the system did not keep their exit codes
                break
            assert ended is not None
            self._reap(ended.si_pid)
        code = _UNKNOWN if self._code is None else self._code
        return code if code >= 0 else 128 - code

    def _reap(self, pid: int) -> None:
        gone = [child for child in self._running if child.process.pid == pid]
        # Before waitpid: afterwards the pid may be another process's, and a signal may come at any moment.
        self._running = [child for child in self._running if child.process.pid != pid]
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for child in gone:
            child.process.returncode = code
            self._code = self._code or code
            if not self.stopping:
                self._report_end(child.name, code)
            self.stopping = True
        self._stop_last()

    def _report_end(self, name: str, code: int) -> None:
        how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        others = "".join(f"; stopping {child.name}" for child in self._running)
        if others or code < 0:  # otherwise the process itself has said what there is to say
            with contextlib.suppress(OSError):
                print(f"{name} has ended ({how}){others}", file=sys.stderr, flush=True)


def _logging(options: argparse.Namespace) -> list[str]:
    """Returns the flags about the log, which all have."""
    return [*["-v"] * options.verbose, f"--log-format={options.log_format}"]


def _web_arguments(options: argparse.Namespace, server: str, bus: str) -> list[str]:
    """Returns the flags of the page. server, bus: HOST:PORT; bus: "" if there is none."""
    return [
        *_logging(options),
        f"--host={options.host}",
        f"--port={options.web_port}",
        f"--server={server}",
        *[f"--bus={bus}"] * bool(bus),
        *["--open"] * options.open,
        *["--read-only"] * options.read_only,
    ]


def _print_next_steps(server: str, bus: str) -> None:
    """Prints the commands with which README.md begins. server, bus: HOST:PORT; bus: "" if there is none."""
    activate = str(_HERE.parent / ".venv/bin/activate")
    print(f"""
In a second terminal:
    . {min(activate, os.path.relpath(activate), key=len)}""")
    if not server.endswith(f":{_SERVER_PORT}") or (bus and not bus.endswith(f":{_BUS_PORT}")):
        print(f"    export QS_SERVER={server}{bus and f' QS_BUS={bus}'}")
    print(
        """    qs new letters
    qs push letters 'two apples'
    qs receive letters --delete
Ctrl-C stops all.""",
        flush=True,
    )


def _stop_at_signals(children: _Children) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, the exit codes would be lost
    signal.signal(signal.SIGINT, children.stop)
    signal.signal(signal.SIGTERM, children.stop)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, children.stop)


def main() -> int:
    """Runs all. Returns the exit code of the process that ended first."""
    options, rest = _options()
    common = [*_logging(options), f"--host={options.host}", f"--end-of-document={options.end_of_document}"]
    common += ["--open"] * options.open
    children = _Children()
    _stop_at_signals(children)
    server = children.start("the queue server", "queue-server.py", [*common, f"--port={options.port}", *rest])
    bus = web = ""
    if server and not options.no_bus and not children.stopping:
        bus = children.start("the bus", "queue-bus.py", [*common, f"--server={server}", *_bus_arguments(options)])
    run = bool(server and (bus or options.no_bus))
    if run and not options.no_web and not children.stopping:
        web = children.start("the page", "queue-web.py", _web_arguments(options, server, bus))
    if run and (web or options.no_web):
        _print_next_steps(server, bus)
    return children.wait()


if __name__ == "__main__":
    raise SystemExit(main())
