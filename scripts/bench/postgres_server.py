"""A PostgreSQL of a measurement: a new cluster on a free port of loopback, with all its files in a folder.

It never touches another PostgreSQL of the machine: it has its own files and its own port, and is ended by its own id.
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg
from machine import cpu_seconds, tree
from processes import Process, free_port

_USER = "qs"
_START_WITHIN = 30
_SETTINGS = {
    "max_connections": "200",  # those of all sides of a measurement stay open
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",  # a checkpoint is then the timer's, and not that of the side which happens to have its turn
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "log_checkpoints": "on",
}
"""All others are PostgreSQL's own: fsync, synchronous_commit and full_page_writes are on."""


def programs() -> Path | None:
    """Returns the directory of PostgreSQL's programs, the newest version's, or None without PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("postgres")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Postgres(Process):
    """A PostgreSQL server. Ends within a moment, also if clients are connected."""

    def __init__(self, folder: Path) -> None:
        """folder: gets the data and the log; its parents up to the system's temporary folder are made passable for the
        user that PostgreSQL runs as, because PostgreSQL refuses to run as root. RuntimeError without PostgreSQL."""
        where = programs()
        if where is None:
            raise RuntimeError("PostgreSQL is not installed")
        self.programs = where
        data = folder / "data"
        data.mkdir()
        command: list[str] = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(data, user.pw_uid, user.pw_gid)
            for passed in (folder, folder.parent):
                passed.chmod(passed.stat().st_mode | 0o011)
            # It replaces itself by the program: so the process that is started is PostgreSQL.
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        made = [*command, str(where / "initdb"), "--pgdata", str(data), "--auth=trust", f"--username={_USER}"]
        subprocess.run([*made, "--encoding=UTF8", "--locale=C"], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        port = free_port()
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command += [str(where / "postgres"), "-D", str(data), "-p", str(port), *settings]
        super().__init__(command, folder / "postgres.log", port=port)
        self._databases: list[str] = []
        self._wait()

    def _wait(self) -> None:
        """Waits until it answers: it listens before."""
        until = time.monotonic() + _START_WITHIN
        while True:
            try:
                psycopg.connect(self.dsn("postgres")).close()
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    self.end()
                    raise
                time.sleep(0.02)  # PostgreSQL says nowhere that it is ready
            else:
                return

    def dsn(self, database: str) -> str:
        """Returns what a client needs to connect."""
        return f"host=127.0.0.1 port={self.port} user={_USER} dbname={database}"

    def new_database(self, name: str) -> str:
        """Makes an empty database. Returns its DSN."""
        self.execute("postgres", f'CREATE DATABASE "{name}"')
        return self.dsn(name)

    def execute(self, database: str, *statements: str) -> None:
        """Runs statements, each in a transaction of its own."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def all_processor_seconds(self) -> float:
        """Returns the processor time until now of the server, of all its processes, and of those that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return cpu_seconds(tree(self.pid)) + ended

    def end(self) -> None:
        """Ends the server with a "fast" shutdown: the usual signal would wait until the last client has gone."""
        self.process.send_signal(signal.SIGINT)
        super().end()
