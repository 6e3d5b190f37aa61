"""The pages as a whole: the site is built, contents and glossary are complete, what pages name exists.

Each page of a decision says what a decision has to say, with figures that were measured.
"""

import html
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers.processes import PROJECT
from support.servers.web import Chromium, chromium, missing

from qs_client.command_arguments import command_line
from qs_schemas import OPERATIONS
from qs_storage.journal.log import records

SLOW = pytest.mark.slow  # 10 s to build the site, 5 s for a browser

MKDOCS = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site. mkdocs checks that every page is in the navigation, and every link and anchor leads
    somewhere."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [*MKDOCS, "--site-dir", str(folder)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def window(site: Path) -> Iterator[Chromium]:
    if text := missing():
        pytest.skip(text)
    with chromium(f"file://{site}") as browser:
        yield browser


@SLOW
def test_site_has_every_page(site: Path) -> None:
    """Every page is there, and no list or table is left as text. The site asks no other host for anything."""
    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}
    assert {path.with_suffix(".html").name for path in (PROJECT / "docs").glob("*.md")} <= pages.keys()
    assert (site / "project/schemas/qs_schemas/qs.xsd").exists()
    left = [
        (name, text)
        for name, page in pages.items()
        for text in re.findall(r"<p>(.*?)</p>", page, re.DOTALL)
        if re.search(r"^\s*(?:- |\d+\. |\||```)", text, re.MULTILINE)
    ]
    assert not left
    loaded = [
        (name, tag)
        for name, page in pages.items()
        for tag in re.findall(r'<(?:script|link|img)[^>]*"https?:[^>]*>', page)
    ]
    assert not loaded


@SLOW
def test_home_page_begins_as_readme(site: Path) -> None:
    """The home page has every line of the beginning of README.md, with the picture, and then the contents of
    docs/index.md."""
    page = (site / "index.html").read_text("utf-8")
    article = page[page.index("<article") : page.index("</article")]
    words = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", article)))
    readme = (PROJECT / "README.md").read_text("utf-8").partition("\n## A worker\n")[0]
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)|```\w*|[*`#]", lambda found: (found[1] or "").strip(), readme)
    lines = [" ".join(line.split()) for line in text.splitlines() if line and not line.startswith("Producers push")]
    assert len(lines) > 10
    assert [line for line in lines if line not in words] == []
    assert '<img alt="Producers push' in article
    assert article.index("Install and start") < article.index("Contents") < article.index("Glossary")


@SLOW
@pytest.mark.parametrize("width", [1200, 390])
def test_protocol_examples_fit_window(window: Chromium, width: int) -> None:
    """The end of each document can be seen without scrolling sideways, on a desk and on a phone; on a desk the first
    example has the lines of the page."""
    window.resize(width, 900)
    window.open("/protocol.html")
    sizes = window.run(
        "return [...document.querySelectorAll('.language-text code')].map((each) => [each.scrollWidth, "
        "each.clientWidth, Math.round(each.clientHeight / parseFloat(getComputedStyle(each).lineHeight))])"
    )
    assert isinstance(sizes, list)
    assert len(sizes) > 20
    assert [size for size in sizes if size[0] > size[1]] == []
    if width == 1200:
        first = re.search(r"^```qs\n(.*?)^```", (PROJECT / "docs/protocol.md").read_text("utf-8"), re.M | re.S)
        assert first is not None
        assert abs(sizes[0][2] - first[1].count("\n")) <= 2  # the box has a margin of its own


DOCS = PROJECT / "docs"
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def test_contents_have_every_page() -> None:
    """The contents have each page once."""
    contents = INDEX[INDEX.index("## Contents") : INDEX.index("## How to follow")]
    linked = re.findall(r"\]\(([\w-]+\.md)\)", contents)
    assert sorted(linked) == sorted(path.name for path in DOCS.glob("*.md") if path.name != "index.md")


def test_link_text_is_no_file_name() -> None:
    """The text of a link to a page is the page's title or what is read there, not the name of a file."""
    link = re.compile(r"\[([^\[\]]*)\]\([^()\s]+\.md(?:#[^()\s]*)?\)")
    found = [(page.name, text) for page in PAGES for text in link.findall(page.read_text(encoding="utf-8"))]
    assert len(found) > 100
    assert [each for each in found if re.search(r"\.md\b", each[1])] == []


