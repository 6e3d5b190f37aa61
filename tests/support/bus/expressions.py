"""Makes random expressions of XPath and documents for them: expressions of the subset that conditions are written in,
expressions of XPath 1.0 at large, and conditions with a few characters changed. Names, texts and numbers are few, so
that expressions often find something."""

from random import Random

HEADERS = {"a": "x", "B": "2", "x.Y_z-1": "nan", "empty": "", "long": "x 1 2"}

_NAMES = [*"aaaaaaaabbb***c", "{urn:u}a", "{urn:v}b", "{urn:u}*", "text", "and", "div", "\xe9", "a-b.c"]
_TEXTS = ["", "x", "x", "y", "xy", "1", "1", "2", " 2 ", "-1", "1.50", "1e1", "NaN", "\xe9", "x 1 2", "\U0001f600"]
_STRINGS = [*(f"'{text}'" for text in _TEXTS), '"x"', '"it\'s"', "'say \"1\"'"]
_NUMBERS = [
    "0",
    "1",
    "1",
    "2",
    "2",
    "3",
    "1.5",
    "100",
    "0.1",
    "-1",
    "-0",
    "- 2",
    "00012",
    "123456789012345678901234567",
]
_POSITIONS = ["1", "1", "2", "3", "007", "99999999999999999999"]
_HEADERS = [f"$header-{name}" for name in ("a", "b", "B", "X.y_Z-1", "EMPTY", "long", "missing")]
_SIGNS = ["=", "=", "!=", "<", "<=", ">", ">="]
_SPACES = ["", "", "", "", " ", "\n\t "]

_AXES = ["child::", "parent::", "self::", "descendant::", "ancestor::", "following-sibling::", "attribute::", "@"]
_CALLS = ["count(%s)", "string(%s)", "sum(%s)", "boolean(%s)", "name(%s)", "normalize-space(%s)", "not(%s)",
          "number(%s)", "string-length(%s)", "(%s)", "-%s", "contains(%s, %s)", "starts-with(%s, %s)"]  # fmt: skip
_BETWEEN = ["=", "!=", "<", "<=", ">", ">=", "and", "or", "+", "-", "*", "div", "mod", "|", "/", "//"]
_LEAVES = ["position()", "last()", "true()", ".", "..", "/", "text()", "node()", "comment()", "//*", "//a", "@*"]
_CHANGES = [*"/@[]()'\"=<>!|.,:$ -ab1*", "", "", "//", " and ", " or ", "::", "text()", "[1]"]

_TAGS = [*[("a", "")] * 6, *[("b", "")] * 3, ("c", ""), ("a", ' xmlns="urn:u"'), ("b", ' xmlns=""'),
         ("v:b", ' xmlns:v="urn:v"'), ("text", ""), ("and", ""), ("\xe9", ""), ("a-b.c", "")]  # fmt: skip
_ATTRIBUTES = ["a", "b", "a-b.c", "xml:lang"]
_NO_TEXTS = ["<!---->", "<!--x-->", "<?a x?>", "<![CDATA[x]]>", "&#120;"]


def expression(random: Random) -> str:
    """Returns an expression. Seven in ten are meant to be conditions, though some break a rule."""
    kind = random.randrange(10)
    if kind < 7:
        return _condition(random, 2)
    return _changed(random, _condition(random, 2)) if kind < 9 else _at_large(random, 3)


def document(random: Random) -> str:
    """Returns a document of few levels."""
    return _element(random, 3)


