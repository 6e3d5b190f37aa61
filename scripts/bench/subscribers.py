"""The process that reads as many subscribers, as the benchmarks see it."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO


class Subscribers:
    """So many connections to the address in a process of their own; each has sent its greeting."""

    def __init__(self, address: tuple[str, int], many: int, greeting: bytes = b"") -> None:
        program = str(Path(__file__).with_name("counting_reader.py"))
        self.many = many
        self._process = subprocess.Popen(
            [sys.executable, program, address[0], str(address[1]), str(many), greeting.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        if self.line() != b"ready":
            raise RuntimeError("the subscribers could not connect")

    @property
    def output(self) -> IO[bytes]:
        """Waits for the output; `line` then does not block for long."""
        assert self._process.stdout is not None
        return self._process.stdout

    def expect(self, messages: int) -> None:
        """Begins to count."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % messages)

    def line(self) -> bytes:
        """Returns its next line, see counting_reader.py. After a failure it says why on its own."""
        line = self.output.readline()
        if not line:
            raise RuntimeError("the subscribers' process failed")
        return line.strip()

    def __enter__(self) -> "Subscribers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.output.close()
