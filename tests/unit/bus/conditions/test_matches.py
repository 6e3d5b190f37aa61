"""Tests which messages a condition lets through."""

import threading
from collections.abc import Callable

import pytest

from qs_bus.conditions import Condition, Document

ORDER = b"""<?xml version="1.0" encoding="UTF-8"?>
<!-- an order --><?note to nobody?>
<order priority="high" n:kind="web" xmlns:n="urn:n">
  <customer>M\xc3\xbcller &amp; Sons</customer>
  <item sku="a1"><qty>2</qty><price>10.50</price></item>
  <item sku="b2"><qty>1</qty><price>99</price><note><![CDATA[<urgent>]]></note></item>
  <total>120</total>
  <n:extra>1<!-- between -->2</n:extra>
  <empty/>
</order>"""
HEADERS = {"Region": "EU", "max": "100", "x-1.Y_z": "b2"}


def matches(text: str, payload: bytes = ORDER) -> bool:
    return Condition(text).matches(Document(payload), HEADERS)


@pytest.mark.parametrize(
    "text",
    [
        "/order[@priority='high']/total > 100",
        "order/total > 100",
        "/order/total = '120'",
        "/order/total=120.0",
        "100 < /order/total",
        "-1 < /order/total",
        "//qty = 2",
        "//qty != 2",
        "//item[qty = 2]/price > 10",
        "//item[2]/@sku = 'b2'",
        "//item[@sku][2]",
        "//item[price > 50][1]/@sku = 'b2'",
        "/order/item[1]/qty[1] = 2",
        "//@sku = 'a1'",
        "//@* = 'high'",
        "/*/*/price",
        "//text() = '120'",
        "/order/{urn:n}extra/text()[2] = 2",
        "/order/{urn:n}extra = 12",
        "/order/@{urn:n}kind = 'web'",
        "/order/{urn:n}*",
        "contains(/order/customer, '\xfcller & S')",
        'contains(//note, "<urgent>")',
        "//item[contains(note, 'urgent')]/@sku = 'b2'",
        "starts-with(/order/customer, 'M')",
        "starts-with(//item/@sku, 'a')",
        "string-length(/order/customer) = 13",
        "number(/order/total) >= 120",
        "number(//price) = 10.5",
        "order/empty = ''",
        "not(order/missing)",
        "not(order/missing = '') and 1 = 1",
        "(order/missing or order/total) and not(order/other)",
        "$header-region = 'EU'",
        "$header-REGION",
        "not($header-missing)",
        "$header-missing = ''",
        "//item/@sku = $header-x-1.Y_z",
        "//item[@sku = $header-X-1.y_Z]/qty = 1",
        "order/total > $header-max",
        "starts-with($header-region, 'E') and string-length($header-region) = 2",
        "contains('abc', 'b')",
        " \t\norder\n[ @priority ]/ total",
    ],
)
def test_true(text: str) -> None:
    """A condition that holds lets the message through, and its opposite does not."""
    assert matches(text)
    assert not matches(f"not({text})")


@pytest.mark.parametrize(
    "text",
    [
        "/order[@priority='low']/total > 100",
        "/total",
        "item",
        "//order/order",
        "//item[3]",
        "//item[1][2]",
        "//item[price > 50][2]",
        "order/customer > 1",
        "order/customer < 1",
        "order/missing != 1",
        "order/missing = ''",
        "number(order/customer) = number(order/customer)",
        "string-length(order/missing) > 0",
        "contains(/order/item, 'urgent')",
        "order/extra",
        "order/{urn:other}extra",
        "order/@kind",
        "//@{urn:n}sku",
        "text()",
        "@*",
        "/order/text() = '120'",
        "$header-region = 'eu'",
        "$header-missing",
        "order and $header-missing",
    ],
)
def test_false(text: str) -> None:
    """A condition that does not hold keeps the message back, and its opposite lets it through."""
    assert not matches(text)
    assert matches(f"not({text})")


def test_the_first_of_a_path_is_the_first_of_the_document() -> None:
    """A function takes the first node in the order of the document, also where paths find another one first."""
    payload = b"<a><b><c x='1'>1</c></b><c x='2'>2</c><b>3<c>4</c>5</b></a>"
    assert matches("number(//c) = 1", payload)
    assert matches("number(//c/@x) = 1", payload)
    assert matches("number(//@x) = 1", payload)
    assert matches("number(a/*/c) = 1", payload)
    assert matches("number(a/b/text()) = 3", payload)
    assert matches("number(//text()) = 1", payload)
    assert matches("number(//c[1 = 1]) = 1", payload)
    assert matches("number(//c[not(@x = 1)]) = 2", payload)


