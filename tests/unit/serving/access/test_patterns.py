"""Patterns over the names of queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qs_serving.access.principal import compile_patterns


def matches(pattern: str, name: str) -> bool:
    compiled = compile_patterns([pattern])
    return compiled is not None and compiled.fullmatch(name) is not None


def model(pattern: str, name: str) -> bool:
    """Tells whether a pattern matches a name, by trying everything."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(model(pattern[1:], name[at:]) for at in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and model(pattern[1:], name[1:])


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        ("orders", ["orders"], ["order", "orders-1", "Orders", "xorders", "orders\n"]),
        ("orders-*", ["orders-", "orders-eu", "orders-*"], ["orders", "my-orders-1"]),
        ("*", ["", "a", "a/b", "bus:orders:shop", "日本"], []),
        ("a?c", ["abc", "a.c", "a?c", "a日c"], ["ac", "abbc"]),
        ("a.c", ["a.c"], ["abc"]),
        ("[ab]", ["[ab]"], ["a", "b"]),
        ("a\\*", ["a\\", "a\\b"], ["a*", "a"]),
        ("a+", ["a+"], ["aa"]),
        ("^a$|(b)", ["^a$|(b)"], ["a", "b"]),
        ("bus:orders:*", ["bus:orders:shop"], ["orders", "bus:orders"]),
        ("Ärger-*", ["Ärger-日本"], ["ärger-1", "A\u0308rger-1"]),
        ("**", ["", "ab"], []),
        ("*a*b", ["ab", "xaxb", "aabb"], ["ba", "abx"]),
        ("a*?", ["ab", "abc"], ["a"]),
    ],
)
def test_compile_patterns_accepts_and_refuses(pattern: str, accepted: list[str], refused: list[str]) -> None:
    """Names are accepted and refused as their patterns say."""
    assert [name for name in accepted if not matches(pattern, name)] == []
    assert [name for name in refused if matches(pattern, name)] == []


TEXT = st.text(st.sampled_from("ab*?.[]\\日"), max_size=8)


@given(TEXT, TEXT)
def test_compile_patterns_agrees_with_backtracking(pattern: str, name: str) -> None:
    """Random patterns match the same names as a slow reference that tries everything."""
    assert matches(pattern, name) == model(pattern, name)


def test_compile_patterns_of_several() -> None:
    """A name is accepted if one of the patterns accepts it; none of them, if there are none."""
    compiled = compile_patterns(["a|b", "c*"])
    assert compiled is not None
    assert [bool(compiled.fullmatch(name)) for name in ("a|b", "a", "b", "cd")] == [True, False, False, True]
    assert compile_patterns([]) is None


def test_compile_patterns_is_never_slow() -> None:
    """The work grows with the name, not with the ways in which its parts could fit."""
    assert not matches("*a" * 40 + "b", "a" * 200)