def test_contents_have_titles() -> None:
    """The contents name each page by its title."""
    contents = INDEX[INDEX.index("## Contents") : INDEX.index("## How to follow")]
    for text, target in re.findall(r"\[([^\]]*)\]\(([^)]*)\)", contents):
        assert (DOCS / target).read_text(encoding="utf-8").startswith(f"# {text}\n"), target


def test_page_says_which_ports_its_examples_need() -> None:
    """A page that starts servers says which ports they need, and leads to how its examples are followed."""
    ports = {"queue-server.py": ["9876"], "queue-bus.py": ["9878"], "queue-web.py": ["9880"]}
    ports["./scripts/run"] = [port for each in ports.values() for port in each]
    for path in DOCS.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        started = {
            name for name in ports if re.search(rf"^\$ {re.escape(name)}(?!.*--(?:help|version|check))", blocks, re.M)
        }
        if not started:
            continue
        said = re.search(r"The \[examples\]\(index\.md#how-to-follow-the-examples\) need ([^.]*) free", text)
        assert said is not None, path.name
        assert {port for name in started for port in ports[name]} <= set(re.findall(r"\d{4,}", said[1])), path.name


def test_glossary_is_in_order() -> None:
    """The glossary is sorted, has each word once, and each of them is used on another page."""
    words = re.findall(r"^\| (\w[\w ]*) \|", INDEX[INDEX.index("## Glossary") :], re.MULTILINE)[1:]
    assert words == sorted(set(words))
    assert {"durable name", "claim", "stage", "settle", "window"} <= set(words)
    others = " ".join(path.read_text(encoding="utf-8").lower() for path in DOCS.glob("*.md") if path.name != "index.md")
    assert not [word for word in words if word not in others]


