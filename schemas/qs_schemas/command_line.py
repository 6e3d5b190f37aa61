"""Parses the arguments of every command of qs.

A mistake is answered in one line, with the name that was perhaps meant. Help has colours on a terminal. Every command
has `--version` and `--print-completion`. Only Python's own library is imported, so help needs no extra.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NoReturn, cast

from .extras import importing
from .terminal import READER_GONE, RED, has_colours, paint, paint_help, silence_stdout

SHELLS = ("bash", "zsh", "fish")
"""The shells that --print-completion knows."""
_CHOICE = re.compile(r"argument (.+): invalid choice: '([^']*)' \(choose from .*\)", re.DOTALL)
_UNKNOWN = "unrecognized arguments: "
_MISSING = "the following arguments are required: "
_CANDIDATES = 20
"""Names that share enough letters with a misspelt one: more than any command has near one word."""


class _Paragraphs(argparse.HelpFormatter):
    """Wraps each paragraph of a description to the terminal's width. A paragraph with indented lines, which is an
    example, stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for paragraph in text.strip("\n").split("\n\n"):
            written = paragraph.split("\n")
            if not any(line.startswith(" ") for line in written):
                written = textwrap.wrap(paragraph, width, break_on_hyphens=False)
            lines += [*written, ""]
        return "\n".join(lines[:-1])


class CommandParser(argparse.ArgumentParser):
    """Parses the arguments of a command, or of a subcommand.

    1. A mistake exits with 2 and one line that says what is wrong and what was perhaps meant, never with the whole
       usage.
    2. A message of a mistake never shows the value of an unknown flag: it may be a secret.
    3. A flag has no abbreviations: an abbreviation in a script would break with the next flag that begins alike.
    4. If the help or the version cannot be written, the process ends with one line and no traceback.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **{"formatter_class": _Paragraphs, **options})
        # Python 3.14's argparse has colours and suggestions of its own: then a message would have both, or differ by
        # the version of Python.
        self.color = self.suggest_on_error = False
        self._words: list[str] = []
        self._within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses arguments, and exits with 2 if there are unknown ones."""
        # By itself argparse has the main command refuse what a subcommand does not know. That one cannot say which flag
        # of the subcommand was meant.
        if self._within:  # `_parse` calls this method again
            return super().parse_known_args(args, namespace)
        self._words = [str(word) for word in (sys.argv[1:] if args is None else args)]
        self._within = True
        try:
            parsed, unknown = self._parse(args, namespace)
        finally:
            self._within = False
        if unknown:
            flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]  # without values: secrets
            self.error(f"{_UNKNOWN}{' '.join(flags or unknown)}")
        return parsed, unknown

    def _parse(self, args: Any, namespace: Any) -> Any:
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exits with 2 and one line on stderr: what is wrong, and what was perhaps meant."""
        label = paint("error:", RED) if has_colours(sys.stderr) else "error:"
        self.exit(2, f"{self.prog}: {label} {self._explain(message)}\n")

    def print_help(self, file: Any = None) -> None:
        """Prints the help, in colours on a terminal."""
        file = file or sys.stdout
        text = paint_help(self.format_help()) if has_colours(file) else self.format_help()
        if file is sys.stdout:
            self.say(text)
        else:
            file.write(text)

    def say(self, text: str) -> None:
        """Writes to standard output. Ends the process with 141 if the reader of the pipe has gone, and with 1 and one
        line if the text cannot be written."""
        if sys.stdout is None:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            silence_stdout()
            if isinstance(error, BrokenPipeError):
                self.exit(READER_GONE)
            self.exit(1, f"{self.prog}: standard output: {error.strerror}\n")

    # -- what was perhaps meant ---------------------------------------------------------------------------------------

    def _explain(self, message: str) -> str:
        help_shows = f"; '{self.prog} --help' shows what there is"
        if message.startswith(_UNKNOWN):
            return self._explain_flag(message, message[len(_UNKNOWN) :].split()) or f"{message}{help_shows}"
        if message.startswith(_MISSING):  # argparse says so before it looks at unknown flags
            unknown = [word for word in self._flags_given() if word not in self._option_string_actions]
            return self._explain_flag(f"{_UNKNOWN}{' '.join(unknown)}", unknown) or f"{message}{help_shows}"
        if found := _CHOICE.fullmatch(message):
            return self._explain_choice(message, found[1], found[2], help_shows)
        return message

    def _flags_given(self, until: str = "--") -> Iterator[str]:
        for word in self._words:
            if word in ("--", until):
                return
            if word.startswith("--"):
                yield word.partition("=")[0]

    def _explain_flag(self, message: str, unknown: Sequence[str]) -> str | None:
        """Returns the message with the flag that was perhaps meant by one of the unknown flags, or None if no flag is
        near."""
        for word in unknown:
            if not word.startswith("--"):
                continue
            if word in self._flags_of_commands():
                return f"{message}; {word} stands after the command"
            if meant := nearest(word, [*self._option_string_actions, *self._flags_of_commands()]):
                return f"{message}; did you mean {meant}?"
        return None

    def _explain_choice(self, message: str, argument: str, given: str, help_shows: str) -> str:
        before = [flag for flag in self._flags_given(until=given) if flag not in self._option_string_actions]
        # `qs --sever x push`: argparse takes the value of the unknown flag for the command.
        if before and self._commands():
            text = f"{_UNKNOWN}{before[0]}"
            return self._explain_flag(text, before) or f"{text}{help_shows}"
        if argument in (action.metavar for action in self._subparsers_actions()):
            message = f"there is no {argument.lower()} {given!r}" + (
                "" if nearest(given, self._commands()) else help_shows
            )
        choices = [str(choice) for action in self._actions for choice in action.choices or ()]
        meant = nearest(given, choices)
        return f"{message}; did you mean {meant}?" if meant else message

    def _subparsers_actions(self) -> Iterator[argparse.Action]:
        return (action for action in self._actions if isinstance(action.choices, dict))

    def _commands(self) -> dict[str, argparse.ArgumentParser]:
        """Returns the subcommands by name; an empty dict for a command without subcommands."""
        found: dict[str, argparse.ArgumentParser] = {}
        for action in self._subparsers_actions():
            found.update(dict(action.choices or {}))
        return found

    def _flags_of_commands(self) -> set[str]:
        return {flag for parser in self._commands().values() for flag in parser._option_string_actions}


class AnyOrder(CommandParser):
    """A parser that takes options between positional arguments: `qs push orders --delay 3 hello`."""

    # argparse has a method for that, and does not use it for subcommands.
    def _parse(self, args: Any, namespace: Any) -> Any:
        return self.parse_known_intermixed_args(args, namespace)


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Returns the name that a misspelt word is nearest to, or None if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

    # `get_close_matches` finds candidates by the letters that they share; of these the one with the fewest slips wins.
    # To leave out the end of a name is not a slip. Where half of the letters are wrong, any name would be a guess, and
    # none is returned.
    near = get_close_matches(word, names, _CANDIDATES)
    slips = {name: 0 if name.startswith(word) else _slips(word, name) for name in near}
    most = len(word.strip("-")) / 2
    return min((name for name in near if slips[name] < most), key=slips.__getitem__, default=None)


def _slips(word: str, name: str) -> int:
    """Counts the typing slips between a name and a word: letters left out, added, mistaken, or two exchanged (the
    distance of Damerau and Levenshtein, with each letter exchanged once at most)."""
    before: list[int] = []
    row = list(range(len(name) + 1))
    for at, letter in enumerate(word, 1):
        last, row, older = row, [at], before
        before = last
        for to, other in enumerate(name, 1):
            least = min(last[to] + 1, row[to - 1] + 1, last[to - 1] + (letter != other))
            if at > 1 and to > 1 and letter == name[to - 2] and other == word[at - 2]:
                least = min(least, older[to - 2] + 1)
            row.append(least)
    return row[-1]


def file_name(text: str) -> str:
    """Parses the name of a file or a directory. Raises ArgumentTypeError if it is empty."""
    # An empty name, for instance from an unset variable, must not count as a flag that was left out: a file that makes
    # a connection safe would be missing without notice.
    if not text:
        raise argparse.ArgumentTypeError("the name of the file is empty: name one, or leave the flag out")
    return text


# -- the flags that every command has ---------------------------------------------------------------------------------


@cache
def installed_version() -> str:
    """Returns the version of the installed package, "unknown" in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - a tenth of a command's start

    try:
        return version("qsbus")
    except PackageNotFoundError:
        return "unknown"


