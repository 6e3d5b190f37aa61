"""The process that compiles schemas and checks payloads for another one, within bounds of time and memory.

It reads frames from standard input and writes frames to standard output: 8 bytes with the length, then the content. It
opens no file. It ends

1. when its parent ends: its standard input does, or for a check that runs, the bound of time does;
2. by SIGPROF when a compilation or a check has used its seconds of processor time, also in the midst of C;
3. when its memory would grow beyond the bound;

and not by Ctrl-C, or by a signal to all processes of a service: its parent may still need it, and ends it.
"""

import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from .compiling import Compiled, compile_source
from .faults import SchemaError
from .sources import Source

MEMORY = 1024 * 1024 * 1024
"""Bytes of address space that the process may have beyond those it starts with."""
LENGTH = 8
"""Bytes of a frame's length."""
_AT_ONCE = 0.25
"""Seconds within which a schema has to compile to be plain."""
_PAGE = resource.getpagesize()


def main() -> None:
    """Serves the parent until it closes the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _bound_memory()
    # Lines that a library prints must not come between the frames.
    requests, answers = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    compiled: dict[str, Compiled] = {}
    try:
        _write(answers, b"ready")
        while (request := _read(requests)) is not None:
            for answer in _answers(request, compiled):
                _write(answers, json.dumps(answer).encode())
    except BrokenPipeError:
        pass  # the parent has gone
    # Without a tidy end: all that there is to do is done, and the answers are written.
    os._exit(0)


def _bound_memory() -> None:
    try:
        with open("/proc/self/statm", "rb") as file:
            has = int(file.read().split()[0]) * _PAGE
    except OSError:  # another system than Linux
        return
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, has + MEMORY))


def _read(stream: BinaryIO) -> bytes | None:
    """Reads a frame. Returns None at the end of the stream, also in the midst of a frame."""
    length = int.from_bytes(stream.read(LENGTH), "big")
    content = stream.read(length)
    return content if content and len(content) == length else None


def _write(stream: BinaryIO, content: bytes) -> None:
    stream.write(len(content).to_bytes(LENGTH, "big") + content)
    stream.flush()


def _answers(request: bytes, compiled: dict[str, Compiled]) -> Iterator[Any]:
    """Does what a request says. Yields the answers: of a compilation one; of a check one for each payload, up to the
    first fault. compiled: the schemas by digest."""
    head, _, rest = request.partition(b"\n")
    asked = json.loads(head)
    parts, at = [], 0
    for length in asked["lengths"]:
        parts.append(rest[at : at + length])
        at += length
    signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
    try:
        if "main" in asked:
            source = Source(asked["main"], dict(zip(asked["files"], parts, strict=True)), asked["digest"])
            yield _compile(source, compiled)
        else:
            for payload in parts:
                fault = compiled[asked["digest"]].fault(payload)
                yield fault
                if fault is not None:
                    break
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


OUT_OF_MEMORY = 77
"""The exit code if the memory does not suffice. Libraries may end the process by a signal instead."""


def _compile(source: Source, compiled: dict[str, Compiled]) -> dict[str, Any]:
    start = time.process_time()
    try:
        found = compiled[source.digest] = compile_source(source)
    except SchemaError as error:
        return {"error": str(error)}
    # A schema that took long here would take as long in the parent, which compiles only what is plain.
    return {"plain": found.is_plain and time.process_time() - start < _AT_ONCE}
