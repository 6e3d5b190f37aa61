"""Plays systemd for a server, and a machine with systemd for the page about the services."""

import contextlib
import fcntl
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from qs_testing.programs import READY_WITHIN
from support.console import Console, Step
from support.servers.processes import PROJECT

_HIGH = 100
"""A number above all descriptors that are handed over."""
_EXEC = (
    "import os, sys\n"
    "for number, descriptor in enumerate(sys.argv[1].split(','), 3):\n"
    "    os.dup2(int(descriptor), number)\n"
    "os.environ['LISTEN_PID'] = str(os.getpid())\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)
"""Runs in the child between fork and exec, because only there the process id is known."""


class PlayedSystemd:
    """Starts one service, again and again. sockets: stay open all the time; pid: the process id of the running
    service."""

    def __init__(self, folder: Path, sockets: Sequence[socket.socket] = (), *, abstract: bool = False) -> None:
        """folder: holds the notify socket and the log. abstract: the notify socket has no file."""
        self.sockets = sockets
        self.log = folder / "service.log"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"@{folder}/notify" if abstract else f"{folder}/notify"
        self._notify.bind(name.replace("@", "\0"))
        self._environ = {**os.environ, "PYTHONUNBUFFERED": "1", "NOTIFY_SOCKET": name}
        self._heard: list[dict[str, str]] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], **environ: str) -> None:
        """Starts the service, with these variables added. Does not wait until it is ready."""
        passed = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _HIGH) for each in self.sockets]
        if passed:
            names = ":".join(f"socket{number}" for number in range(len(passed)))
            environ = {"LISTEN_FDS": str(len(passed)), "LISTEN_FDNAMES": names, **environ}
            command = [sys.executable, "-c", _EXEC, ",".join(map(str, passed)), *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._environ, **environ},
                pass_fds=passed,
            )
        for descriptor in passed:
            os.close(descriptor)

    def hear(self, within: float = READY_WITHIN) -> dict[str, str]:
        """Returns the next thing that the service reports. Raises TimeoutError if it reports nothing in that many
        seconds."""
        self._notify.settimeout(within)
        lines = self._notify.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def hear_all(self) -> list[dict[str, str]]:
        """Returns everything that the service has reported and `hear` has not returned."""
        heard = []
        while select.select([self._notify], [], [], 0)[0]:
            heard.append(self.hear())
        return heard

    def until(self, name: str, value: str = "1") -> dict[str, str]:
        """Waits until the service reports this name and value, skipping other reports. Returns the report."""
        until = time.monotonic() + READY_WITHIN
        while True:
            said = self.hear(until - time.monotonic())
            if said.get(name) == value:
                return said

    def send_signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the service with a signal. Returns its exit code."""
        self.send_signal(number)
        assert self.process is not None
        return self.process.wait(READY_WITHIN)

    def port(self) -> int:
        """Returns the port of the log's last line about listening."""
        return int(re.findall(r"^listening on .*:(\d+)$", self.log.read_text(), re.MULTILINE)[-1])

    def close(self) -> None:
        """Ends the running service."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(READY_WITHIN)
        self._notify.close()


@contextlib.contextmanager
def played_systemd(
    folder: Path, sockets: Sequence[socket.socket] = (), *, abstract: bool = False
) -> Iterator[PlayedSystemd]:
    """Plays systemd for a with block. The log must hold no traceback at the end."""
    played = PlayedSystemd(folder, sockets, abstract=abstract)
    try:
        yield played
    finally:
        played.close()
    assert "Traceback" not in played.log.read_text(), played.log.read_text()


_ABSOLUTE = re.compile(r"(?<![\w.])/(?=(etc|opt|var)/)")
_SYSTEMCTL = "sudo systemctl "
_UNITS = "/etc/systemd/system"
_STUBS = """
sudo() { if [ "$1" = -u ]; then shift 2; fi; "$@"; }
chown() { :; }
systemd-sysusers() { :; }
rm() { command rm "$@"; hash -r; }
"""
"""Shell functions for commands that need root. The last line makes the shell forget where it found commands."""


class Machine(Console):
    """A console in which /etc, /opt and /var are folders of its own, and no command needs root. `systemctl` starts the
    programs of the units that have been copied to /etc/systemd/system, with sockets that are always open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name in ("etc/systemd/system", "etc/sysusers.d", "var/lib", "var/backups", "opt/qs"):
            (folder / name).mkdir(parents=True)
        (folder / "opt/qs/.venv").symlink_to(Path(sys.executable).parent.parent)
        (folder / "packaging").symlink_to(PROJECT / "packaging")
        self._say(_STUBS)
        self._sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("qs-server", "qs-bus")}
        self._services: dict[str, PlayedSystemd] = {}
        for name, listening in self._sockets.items():
            (folder / name).mkdir()
            self._services[name] = PlayedSystemd(folder / name, [listening])

    def _point_to_services(self) -> None:
        """Makes the commands from now on use the services, and the settings in /etc/qs."""
        port, bus_port = (self._sockets[name].getsockname()[1] for name in ("qs-server", "qs-bus"))
        self.point_to(port)
        self.bus_port = str(bus_port)
        self._tell("QS_BUS", bus_port)
        for settings in (self.folder / "etc/qs").glob("*.toml"):
            settings.write_text(self._hide(settings.read_text().replace(str(self.folder), "")))

    def run(self, step: Step) -> str:
        """Runs a command. Returns its output."""
        if step.command.startswith(_SYSTEMCTL):
            self._systemctl(*shlex.split(step.command.removeprefix(_SYSTEMCTL)))
            return ""
        return super().run(step)

    def _hide(self, text: str) -> str:
        return _ABSOLUTE.sub(f"{self.folder}/", super()._hide(text))

    def _show(self, text: str) -> str:
        return super()._show(text).replace(str(self.folder), "")

    def _systemctl(self, verb: str, *words: str) -> None:
        units = [word for word in words if word != "--now"]
        for unit in units:
            file = unit if "." in unit else f"{unit}.service"
            assert Path(self._hide(f"{_UNITS}/{file}")).exists(), f"{verb} {unit}: there is no unit {file}"
        services = [unit for unit in units if unit in self._services]
        assert services or verb == "daemon-reload", f"systemctl {verb} of nothing: {words}"
        if verb in ("start", "enable"):
            self._point_to_services()
        for name in services:
            service = self._services[name]
            if verb in ("stop", "restart", "disable") and service.process is not None:
                assert service.stop() == 0, service.log.read_text()
            if verb in ("start", "restart", "enable"):
                unit = Path(self._hide(f"{_UNITS}/{name}.service")).read_text()
                service.start(shlex.split(self._hide(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0])))
            if verb == "reload":
                service.send_signal(signal.SIGHUP)
            if verb in ("start", "restart", "enable", "reload"):
                service.until("READY")

    def close(self) -> None:
        """Ends all processes that were started."""
        for service in self._services.values():
            service.close()
        for listening in self._sockets.values():
            listening.close()
        super().close()
