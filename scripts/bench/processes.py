"""The processes that are measured: started, known to be ready, ended by their own id."""

import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

PROJECT = Path(__file__).resolve().parents[2]
BUS = PROJECT / "scripts" / "queue-bus.py"
_END_WITHIN = 60


class Listening:
    """A child that prints `listening on HOST:PORT` when clients can connect. ready_after: seconds from its start."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            started = time.perf_counter()
            self.process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        self.started = started
        self.ready_after = time.perf_counter() - started
        ready = re.fullmatch(r"listening on (.+):(\d+)\n", line)
        if ready is None:
            self.end()
            raise RuntimeError(f"{command[0]} printed {line!r}: {log.read_text()}")
        self.address = (ready[1], int(ready[2]))

    def resident_bytes(self) -> int:
        """The memory that it has now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def processor_seconds(self) -> float:
        """The processor time of all its threads until now."""
        # The clock of another process, as clock_getcpuclockid(3) makes its number.
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def end(self) -> None:
        """Asks it to end; makes it, if it does not."""
        self.process.terminate()
        try:
            self.process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> "Listening":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        died = self.process.poll()
        self.end()
        if error is not None and died is not None:
            error.add_note(f"the process had ended with {died}; its log:\n{self._log.read_text()[-2000:]}")


def queue_server(root: Path, *flags: str) -> Listening:
    """The queue server on a free port."""
    command = [str(PROJECT / "scripts" / "queue-server.py"), "--root", str(root), "--port", "0", *flags]
    return Listening(command, root.with_suffix(".log"))


def queue_bus(folder: Path, server: tuple[str, int], *queues: str) -> Listening:
    """The bus of these queues on a free port."""
    named = [word for qid in queues for word in ("-q", qid)]
    return Listening([str(BUS), "-s", f"{server[0]}:{server[1]}", *named, "--port", "0"], folder / "bus.log")


def queue_web(log: Path, server: tuple[str, int]) -> Listening:
    """The page of a queue server on a free port. log: path of its log, without the suffix."""
    command = [str(PROJECT / "scripts" / "queue-web.py"), "-s", f"{server[0]}:{server[1]}", "--port", "0"]
    return Listening(command, log.with_suffix(".log"))


def echo_server(folder: Path) -> Listening:
    """A trio server that sends back what it gets, and does nothing else."""
    return Listening([str(Path(__file__).with_name("echo_server.py"))], folder / "echo.log")


def bare_fanout(folder: Path) -> Listening:
    """A trio server that sends what it is told to every connection, and does nothing else."""
    return Listening([str(Path(__file__).with_name("bare_fanout.py"))], folder / "bare_fanout.log")
