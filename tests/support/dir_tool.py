"""The command qs-dir as a process, and the queues of the package dirq 1.8, for tests that work on directories."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dirq.queue import Queue as OriginalQueue
from dirq.QueueSimple import QueueSimple as OriginalSimple

from qs_server.tools.qs_dir import main

COMMAND = [sys.executable, "-m", "qs_server.tools.qs_dir"]
WITHIN = 30
"""Seconds: only a failure takes that long."""
DIRQ = ("dirq-simple", "dirq")


def dir_tool(*words: object, stdin: str | bytes = b"", check: int | None = 0) -> "subprocess.CompletedProcess[str]":
    """Runs it to its end. check: the exit code that it is to have, None for any."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    ran = subprocess.run([*COMMAND, *map(str, words)], input=given, capture_output=True, timeout=WITHIN, check=False)
    done = subprocess.CompletedProcess(
        ran.args, ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace")
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert check is None or done.returncode == check, done
    return done


def start(*words: object, **options: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        **{
            "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options,
        },
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]", sig: int | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one that ends, or is told to by a signal."""
    if sig is not None:
        process.send_signal(sig)
    out, err = process.communicate(timeout=WITHIN)
    assert "Traceback" not in err
    return process.returncode, out, err


def listed(path: Path) -> list[dict[str, Any]]:
    """What `ls` says of each message. It is not a process here: many tests look at what another command has done."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["ls", str(path), "--json"]) == 0
    return [json.loads(line) for line in said.getvalue().splitlines()]


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
