"""docs/index.md leads to every page, and explains the words that the pages use."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.serving import PROJECT

DOCS = PROJECT / "docs"
PAGE = (DOCS / "index.md").read_text(encoding="utf-8")
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def test_every_page_is_in_the_contents() -> None:
    """The contents have each page once."""
    contents = PAGE[PAGE.index("## Contents") : PAGE.index("## How to follow")]
    linked = re.findall(r"\]\(([\w-]+\.md)\)", contents)
    assert sorted(linked) == sorted(path.name for path in DOCS.glob("*.md") if path.name != "index.md")


def test_links_name_pages() -> None:
    """The text of a link to a page is the page's title or what is read there, not the name of a file."""
    link = re.compile(r"\[([^\[\]]*)\]\([^()\s]+\.md(?:#[^()\s]*)?\)")
    found = [(page.name, text) for page in PAGES for text in link.findall(page.read_text(encoding="utf-8"))]
    assert len(found) > 100
    assert [each for each in found if re.search(r"\.md\b", each[1])] == []


def test_the_contents_have_titles() -> None:
    """The contents name each page by its title."""
    contents = PAGE[PAGE.index("## Contents") : PAGE.index("## How to follow")]
    for text, target in re.findall(r"\[([^\]]*)\]\(([^)]*)\)", contents):
        assert (DOCS / target).read_text(encoding="utf-8").startswith(f"# {text}\n"), target


def test_each_page_says_what_its_examples_need() -> None:
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


def test_the_words_are_in_order() -> None:
    """The glossary is sorted, has each word once, and each of them is used on another page."""
    words = re.findall(r"^\| (\w[\w ]*) \|", PAGE[PAGE.index("## Glossary") :], re.MULTILINE)[1:]
    assert words == sorted(set(words))
    assert {"durable name", "claim", "stage", "settle", "window"} <= set(words)
    others = " ".join(path.read_text(encoding="utf-8").lower() for path in DOCS.glob("*.md") if path.name != "index.md")
    assert not [word for word in words if word not in others]


@pytest.mark.parametrize("page", [PROJECT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_programs_have_no_undefined_names(page: Path, fenced_blocks: Callable[..., list[Any]]) -> None:
    """The Python blocks of a page, one after the other, use only names that they define."""
    program = "\n".join(block.body for block in fenced_blocks(page.read_text(encoding="utf-8"), "python"))
    command = [Path(sys.executable).parent / "ruff", "check", "--isolated", "--select", "F821,E9", "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
