"""Tests that a text that is no condition is refused, with the column, what stands there, and what to write instead."""

import pytest

from qs_bus.conditions import BadCondition, Condition

REFUSED = [
    # text, column, what stands there and what to write
    ("", 1, "empty, write one as in /order/total > 100"),
    (" \t\r\n", 1, "empty"),
    ("..", 1, "'..': a path only goes down"),
    ("a/../b", 3, "'..': a path only goes down"),
    (".", 1, "'.': no sign for the node itself"),
    ("a[. = 'x']", 3, "'.': no sign for the node itself"),
    ("a | b", 3, "'|': no union of paths, write 'or'"),
    ("a + 1 > 2", 3, "'+': no arithmetic"),
    ("a - 1 > 2", 3, "'-': no arithmetic"),
    ("a * 2 > 2", 3, "'*': no arithmetic"),
    ("a div 2 > 2", 3, "'div': no arithmetic"),
    ("a mod 2 = 1", 3, "'mod': no arithmetic"),
    ("-a > 2", 1, "'-': a path, a string, a number"),
    ("a = --1", 5, "'-': a path, a string, a number"),
    ("a//b", 2, "'//': it stands at the front of a path only, write //name"),
    ("//a//b", 4, "'//': it stands at the front"),
    ("a[//b]", 3, "'//': a path in brackets begins at what stands before them"),
    ("a[/b = 1]", 3, "'/': a path in brackets begins"),
    ("a[b[not(/c)]]", 9, "'/': a path in brackets begins"),
    ("/", 2, "the end: a name is missing"),
    ("a/", 3, "the end: a name is missing"),
    ("///a", 3, "'/': a name is missing"),
    ("a/[1]", 3, "'[': brackets follow a step"),
    ("@", 2, "the end: a name is missing"),
    ("@@a", 2, "'@': a name is missing"),
    ("a b", 3, "'b': write 'and', 'or' or a comparison before it"),
    ("a /b /c d", 9, "'d': write 'and'"),
    ("a andb", 3, "'andb': write 'and'"),
    ("'x' = a b", 9, "'b': write 'and'"),
    ("a and", 6, "the end: a path, a string, a number"),
    ("or a b", 4, "'a': write 'and'"),
    ("a =", 4, "the end: a path, a string, a number"),
    ("= a", 1, "'=': a path, a string, a number"),
    ("a == 1", 3, "'==': write ="),
    ("a && b", 3, "'&&': write 'and'"),
    ("a || b", 3, "'||': write 'or'"),
    ("!a", 1, "'!': write != or not(...)"),
    ("a <> 1", 4, "'>': a path, a string, a number"),
    ("a = b", 5, "'b': two paths are not compared with each other, write number(...) around one"),
    ("a[@b != @c]", 9, "'@': two paths are not compared"),
    ("//a < //b", 7, "'//': two paths are not compared"),
    ("a = 1 = 2", 7, "'=': a comparison has two sides"),
    ("1 < a < 2", 7, "'<': a comparison has two sides"),
    ("not(a) = 1", 1, "'not': a condition has no value to compare"),
    ("(a) = 1", 1, "'(': a condition has no value to compare"),
    ("a = (b or c)", 5, "'(': a condition has no value to compare"),
    ("a = contains(b, 'c')", 5, "'contains': a condition has no value to compare"),
    ("5", 1, "'5': no condition by itself"),
    ("'x'", 1, "'x': no condition by itself"),
    ("a and number(b)", 7, "'number': no condition by itself"),
    ("not(string-length(b))", 5, "'string-length': no condition by itself"),
    ("a['x']", 3, "'x': no condition by itself"),
    ("a[number(b)]", 3, "'number': no condition by itself"),
    ("(a", 3, "the end: '(' of column 1 is not closed, write a ')'"),
    ("a[b", 4, "the end: '[' of column 2 is not closed, write a ']'"),
    ("a)", 2, "')': no parenthesis is open"),
    ("a]", 2, "']': no bracket is open"),
    ("(a]", 3, "']': no bracket is open"),
    ("a[b)", 4, "')': no parenthesis is open"),
    ("()", 2, "')': a path, a string, a number"),
    ("a[]", 3, "']': a path, a string, a number"),
    ("(a)[1]", 4, "'[': brackets follow a step"),
    ("'a'[1]", 1, "'a': no condition by itself"),
    ("a,b", 2, "',': commas stand between the arguments"),
    # positions
    ("a[0]", 3, "'0': no position, write 1, 2, 3"),
    ("a[1.5]", 3, "'1.5': no position"),
    ("a[-1]", 3, "'-': no condition by itself"),
    ("a[position() = 1]", 3, "'position': no function of conditions, write a number in brackets"),
    ("a[last()]", 3, "'last': no function of conditions, a position counts from the front"),
    # functions
    ("count(a) > 1", 1, "'count': no function of conditions, write a path"),
    ("string(a) = 'x'", 1, "'string': no function of conditions, leave it out"),
    ("true()", 1, "'true': no function of conditions, leave it out"),
    ("a/node()", 3, "'node': no function of conditions, write *"),
    ("comment()", 1, "'comment': no function of conditions, conditions do not see"),
    ("a/count(b)", 3, "'count': no function of conditions"),
    ("document('file:///etc/passwd')", 1, "'document': no function of conditions, the functions are not(), contains()"),
    ("{urn:x}f(a)", 1, "'{urn:x}f': no function of conditions"),
    ("contains (a, 'b') or translate(a, 'b', 'c')", 22, "'translate': no function of conditions"),
    ("not()", 5, "')': a path, a string, a number"),
    ("not(a, b)", 6, "',': not() has no more arguments"),
    ("contains(a)", 11, "')': contains() has two arguments, write a ',' between them"),
    ("contains(a, 'b', 'c')", 16, "',': contains() has no more arguments"),
    ("contains(a, b)", 13, "'b': contains() looks for a string, write one in quotes"),
    ("contains(a, $header-b)", 13, "'$header-b': contains() looks for a string"),
    ("contains(1, 'a')", 10, "'1': contains() takes a path, a string or a header"),
    ("number(a or b) = 1", 10, "'or': number() takes a path, a string or a header, and no more"),
    ("number((a)) = 1", 8, "'(': number() takes a path"),
    ("number() = 1", 8, "')': a path, a string, a number"),
    ("number(//a/b) = 1", 8, "'//': number() takes the first that a path finds"),
    ("starts-with(//a[2], 'x')", 13, "'//': starts-with() takes the first that a path finds"),
    ("text(1)", 1, "'text': no function of conditions, text() has nothing between"),
    ("@text()", 2, "'text': no function of conditions"),
    ("a/text()/b", 9, "'/': nothing is inside of an attribute or a text"),
    ("@a/b", 3, "'/': nothing is inside of an attribute or a text"),
    # names
    ("a:b", 1, "'a': no prefixes, write {uri}name"),
    ("a:*", 1, "'a': no prefixes"),
    ("/a/@b:c", 5, "'b': no prefixes"),
    ("child::a", 1, "'child': no axes, write name, @name, or //name"),
    ("a/parent::b", 3, "'parent': no axes"),
    ("{}a", 1, "'{}a': the namespace is empty, write a"),
    ("{urn:a", 1, "'{': a name with a namespace is written {uri}name"),
    ("{urn:a}", 1, "'{': a name with a namespace"),
    ("{a{b}c}d", 1, "'{': a name with a namespace"),
    ("a{b}c", 2, "'{b}c': write 'and'"),
    ("a/\u0133", 3, "'\u0133': libxml2 knows no such letter in a name"),
    ("a#b", 2, "'#': no sign of conditions, write strings in quotes"),
    # headers
    ("$x", 1, "'$': the only variables are headers, write $header-NAME"),
    ("$header", 1, "'$': the only variables are headers"),
    ("$header-", 1, "'$': the only variables are headers"),
    ("$Header-x", 1, "'$': the only variables are headers"),
    ("$ header-x", 1, "'$': the only variables are headers"),
    ("$header-\xe9", 1, "'$': the only variables are headers"),
    ("$header-caf\xe9 = 1", 12, "'\xe9': a header's name has A-Z a-z 0-9"),
    ("$header-a:b", 10, "':': no prefixes"),
    ("$header-a/b", 10, "'/': a path begins once"),
    ("a[$header-b]", 3, "'$header-b': in brackets a header is only compared with a path by = or !="),
    ("a[b < $header-b]", 7, "'$header-b': in brackets"),
    ("a['x' = $header-b]", 9, "'$header-b': in brackets"),
    ("a[number($header-b) = 1]", 10, "'$header-b': in brackets"),
    ("a[starts-with(b, $header-b)]", 18, "'$header-b': in brackets"),
    ("a" + "[@b = $header-b]" * 5, 72, "'$header-b': more than 4 headers in brackets"),
    # numbers and strings
    ("a = 1.", 5, "'1.': no number, write digits as in 15, 0.5 or -2"),
    ("a = .5", 5, "'.': no number, write 0.5"),
    ("a = 1e3", 5, "'1e3': no number"),
    ("a = 1.5.2", 5, "'1.5.2': no number"),
    ("a = 0x10", 5, "'0x10': no number"),
    ("a = 1and b", 5, "'1and': no number"),
    ("a = 'b", 5, "': the string has no end"),
    ('a = "b', 5, '": the string has no end'),
    ("a = 'it''s'", 9, "'s': write 'and'"),
    ("a = 'it's'", 10, "': the string has no end"),
    ('a = "\'" or b = "\'"\'"', 19, "': the string has no end"),
    ("a = 'b\x00'", 7, "the character U+0000 is not allowed in XML"),
    ("a\x1b", 2, "the character U+001B is not allowed in XML"),
    ("\ud800", 1, "the character U+D800 is not allowed in XML"),
    ("a = '\udfff'", 6, "the character U+DFFF is not allowed in XML"),
    ("a\uffff", 2, "the character U+FFFF is not allowed in XML"),
    ("a\xa0= 1", 2, "'\xa0': no sign of conditions"),
    ("a" * 1025, 1025, "longer than 1024 bytes"),
    ("\xe9" * 513, 513, "longer than 1024 bytes"),
    ("\U00020000" * 300, 257, "longer than 1024 bytes"),
    ("x\xe9" * 342, 684, "longer than 1024 bytes"),
    # bounds
    ("/a" * 33, 66, "'a': the paths have more than 32 steps together"),
    (" or ".join(["@a"] * 33), 193, "'@': the paths have more than 32 steps"),
    ("a" + "[b" * 33, 65, "more than 32"),
    ("(" * 33 + "a" + ")" * 33, 33, "'(': more than 32 parentheses and brackets inside one another"),
    ("not(" * 255, 132, "'(': more than 32 parentheses and brackets"),
    ("(" * 1024, 33, "'(': more than 32 parentheses and brackets"),
    ("a" + "[" * 1000, 3, "'[': brackets follow a step"),
    ("//a[contains(b, '" + "x" * 65 + "')]", 17, "in brackets after // have at most 64 bytes"),
    ("//a[contains(b, '" + "x" * 60 + "')][contains(b, '12345')]", 94, "'12345': all strings of contains()"),
    ("//a[contains(b, '" + "\xe9" * 33 + "')]", 17, "at most 64 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "position", "reason"), REFUSED)
def test_refused_with_its_position(text: str, position: int, reason: str) -> None:
    """A text that is no condition is refused with the column, what stands there and what to write."""
    with pytest.raises(BadCondition) as refused:
        Condition(text)
    assert (refused.value.position, str(refused.value)[:8]) == (position, f"column {position}"[:8])
    assert str(refused.value) == f"column {position}: {refused.value.text}"
    assert reason in refused.value.text
    assert isinstance(refused.value, ValueError)


def test_an_error_of_a_long_token_is_short() -> None:
    """An error shows the beginning of a long token only."""
    with pytest.raises(BadCondition) as refused:
        Condition("a" * 1000 + " b " + "c" * 20)
    assert len(str(refused.value)) < 200
    with pytest.raises(BadCondition) as refused:
        Condition("a = 'b' '" + "c" * 1000 + "'")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1024,
        "\xe9" * 512,
        "/a" * 32,
        "a" + "[b" * 31 + "]" * 31,
        "(" * 32 + "a" + ")" * 32,
        "not(" * 32 + "a" + ")" * 32,
        "a" + "[@b = $header-b]" * 4,
        "//a[contains(b, '" + "x" * 64 + "')]",
        "/a[contains(b, '" + "x" * 900 + "')]",
        "$header-a and " * 60 + "$header-b",
        "1 = 1 or " * 110 + "1 = 2",
    ],
)
def test_taken_at_the_bound(text: str) -> None:
    """A condition that is as long, as deep or as large as allowed is taken."""
    assert Condition(text).text == text
