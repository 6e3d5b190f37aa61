"""The processes of a measurement: how each is started, known to be ready, and ended by its own id.

`Process` is a server that is measured: one of qs, a bare one of `bare_server`, or another project's in Debian's
package, always on a free port of loopback with all its files in a folder. `Assistant` is a script of this directory
that makes load for a measurement in a process of its own.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

PROJECT = Path(__file__).resolve().parents[2]
BENCH = Path(__file__).resolve().parent
BUS = PROJECT / "scripts" / "queue-bus.py"

RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's command on the PATH runs this one as another user, who cannot write to our folder."""

_START_WITHIN = 60
_END_WITHIN = 60
"""Seconds. A server may first write its memory to the disk: then it ends late, and that is not an error."""


class Process:
    """A server of a measurement.

    Ensures:
    1. Clients can connect when the constructor returns. If it raises, the process has ended.
    2. It is ended by its own id: another process of the same name is never touched.
    3. An error in the `with` block of a process that has died carries the end of its log.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """port: the port on which it will listen. None: it prints `listening on HOST:PORT`, as the programs of qs do.
        log: gets its other output."""
        self._log = log
        self.started = time.perf_counter()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if port is None else output,
                stderr=output,
                env=environment,
                cwd=None if port is None else log.parent,
            )
        try:
            self.address = self._printed() if port is None else self._connectable(port)
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return self.address[1]

    def _printed(self) -> tuple[str, int]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        ready = re.fullmatch(r"listening on (.+):(\d+)\n", line)
        if ready is None:
            raise RuntimeError(f"{self.process.args!r} printed {line!r}: {self._log.read_text()[-2000:]}")
        return ready[1], int(ready[2])

    def _connectable(self, port: int) -> tuple[str, int]:
        address = ("127.0.0.1", port)
        until = time.monotonic() + _START_WITHIN
        while time.monotonic() < until and self.process.poll() is None:
            try:
                socket.create_connection(address, 1).close()
            except OSError:
                time.sleep(0.02)  # a program of others says nowhere that it listens
            else:
                return address
        raise RuntimeError(f"{self.process.args!r} did not start to listen: {self._log.read_text()[-2000:]}")

    def resident_bytes(self) -> int:
        """Returns the present memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def processor_seconds(self) -> float:
        """Returns the processor time of all its threads until now, with a resolution of nanoseconds: /proc counts
        ticks."""
        # The clock of another process, as clock_getcpuclockid(3) makes its number.
        return time.clock_gettime(~self.pid << 3 | 2)

    def end(self) -> None:
        """Ends the process with SIGTERM, or with SIGKILL if it does not end."""
        self.process.terminate()
        try:
            self.process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        died = self.process.poll()
        self.end()
        if error is not None and died is not None:
            error.add_note(f"the process had ended with {died}; its log:\n{self._log.read_text()[-2000:]}")