def _condition(random: Random, depth: int, is_inner: bool = False) -> str:
    kind = random.randrange(12)
    if depth and kind < 4:
        word = random.choice(["and", "or"])
        both = f" {word}{random.choice(_SPACES)} ".join(_condition(random, depth - 1, is_inner) for _ in range(2))
        return both if kind < 2 else f"({both})"
    if depth and kind == 4:
        return f"not({_condition(random, depth - 1, is_inner)})"
    if kind < 6:
        return _path(random, depth, is_inner)
    if kind < 8:
        first = _argument(random, depth, is_inner)
        if kind == 6:
            return f"starts-with({first},{random.choice(_SPACES)}{_argument(random, depth, is_inner)})"
        return f"contains({first} , {random.choice(_STRINGS)})"
    sides = [_path(random, depth, is_inner), _value(random, is_inner)]
    if not random.randrange(4):
        sides.reverse()
    return f"{random.choice(_SPACES)}{random.choice(_SIGNS)}{random.choice(_SPACES)}".join(sides)


def _value(random: Random, is_inner: bool) -> str:
    kind = random.randrange(12)
    if kind == 0:
        return _path(random, 0, is_inner)
    if kind < 3:
        return f"{random.choice(['number', 'string-length'])}({_argument(random, 0, is_inner)})"
    return random.choice(_NUMBERS if kind < 7 else _STRINGS if kind < 11 else _HEADERS)


def _argument(random: Random, depth: int, is_inner: bool) -> str:
    kind = random.randrange(12)
    return _path(random, depth, is_inner) if kind < 9 else random.choice(_STRINGS if kind < 11 else _HEADERS)


def _path(random: Random, depth: int, is_inner: bool) -> str:
    count = random.choice([1, 1, 1, 1, 2, 2, 3])
    steps = [_step(random, depth, index == count - 1) for index in range(count)]
    front = "" if is_inner else random.choice(["", "/", "/", "//", "//"])
    return front + f"{random.choice(_SPACES)}/".join(steps)


def _step(random: Random, depth: int, is_last: bool) -> str:
    kind = random.randrange(12) if is_last else 12
    step = "text()" if kind == 0 else f"@{random.choice(_NAMES)}" if kind < 3 else random.choice(_NAMES)
    while random.randrange(12) < (3 if depth else 1):
        inner = _condition(random, depth - 1, True) if depth and random.randrange(2) else random.choice(_POSITIONS)
        step += f"{random.choice(_SPACES)}[{random.choice(_SPACES)}{inner}]"
    return step


def _at_large(random: Random, depth: int) -> str:
    """Returns an expression of XPath 1.0 by its grammar alone: operands may be of a type that does not fit."""
    kind = random.randrange(12)
    if not depth or kind < 3:
        leaves = [f"{random.choice(_AXES)}a", random.choice(_NAMES), random.choice(_LEAVES), random.choice(_NUMBERS)]
        return random.choice([*leaves, random.choice(_STRINGS), random.choice(_HEADERS)])
    if kind < 5:
        call = random.choice(_CALLS)
        return call % tuple(_at_large(random, depth - 1) for _ in range(call.count("%s")))
    left, right = _at_large(random, depth - 1), _at_large(random, depth - 1)
    return f"{left}[{right}]" if kind < 7 else f"{left} {random.choice(_BETWEEN)} {right}"


def _changed(random: Random, text: str) -> str:
    """Returns a text in which a few characters are lost or replaced, or a few are new."""
    for _ in range(random.randint(1, 3)):
        at = random.randint(0, len(text))
        text = text[:at] + random.choice(_CHANGES) + text[at + random.randint(0, 2) :]
    return text


def _element(random: Random, depth: int) -> str:
    tag, namespaces = random.choice(_TAGS)
    names = random.sample(_ATTRIBUTES, random.randint(0, 2))
    attributes = "".join(f' {name}="{random.choice(_TEXTS)}"' for name in names)
    content = "".join(_element(random, depth - 1) for _ in range(random.randint(0, 3) if depth else 0))
    for _ in range(random.randint(0, 2)):
        text = random.choice(_TEXTS if random.randrange(4) else _NO_TEXTS)
        content = text + content if random.randrange(2) else content + text
    return f"<{tag}{namespaces}{attributes}>{content}</{tag}>"
