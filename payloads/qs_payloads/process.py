"""Starts the process of `child`, and talks with it.

A request has two bounds. The process itself ends when it has used the processor for the seconds that the request has:
so a busy machine refuses nothing that is valid. Here a multiple of it is waited for, in case the process does not run.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .child import LENGTH, OUT_OF_MEMORY
from .faults import PayloadFault, SchemaError, UncheckedError
from .sources import Source

COMPILING = 10.0
"""Seconds of processor time that a schema may take to compile."""
_PATIENCE = 10
"""How many times the seconds of a request are waited for."""
_START = 60.0
"""Seconds within which a process has to start."""
_PIECE = 1024 * 1024
_KNOWN = 64
"""The most schemas that a process is given: after that another one is started, so that memory stays bounded."""
_CODE = "from qs_payloads.child import main; main()"


class DiedError(UncheckedError):
    """Reports that the process has ended in the midst of a request. The text says why, for a person."""


class Process:
    """A process that compiles schemas and checks payloads. For one thread at a time."""

    def __init__(self) -> None:
        """Starts the process. Raises OSError."""
        # Nothing of the environment but where the modules are: it may hold secrets, and a catalog of XML.
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        self._process = subprocess.Popen(  # noqa: S603 - this Python, and a line of ours
            [sys.executable, "-S", "-P", "-c", _CODE],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**kept, "PYTHONPATH": path},
            process_group=0,  # a Ctrl-C that comes before the process ignores it is not for it
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018 - pipes
        self._requests, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._answers, False)
        self._received = bytearray()
        self._known: set[str] = set()
        try:
            self._next_answer(time.monotonic() + _START)
        except DiedError as error:
            self.close()
            raise OSError(f"the process that checks payloads does not start: {error}") from None

    @property
    def is_usable(self) -> bool:
        """False if the process has ended, or should."""
        return self._process.poll() is None and len(self._known) < _KNOWN

    def compile(self, source: Source, seconds: float = COMPILING) -> bool:
        """Compiles a schema. Returns True if it is plain. Raises SchemaError, and DiedError with the reason if the
        bounds did not suffice; then the process has to be closed."""
        head = {"main": source.main, "files": list(source.files)}
        [answer] = self._ask(head, source, list(source.files.values()), seconds)
        if "error" in answer:
            raise SchemaError(answer["error"])
        self._known.add(source.digest)
        return bool(answer["plain"])

    def check(self, source: Source, payloads: Sequence[bytes], seconds: float) -> tuple[int, PayloadFault] | None:
        """Checks payloads, compiling the schema first if the process does not know it. Returns the first fault and the
        index of its payload, or None. After a fault `is_usable` may be False."""
        valid = 0
        try:
            if source.digest not in self._known:
                self.compile(source)
            for answer in self._ask({}, source, payloads, seconds):
                if answer is not None:
                    return valid, PayloadFault(*answer)
                valid += 1
        except DiedError as error:
            self.close()
            return valid, PayloadFault.unchecked(error)
        return None

    def _ask(self, head: dict[str, Any], source: Source, parts: Sequence[bytes], seconds: float) -> Iterator[Any]:
        """Sends a request, and yields the answers as they come, one for each part of a check at most."""
        lengths = list(map(len, parts))
        words = json.dumps({**head, "digest": source.digest, "lengths": lengths, "seconds": seconds}).encode()
        deadline = time.monotonic() + seconds * _PATIENCE
        try:
            content = b"".join((words, b"\n", *parts))
            self._send(len(content).to_bytes(LENGTH, "big") + content, deadline)
            for _ in range(1 if head else len(parts)):
                yield json.loads(self._next_answer(deadline))
        except DiedError as error:
            text = str(error) or f"within {seconds:g} seconds"
            raise DiedError(text) from None

    def _send(self, content: bytes, deadline: float) -> None:
        left = memoryview(content)
        while left:
            self._wait(self._requests, select.POLLOUT, deadline)
            try:
                left = left[os.write(self._requests, left[:_PIECE]) :]
            except BlockingIOError:  # less room than the poll promises
                continue
            except BrokenPipeError:
                raise self._death() from None

    def _next_answer(self, deadline: float) -> bytes:
        while True:
            end = LENGTH + int.from_bytes(self._received[:LENGTH], "big")
            if len(self._received) >= max(end, LENGTH + 1):
                answer = bytes(self._received[LENGTH:end])
                del self._received[:end]
                return answer
            self._wait(self._answers, select.POLLIN, deadline)
            piece = os.read(self._answers, _PIECE)
            if not piece:
                raise self._death()
            self._received += piece

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise DiedError("")

    def _death(self) -> DiedError:
        """Returns the error for a process that has closed its pipes."""
        code = self._process.wait()
        if code == -signal.SIGPROF:
            return DiedError("")
        if code == OUT_OF_MEMORY:
            return DiedError("in 1 GiB of memory")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return DiedError(f"as the process that does it ended with {how}")

    def close(self) -> None:
        """Ends the process, if it has not ended, and everything that it holds."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
