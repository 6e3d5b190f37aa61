"""A parent that does for a server what systemd does: opens its sockets, starts it again, hears what it says."""

import contextlib
import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.serving import READY_WITHIN

_HIGH = 100
"""A descriptor from which on none of the handed over ones is."""
_EXEC = (
    "import os, sys\n"
    "for number, descriptor in enumerate(sys.argv[1].split(','), 3):\n"
    "    os.dup2(int(descriptor), number)\n"
    "os.environ['LISTEN_PID'] = str(os.getpid())\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)
"""Runs in the child between fork and exec: only there its process id is known."""


class PlayedSystemd:
    """Starts one service, again and again. sockets: open all the time; pid: of the service that runs."""

    def __init__(self, folder: Path, sockets: Sequence[socket.socket] = (), *, abstract: bool = False) -> None:
        """folder: for the notify socket and the log. abstract: the notify socket has no file."""
        self.sockets = sockets
        self.log = folder / "service.log"
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"@{folder}/notify" if abstract else f"{folder}/notify"
        self._notify.bind(name.replace("@", "\0"))
        self._environ = {**os.environ, "PYTHONUNBUFFERED": "1", "NOTIFY_SOCKET": name}
        self._heard: list[dict[str, str]] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], **environ: str) -> None:
        """Starts the service, with these variables too. Does not wait until it is ready."""
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
        """Returns the next thing that the service reports. TimeoutError if it reports nothing for so many seconds."""
        self._notify.settimeout(within)
        lines = self._notify.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def hear_all(self) -> list[dict[str, str]]:
        """Returns what it has said by now, and nobody has heard."""
        heard = []
        while select.select([self._notify], [], [], 0)[0]:
            heard.append(self.hear())
        return heard

    def until(self, name: str, value: str = "1") -> dict[str, str]:
        """Returns what the service says when it says this, of itself; other things before it are passed over."""
        until = time.monotonic() + READY_WITHIN
        while True:
            said = self.hear(until - time.monotonic())
            if said.get(name) == value:
                return said

    def send_signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the service. Its exit code."""
        self.send_signal(number)
        assert self.process is not None
        return self.process.wait(READY_WITHIN)

    def port(self) -> int:
        """Returns the port of the log's last line about listening."""
        return int(re.findall(r"^listening on .*:(\d+)$", self.log.read_text(), re.MULTILINE)[-1])

    def close(self) -> None:
        """Ends what runs."""
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
