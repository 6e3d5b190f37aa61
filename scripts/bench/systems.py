"""Other people's servers, each as Debian installs it, for `rivals` (the bus) and `compare` (the queues).

Started on a free port of loopback with all its files in a folder, known to be ready, ended by its id.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's command on the PATH runs this one as another user, who cannot write to our folder."""


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


class Program:
    """A process of somebody else's: started, known to be ready when its port can be connected to, ended by its id."""

    def __init__(
        self, command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.port = port
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=log.parent
            )
        self.pid = self._process.pid
        try:
            self._wait_for(port)
        except BaseException:
            self.end()
            raise

    def _wait_for(self, port: int, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.02)  # it cannot tell us
            else:
                return
        raise RuntimeError(f"{self._process.args!r} did not start to listen: {self._log.read_text()[-2000:]}")

    def end(self) -> None:
        """Asks it to end; makes it, if it does not."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Program":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


@contextmanager
def redis_server(folder: Path, *flags: str) -> Iterator[Program]:
    """Redis with the settings that are built in: Debian's file says the same about what is stored."""
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    with Program([*command, *flags], port, folder / "log") as program:
        yield program


@contextmanager
def beanstalkd(folder: Path, *flags: str) -> Iterator[Program]:
    """beanstalkd with its log in the folder; without that it keeps nothing."""
    port = free_port()
    command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder)]
    with Program([*command, *flags], port, folder / "log") as program:
        yield program


@contextmanager
def nats_server(
    folder: Path, *flags: str, jetstream: str | None = None, command: str = "nats-server"
) -> Iterator[Program]:
    """NATS with the settings that are built in. jetstream: lines of the block `jetstream` of its configuration."""
    port = free_port()
    started = [command, "--addr", "127.0.0.1", "--port", str(port)]
    if jetstream is None:
        started += ["--store_dir", str(folder)]
    else:
        started += ["--config", str(nats_configuration(folder, jetstream))]
    with Program([*started, *flags], port, folder / "log") as program:
        yield program


def nats_configuration(folder: Path, jetstream: str) -> Path:
    """A configuration file with JetStream in the folder."""
    written = folder / "nats.conf"
    written.write_text(f'jetstream {{\n  store_dir: "{folder}"\n  {jetstream}\n}}\n')
    return written


@contextmanager
def rabbitmq_server(folder: Path) -> Iterator[Program]:
    """RabbitMQ with the settings that are built in. Its name server, epmd, is one of our own: it would outlive us."""
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
        Program(["epmd", "-address", "127.0.0.1", "-port", str(names)], names, folder / "epmd.log"),
        Program([RABBITMQ], port, folder / "log", environment) as program,
    ):
        yield program


def version(*command: str) -> str:
    """The first line of what a program says of its version; "" when it is not there."""
    if shutil.which(command[0]) is None:
        return ""
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (said.stdout or said.stderr).partition("\n")[0].strip()


def debian_version(package: str) -> str:
    """The version that dpkg has installed; "" when it has not, or there is no dpkg."""
    if shutil.which("dpkg-query") is None:
        return ""
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return said.stdout.strip() if said.returncode == 0 else ""
