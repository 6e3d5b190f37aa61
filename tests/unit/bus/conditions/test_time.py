"""Tests that parsing a payload and evaluating a condition take time in proportion to the payload, whatever both are.

Eight times the payload may take at most 24 times as long, less than three times for each doubling. What is linear takes
eight times as long, and up to twice that where the small tree fits into a cache of the processor that the large one
does not fit into. What is quadratic takes 64 times. The times are processor times, and of several tries the shortest
counts, as others on the machine cannot shorten one.
"""

import math
import time
from collections.abc import Callable

import pytest

from qs_bus.conditions import Condition, Document
from qs_bus.conditions.document import LEVELS

OUTER = LEVELS - 1
"""Levels around the repeated part of a deep payload."""
LARGER = 8
GROWTH = 24
TRIES = 30
NOISE = 0.0005
"""Seconds that do not count: a short measurement has an error of its own."""
ABSOLUTE = 60.0
"""Seconds that the worst conditions may take for each MiB. On the machine that this was written on they take 7."""

Make = Callable[[int], bytes]


def repeated(unit: bytes, levels: int = 1) -> Make:
    """Returns a maker of payloads of so many bytes, which repeat a part within some levels."""

    def make(size: int) -> bytes:
        return b"<a>" * levels + unit * ((size - 7 * levels) // len(unit)) + b"</a>" * levels

    return make


def numbered(start: bytes, part: bytes, end: bytes) -> Make:
    """Returns a maker of payloads that repeat a part with a number in it."""
    return lambda size: start + b"".join(part % number for number in range(size // (len(part) + 3))) + end


def comb(size: int) -> bytes:
    """Returns a deep payload with many elements on each level, behind the next one."""
    behind = b"</a>" + b"<b/>" * (size // 4 // 2 // OUTER)
    return b"<a>" * OUTER + b"<b/>" * (size // 4 // 2) + behind * (OUTER - 1) + b"</a>"


PAYLOADS: dict[str, Make] = {
    "many siblings": repeated(b"<b/>"),
    "many siblings with text": repeated(b"<b>1</b>"),
    "many parents": repeated(b"<b><b/></b>"),
    "parents and siblings": repeated(b"<a><b/></a><b/>"),
    "parents apart from siblings": repeated(b"<a><b/></a><c/><b/><c/>"),
    "deep siblings": repeated(b"<b/>", OUTER),
    "deep siblings with text": repeated(b"<b>1</b>", OUTER),
    "deep chains": repeated(b"<a>" * (OUTER - 1) + b"x" + b"</a>" * (OUTER - 1)),
    "comb": comb,
    "comments between texts": repeated(b"x<!---->"),
    "deep comments between texts": repeated(b"x<!---->", OUTER),
    "comments": repeated(b"<!---->"),
    "instructions between texts": repeated(b"x<?a?>"),
    "elements between texts": repeated(b"a<b/>", OUTER),
    "parents with comments": repeated(b"<b>" + b"<!---->" * 10 + b"x<!---->x</b>"),
    "one text": repeated(b"a"),
    "one deep text": repeated(b"a", OUTER),
    "deep digits": repeated(b"<b>" + b"1" * 1000 + b"</b>", OUTER),
    "attributes of one element": numbered(b"<a><a", b' a%d=""', b"/></a>"),
    "elements with attributes": repeated(b'<b b="a"/>', OUTER),
    "declarations of one element": numbered(b"<a", b' xmlns:n%d="urn:u"', b"><n1:a/></a>"),
    "elements with declarations": repeated(b'<b xmlns="urn:u"/>'),
    "elements with other declarations": numbered(b"<a>", b'<b xmlns="urn:%d"/>', b"</a>"),
    "nested declarations": repeated(b'<n:a xmlns:n="urn:u">' * 30 + b"</n:a>" * 30),
}
# Each is false, so that all of it is evaluated, and repeats nothing: how often a part is repeated does not depend on
# the payload.
CONDITIONS = [
    "/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/zz",
    "not(/a/*)",
    "not(/a/*/*)",
    "a/a/b = 'q'",
    "a/b/@b = 'q'",
    "not(/a/text())",
    "not(/a/b/text())",
    "/a/text() = 'q'",
    "not(//*)",
    "not(//*/*)",
    "not(//a/b) and not(//b)",
    "not(//text())",
    "not(//@*) and zz",
    "//*/*/*/*/zz",
    "//a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/zz",
    "//* = 'q'",
    "//b = 'q'",
    "//* > 10000000000000000000",
    "not(//* != '') and zz",
    "//* = 1234567",
    "//*/* = 'q'",
    "//@* = 'q'",
    "//*/@* = 'q'",
    "//{urn:u}* = 'q'",
    "//text() = 'q'",
    "//*/text() = 'q'",
    "//*[*[*[*[zz]]]]",
    "//*[*[*[* = 'q']]]",
    "//*[not(* = 'q')][not(* = 'r')][zz]",
    "//*[not(@* = 'q')][zz]",
    "//*[not(text() = 'q')][zz]",
    "//*[text()[2] = 'q']",
    "//*[*[3]/*[2] = 'q']",
    "//*[1]/*[2]/*[1]/zz",
    "//*[3] = 'q'",
    "//b[900000] = 'q'",
    "//text()[2] = 'q'",
    "//@*[2] = 'q'",
    "//*[not(*)][2] = 'q'",
    "not(//*[2]) and zz",
    "a/*[1000] = 'q'",
    "contains(//*, 'ab')",
    "contains(//text(), 'q')",
    "contains(//@*, 'q')",
    "contains(//*/@*, 'q')",
    "contains(//*[zz], 'q')",
    "contains(a/a, 'q')",
    "contains(a/*, 'q')",
    "contains(a/*/*, 'q')",
    "contains(a/text(), 'q')",
    "contains(a/b/text(), 'q')",
    "contains(a/b/text()[not(zz)], 'q')",
    "contains(a/*/@*, 'q')",
    "contains(a/*/@*[not(zz)], 'q')",
    "starts-with(a, a) and zz",
    f"contains(a, '{'a' * 900}b')",
    f"//*[contains(*, '{'a' * 60}b')]",
    "//*[not(starts-with(*, 'q'))][zz]",
    "//*[starts-with(*, *)][zz]",
    "//*[string-length(*) < 99999999][zz]",
    "//*[not(string-length(text()) = -5)][zz]",
    "//*[not(number(*) = -5)][zz]",
    "//*[not(* = $header-h)][not(@* = $header-h)][zz]",
    "a/*[not(*/* = 'q') and not(*/@* = 'q')]/zz",
]
WORST = {
    "many elements": ("//*" + "[not(* = 'q')]" * 30 + "[zz]", repeated(b"<b/>", OUTER)),
    "lengths of texts": ("//*" + "[not(string-length(text()) = -5)]" * 26 + "[zz]", repeated(b"<b/>", OUTER)),
    "texts of all levels": ("//*" + "[not(number(*) = -5)]" * 30 + "[zz]", repeated(b"a<b/>", OUTER)),
    "numbers of all levels": (" or ".join(["//*>10000000000000000000"] * 32), repeated(b"a<b/>", OUTER)),
    "steps": ("//*" + "[*" * 31 + "]" * 31, comb),
    "long strings": ("//*[contains(*, '" + "a" * 63 + "b')]", repeated(b"a", OUTER)),
    "headers": ("//*" + "[not(* = $header-h)]" * 4 + "[zz]", repeated(b"<b/>", OUTER)),
}
HEADERS = {"h": "a" * 8000}


def spent(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def check_growth(small: Callable[[], object], large: Callable[[], object], what: str) -> None:
    """Checks that the large work takes at most `GROWTH` times as long as the small one, in the best of some tries."""
    shortest, longest = math.inf, math.inf
    for _ in range(TRIES):
        shortest, longest = min(shortest, spent(small)), min(longest, spent(large))
        if longest <= GROWTH * shortest + NOISE:
            return
    raise AssertionError(f"{what}: {shortest * 1000:.2f} ms, and {longest * 1000:.2f} ms for {LARGER} times as much")


def check_conditions(make: Make, size: int) -> None:
    """Checks how the times of all conditions grow from payloads of one size to `LARGER` ones."""
    small, large = Document(make(size)), Document(make(LARGER * size))
    assert small.tree is not None
    assert large.tree is not None
    for text in CONDITIONS:
        condition = Condition(text)
        check_growth(lambda: condition.matches(small, HEADERS), lambda: condition.matches(large, HEADERS), text)  # noqa: B023


@pytest.mark.parametrize("payload", ["deep siblings", "comments between texts", "parents apart from siblings"])
def test_conditions_on_small_payloads(payload: str) -> None:
    """No condition takes quadratic time on small payloads of the worst kinds."""
    check_conditions(PAYLOADS[payload], 8 * 1024)


@pytest.mark.slow  # some 10 s, all payloads together
@pytest.mark.parametrize("payload", PAYLOADS)
def test_conditions(payload: str) -> None:
    """No condition takes quadratic time on a payload of any kind."""
    check_conditions(PAYLOADS[payload], 32 * 1024)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_parsing(payload: str) -> None:
    """No payload takes quadratic time to parse."""
    small, large = PAYLOADS[payload](16 * 1024), PAYLOADS[payload](LARGER * 16 * 1024)
    check_growth(lambda: Document(small).tree, lambda: Document(large).tree, payload)


def check_absolute(worst: str, size: int) -> None:
    text, make = WORST[worst]
    condition, document = Condition(text), Document(make(size))
    assert document.tree is not None
    time = spent(lambda: condition.matches(document, HEADERS))
    assert time < ABSOLUTE * size / 2**20


@pytest.mark.parametrize("worst", WORST)
def test_the_worst_conditions_on_small_payloads(worst: str) -> None:
    """The most costly conditions stay under a loose bound on small payloads."""
    check_absolute(worst, 16 * 1024)


@pytest.mark.slow  # some 3 s
@pytest.mark.parametrize("worst", WORST)
def test_the_worst_conditions(worst: str) -> None:
    """The most costly conditions stay under a loose bound on payloads of 128 KiB."""
    check_absolute(worst, 128 * 1024)