@pytest.mark.parametrize("page", [PROJECT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_page_programs_have_no_undefined_names(page: Path, fenced_blocks: Callable[..., list[Any]]) -> None:
    """The Python blocks of a page, one after the other, use only names that they define."""
    program = "\n".join(block.body for block in fenced_blocks(page.read_text(encoding="utf-8"), "python"))
    command = [Path(sys.executable).parent / "ruff", "check", "--isolated", "--select", "F821,E9", "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


CLASSES = {
    "LogQueue": "queues.queue",
    "QueueState": "queues.state",
    "LogClaims": "queues.claims",
    "LogBatches": "queues.batches",
    "Ingester": "upkeep.ingest",
}
"""The modules, in the journal, of the classes that the table of states names."""


def section(page: Path, heading: str) -> str:
    """Returns what stands under a heading, up to the next one of its rank."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"{page.name} has no section {heading!r}"
    return rest.partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of the only table of a text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


def test_map_names_files() -> None:
    """Each row of the map of CONTRIBUTING.md names files to open, and tests; all of them exist."""
    found = rows(section(PROJECT / "CONTRIBUTING.md", "To change something"))
    assert len(found) >= 20
    for what, opened, tests in found:
        for cell in (opened, tests):
            paths = re.findall(r"`([^`]+)`", cell)
            assert paths, what
            assert not [path for path in paths if not (PROJECT / path).exists()], what
        assert all(path.startswith("tests/") for path in re.findall(r"`([^`]+)`", tests)), what


def test_invariants_name_tests() -> None:
    """The invariants of the journal are numbered without a gap, and each names tests that exist."""
    parts = re.split(r"^(\d+)\. ", section(DOCS / "journal.md", "What always holds"), flags=re.MULTILINE)[1:]
    numbers, texts = parts[::2], parts[1::2]
    assert list(map(int, numbers)) == list(range(1, len(numbers) + 1))
    assert len(numbers) > 10
    for number, text in zip(numbers, texts, strict=True):
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
        assert tests, number
        for path, name in tests:
            assert re.search(rf"^def {name}\(", (PROJECT / path).read_text(encoding="utf-8"), re.MULTILINE), (
                path,
                name,
            )


def test_states_name_operations_and_records() -> None:
    """The table of states names operations, records and methods that exist, and every kind of record that a request
    writes."""
    text = section(DOCS / "architecture.md", "The states of a message")
    named: set[str] = set()
    for what, *_, written, code in rows(text):
        operations = re.findall(r"`([a-z]+-[a-z]+|subscribe)`", what.partition(" without ")[0])
        assert set(operations) <= OPERATIONS.keys() | {"max-receives"}, what
        named |= set(re.findall(r"\b[A-Z]{4,}\b", written))
        [(name, method)] = re.findall(r"`(\w+)\.(\w+)`", code)
        module = importlib.import_module(f"qs_storage.journal.{CLASSES[name]}")
        assert callable(getattr(getattr(module, name), method)), code
    kinds = {records.name_of(number) for number in records.KINDS}
    copied_by_compaction_or_about_queues = {"QUEUE", "KEY", "LETTER", "MOVED", "UNLINKED"}
    assert named == kinds - copied_by_compaction_or_about_queues


def test_power_loss_page_names_every_module() -> None:
    """The page about power losses names each module that plays them, each file of tests, and nothing that is gone."""
    text = (DOCS / "power-loss.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+\.py)`", text))
    tests = {path.name for path in (PROJECT / "tests" / "faults").glob("test_*power_loss*.py")}
    tests.add("test_every_sync_earns_its_test.py")
    modules = {path.name for path in (PROJECT / "tests" / "support" / "power_loss").glob("[!_]*.py")}
    assert named == tests | modules


def test_troubleshooting_commands_are_understood() -> None:
    """Each symptom comes with a command that shows it, and `qs` understands all that are named."""
    found = rows(section(DOCS / "operations.md", "Troubleshooting"))
    assert len(found) >= 12
    for symptom, look, what in found:
        assert re.search(r"`(qs|queue-server.py|queue-journal.py|journalctl|iostat) ", look), symptom
        for command in re.findall(r"`qs ([^`…]+)`", f"{look} {what}"):
            command_line(shlex.split(command.replace("MID", "1")))


VOCABULARY = (PROJECT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
VOCABULARY_ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in VOCABULARY.splitlines()
    if line.startswith("| ") and not line.startswith("| word |")
]


def test_vocabulary_has_each_word_once() -> None:
    """No word has two meanings."""
    words = [word for word, _, _ in VOCABULARY_ROWS]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


@pytest.mark.parametrize(
    ("word", "code"), [(word, code) for word, _, code in VOCABULARY_ROWS], ids=[word for word, *_ in VOCABULARY_ROWS]
)
def test_vocabulary_names_code_that_exists(word: str, code: str) -> None:
    """The last cell names a class, a function, a constant, a file or a folder that is there."""
    [name] = re.findall(r"`([^`]+)`", code)
    if "/" in name:
        assert (PROJECT / name).exists(), word
    else:
        module, _, found = name.rpartition(".")
        assert hasattr(importlib.import_module(module), found), word


LIST = DOCS / "decisions" / "README.md"
DECISIONS = sorted(path for path in LIST.parent.glob("*.md") if path != LIST)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decision_has_its_parts(page: Path) -> None:
    """A decision says the situation, what was decided, what it costs and what would change it, in this order, on less
    than a screen and a half. It is in the list, and in the navigation of the site."""
    text = page.read_text(encoding="utf-8")
    parts = re.findall(r"^\*\*(Situation|Decision|What it costs|What would change it)\b", text, re.MULTILINE)
    assert parts == ["Situation", "Decision", "What it costs", "What would change it"]
    assert text.count("\n") < 60
    title = text.partition("\n")[0].removeprefix("# ")
    assert f"[{title}]({page.name})" in LIST.read_text(encoding="utf-8")
    assert f"- decisions/{page.name}\n" in (PROJECT / "mkdocs.yml").read_text(encoding="utf-8")


def test_decision_figures_are_measured() -> None:
    """A rate, a time or a ratio in a table of a decision stands among the figures of how performance is measured."""
    known = set(re.findall(r"\d[\d,.]*\d", (DOCS / "performance-method.md").read_text(encoding="utf-8")))
    for page in DECISIONS:
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = line.split("|")[2:-1] if line.startswith("| ") else []
            figures = [cell.strip().removesuffix(" s").removesuffix(" ms") for cell in cells]
            found = [each for each in figures if re.fullmatch(r"\d[\d,.]*\d", each)]
            assert not [each for each in found if each not in known], (page.name, line)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yields file and section of each link to a file."""
    for target in re.findall(r"\]\(([^()\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            path, _, name = target.partition("#")
            yield path, name


@pytest.mark.parametrize("page", [*DECISIONS, LIST, PROJECT / "SECURITY.md"], ids=lambda page: page.stem)
def test_decision_links_lead_somewhere(page: Path) -> None:
    """Each link of a page outside the folder of pages leads to a file, and to a section of it."""
    for path, name in links(page):
        target = page.parent / path
        assert target.exists(), path
        if name:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert name in slugs, (path, name)
