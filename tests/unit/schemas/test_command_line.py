"""Tests what all commands have in common: one line about a mistake, colours on a terminal, completion by shells."""

import io
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable

import pytest

from qs_bus.command import bus_parser
from qs_client.command_arguments import make_parser as qs
from qs_pipeline.arguments import make_parser as pipeline
from qs_schemas.command_line import SHELLS, nearest
from qs_schemas.terminal import has_colours
from qs_server.main.qs_dir_flags import make_parser as directory
from qs_server.main.queue_journal import make_parser as journal
from qs_server.main.queue_server import make_parser as server
from qs_web.command import web_parser

PARSERS: list[Callable[[], ArgumentParser]] = [qs, server, bus_parser, web_parser, journal, directory, pipeline]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def refusal(make: Callable[[], ArgumentParser], words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the line about a mistake."""
    with pytest.raises(SystemExit, match="2"):
        make().parse_args(words.split())
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said.removesuffix("\n")


WRONG_FLAGS = [
    (server, "--histroy d", "queue-server.py", "--histroy; did you mean --history?"),
    (server, "--cach=1", "queue-server.py", "--cach; did you mean --cache?"),
    (bus_parser, "--polciy hold", "queue-bus.py", "--polciy; did you mean --policy?"),
    (directory, "pump q --cuont 5", "qs-dir pump", "--cuont; did you mean --count?"),
    (directory, "ls q extra", "qs-dir ls", "extra; 'qs-dir ls --help' shows what there is"),
    (journal, "check --roto d", "queue-journal.py check", "--roto; did you mean --root?"),
    (directory, "ls q --like-nothing", "qs-dir ls", "--like-nothing; 'qs-dir ls --help' shows what there is"),
    (qs, "push orders --dely 3", "qs push", "--dely; did you mean --delay?"),
    (qs, "push --dely=3", "qs push", "--dely; did you mean --delay?"),
    (qs, "--jsn ls", "qs", "--jsn; did you mean --json?"),
    (qs, "--delay 3 push orders", "qs", "--delay; --delay stands after the command"),
    (qs, "--dely 3 push orders", "qs", "--dely; did you mean --delay?"),
    (server, "--prot 1", "queue-server.py", "--prot; did you mean --port?"),
    (bus_parser, "--prot 1", "queue-bus.py", "--prot; did you mean --port?"),
    (web_parser, "--prot 1", "queue-web.py", "--prot; did you mean --port?"),
    (qs, "--sevrer h ls", "qs", "--sevrer; did you mean --server?"),
    (qs, "--prot 1 ls", "qs", "--prot; did you mean --port?"),
    (directory, "pump q --prot 5", "qs-dir pump", "--prot; 'qs-dir pump --help' shows what there is"),
    (journal, "check --rot d", "queue-journal.py check", "--rot; did you mean --root?"),
    (pipeline, "--prot 1", "qs-pipeline", "--prot; 'qs-pipeline --help' shows what there is"),
    (pipeline, "archive a --too d", "qs-pipeline archive", "--too; did you mean --to?"),
]  # fmt: skip
WRONG_WORDS = [
    (directory, "prge q", "qs-dir", "there is no command 'prge'; did you mean purge?"),
    (journal, "chek", "queue-journal.py", "there is no command 'chek'; did you mean check?"),
    (qs, "pussh orders a", "qs", "there is no command 'pussh'; did you mean push?"),
    (qs, "psuh orders a", "qs", "there is no command 'psuh'; did you mean push?"),
    (qs, "--port 1 ls", "qs", "argument --port: the address is --server HOST:PORT"),
    (qs, "tail q --host h", "qs tail", "argument --host: the address is --bus HOST:PORT"),
    (qs, "frobnicate", "qs", "there is no command 'frobnicate'; 'qs --help' shows what there is"),
    (qs, "push", "qs push", "the following arguments are required: QUEUE; 'qs push --help' shows what there is"),
    (pipeline, "archve a", "qs-pipeline", "there is no job 'archve'; did you mean archive?"),
]


@pytest.mark.parametrize(
    ("make", "words", "program", "says"),
    [*WRONG_WORDS, *((*first, f"unrecognized arguments: {says}") for *first, says in WRONG_FLAGS)],
)
def test_error_says_what_was_meant(
    make: Callable[[], ArgumentParser], words: str, program: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake is answered in one line, by the command that it concerns, with the name that was perhaps meant."""
    assert refusal(make, words, capsys) == f"{program}: error: {says}"


OF_BUCKER = [
    (server, "-s 10.0.0.1:11211,10.0.0.2 -p 9876 -i qs.pid", "-s", "--memcached 10.0.0.1:11211,10.0.0.2"),
    (server, "-i /var/run/qs.pid", "-i", "& echo $! >/var/run/qs.pid behind the command; or run the unit qs-server."),
    (server, "-p 9877", "-p", "write --port 9877"),
    (server, "-l /tmp/qs.log", "-l", "2>>/tmp/qs.log behind the command"),
    (bus_parser, "-s 127.0.0.1:9876 -l /tmp/bus.log", "-l", "2>>/tmp/bus.log behind the command"),
]


@pytest.mark.parametrize(("make", "words", "flag", "says"), OF_BUCKER)
def test_error_of_a_flag_of_bucker(
    make: Callable[[], ArgumentParser], words: str, flag: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flags of bucker's start scripts are refused with what to write instead; the bus's -s means the same here."""
    said = refusal(make, words, capsys)
    assert f"error: argument {flag}: this is a flag of bucker's: " in said
    assert says in said
    assert make().parse_args([]).port


NAMES = [
    "--port",
    "--cert",
    "--part",
    "--root",
    "--open",
    "--max-document",
    "--document-time",
    "push",
    "pause",
    "purge",
]
MEANT = {
    "--prot": "--port", "--port": "--port", "--pot": "--port", "--ports": "--port", "--crt": "--cert",
    "--oepn": "--open", "--rat": None,
    "--documnet-time": "--document-time", "--document-timeout": "--document-time", "psuh": "push",
    "puash": "push", "--docum": "--document-time",
    "pusae": "pause", "purgee": "purge", "--frobnicate": None, "ls": None,
}  # fmt: skip


@pytest.mark.parametrize("word", MEANT)
def test_nearest_of_a_misspelt_word(word: str) -> None:
    """The nearest name is the one with the fewest slips; two letters exchanged are one slip."""
    assert nearest(word, NAMES) == MEANT[word]


def test_error_of_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is not a choice is answered with all choices and the nearest of them."""
    said = refusal(qs, "ls q --state redy", capsys)
    assert "'in-flight'" in said
    assert said.endswith("; did you mean ready?")


def test_has_colours_at_a_terminal_only() -> None:
    """Only a terminal gets colours, unless it is dumb or the user does not want them."""
    assert has_colours(Terminal(), {"TERM": "xterm"})
    assert not has_colours(io.StringIO(), {"TERM": "xterm"})
    assert not has_colours(None, {"TERM": "xterm"})
    for environ in ({"TERM": "dumb"}, {}, {"TERM": "xterm", "NO_COLOR": "1"}):
        assert not has_colours(Terminal(), environ)
    assert has_colours(Terminal(), {"TERM": "xterm", "NO_COLOR": ""})  # as no-color.org has it


@pytest.mark.parametrize("make", PARSERS)
def test_print_help_in_colours(make: Callable[[], ArgumentParser], monkeypatch: pytest.MonkeyPatch) -> None:
    """Help on a terminal is the same text with headings and flags in colour."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, plain = Terminal(), io.StringIO()
    make().print_help(terminal)
    make().print_help(plain)
    painted = terminal.getvalue()
    assert painted.startswith("\x1b[1musage:\x1b[0m ")
    assert "\x1b[36m--version\x1b[0m" in painted
    for sequence in ("\x1b[1m", "\x1b[36m", "\x1b[0m"):
        painted = painted.replace(sequence, "")
    assert painted == plain.getvalue()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("make", PARSERS)
def test_print_completion_of_each_shell(
    make: Callable[[], ArgumentParser], shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command prints completions for each shell: with all its flags."""
    with pytest.raises(SystemExit, match="0"):
        make().parse_args(["--print-completion", shell])
    printed = capsys.readouterr().out
    assert "print-completion" in printed
    assert make().prog in printed


def test_print_completion_works_in_bash(capsys: pytest.CaptureFixture[str]) -> None:
    """`bash` completes commands, their flags, and names of files after --file."""
    with pytest.raises(SystemExit, match="0"):
        qs().parse_args(["--print-completion", "bash"])
    script = capsys.readouterr().out
    for words, expected in (
        ("qs pu", "push purge"),
        ("qs push --de", "--delay"),
        ("qs push -f /etc/host", "/etc/host"),
    ):
        count = len(words.split()) - 1
        ask = f'COMP_WORDS=({words}); COMP_CWORD={count}; _shtab_qs; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(expected), done.stderr


@pytest.mark.parametrize("words", ["--version", "--help", "push --help"])
def test_say_to_a_full_or_closed_output(words: str) -> None:
    """Help and version on a full disk are one line, exit code 1; a reader that has gone is 141. No traceback."""
    program = f"from qs_client.command import main; main({words.split()!r})"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert re.fullmatch(r"qs( push)?: standard output: No space left on device\n", done.stderr)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")
