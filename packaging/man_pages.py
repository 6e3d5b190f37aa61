"""Writes a man page for each command, from the parser of its arguments: man_pages.py [DIR]

scripts/man runs it in a checkout, and build_hook.py when a wheel is built. It needs nothing but Python and the sources:
parsers are made without lxml, anyio, trio and the packages of extras.
"""

import argparse
import os
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PAGES = {
    "qs": ("qs_client.command_arguments:make_parser", "queues from a shell"),
    "queue-server.py": ("qs_server.main.queue_server:make_parser", "the queue server"),
    "queue-bus.py": ("qs_bus.command:bus_parser", "pushes new messages to subscribers"),
    "queue-journal.py": (
        "qs_server.main.queue_journal:make_parser",
        "checks, copies and repairs the journal of a queue server",
    ),
    "queue-web.py": (
        "qs_web.command:web_parser",
        "the page of a queue server: its queues and messages in a browser",
    ),
    "qs-dir": ("qs_server.main.qs_dir_flags:make_parser", "works on the directory of a queue, without a server"),
    "qs-pipeline": (
        "qs_pipeline.arguments:make_parser",
        "archives, reports, replays and routes queues with Spark",
    ),
}
"""Command -> the function that makes its parser, and the line that says what the command is for."""
_WIDE = "100000"
"""Columns, so that argparse breaks no line: the formatter of the page does."""


def main(arguments: list[str]) -> int:
    """Writes all pages to the directory that is named, else to that of .venv, where man finds them."""
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print("usage: man [DIR]", file=sys.stderr)
        return 2
    if not arguments and not (_ROOT / ".venv").is_dir():
        print("man: there is no .venv: name a directory for the pages, as in ./scripts/man pages", file=sys.stderr)
        return 2
    target = Path(arguments[0] if arguments else _ROOT / ".venv/share/man/man1")
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    sys.path[:0] = [str(_ROOT / folder) for folder in project["tool"]["hatch"]["build"]["dev-mode-dirs"]]
    os.environ["COLUMNS"] = _WIDE
    target.mkdir(parents=True, exist_ok=True)
    for command, (where, about) in _PAGES.items():
        module, _, function = where.partition(":")
        parser = getattr(import_module(module), function)()
        text = "\n".join(_page(command, about, parser, project["project"]["version"]))
        (target / f"{command}.1").write_text(f"{text}\n")
    print(f"{target}: {len(_PAGES)} pages")
    return 0


def _page(command: str, about: str, parser: argparse.ArgumentParser, version: str) -> Iterator[str]:
    # Without a date, which would make each build another one.
    yield f'.TH {_text(command.upper())} "1" "" "qs {_text(version)}" "qs"'
    yield f".SH NAME\n{_text(command)} \\- {_text(about)}"
    yield f".SH SYNOPSIS\n{_usage(parser)}"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(parser.description)
    for group in parser._action_groups:
        if actions := _shown(group):
            yield f".SH {_text((group.title or '').upper())}"
            yield from _paragraphs(group.description)
            for action in actions:
                yield from _argument(parser, action)
    shared = {_key(action) for action in parser._actions}
    for each in _subcommands(parser):
        yield f".SS {_text(each.prog)}\n{_usage(each)}"
        yield from _paragraphs(each.description)
        for group in each._action_groups:
            for action in _shown(group):
                if _key(action) not in shared:
                    yield from _argument(each, action)
        yield from _paragraphs(each.epilog)
    if parser.epilog:
        yield ".SH NOTES"
        yield from _paragraphs(parser.epilog)


def _shown(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    """Returns the arguments of a group that its help shows, except --help."""
    hidden = "==SUPPRESS=="
    return [each for each in group._group_actions if each.help != hidden and not isinstance(each, argparse._HelpAction)]


def _key(action: argparse.Action) -> tuple[object, ...]:
    """Returns a key by which an argument of a subcommand that the command has too is known: it stands once on the
    page."""
    return action.dest, *action.option_strings, action.help


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields the parsers of the subcommands, each once, though it may have several names."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            yield from dict.fromkeys(action.choices.values())


def _usage(parser: argparse.ArgumentParser) -> str:
    program, usage = parser.prog, " ".join(parser.format_usage().split())
    return f".B {_text(program)}\n{_text(usage.removeprefix(f'usage: {program}').strip())}"


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Iterator[str]:
    """Yields an argument with its help; or the subcommands, each with the line that the help has of it."""
    if isinstance(action, argparse._SubParsersAction):
        for each in action._choices_actions:
            yield f".TP\n.B {_text(each.metavar or each.dest)}\n{_text(each.help or '')}"
        return
    formatter = parser._get_formatter()
    value = ""
    if action.nargs != 0:
        default = action.dest.upper() if action.option_strings else action.dest
        value = f"\\fI{_text(formatter._format_args(action, default))}\\fR"
    names = [f"\\fB{_text(name)}\\fR" for name in action.option_strings]
    yield f".TP\n{' '.join(filter(None, (', '.join(names), value)))}"
    yield _text(formatter._expand_help(action) if action.help else "")


def _paragraphs(text: str | None) -> Iterator[str]:
    """Yields the paragraphs of a description. Lines of one that has indented lines stay as they are, as in the help."""
    for paragraph in (text or "").strip("\n").split("\n\n"):
        lines = paragraph.split("\n")
        if any(line.startswith(" ") for line in lines):
            yield "\n".join([".PP", ".nf", *map(_text, lines), ".fi"])
        elif paragraph:
            yield f".PP\n{_text(' '.join(lines))}"


def _text(text: str) -> str:
    """Returns text that the formatter takes as it is: a backslash, a minus to be copied, and no macro at its start."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