def test_a_payload_without_elements() -> None:
    """Paths find nothing in a payload without elements, and headers are compared all the same."""
    for payload in (b"", b"plain", b'{"a": 1}', b"<a", b"\xff\xfe\x00", b"<!DOCTYPE a><a/>"):
        assert not matches("//*", payload)
        assert not matches("/* or //@* or //text() or none or //none", payload)
        assert matches("not(/a)", payload)
        assert matches("not(contains(//a[b]/@c, 'x')) and string-length(//a) = 0", payload)
        assert matches("$header-region = 'EU' and not(//a)", payload)


def test_a_condition_over_headers_needs_no_document() -> None:
    """A condition over headers alone does not make a payload be parsed."""

    class Unread(Document):
        @property
        def tree(self) -> None:  # type: ignore[override]
            raise AssertionError("parsed")

    condition = Condition("$header-region = 'EU' and not($header-x)")
    assert not condition.needs_document
    assert condition.matches(Unread(b"<a/>"), HEADERS)
    assert not condition.matches(Unread(b"<a/>"), {"region": "EU", "X": "1"})
    assert Condition("$header-region and a").needs_document
    assert Condition("contains(a, 'b')").needs_document


def test_headers_that_no_name_of_python_has() -> None:
    """Each name that a header may have reaches the condition, with any text."""
    assert Condition("$header-class-1.2_3-").matches(Document(b""), {"CLASS-1.2_3-": "1"})
    assert Condition("$header-0 = '\U0001f600'").matches(Document(b""), {"0": "\U0001f600"})
    assert Condition("$header-_etree_or_element").matches(Document(b""), {"_etree_or_element": "1"})
    assert Condition("$header-self = '\"'").matches(Document(b""), {"self": '"'})


def test_equal_by_text() -> None:
    """Conditions are equal if their texts are, so that one evaluation serves all subscribers who share it."""
    assert Condition("a") == Condition("a")
    assert Condition("a") != Condition("a ")
    assert Condition("a") != "a"
    assert len({Condition("a"), Condition("a"), Condition("b")}) == 2
    assert (Condition(" a").text, repr(Condition("a"))) == (" a", "Condition('a')")


def test_a_client_cannot_escape_the_rendering() -> None:
    """Quotes, brackets and prefixes of a client stay within the place where they were written."""
    # Each text that reaches lxml is made from the tree: quotes, brackets and prefixes cannot leave their place.
    payload = b"<a xmlns:n0='urn:other'><n0:b/><b>'</b></a>"
    assert not matches("//{urn:u}b", payload)
    assert matches('//b = "\'"', payload)
    assert not matches("//b = \"') or true() or ('\"", payload)
    assert matches('//{urn:other}b[not({urn:u\'"}c)] and not(//{"]|//*["}b)', payload)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_thread_does_not_hold_up_others() -> None:
    """Two threads may use one condition at once, and each gets its own answer."""
    # The other thread compares a large payload over and over until this one has asked the same condition.
    condition = Condition("//* = 'x'")
    large, small = Document(b"<a>" + b"<b/>" * 50_000 + b"</a>"), Document(b"<a>x</a>")
    assert large.tree is not None
    started, done = threading.Event(), threading.Event()
    found = []

    def work() -> None:
        while not done.is_set():
            found.append(condition.matches(large, {}))
            started.set()

    thread = in_thread(work)
    try:
        assert started.wait(10)
        for _ in range(100):
            assert condition.matches(small, {})
    finally:
        done.set()
        thread.join()
    assert not any(found)


def test_a_locked_expression_of_another_thread_is_not_used() -> None:
    """Each thread has an expression of its own, so that none waits until another has ended its evaluation."""
    condition = Condition("a")
    seen = []
    in_thread(lambda: seen.append(condition._compiled.full)).join()
    assert seen[0] is not condition._compiled.full
    assert condition._compiled.full is condition._compiled.full


def test_a_document_moves_between_threads() -> None:
    """A payload that one thread has parsed can be looked into by another."""
    document = Document(ORDER)
    condition = Condition("//qty = 1")
    seen: list[bool] = []
    in_thread(lambda: seen.append(condition.matches(document, {}))).join()
    assert seen == [True]
    assert condition.matches(document, {})