class Assistant:
    """A script of this directory that makes load in a process of its own, because it would slow this process.

    It prints a line when it is ready, for which the constructor waits, and ends when its stdin does, or when the `with`
    block does. It shares the stderr of this process.
    """

    def __init__(self, script: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(BENCH / script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.line()

    @property
    def output(self) -> IO[bytes]:
        """Waits until there is output; `line` then does not block for long."""
        assert self.process.stdout is not None
        return self.process.stdout

    def tell(self, line: bytes) -> None:
        """Writes a line to the script's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")

    def line(self) -> bytes:
        """Returns the script's next line. Raises RuntimeError if the script has failed; its stderr says why."""
        line = self.output.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} failed")
        return line.strip()

    def finish(self) -> None:
        """Ends the script through its stdin. Raises RuntimeError if the script has failed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.wait(_END_WITHIN) != 0:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.returncode}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.output.close()
        self.process.wait()


# -- programs of qs, and bare ones to compare with -------------------------------------------------------------------


def queue_server(root: Path, *flags: str, checkout: Path = PROJECT) -> Process:
    """Starts the queue server. checkout: another one is run by this interpreter too, with the installed libraries."""
    program = str(checkout / "scripts" / "queue-server.py")
    # Python finds what PYTHONPATH names before what is installed.
    packages = sorted(str(found.parent.parent) for found in checkout.glob("*/qs_*/__init__.py"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(packages)} if checkout != PROJECT else None
    command = [sys.executable, program, "--root", str(root), "--port", "0", *flags]
    return Process(command, root.with_suffix(".log"), environment=environment)


def queue_bus(folder: Path, server: tuple[str, int], *queues: str, flags: Sequence[str] = ()) -> Process:
    """Starts the bus of these queues."""
    named = [word for qid in queues for word in ("-q", qid)]
    command = [sys.executable, str(BUS), "-s", f"{server[0]}:{server[1]}", *named, "--port", "0", *flags]
    return Process(command, folder / "bus.log")


def queue_web(log: Path, server: tuple[str, int]) -> Process:
    """Starts the page of a queue server. log: path of its log, without the suffix."""
    program = str(PROJECT / "scripts" / "queue-web.py")
    return Process([sys.executable, program, "-s", f"{server[0]}:{server[1]}", "--port", "0"], log.with_suffix(".log"))


def bare_server(folder: Path, kind: str) -> Process:
    """Starts a trio server that does only what its kind says: see bare_server.py."""
    return Process([sys.executable, str(BENCH / "bare_server.py"), kind], folder / f"bare-{kind}.log")


# -- programs of others, each as Debian installs it ------------------------------------------------------------------


def free_port() -> int:
    """Returns a port of loopback that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextmanager
def redis_server(folder: Path, *flags: str) -> Iterator[Process]:
    """Starts Redis with its built-in settings: Debian's file says the same about storage."""
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    with Process([*command, *flags], folder / "log", port=port) as process:
        yield process


@contextmanager
def beanstalkd(folder: Path, *flags: str) -> Iterator[Process]:
    """Starts beanstalkd with its log in the folder; without a log it keeps nothing."""
    port = free_port()
    command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder)]
    with Process([*command, *flags], folder / "log", port=port) as process:
        yield process


@contextmanager
def nats_server(
    folder: Path, *flags: str, jetstream: str | None = None, command: str = "nats-server"
) -> Iterator[Process]:
    """Starts NATS with its built-in settings. jetstream: lines of the block `jetstream` of its configuration."""
    port = free_port()
    started = [command, "--addr", "127.0.0.1", "--port", str(port)]
    if jetstream is None:
        started += ["--store_dir", str(folder)]
    else:
        started += ["--config", str(nats_configuration(folder, jetstream))]
    with Process([*started, *flags], folder / "log", port=port) as process:
        yield process


def nats_configuration(folder: Path, jetstream: str) -> Path:
    """Writes a configuration file with JetStream in the folder."""
    written = folder / "nats.conf"
    written.write_text(f'jetstream {{\n  store_dir: "{folder}"\n  {jetstream}\n}}\n')
    return written


@contextmanager
def rabbitmq_server(folder: Path) -> Iterator[Process]:
    """Starts RabbitMQ with its built-in settings, and a name server (epmd) of its own, which is ended with it. RabbitMQ
    would otherwise start an epmd that stays when the measurement has ended."""
    port, names = free_port(), free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_ALLOW_INPUT": "1",  # and so it is the very process that is started, and ends when that does
    }
    with (
        Process(["epmd", "-address", "127.0.0.1", "-port", str(names)], folder / "epmd.log", port=names),
        Process([RABBITMQ], folder / "log", port=port, environment=environment) as process,
    ):
        yield process


def version(*command: str) -> str:
    """Returns the first line of a program's version; "" for a missing program."""
    if shutil.which(command[0]) is None:
        return ""
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (said.stdout or said.stderr).partition("\n")[0].strip()


def debian_version(package: str) -> str:
    """Returns the installed version of a Debian package; "" for a package that is not installed, or without dpkg."""
    if shutil.which("dpkg-query") is None:
        return ""
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return said.stdout.strip() if said.returncode == 0 else ""
