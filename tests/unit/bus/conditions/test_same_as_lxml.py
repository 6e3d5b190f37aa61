"""Tests that a condition means what XPath 1.0 says: it is refused, or true exactly where lxml's own evaluation of the
same text is true."""

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from support.bus.expressions import HEADERS, document, expression

from qs_bus.conditions import BadCondition, Condition, Document

_TOGETHER = 20
"""Expressions that hypothesis asks for at once: for each alone it would take longer than what is tested."""
_LOWER = {name.lower(): value for name, value in HEADERS.items()}


def truth(text: str, tree: etree._ElementTree) -> bool:
    """Returns what lxml makes of an expression. Its context is the document, where lxml takes the outermost element."""
    variables = {name: _LOWER.get(name[7:].lower(), "") for name in re.findall(r"\$(header-[A-Za-z0-9._-]+)", text)}
    result = etree.ETXPath(f"boolean(/self::node()[boolean({text})])")(tree, **variables)
    assert isinstance(result, bool)
    return result


def compare(payload: str, text: str) -> str:
    """Compares a condition with lxml. Returns the outcome: refused, true, or false."""
    try:
        condition = Condition(text)
    except BadCondition:
        return "refused"
    if re.search(r"\{[^}]*['\"]", text):
        return "refused"  # by lxml: ETXPath takes a quote in a namespace for the begin of a string
    matches = condition.matches(Document(payload.encode()), HEADERS)
    assert matches is truth(text, etree.fromstring(payload).getroottree()), text
    return "true" if matches else "false"


def check_shares(outcomes: Counter[str]) -> None:
    """Checks that many expressions were compared, and that many were true and many false."""
    assert outcomes["refused"] < outcomes.total() * 0.5
    assert min(outcomes["true"], outcomes["false"]) > outcomes.total() * 0.12


def compare_many(count: int) -> Counter[str]:
    """Compares so many expressions, always the same ones. Returns how many had which outcome."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=count // _TOGETHER, derandomize=True, deadline=None, database=None)
    @given(st.integers(0, 2**64))
    def compare_some(seed: int) -> None:
        random = Random(seed)
        for _ in range(_TOGETHER):
            outcomes[compare(document(random), expression(random))] += 1

    compare_some()
    return outcomes


def test_some_expressions() -> None:
    """Some hundred random expressions are refused, or evaluated as lxml does."""
    outcomes = compare_many(500)
    assert outcomes.total() >= 500
    check_shares(outcomes)


@pytest.mark.slow  # some 20 s
@pytest.mark.timeout(600)
def test_many_expressions() -> None:
    """A hundred thousand random expressions are refused, or evaluated as lxml does."""
    outcomes = compare_many(100_000)
    assert outcomes.total() >= 100_000
    check_shares(outcomes)
