"""The arguments of `qs`: where options may stand, what is a usage error; what a command imports."""

import argparse
import re
import shlex
import subprocess
import sys
from importlib import import_module

import pytest

from qs_client.argument_values import given_options, positive, seconds
from qs_client.command import main
from qs_client.command_arguments import command_line, make_parser
from qs_client.server_arguments import bus, server
from qs_client.work_arguments import function_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host:1", ("host", 1, None)),
        ("host", ("host", 9876, None)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535, None)),
        ("[::1]:5", ("::1", 5, None)),
        ("[::1]", ("::1", 9876, None)),
        ("::1", ("::1", 9876, None)),
        ("[fe80::1%lo]:5", ("fe80::1%lo", 5, None)),
        ("qs://host:1", ("host", 1, False)),
        ("qss://host", ("host", 9876, True)),
        ("QSS://[::1]:5", ("::1", 5, True)),
    ],
)
def test_server_address_forms(text: str, expected: tuple[str, int, bool | None]) -> None:
    """A server is HOST:PORT; the port may be left out; an IPv6 address has brackets, or no port. qss:// is with TLS."""
    assert server(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "9876", ":1", "host:", "host:x", "host:0", "host:65536", "host:-1", "host:²", "[]:1", "[::1", "::1]",
        "[::1]:", "[::1]x", "[::1]5", "[host]:1", "a:b:c", "host:1:2", "[::1]:0", "http://host:1",
        "qss://", "qss://:1", "qss://host/", "qs://host:1/q", "qss://host?x", "qss:host", "qss:///host", "://host",
        "host:" + "9" * 5000,
    ],
)  # fmt: skip
def test_server_address_malformed(text: str) -> None:
    """Anything else is a usage error that shows what is wanted."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"127\.0\.0\.1:9876"):
        server(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("thumbnails.make", "thumbnails:make"),
        ("thumbnails.py", "thumbnails:FUNCTION"),
        ("thumbnails", "thumbnails:FUNCTION"),
        ("thumbnails.py:make", "thumbnails:make"),
        ("a b:make", "thumbnails:make"),
    ],
)
def test_function_name_malformed(text: str, meant: str) -> None:
    """Anything but MODULE:FUNCTION is a usage error that shows how it may have been meant."""
    with pytest.raises(argparse.ArgumentTypeError, match=rf"as in {meant}$"):
        function_name(text)


def test_numbers_malformed() -> None:
    """Durations are seconds with a fraction, counts are whole and positive."""
    assert seconds("1.5") == 1.5
    assert positive("7") == 7
    for text in ("-1", "x", "nan", "inf", "1e300", ""):
        with pytest.raises(argparse.ArgumentTypeError):
            seconds(text)
    for text in ("0", "-1", "1.5", "x", "", "²"):
        with pytest.raises(argparse.ArgumentTypeError):
            positive(text)


@pytest.mark.parametrize(
    "argv",
    [
        ["-s", "h:1", "--json", "push", "q", "--delay", "3", "a", "b"],
        ["push", "-s", "h:1", "--json", "--delay", "3", "q", "a", "b"],
        ["push", "q", "a", "--delay", "3", "b", "--json", "--server", "h:1"],
        ["-s", "other:2", "push", "q", "a", "b", "--delay", "3", "--json", "-s", "h:1"],
        ["-s", "h:1", "push", "--json", "--delay", "3", "--", "q", "a", "b"],
    ],
)
def test_options_stand_anywhere(argv: list[str]) -> None:
    """Options may stand before the command, after it, and between its arguments; the last one counts."""
    arguments = command_line(argv)
    assert (arguments.server, arguments.json, arguments.timeout) == (("h", 1, None), True, 30)
    assert (arguments.queue, arguments.payload, arguments.delay) == ("q", ["a", "b"], 3)


def test_headers_of_a_push() -> None:
    """--header may be repeated; its text is what follows the first =, also nothing."""
    arguments = command_line(["push", "q", "--header", "a=1=2", "x", "--header", "B=", "--priority", "9"])
    assert (arguments.header, arguments.priority) == ([("a", "1=2"), ("B", "")], 9)


def test_fair_may_be_denied() -> None:
    """--fair and --no-fair are the two values of one option; without either nothing is said of it."""
    found = [
        given_options(command_line(["set", "q", "--rate", "0.5", *flags])) for flags in (["--fair"], ["--no-fair"], [])
    ]
    assert found == [{"rate": 0.5, "fair": True}, {"rate": 0.5, "fair": False}, {"rate": 0.5}]


def test_payloads_that_look_like_options() -> None:
    """After -- everything is a payload."""
    assert command_line(["push", "q", "--", "-5", "--json"]).payload == ["-5", "--json"]


def test_server_from_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """QS_SERVER is the default for --server; what is wrong with it is a usage error that names it."""
    monkeypatch.setenv("QS_SERVER", "")
    assert command_line(["ls"]).server == ("127.0.0.1", 9876, None)
    monkeypatch.setenv("QS_SERVER", "example:7")
    assert command_line(["ls"]).server == ("example", 7, None)
    assert command_line(["-s", "h:1", "ls"]).server == ("h", 1, None)
    monkeypatch.setenv("QS_SERVER", "example:x")
    with pytest.raises(SystemExit) as exited:
        command_line(["ls"])
    assert exited.value.code == 2
    assert "QS_SERVER" in capsys.readouterr().err


def test_bus_from_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`tail` talks to QS_BUS, and does not care for a server."""
    monkeypatch.setenv("QS_SERVER", "example:x")
    monkeypatch.setenv("QS_BUS", "")
    assert command_line(["tail", "q"]).bus == ("127.0.0.1", 9878, None) == bus("127.0.0.1")
    monkeypatch.setenv("QS_BUS", "example")
    assert command_line(["tail", "q"]).bus == ("example", 9878, None)
    assert command_line(["tail", "q", "--bus", "h:1"]).bus == ("h", 1, None)
    monkeypatch.setenv("QS_BUS", "example:x")
    with pytest.raises(SystemExit):
        command_line(["tail", "q"])
    shown = capsys.readouterr().err
    assert "QS_BUS" in shown
    assert "127.0.0.1:9878" in shown


