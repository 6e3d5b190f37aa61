"""A machine with systemd, as far as a page about the services shows it: a folder is its root directory."""

import re
import shlex
import signal
import socket
import sys
from pathlib import Path

from support.console import Console, Step
from support.played_systemd import PlayedSystemd
from support.serving import PROJECT

_ABSOLUTE = re.compile(r"(?<![\w.])/(?=(etc|opt|var)/)")
_SYSTEMCTL = "sudo systemctl "
_UNITS = "/etc/systemd/system"
_STUBS = """
sudo() { if [ "$1" = -u ]; then shift 2; fi; "$@"; }
chown() { :; }
systemd-sysusers() { :; }
rm() { command rm "$@"; hash -r; }
"""
"""Shell functions for commands that need root; the last line lets the shell forget where commands were."""


class Machine(Console):
    """A console in which /etc, /opt and /var are folders of its own, and nobody needs to be root. `systemctl` starts
    the programs of the units that have been copied to /etc/systemd/system, with sockets that are always open."""

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
        """Commands from now on mean the services, and so do the settings in /etc/qs."""
        port, bus_port = (self._sockets[name].getsockname()[1] for name in ("qs-server", "qs-bus"))
        self.point_to(port)
        self.bus_port = str(bus_port)
        self._tell("QS_BUS", bus_port)
        for settings in (self.folder / "etc/qs").glob("*.toml"):
            settings.write_text(self._hide(settings.read_text().replace(str(self.folder), "")))

    def run(self, step: Step) -> str:
        """Returns what the command prints."""
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
        """Ends all that was started."""
        for service in self._services.values():
            service.close()
        for listening in self._sockets.values():
            listening.close()
        super().close()
