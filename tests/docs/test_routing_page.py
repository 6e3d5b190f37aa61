"""`docs/routing.md` is true: its examples are run, its conditions are taken or refused as it says, and its bounds are
those of the code."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.servers.processes import PROJECT

from qs_bus import patterns
from qs_bus.conditions import BadCondition, Condition, Document, document, grammar, tokens

PAGE = PROJECT / "docs" / "routing.md"
TEXT = PAGE.read_text(encoding="utf-8")
ORDER = Document(
    b"<order priority='high'><customer>Ann</customer><total>120</total><note>urgent, as always: "
    + b"x" * 100
    + b"</note>x<item><sku>a0</sku><price>20</price></item><item><sku>a1</sku></item></order>"
)
OF_THE_SHOP = Document(b"<order xmlns='urn:shop'><total>120</total></order>")


def rows(head: str) -> list[list[str]]:
    """Returns the cells of the table whose head begins with a cell."""
    lines = TEXT.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


CONDITIONS = [row[0].strip("`") for row in rows("write")]
REFUSED = [(row[0].strip("`"), int(row[1])) for row in rows("refused")]


def test_routing_page_examples(run_console_blocks: Callable[..., int]) -> None:
    """Subscribers get by field, type, customer, exclusion and pattern what the page shows. A schema refuses
    what is not valid."""
    assert run_console_blocks(PAGE) > 35


def test_routing_page_lists_conditions_and_refusals() -> None:
    """Both tables are found."""
    assert len(CONDITIONS) > 15
    assert len(REFUSED) > 10


@pytest.mark.parametrize("text", CONDITIONS)
def test_condition_of_routing_page_can_hold(text: str) -> None:
    """A condition of the table holds for an order, and its opposite does not."""
    payload = OF_THE_SHOP if "urn:shop" in text else ORDER
    assert Condition(text).matches(payload, {"Region": "eu"}) is ("paid" not in text or "not" in text)
    assert not Condition(f"not({text})").matches(payload, {"Region": "eu"})
    assert not Condition(text).matches(Document(b"<other/>"), {})


@pytest.mark.parametrize(("text", "column"), REFUSED)
def test_routing_page_says_where_condition_is_refused(text: str, column: int) -> None:
    """A text of the table is refused in the column that the page says."""
    with pytest.raises(BadCondition) as refused:
        Condition(text)
    assert refused.value.position == column, refused.value


def test_routing_page_gives_bounds() -> None:
    """The page has the bounds of conditions, of the payloads that they look into, and of patterns."""
    told = " ".join(TEXT.split())
    for sentence in (
        f"It has at most {tokens.LONGEST} bytes",
        f"The paths of a condition have {grammar.MOST_STEPS} steps together",
        f"parentheses and brackets are at most {grammar.DEEPEST} inside one another",
        f"have {grammar.SOUGHT_BYTES} bytes together",
        f"more than {document.LEVELS} levels",
        f"A subscription has at most {patterns._MOST} patterns",
    ):
        assert sentence in told, sentence
    assert (grammar.MOST_HEADERS, document.MARKS) == (4, 1_000_000)
    assert "compare headers four times at most" in told
    assert "more than a million of the signs `<` and `=`" in told


def test_routing_page_program_with_json(fenced_blocks: Callable[..., list[Any]]) -> None:
    """The condition below the program holds for the headers that the program gives."""
    [program] = [block for block in fenced_blocks(TEXT, "python") if not block.title]
    [headers] = re.findall(r"headers=(\{.*?\})", program.body)
    [text] = re.findall(r"`(\$header-type[^`]*)` compares them", TEXT)
    given = dict(re.findall(r'"(\w+)": "(\w+)"', headers))
    assert Condition(text).matches(Document(b'{"total": 17}'), given)
    assert not Condition(text).matches(Document(b'{"total": 17}'), {**given, "total": "9"})
