"""docs/index.md leads to every page, and explains the words that the pages use."""

import re

from support.serving import PROJECT

DOCS = PROJECT / "docs"
PAGE = (DOCS / "index.md").read_text(encoding="utf-8")


def test_every_page_is_in_the_contents() -> None:
    """The contents have each page once."""
    contents = PAGE[PAGE.index("## Contents") : PAGE.index("## Glossary")]
    linked = re.findall(r"\]\(([\w-]+\.md)\)", contents)
    assert sorted(linked) == sorted(path.name for path in DOCS.glob("*.md") if path.name != "index.md")


def test_the_words_are_in_order() -> None:
    """The glossary is sorted, has each word once, and each of them is used on another page."""
    words = re.findall(r"^\| (\w[\w ]*) \|", PAGE[PAGE.index("## Glossary") :], re.MULTILINE)[1:]
    assert words == sorted(set(words))
    assert {"durable name", "claim", "stage", "settle", "window"} <= set(words)
    others = " ".join(path.read_text(encoding="utf-8").lower() for path in DOCS.glob("*.md") if path.name != "index.md")
    assert not [word for word in words if word not in others]
