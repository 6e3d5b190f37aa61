"""docs/vocabulary.md: each word once, and what it names in the code is there."""

import importlib
import re

import pytest
from support.serving import PROJECT

PAGE = (PROJECT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| word |")
]


def test_each_word_stands_once() -> None:
    """No word has two meanings."""
    words = [word for word, _, _ in ROWS]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


@pytest.mark.parametrize(("word", "code"), [(word, code) for word, _, code in ROWS], ids=[word for word, *_ in ROWS])
def test_the_code_of_a_word_exists(word: str, code: str) -> None:
    """The last cell names a class, a function, a constant, a file or a folder that is there."""
    [name] = re.findall(r"`([^`]+)`", code)
    if "/" in name:
        assert (PROJECT / name).exists(), word
    else:
        module, _, found = name.rpartition(".")
        assert hasattr(importlib.import_module(module), found), word
