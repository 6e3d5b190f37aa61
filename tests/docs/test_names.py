"""Names and docstrings of the tests: a failure shows nothing else, so both have to say what has failed."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from support.servers.processes import PROJECT

TESTS = PROJECT / "tests"
NO_SENTENCES = (
    *("Are ", "As ", "How ", "Is ", "It ", "Like ", "Nothing ", "Of ", "See ", "The same", "They ", "True", "What "),
    *("Whether ", "Who "),
)
"""Docstrings that begin so are fragments, or cannot be understood without another one."""
PARAMETERS = re.compile(r"\*{0,2}\w+(, \w+)*: ")
"""The beginning of a docstring that explains parameters alone: the only one in lower case."""


@cache
def documented() -> list[tuple[Path, str, str]]:
    """Returns every module, class and function below tests/: file, name (none for a module) and docstring."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    return [
        (path.relative_to(TESTS), getattr(node, "name", ""), ast.get_docstring(node) or "")
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
    ]


def all_tests() -> list[tuple[Path, str, str]]:
    return [each for each in documented() if each[0].name.startswith("test_") and each[1].startswith("test_")]


def test_no_two_tests_of_a_folder_share_a_name() -> None:
    """`pytest FOLDER -k NAME` runs one test."""
    files: dict[str, list[str]] = defaultdict(list)
    for path, name, _ in all_tests():
        files[f"{path.parent}: {name}"].append(path.name)
    assert len(files) > 3000
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


def test_every_test_says_its_behaviour() -> None:
    """A test without a docstring does not say what has failed."""
    assert [f"{path}: {name}" for path, name, text in all_tests() if not text] == []


def test_docstrings_are_sentences() -> None:
    """The docstring of a test, or of what tests share, says itself what is promised or done."""
    assert [(str(path), name, text) for path, name, text in documented() if text.startswith(NO_SENTENCES)] == []


def test_docstrings_begin_with_a_capital() -> None:
    """A docstring does not begin in the middle of a sentence. A name or a command at its beginning is marked as
    code."""
    begun_low = [each for each in documented() if each[2][:1].islower() and not PARAMETERS.match(each[2])]
    assert [(str(path), name, text) for path, name, text in begun_low] == []
