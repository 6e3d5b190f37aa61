"""The file of --config: each long flag is a key, flags of the command line win, and an error names file and key."""

import argparse
import re
from pathlib import Path

import pytest

from qs_bus.command import read_options as bus_options
from qs_bus.options import Policy
from qs_schemas import Limits
from qs_schemas.command_line import CommandParser
from qs_server.main.queue_server import read_options as server_options
from qs_serving.arguments import add_config, parse_arguments
from qs_storage.engine import Durability
from qs_web.command import read_options as web_options

READERS = {"queue-server.py": server_options, "queue-bus.py": bus_options, "queue-web.py": web_options}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    folder.mkdir()
    return folder / "qs.toml"


def refused(file: Path, text: str | bytes, capsys: pytest.CaptureFixture[str], program: str = "queue-server.py") -> str:
    """Returns what the command says of a file that it refuses: one line, exit code 2."""
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SystemExit) as ended:
        READERS[program](["--config", str(file)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{program}: ")
    assert said.count("\n") == 1
    assert str(file) in said
    return said


def test_parse_arguments_reads_every_kind_of_value(file: Path) -> None:
    """Texts, whole numbers, seconds, switches, counts and choices, as the flags have them."""
    file.write_text(
        'host = "::1"\nport = 1234\ngrace = 3\nlinger = 0.5\nopen = true\nverbose = 2\ndurability = "none"\n'
        'memcached = "a:1, b"\nhistory-keep = 7\nmax-list = 10\nlog-format = "json"\nsqs-prefix = ""\n'
    )
    options, verbose = server_options(["--config", str(file)])
    assert (options.host, options.port, options.open, verbose) == ("::1", 1234, True, 2)
    assert (options.limits.grace, options.limits.linger) == (3.0, 0.5)
    assert options.durability is Durability.NONE
    assert options.engines == {"memcached": {"servers": (("a", 1), ("b", 11211))}, "sqs": {"prefix": ""}}
    assert options.wire == Limits(list_length=10)
    assert options.log_format == "json"


def test_parse_arguments_without_a_file() -> None:
    """The defaults are those of the flags."""
    assert server_options([])[0].port == 9876
    assert bus_options([])[0].queues == ()


def test_parse_arguments_prefers_the_command_line(file: Path) -> None:
    """A flag replaces what the file says, wherever it stands, and a repeated one replaces the whole list."""
    file.write_text('port = 1\nqueue = ["a", "b,c"]\npolicy = "disconnect"\nverbose = 2\nserver = "queues.example:7"\n')
    options, verbose = bus_options(["--config", str(file)])
    assert (options.queues, options.policy, options.port) == (("a", "b", "c"), Policy.DISCONNECT, 1)
    assert (options.server, verbose) == (("queues.example", 7), 2)
    options, verbose = bus_options(["-q", "x", "--port", "2", "-v", "--config", str(file), "--queue", "y"])
    assert (options.queues, options.policy, options.port, verbose) == (("x", "y"), Policy.DISCONNECT, 2, 1)


def test_parse_arguments_takes_one_queue_for_a_list(file: Path) -> None:
    """A flag that may be repeated may be a single text."""
    file.write_text('queue = "orders"\n')
    assert bus_options(["--config", str(file)])[0].queues == ("orders",)


def test_parse_arguments_of_the_page(file: Path) -> None:
    """A flag that is repeated, each time with one text, is a list in the file too."""
    file.write_text('allow-host = ["a.example", "B.example:1"]\nread-only = true\npath = "/queues/"\n')
    options, _ = web_options(["--config", str(file)])
    assert (options.hosts, options.read_only, options.path) == (("a.example", "b.example:1"), True, "/queues")
    assert web_options(["--config", str(file), "--allow-host", "c"])[0].hosts == ("c",)


def test_parse_arguments_prefers_the_file_to_a_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable QS_SERVER counts only when neither a flag nor the file names the server."""
    monkeypatch.setenv("QS_SERVER", "other.example:1")
    file.write_text('server = "queues.example:7"\n')
    assert bus_options(["--config", str(file)])[0].server == ("queues.example", 7)
    file.write_text("")
    assert bus_options(["--config", str(file)])[0].server == ("other.example", 1)


def test_parse_arguments_resolves_paths_from_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path starts from the folder of the file that has it, and on the command line from the current one."""
    monkeypatch.chdir(file.parent.parent)
    file.write_text('root = "../data"\naccess = "access.toml"\nhistory = "/var/h"\ntls-cert = "c"\ntls-key = "k"\n')
    options, _ = server_options(["--config", "etc/qs.toml", "--tls-key", "key"])
    folder = str(file.parent)
    assert (options.root, options.access) == (f"{folder}/../data", f"{folder}/access.toml")
    assert options.tls is not None
    assert (options.tls.cert, options.tls.key) == (f"{folder}/c", "key")
    assert options.history is not None
    assert options.history.folder == "/var/h"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tls-crt = 1", "unknown key 'tls-crt': did you mean tls-cert? Keys are the long flags of queue-server.py: a"),
        ("tls_cert = 'x'", "did you mean tls-cert?"),
        ("nothing-like-it = 1", "unknown key 'nothing-like-it': Keys are"),
        ("check = true", "check: only the command line has this flag"),
        ("config = 'x'", "config: only the command line has this flag"),
        ("[limits]\ngrace = 1", "unknown key 'limits'"),
        ("port = '9876'", "port: has to be a whole number, and is a text"),
        ("port = 70000", "port: '70000' is not a port: a number between 0 and 65535"),
        ("port = true", "port: has to be a whole number, and is true or false"),
        ("max-list = 1.5", "max-list: has to be a whole number, and is a number"),
        ("max-list = 0", "max-list: 0 is not 1 or more"),
        ("history-keep = 'all'", "history-keep: has to be a whole number, and is a text"),
        ("grace = nan", "grace: nan is not 0 or more"),
        ("grace = inf", "grace: inf is more than 999999999"),
        ("grace = 1979-05-27", "grace: has to be a number, and is a date or time"),
        ("host = 5", "host: has to be a text, and is a whole number"),
        ("host = ['a']", "host: has to be a text, and is a list"),
        ("host = {a = 1}", "host: has to be a text, and is a table"),
        ('host = "a\\u0000b"', "host: has control characters"),
        ("open = 'yes'", "open: has to be true or false, and is a text"),
        ("verbose = true", "verbose: has to be a whole number, and is true or false"),
        ("verbose = -1", "verbose: -1 is not 0 or more"),
        ("storage = 'jornal'", "storage: has to be one of 'journal', "),
        ("storage = 'jornal'", "; did you mean 'journal'?"),
        ("root = ''", "root: has to name a file or a directory"),
        ("memcached = '[::1'", "memcached: '[::1' is no HOST[:PORT]"),
        ("port = 1\nport = 2", "is not TOML: "),
        ("port", "is not TOML: "),
        (b"host = '\xff'", "is not TOML: "),
    ],
)
def test_parse_arguments_says_what_is_wrong(
    file: Path, text: str | bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says which file, which key, what is wrong, and what is allowed."""
    assert says in refused(file, text, capsys)


def test_parse_arguments_of_the_bus_says_what_is_wrong(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lists must contain texts. The error does not repeat a token, because errors may be logged."""
    for text in ("queue = 5", "queue = ['a', 5]"):
        assert "queue: has to be a text, or a list of texts, and is a whole number" in refused(
            file, text, capsys, "queue-bus.py"
        )
    assert "queue: 'a,' contains an empty queue name" in refused(file, "queue = 'a,'", capsys, "queue-bus.py")
    said = refused(file, "server-token = 'qs-secret'", capsys, "queue-bus.py")
    assert "did you mean server-token-file?" in said
    assert "qs-secret" not in said


def test_parse_arguments_of_a_missing_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the missing file, with the reason."""
    with pytest.raises(SystemExit, match="2"):
        server_options(["--config", str(file)])
    assert capsys.readouterr().err == f"queue-server.py: cannot read {file}: No such file or directory\n"


def test_parse_arguments_finds_contradictions_of_file_and_flags(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contradictory flags are refused, whichever of them the file has."""
    file.write_text('access = "a"\n')
    with pytest.raises(SystemExit, match="2"):
        server_options(["--config", str(file), "--open"])
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("program", READERS)
def test_every_flag_is_a_key(program: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The keys are the long flags that the help shows, except those that only the command line has."""
    with pytest.raises(SystemExit, match="0"):
        READERS[program](["--help"])
    lines = re.findall(r"^  (-.*?)(?:  .*)?$", capsys.readouterr().out, re.MULTILINE)
    flags = {flag for line in lines for flag in re.findall(r"--([a-z][a-z-]*)", line)}
    keys = refused(file, "zzz = 1", capsys, program).rpartition(": ")[2].strip().split(", ")
    assert set(keys) == flags - {"help", "version", "print-completion", "config", "check", "migrate"}
    assert {"host", "port", "tls-cert", "log-format", "verbose"} < flags


def test_help_names_the_flag_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Reading a file does not change what --help says of defaults."""
    parser = CommandParser(prog="p")
    add_config(parser)
    parser.add_argument("--port", type=int, default=9, help="(default: %(default)s)")
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(parser, ["--help"])
    assert "(default: 9)" in capsys.readouterr().out
    assert parse_arguments(parser, []) == argparse.Namespace(config=None, port=9)
