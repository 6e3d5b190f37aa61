"""README.md and the pages are true and complete: what they show is run, and every flag is named in them."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.serving import COMMAND, PROJECT, ServerProcess

from qs_client import QueueClient

README = PROJECT / "README.md"
PAGES = [README, *sorted((PROJECT / "docs").glob("*.md"))]
QS = [str(Path(sys.executable).parent / "qs")]

# On every command, and how one finds the rest.
_UNDOCUMENTED = {"--help"}


def help_of(command: list[str]) -> str:
    done = subprocess.run(
        [*command, "--help"], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{' '.join(command)} --help ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*", text)) - _UNDOCUMENTED


def subcommands_in(text: str) -> list[str]:
    listed = re.search(r"^commands:\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert listed is not None, f"qs --help lists no commands:\n{text}"
    return re.findall(r"^    (\w[\w-]*)", listed.group(1), re.MULTILINE)


def missing_from_pages(flags: set[str]) -> list[str]:
    named = set[str]().union(*(flags_in(page.read_text(encoding="utf-8")) for page in PAGES))
    return sorted(flags - named)


def test_the_console_blocks(run_console_blocks: Callable[..., int]) -> None:
    """Every command of README.md's console blocks, run in an empty folder, prints what README.md shows."""
    found = run_console_blocks(README)
    assert found, "README.md has no ```console block with a line '$ command'"


def test_the_worker_survives_its_own_crash(
    server: ServerProcess, fenced_blocks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """README.md's worker is killed while it handles a message: the next worker gets the message at once."""
    [program] = fenced_blocks(README.read_text(encoding="utf-8"), "python")
    worker = tmp_path / program.title
    worker.write_text(program.body.replace("9876", str(server.port)))
    killed = (
        "import builtins, os, runpy; "
        f"builtins.print = lambda _: os.kill(os.getpid(), 9); runpy.run_path({str(worker)!r})"
    )
    with QueueClient("127.0.0.1", server.port) as client:
        client.new_queue("jobs", max_receives=2, dead_letter="failed")
        client.push("jobs", "3 apples")
        assert subprocess.run([sys.executable, "-c", killed], timeout=60, check=False).returncode == -signal.SIGKILL
        with subprocess.Popen([sys.executable, "-u", str(worker)], stdout=subprocess.PIPE, text=True) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "packed 3 apples\n"
            second.kill()


@pytest.mark.parametrize("page", ["architecture.md", "commands.md"])
def test_the_examples_of_a_page(page: str, run_console_blocks: Callable[..., int]) -> None:
    """The examples print what the page shows."""
    assert run_console_blocks(PROJECT / "docs" / page)


def test_the_page_of_the_bus(run_console_blocks: Callable[..., int]) -> None:
    """The examples of docs/bus.md print what the page shows."""
    assert run_console_blocks(PROJECT / "docs" / "bus.md") > 10


@pytest.mark.parametrize("shown", ["./scripts/run", "./scripts/test"])
def test_the_commands_of_a_checkout_are_shown(shown: str) -> None:
    """README.md says how to run the project and how to test it, and both scripts are there and can be run."""
    assert shown in README.read_text(encoding="utf-8"), f"README.md does not show {shown}"
    assert (PROJECT / shown).stat().st_mode & 0o111


def test_every_flag_of_the_server_is_named() -> None:
    """README.md or a page names every flag of queue-server.py."""
    missing = missing_from_pages(flags_in(help_of(COMMAND)))
    assert not missing, f"neither README.md nor docs/*.md names these flags of queue-server.py: {', '.join(missing)}"


def test_defaults_of_the_server() -> None:
    """The flags' rows in operations.md give the defaults of the command."""
    described = re.split(r" (?=--[a-z])", " ".join(help_of(COMMAND).split()))
    found = [re.fullmatch(r"(--[a-z-]+) .*\(default: (?:\./)?([^)]+?)(?:\.0)?\).*", text) for text in described]
    defaults = {match[1]: match[2] for match in found if match}
    page = (PROJECT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`--[^|]*) \| ([^|]*) \|", page, re.MULTILINE)
    told = {flag: cell for flags, cell in rows for flag in re.findall(r"`(--[a-z-]+)", flags)}
    both = defaults.keys() & told.keys()
    assert {"--storage", "--cache", "--max-document", "--grace"} <= both
    wrong = {
        flag: (defaults[flag], told[flag]) for flag in both if defaults[flag] not in re.split("[ ,`/]+", told[flag])
    }
    assert not wrong, f"defaults of queue-server.py, and what docs/operations.md says: {wrong}"


@pytest.mark.parametrize("script", ["queue-bus.py", "queue-web.py", "start.py"])
def test_every_flag_of_the_bus_is_named(script: str) -> None:
    """README.md or a page names every flag of queue-bus.py, queue-web.py and scripts/run."""
    missing = missing_from_pages(flags_in(help_of([sys.executable, str(PROJECT / "scripts" / script)])))
    assert not missing, f"neither README.md nor docs/*.md names these flags of {script}: {', '.join(missing)}"


def test_every_command_of_qs_is_named() -> None:
    """README.md or a page shows every subcommand of qs, as `qs NAME`."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = [name for name in subcommands_in(help_of(QS)) if not re.search(rf"\bqs {name}\b", text)]
    assert not missing, f"neither README.md nor docs/*.md shows these commands: {', '.join(f'qs {n}' for n in missing)}"


def test_every_flag_of_qs_is_named() -> None:
    """README.md or a page names every flag of qs and of its subcommands."""
    general = help_of(QS)
    of_command = {"qs": flags_in(general)}
    for name in subcommands_in(general):
        of_command[f"qs {name}"] = flags_in(help_of([*QS, name]))
    missing = [
        f"{flag} ({', '.join(command for command, flags in of_command.items() if flag in flags)})"
        for flag in missing_from_pages(set[str]().union(*of_command.values()))
    ]
    assert not missing, f"neither README.md nor docs/*.md names these flags: {'; '.join(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files(page: Path) -> None:
    """Every relative link of a page leads to a file of the project."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: no file for the link {target}"


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, PROJECT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_to_sections(page: Path) -> None:
    """Every link to a section of a page, this one or another, has that section."""
    for target, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        other = page.parent / target if target else page
        if other.suffix == ".md":
            assert section in anchors_of(other), f"{page.name}: no section for the link {target}#{section}"