@pytest.mark.parametrize(
    "argv",
    [
        ["tail"], ["tail", "q", "-s", "h:1"], ["tail", "q", "-n", "0"],
        ["--json"], ["frobnicate"], ["push"], ["push", "q", ""], ["receive"], ["new"], ["rm"],
        ["delete", "q"], ["delete", "q", "x"],
        ["ls", "q", "--state", "odd"], ["receive", "q", "-n", "0"], ["receive", "q", "--wait", "-1"], ["ls", "a", "b"],
        ["-s", "[::1", "ls"], ["ls", "--timeout", "1e9"], ["receive", "q", "--wait", "1e9"], ["ls", "--timeout", "nan"],
        ["push", "q", "x", "--delay", "inf"], ["peek", "q", "9" * 5000], ["tail", "q", "--bus", "::1]"],
        ["-s", "h:x", "ls"], ["push", "q", "--dela", "3"], ["ls", "--timeout", "0"],
        ["set", "q"], ["set", "q", "--retention", "0"], ["set", "q", "--max-receives", "1001"], ["pause"],
        ["set", "q", "--remove", "storage"], ["set", "q", "--capacity", "5", "--remove", "capacity"], ["redrive"],
        ["work", "q"], ["work", "q", "tasks"], ["work", "q", "tasks.py"], ["work", "q", "a b:c"], ["work", "tasks:run"],
        ["work", "q", "tasks:run", "--json", "--xml"], ["--json", "work", "q", "tasks:run", "--xml"],
        ["work", "q", "tasks:run", "-p", "0"], ["work", "q", "tasks:run", "-p", "1001"],
        ["set", "q", "--backoff", "0"], ["set", "q", "--backoff", "5", "--remove", "backoff"],
        ["set", "q", "--rate", "0"], ["set", "q", "--rate", "x"], ["set", "q", "--fair", "--remove", "fair"],
        ["set", "q", "--no-fair", "--remove", "fair"], ["new", "q", "--max-in-flight", "0"],
        ["push", "q", "x", "--unique"], ["push", "q", "x", "--priority", "10"], ["push", "q", "x", "--priority", "-1"],
        ["push", "q", "x", "--group", ""], ["push", "q", "x", "--expires", "0"], ["push", "q", "x", "--header", "a"],
        ["push", "q", "x", "--header", "=b"], ["push", "q", "x", "--header", "a=1", "--header", "A=2"],
        ["receive", "q", "--order", "newest"],
    ],
)  # fmt: skip
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage exits with 2 and says what is wrong in one line; options can not be abbreviated."""
    with pytest.raises(SystemExit) as exited:
        command_line(argv)
    assert exited.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("qs")
    assert " error: " in said
    assert said.count("\n") == 1


def test_work_takes_queues_and_function() -> None:
    """The function is the last argument, whatever flags stand between; the words are kept for the processes."""
    words = ["work", "urgent", "--json", "jobs", "-vv", "tasks.more:Shop.run", "-p", "4"]
    arguments = command_line(words)
    assert (arguments.queues, arguments.function) == (["urgent", "jobs"], "tasks.more:Shop.run")
    assert (arguments.processes, arguments.prefetch, arguments.json, arguments.verbose) == (4, 1, True, 2)
    assert arguments.words == words


def test_command_without_arguments_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """`qs` alone is wrong usage: it shows the commands, each with an example that the command takes, and a function."""
    with pytest.raises(SystemExit, match="2"):
        command_line([])
    said = capsys.readouterr().err
    commands = re.findall(r"^    (\w\S*) +\w.*\n +qs (.+)$", said, re.MULTILINE)
    assert {"push", "receive", "new", "ls", "help"}.issubset(name for name, _ in commands)
    assert {name for name, _ in commands} == {name for name, _ in make_parser().get_default("commands")}
    for name, example in commands:
        arguments = command_line(shlex.split(example))
        assert arguments.command == name
        module, _, function = arguments.run.partition(":")  # no checker sees these names
        assert callable(getattr(import_module(f"qs_client.{module}"), function))


def test_help_command_shows_the_same_as_the_flag(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """`qs help` shows the same on stdout; `qs help COMMAND` is `qs COMMAND --help`, and knows what was meant."""
    with pytest.raises(SystemExit, match="2"):
        command_line([])
    said = capsysbinary.readouterr().err
    assert main(["help"]) == 0
    assert capsysbinary.readouterr().out == said
    with pytest.raises(SystemExit, match="0"):
        main(["help", "push"])
    assert capsysbinary.readouterr().out.startswith(b"usage: qs push ")
    with pytest.raises(SystemExit, match="2"):
        main(["help", "pussh"])
    assert capsysbinary.readouterr().err == b"qs: error: there is no command 'pussh'; did you mean push?\n"


@pytest.mark.parametrize("argv", [["tail", "q", "-s", "no address"], ["-s", "h:1", "tail", "q"]])
def test_tail_with_server_names_the_bus(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`tail` with --server says that it is the bus which it talks to."""
    with pytest.raises(SystemExit) as exited:
        command_line(argv)
    assert exited.value.code == 2
    assert "qs tail talks to the bus, not to the queue server: give --bus HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "push",
        "receive",
        "tail",
        "peek",
        "delete",
        "ack",
        "release",
        "ls",
        "stats",
        "new",
        "rm",
        "purge",
        "ping",
        "set",
        "options",
        "pause",
        "resume",
        "redrive",
        "help",
    ],
)
def test_help_flag_of_each_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command has help, and stands in the help of qs."""
    with pytest.raises(SystemExit) as exited:
        command_line([command, "--help"])
    assert exited.value.code == 0
    assert f"usage: qs {'delete' if command == 'ack' else command}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command_line(["--help"])
    shown = capsys.readouterr().out
    assert command in shown
    assert "examples:" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version is the distribution's."""
    with pytest.raises(SystemExit) as exited:
        command_line(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith("qs 0.")


HEAVY = ("lxml", "ssl", "asyncio", "anyio", "trio", "logging", "email")
WITHOUT_SERVER = (*HEAVY, "dataclasses", "socket", "qs_schemas.messages", "qs_client.client")


@pytest.mark.parametrize(
    ("words", "code", "left_out"),
    [
        (["--help"], 0, WITHOUT_SERVER),
        (["help"], 0, HEAVY),
        (["pussh"], 2, WITHOUT_SERVER),
        (["push", "--help"], 0, WITHOUT_SERVER),
        (["--print-completion", "bash"], 0, ("lxml", "qs_schemas.messages")),
        (["-s", "127.0.0.1:1", "push", "orders", "two apples"], 1, HEAVY),
    ],
)
def test_command_imports_no_more_than_it_needs(words: list[str], code: int, left_out: tuple[str, ...]) -> None:
    """A command does not import these modules."""
    program = (
        "import sys\nfrom qs_client.command import main\n"
        f"try:\n    code = main({words!r})\nexcept SystemExit as end:\n    code = end.code\n"
        f"sys.stderr.write('imported: ' + ' '.join(set({left_out!r}) & set(sys.modules)))\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stderr.rpartition("imported: ")[2] == ""
