"""docs/decisions: each page says what a decision has to say, with figures that were measured, and its links lead on."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import PROJECT

DOCS = PROJECT / "docs"
LIST = DOCS / "decisions" / "README.md"
DECISIONS = sorted(path for path in LIST.parent.glob("*.md") if path != LIST)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision(page: Path) -> None:
    """A decision says the situation, what was decided, what it costs and what would change it, in this order, on less
    than a screen and a half. It is in the list, and in the navigation of the site."""
    text = page.read_text(encoding="utf-8")
    parts = re.findall(r"^\*\*(Situation|Decision|What it costs|What would change it)\b", text, re.MULTILINE)
    assert parts == ["Situation", "Decision", "What it costs", "What would change it"]
    assert text.count("\n") < 60
    title = text.partition("\n")[0].removeprefix("# ")
    assert f"[{title}]({page.name})" in LIST.read_text(encoding="utf-8")
    assert f"- decisions/{page.name}\n" in (PROJECT / "mkdocs.yml").read_text(encoding="utf-8")


def test_figures_of_decisions() -> None:
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
def test_links(page: Path) -> None:
    """Each link of a page outside the folder of pages leads to a file, and to a section of it."""
    for path, name in links(page):
        target = page.parent / path
        assert target.exists(), path
        if name:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
            assert name in slugs, (path, name)
