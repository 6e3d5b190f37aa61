"""The log on standard error: text, JSON lines, lines for the journal. Real processes write it."""

import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from qs_serving.logs import RareLine

_PROGRAM = """
import logging, sys, warnings
from qs_serving.logs import error_line, log_to_stderr

log_to_stderr(int(sys.argv[2]), sys.argv[1])
log = logging.getLogger("qs.test")
log.debug("a debug line")
log.info("an info line")
log.warning("%s", sys.argv[3].encode().decode("unicode_escape"))
try:
    1 / 0
except ZeroDivisionError:
    log.error("it failed", exc_info=True)
log.critical("the worst")
sys.stderr.write(error_line("program", "cannot start"))
if len(sys.argv) > 4:
    warnings.warn("beware")
    raise RuntimeError("unforeseen\\nin two lines")
"""
HOSTILE = r"two\nlines \x1b[31m \u2028 \udc80 \" \\ \U0001f34e \0"
"""A text that is hard to log, as Python escapes it."""


def said(form: str, *words: str, verbose: int = 0, **environ: str) -> list[str]:
    """Returns what a process says on standard error, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, form, str(verbose), *words],
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environ},
    )
    return done.stderr.decode().split("\n")[:-1]


def test_log_to_stderr_as_text() -> None:
    """A line has the time, the level, the logger and the message."""
    lines = said("text", "hello", verbose=1)
    assert [line.split(" ", 2)[2] for line in lines[:3]] == [
        "INFO qs.test: an info line",
        "WARNING qs.test: hello",
        "ERROR qs.test: it failed",
    ]
    assert lines[3] == "Traceback (most recent call last):"
    assert lines[-1] == "program: cannot start"


def test_log_to_stderr_as_json_lines() -> None:
    """Each line is one object with the same keys, whatever the message holds; the time is UTC in ISO 8601."""
    lines = said("json", HOSTILE, verbose=2)
    found = [json.loads(line) for line in lines]
    assert [(line["level"], line["logger"]) for line in found] == [
        ("DEBUG", "qs.test"),
        ("INFO", "qs.test"),
        ("WARNING", "qs.test"),
        ("ERROR", "qs.test"),
        ("CRITICAL", "qs.test"),
        ("ERROR", "program"),
    ]
    assert found[2]["message"] == HOSTILE.encode().decode("unicode_escape")
    assert found[3]["exception"].startswith("Traceback (most recent call last):\n")
    assert found[3]["exception"].endswith("ZeroDivisionError: division by zero")
    assert found[-1]["message"] == "cannot start"
    assert all(line.keys() - {"exception"} == {"time", "level", "logger", "message"} for line in found)
    assert all(line["time"].endswith("Z") and len(line["time"]) == len("2026-01-02T03:04:05.678Z") for line in found)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found[0]["time"])) < timedelta(minutes=1)


def test_log_to_stderr_as_json_of_what_ends_the_process() -> None:
    """Warnings of Python, and an exception that ends the process, are objects too."""
    warned, ended = [json.loads(line) for line in said("json", "x", "and fail")[-2:]]
    assert (warned["level"], warned["logger"]) == ("WARNING", "py.warnings")
    assert "beware" in warned["message"]
    assert (ended["level"], ended["message"]) == ("CRITICAL", "the process ends")
    assert ended["exception"].endswith("RuntimeError: unforeseen\nin two lines")


def journal_of(log: Path) -> str:
    """Returns what systemd puts into JOURNAL_STREAM if a file is the journal's stream."""
    found = log.stat()
    return f"{found.st_dev}:{found.st_ino}"


def test_log_to_stderr_of_the_journal_has_priorities(tmp_path: Path) -> None:
    """The journal gets each line with its priority, and without the time, which it has itself."""
    log = tmp_path / "log"
    with log.open("wb") as stream:
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, "text", "2", "hello"],
            stderr=stream,
            timeout=60,
            check=True,
            env={**os.environ, "JOURNAL_STREAM": journal_of(log)},
        )
    lines = log.read_text().splitlines()
    assert lines[:5] == [
        "<7>DEBUG qs.test: a debug line",
        "<6>INFO qs.test: an info line",
        "<4>WARNING qs.test: hello",
        "<3>ERROR qs.test: it failed",
        "<3>Traceback (most recent call last):",
    ]
    assert lines[-2:] == ["<2>CRITICAL qs.test: the worst", "<3>program: cannot start"]


def test_log_to_stderr_of_another_stream_has_the_time(tmp_path: Path) -> None:
    """JOURNAL_STREAM is inherited by processes whose standard error goes elsewhere: they write the time."""
    (tmp_path / "other").touch()
    for value in (journal_of(tmp_path / "other"), "", "nonsense"):
        assert said("text", "hello", JOURNAL_STREAM=value)[0].endswith(" WARNING qs.test: hello")
        assert said("text", "hello", JOURNAL_STREAM=value)[0].startswith("2")


def test_rare_line_counts_what_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    """A thing that happens very often is logged at once, then once in a while with how often it was."""
    times = iter((100.0, 101.0, 159.0, 160.0, 161.0, 500.0, 501.0))
    line = RareLine(logging.getLogger("qs.test"), logging.WARNING, 60, lambda: next(times))
    for _ in range(7):
        line.log("no %s", "room")
    more = "no room ({} times more since the last such line)"
    assert caplog.messages == ["no room", more.format(2), more.format(1)]
