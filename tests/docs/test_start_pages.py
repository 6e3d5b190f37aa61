"""README.md and the pages about starting are true: what they show is run, and they name every flag.

They are the pages of workers, recipes, dead letters and the bus, and the comparison with other queues.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.console import Block
from support.servers.processes import COMMAND, FAST, PROJECT, ServerProcess, serving

from qs_client import QueueClient
from qs_schemas import PushMessage

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


def test_readme_examples(run_console_blocks: Callable[..., int]) -> None:
    """Every command of README.md's console blocks, run in an empty folder, prints what README.md shows."""
    found = run_console_blocks(README)
    assert found, "README.md has no ```console block with a line '$ command'"


def test_readme_worker_killed_at_work(
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
def test_page_examples(page: str, run_console_blocks: Callable[..., int]) -> None:
    """The examples print what the page shows."""
    assert run_console_blocks(PROJECT / "docs" / page)


def test_bus_page_examples(run_console_blocks: Callable[..., int]) -> None:
    """The examples of docs/bus.md print what the page shows."""
    assert run_console_blocks(PROJECT / "docs" / "bus.md") > 10


@pytest.mark.parametrize("shown", ["./scripts/run", "./scripts/test"])
def test_readme_shows_script(shown: str) -> None:
    """README.md says how to run the project and how to test it, and both scripts are there and can be run."""
    assert shown in README.read_text(encoding="utf-8"), f"README.md does not show {shown}"
    assert (PROJECT / shown).stat().st_mode & 0o111


def test_pages_name_every_server_flag() -> None:
    """README.md or a page names every flag of queue-server.py."""
    missing = missing_from_pages(flags_in(help_of(COMMAND)))
    assert not missing, f"neither README.md nor docs/*.md names these flags of queue-server.py: {', '.join(missing)}"


def test_operations_page_gives_server_defaults() -> None:
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
def test_pages_name_every_flag_of_script(script: str) -> None:
    """README.md or a page names every flag of queue-bus.py, queue-web.py and scripts/run."""
    missing = missing_from_pages(flags_in(help_of([sys.executable, str(PROJECT / "scripts" / script)])))
    assert not missing, f"neither README.md nor docs/*.md names these flags of {script}: {', '.join(missing)}"


def test_pages_name_every_qs_command() -> None:
    """README.md or a page shows every subcommand of qs, as `qs NAME`."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = [name for name in subcommands_in(help_of(QS)) if not re.search(rf"\bqs {name}\b", text)]
    assert not missing, f"neither README.md nor docs/*.md shows these commands: {', '.join(f'qs {n}' for n in missing)}"


def test_pages_name_every_qs_flag() -> None:
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
def test_link_to_file_leads_somewhere(page: Path) -> None:
    """Every relative link of a page leads to a file of the project."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: no file for the link {target}"


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, PROJECT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_link_to_section_leads_somewhere(page: Path) -> None:
    """Every link to a section of a page, this one or another, has that section."""
    for target, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        other = page.parent / target if target else page
        if other.suffix == ".md":
            assert section in anchors_of(other), f"{page.name}: no section for the link {target}#{section}"


WORKERS = PROJECT / "docs" / "workers.md"


def test_workers_page_examples(run_console_blocks: Callable[..., int]) -> None:
    """The sync one and the async one handle, try again, give up and stop; a repeated message changes nothing."""
    assert run_console_blocks(WORKERS) > 10


def test_workers_page_crew_in_trio(fenced_blocks: Callable[..., list[Block]], tmp_path: Path) -> None:
    """The async worker is the same program in trio: it handles messages, and stops at a signal."""
    [crew] = [each for each in fenced_blocks(WORKERS.read_text(encoding="utf-8"), "python") if each.title == "crew.py"]
    with serving(tmp_path / "root", *FAST) as server:
        body = crew.body.replace("9876", str(server.port)).replace("anyio.run(main)", "import trio; trio.run(main)")
        with QueueClient("127.0.0.1", server.port) as client:
            client.new_queue("orders")
            client.push("orders", "3 apples")
        command = [sys.executable, "-u", "-c", body]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "packed 3 apples\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.stdout.read() == "stopped\n"
        assert worker.returncode == 0


def test_recipes_page_examples(run_console_blocks: Callable[..., int]) -> None:
    """Tasks are done, tried again and redriven; keys make one job of two; urgent ones come first; answers come back;
    one step follows the other."""
    assert run_console_blocks(PROJECT / "docs" / "recipes.md") > 30


def test_order_page_examples(run_console_blocks: Callable[..., int]) -> None:
    """Priorities, groups, the order of queues, unique jobs and limits do what the page says."""
    assert run_console_blocks(PROJECT / "docs" / "order-and-pace.md") > 20


DEAD_LETTERS = PROJECT / "docs" / "dead-letters.md"


def test_dead_letters_page_examples(run_console_blocks: Callable[..., int]) -> None:
    """The commands show a message from its first failure to its success, messages that grow too old, and a pause."""
    assert run_console_blocks(DEAD_LETTERS) > 15


def test_dead_letters_page_program(fenced_blocks: Callable[..., list[object]], tmp_path: Path) -> None:
    """The program in Python prints what is shown below it."""
    page = DEAD_LETTERS.read_text(encoding="utf-8")
    [program], [printed] = (fenced_blocks(page, language) for language in ("python", "text"))
    with serving(tmp_path / "root", *FAST) as server:
        body = program.body.replace("9876", str(server.port))  # type: ignore[attr-defined]
        done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (printed.body, "")  # type: ignore[attr-defined]


DOCS = PROJECT / "docs"


def _cells_of(page: str, after: str = "", before: str = "\0") -> list[list[str]]:
    """Returns the cells of the tables of a page, behind one text and before the next other one."""
    text = (DOCS / page).read_text(encoding="utf-8")
    text = (text.partition(after)[2] if after else text).partition(before)[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize(("lacking", "field"), [("priorities", "priority"), ("order within groups", "group")])
def test_compare_page_denies_only_what_is_missing(lacking: str, field: str) -> None:
    """The reasons against qs name exactly what the protocol cannot ask for: a change that adds the field has to correct
    the page."""
    assert "mid" in PushMessage.__dataclass_fields__
    paragraph = (
        (DOCS / "compare.md").read_text(encoding="utf-8").partition("**Do not take qs**")[2].partition("\n\n")[0]
    )
    assert (lacking in paragraph) == (field not in PushMessage.__dataclass_fields__)


def test_compare_page_has_section_for_each_queue() -> None:
    """The queues of the tables are those of the sections, which also have what is not a queue server."""
    text = (DOCS / "compare.md").read_text(encoding="utf-8")
    first, *_ = _cells_of("compare.md")
    others = [row[0].split("](")[0].lstrip("[") for row in _cells_of("compare.md", "Others, in short:", "\n## ")[1:]]
    assert others == ["pgmq", "River", "procrastinate", "Kafka's share groups", "LavinMQ"]
    sections = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert set(sections) - {
        "Queues in PostgreSQL",
        "Celery's brokers",
        "Files in a directory",
        "What is different",
    } == ({*first[2:], *others} - {"pgmq", "River", "procrastinate"} | {"NATS JetStream"})
    assert all(name in text.partition("## Queues in PostgreSQL")[2] for name in others[:3])


def test_compare_page_gives_measured_rates() -> None:
    """The last two rows of the first table are two columns of the short table of measurements."""
    measured = _cells_of("performance.md", "in short: do not edit from here")[1:6]
    assert [row[0].split()[0].strip(",") for row in measured] == ["qs", "beanstalkd", "Redis", "RabbitMQ", "NATS"]
    rates = [row for row in _cells_of("compare.md") if row[0].startswith("durable push")]
    push, cycle = ([cell.removesuffix("/s") for cell in row[1:6]] for row in rates)
    assert push == [row[1] for row in measured]
    assert cycle == [row[3] for row in measured]
    memory = {row[0].split()[0].strip(","): row[5] for row in measured}
    assert f"{memory['qs']} to {memory['RabbitMQ']}" in (DOCS / "compare.md").read_text(encoding="utf-8")