def version_line(name: str = "qs") -> str:
    """Returns the name of a program, the version of the installed package, and the interpreter."""
    from .interpreter import interpreter  # noqa: PLC0415 - as above: hardly any start asks

    return f"{name} {installed_version()} ({interpreter()})"


def add_standard_flags(parser: argparse.ArgumentParser, name: str = "qs") -> None:
    """Adds --version and --print-completion. name: the name of the program, printed before the version."""
    parser.add_argument("--version", action=_ShowVersion, const=name)
    parser.add_argument("--print-completion", action=_ShowCompletion, choices=SHELLS, metavar="SHELL")


class _ShowVersion(argparse.Action):
    """Prints the installed version, and the interpreter."""

    def __init__(self, option_strings: Sequence[str], dest: str, **named: Any) -> None:
        text = "show program's version number and exit"
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=text, **named)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        cast(CommandParser, parser).say(f"{version_line(self.const)}\n")
        parser.exit()


class _ShowCompletion(argparse.Action):
    """Prints the shell's completion file for the command's arguments."""

    def __init__(self, option_strings: Sequence[str], dest: str, **named: Any) -> None:
        text = f"print what makes TAB complete commands and flags, and exit: for {', '.join(SHELLS)}"
        super().__init__(option_strings, argparse.SUPPRESS, help=text, **named)

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, *__: object) -> None:
        with importing("completion", parser.prog):
            import shtab  # noqa: PLC0415 - only here

        for action in _actions_of(parser):
            if action.metavar in ("FILE", "DIR"):
                action.complete = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY  # type: ignore[attr-defined]
        cast(CommandParser, parser).say(f"{shtab.complete(parser, shell)}\n")
        parser.exit()


def _actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the arguments of a command and of its subcommands."""
    for action in parser._actions:
        yield action
        for below in action.choices.values() if isinstance(action.choices, dict) else ():
            yield from _actions_of(below)
