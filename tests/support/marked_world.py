"""A server with TLS and an access file whose secrets are marked, and all that it and its clients print."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from support.bus_serving import lasting_port
from support.certificates import Certificate, authority, local
from support.marked import access_file, files_below, leaks, marks, token_files, write_secret
from support.serving import FAST, WITH_SUPPORT, ServerProcess

QS = str(Path(sys.executable).parent / "qs")
CA = str(authority().cert)
OTHER_CA = str(authority("another CA").cert)


class World:
    """A server with TLS and an access file, at `-vv`, and all that was printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secrets = folder / "secrets"
        self.secrets.mkdir()
        self.tokens = token_files(self.secrets)
        self.access = access_file(self.secrets / "access.toml", "orders", "bus:*")
        given = local()
        self.certificate = Certificate(self.secrets / "server.pem", write_secret(self.secrets / "server.key", ""))
        self.certificate.cert.write_text(given.cert.read_text())
        self.certificate.key.write_text(given.key.read_text())
        self.sought = marks(given.key)
        self.told: list[tuple[str, str | bytes]] = []
        tls = ["--tls-cert", str(self.certificate.cert), "--tls-key", str(self.certificate.key)]
        self.closing = [*tls, "--access", str(self.access)]
        history = ["--history", str(folder / "history"), "--history-age", "0.1"]
        self.server = ServerProcess(folder / "root", *FAST, "-vv", *history, *self.closing, port=lasting_port())
        self.secure = ["--server", f"qss://localhost:{self.server.port}", "--ca", CA]
        self.with_token = [*self.secure, "--token-file", self.tokens["token"]]

    def run(self, *command: str, code: int, told: str = "", **environment: str) -> str:
        """Runs a program, keeps what it prints, and compares its exit code. told: is to be in it."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**WITH_SUPPORT, **environment},
        )
        self.told += [(f"stdout of {command}", done.stdout), (f"stderr of {command}", done.stderr)]
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert told in done.stdout + done.stderr, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def note_processes(self) -> None:
        """Keeps the command lines of all processes, as everybody on the machine can see them."""
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            if int(each.parent.name) != os.getpid():
                with contextlib.suppress(OSError):
                    self.told.append((str(each), each.read_bytes().replace(b"\0", b" ")))

    def leaks(self) -> list[str]:
        """Returns where a mark was printed, logged or written."""
        given = [self.folder / "secrets" / each.name for each in self.secrets.iterdir()]
        return leaks([*self.told, *files_below(self.folder, but=given)], self.sought)
