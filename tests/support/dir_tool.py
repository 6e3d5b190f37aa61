"""The command qs-dir, here or as a process, and queues of the package dirq 1.8."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from dirq.queue import Queue as OriginalQueue
from dirq.QueueSimple import QueueSimple as OriginalSimple

from qs_server.main.qs_dir import main

COMMAND = [sys.executable, "-m", "qs_server.main.qs_dir"]
WITHIN = 30
"""Seconds: only a failure takes that long."""
DIRQ = ("dirq-simple", "dirq")


def dir_tool(*words: object, stdin: bytes = b"", check: int | None = 0) -> "subprocess.CompletedProcess[str]":
    """Runs it to its end: in this process, unless it is to read something. check: the exit code that it is to have,
    None for any."""
    arguments = [str(word) for word in words]
    code, out, err = _in_a_process(arguments, stdin) if stdin else _here(arguments)
    done = subprocess.CompletedProcess(arguments, code, out, err)
    assert "Traceback" not in done.stderr, done.stderr
    assert check is None or done.returncode == check, done
    return done


def _in_a_process(arguments: list[str], stdin: bytes) -> tuple[int, str, str]:
    ran = subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=WITHIN, check=False)
    return ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace")


def _here(arguments: list[str]) -> tuple[int, str, str]:
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+", errors="replace") as out,  # sink writes to the descriptor
        tempfile.TemporaryFile("w+", errors="replace") as err,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, stream in (("stdin", nothing), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stream)
        try:
            code: Any = main(arguments)
        except SystemExit as end:
            code = end.code
        for stream in (out, err):
            stream.flush()
            stream.seek(0)
        return code, out.read(), err.read()


def start(*words: object, **options: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        **{
            "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options,
        },
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]", sig: int | None = None) -> tuple[int, str, str]:
    """Returns exit code, stdout and stderr of a process that ends, or is ended by a signal."""
    if sig is not None:
        process.send_signal(sig)
    out, err = process.communicate(timeout=WITHIN)
    assert "Traceback" not in err
    return process.returncode, out, err


def listed(path: Path) -> list[dict[str, Any]]:
    """Returns what `ls` says of each message."""
    return [json.loads(line) for line in dir_tool("ls", path, "--json").stdout.splitlines()]


def states(path: Path) -> list[str]:
    return [element["state"] for element in listed(path)]


def tree(path: Path) -> dict[str, tuple[int, int]]:
    """Everything in a directory: its mode and time of change."""
    return {str(found): (found.lstat().st_mode, found.lstat().st_mtime_ns) for found in path.rglob("*")}


def original_dirq(path: Path, layout: str) -> Any:
    """The queue of the package dirq 1.8, and how it keeps a payload."""
    if layout == "dirq":
        return OriginalQueue(str(path), schema={"body": "string", "header": "table?"})
    return OriginalSimple(str(path))


def element(layout: str, text: str) -> Any:
    return {"body": text, "header": {"a": "b"}} if layout == "dirq" else text.encode()


def age(path: Path, seconds: float) -> None:
    """Makes a file or directory look as if nothing had happened to it for so long."""
    then = time.time() - seconds
    os.utime(path, (then, then))
