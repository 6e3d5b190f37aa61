"""Says how many examples properties are tried with, and makes documents from a seed.

The documents are ones that are read without the parser, near misses of those, and bytes that are mostly markup. Making
them is far quicker than a search by hypothesis, so a test can look at very many.
"""

import os
import random
import re

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine


def examples(usual: int) -> int:
    """Returns the number of examples: QS_EXAMPLES of the environment, for a longer search, otherwise the usual one."""
    return int(os.environ.get("QS_EXAMPLES", usual))


def run_machine(machine: type[RuleBasedStateMachine], usual: int, steps: int = 40) -> None:
    """Runs a machine, usually `usual` times, each for at most `steps` steps; always the same ones."""
    case = machine.TestCase
    case.settings = settings(
        max_examples=examples(usual),
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()


NS = 'xmlns="http://purl.oclc.org/DEFUZE/qs"'
_NAMES = ["a", "orders", "orders.new-1", "a b", "größe", "q" * 200, "ü" * 100, "a-b_c/d:e", "\u00ad", "\u3042", "x'y"]
_TEXTS = [
    "", "x", "x" * 40, '{"a": [1]}', "a\nb", "a\tb", "]", "]]", "]] >", "&lt;", "&gt;", "&amp;", "&amp;lt;", "&#10;",
    "&#13;",
    "&#9;", "&quot;", "&apos;", "&amp;#10;", "]]&gt;", "größe", "\U0001f600", "\x7f", "\x85", "\u2028", "\ufffd",
    "'", '"',
    "&&", "&lt", "&#x41;", "&nope;", "]]>", ">", "\r", "\x00", "\ufffe",
]  # fmt: skip
_PLAIN_TEXTS = 32
"""The first so many texts are plain."""
_NUMBERS = ["0", "1", "7", "007", "30", "1760000000000000", "9" * 18, "0" * 18]
_DURATIONS = ["0", "5", "0.25", "30", "999999999", "007.5", "1.000000001", "0.0"]
_BASE64 = ["", "eA==", "AAEC", "/w==", "e A==", "eA=", "@", "eA==eA=="]
_OPERATIONS = {
    "push-message": ["delay", "key", "unique", "priority", "expires", "group"],
    "receive-message": ["max", "wait", "visibility", "order"], "get-message": ["peek",
    "visibility"],
    "delete-message": [], "release-message": ["delay"], "extend-message": ["visibility"], "ping": [], "get-claim": [],
    "stage-messages": ["batch", "part", "attempt"],
}  # fmt: skip
_PUT = [
    b"<", b">", b"&", b'"', b"'", b"/", b"=", b" ", b"\n", b"\r", b"\t", b"\x00", b"\x01", b"\xff", b"\xc3",
    b"\xc2\xa0",
    b"\xef\xbf\xbe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"0", b"-1", b"1.5", b"a", b"]]>", b"&lt;", b"&#10;", b"&x;",
    b"<!--c-->", b"<![CDATA[x]]>", b"<?pi?>", b"<?xml version='1.0'?>", b'<a xml:space="z"/>', b"<x:y/>", b"<x/>",
    b"<op/>",
    b'xmlns:x="u:u" x:a="b"', b' xmlns="u:u"', b' xml:space="z"', b' type="response"', b' type="error"', b' req="r"',
    b' resp="r"', b' key="k"', b' max="0"', b' receives="1"', b' mid="1"', b' qid="a"', b' encoding="base64"',
    b"<qid>a</qid>",
    b"<mid>1</mid>", b"<payload>p</payload>", b"<message><payload>p</payload></message>", b"</message>", b"</messages>",
    b"</qs>", b"<qs>", b"<1>", b"<qs\xff>", b"<!D", b"--", b"-->", b"<!", b"</", b"/>", b"<claims><claim/></claims>",
    b"u:u",
]  # fmt: skip


def plain(rng: random.Random) -> bytes:
    """Returns a document that is mostly read without the parser; some of its values are not plain."""
    op = rng.choice(list(_OPERATIONS))
    response = rng.random() < 0.4
    kind = ' type="response"' if response else rng.choice(["", ' type="request"'])
    req = rng.choice(["", "", ' req="qs-17"', ' req=""', f' req="{rng.choice(_NAMES)[:128]}"'])
    resp = f' resp="{"0f" * 32}"' if response or rng.random() < 0.1 else ""
    qid = f"<qid>{rng.choice(_NAMES)}</qid>" if op != "ping" else ""
    names = rng.sample(_OPERATIONS[op], rng.randint(0, len(_OPERATIONS[op])))
    if op == "stage-messages":
        names = rng.sample(_OPERATIONS[op], 3)
    attributes = "".join(f' {name}="{_value(rng, name)}"' for name in names)
    space = rng.choice(["", "", "", "\r\n", " ", "\n\t"])
    body = _body(rng, op, response)
    end = rng.choice(["", "\r\n", "\r\n\r\n", " \t"])
    text = (
        f"{space}<qs {NS}{kind}{req}{resp}><op{attributes}><{op}{rng.choice(['', '', ' '])}/></op>{qid}{body}</qs>{end}"
    )
    return text.encode("utf-8", "surrogatepass")


def _value(rng: random.Random, name: str) -> str:
    if name in ("delay", "wait", "visibility", "expires"):
        return rng.choice(_DURATIONS)
    if name in ("key", "group"):
        return rng.choice(["k", "a b", "k" * 128, "x'y", "~!#$%", f"k{rng.random()}", "größe"])
    if name == "order":
        return rng.choice(["oldest", "given"])
    return rng.choice(["yes", "no"]) if name in ("peek", "unique") else rng.choice(_NUMBERS)


def _text(rng: random.Random) -> str:
    last = _PLAIN_TEXTS if rng.random() < 0.97 else len(_TEXTS)
    return "".join(_TEXTS[rng.randrange(last)] for _ in range(rng.choice([0, 1, 1, 2, 3, 8])))


def _headers(rng: random.Random) -> str:
    """Returns no headers mostly, and else some whose names are mostly allowed."""
    if rng.random() < 0.7:
        return ""
    names = [
        "a",
        "A",
        "b",
        "content-type",
        "x.y_Z-0",
        "n" * 64,
        *(["n" * 65, "qs-a", "a b"] if rng.random() < 0.1 else []),
    ]
    entries = (f'<header name="{rng.choice(names)}">{_text(rng)}</header>' for _ in range(rng.choice([0, 1, 2, 3])))
    return f"<headers>{''.join(entries)}</headers>"


def _payload(rng: random.Random) -> str:
    if rng.random() < 0.15:
        return f'<payload encoding="base64">{rng.choice(_BASE64)}</payload>'
    return f"<payload>{_text(rng)}</payload>"


def _mid(rng: random.Random, names: list[str]) -> str:
    given = [name for name in names if rng.random() < 0.5]
    values = {"status": ["ready", "delivered", "in-flight", "delayed"], "priority": ["0", "9"], "group": ["g", "a b"]}
    return (
        "<mid"
        + "".join(f' {name}="{rng.choice(values.get(name, _NUMBERS))}"' for name in given)
        + (f">{rng.choice(_NUMBERS)}</mid>")
    )


def _body(rng: random.Random, op: str, response: bool) -> str:
    count = rng.choice([0, 1, 1, 2, 3, 12])
    if op in ("push-message", "stage-messages"):
        before = f"<producer>{rng.choice(_NAMES)}</producer>" if op == "stage-messages" else ""
        if response and rng.random() < 0.5:
            return before + rng.choice(
                [_mid(rng, []), f"<messages>{''.join(_mid(rng, []) for _ in range(count))}</messages>"]
            )
        if op == "push-message" and rng.random() < 0.5:
            return _headers(rng) + _payload(rng)
        bare = rng.random() < 0.5
        entries = "".join(
            f"<message>{_payload(rng)}</message>"
            if bare
            else f"<message{_draft(rng)}>{_headers(rng)}{_payload(rng)}</message>"
            for _ in range(count or 1)
        )
        return f"{before}<messages>{entries}</messages>"
    if op in ("receive-message", "get-claim") and (response or op == "get-claim"):
        return f"<messages>{''.join(_delivery(rng) for _ in range(count))}</messages>"
    if op == "delete-message" and rng.random() < 0.5:
        return f"<messages>{''.join(_mid(rng, ['receives']) for _ in range(count))}</messages>"
    if op in ("delete-message", "release-message", "extend-message"):
        return _mid(rng, ["receives"] if op == "delete-message" else ["receives", "visible-at"])
    if op == "get-message":
        names = ["status", "receives", "pushed-at", "visible-at", *_there(rng)]
        return rng.choice(["", _headers(rng) + _payload(rng)]) + _mid(rng, names)
    return ""


def _there(rng: random.Random) -> list[str]:
    """Returns the attributes that a message has if it was pushed with them, mostly none."""
    return ["priority", "group", "expires-at"] if rng.random() < 0.3 else []


def _draft(rng: random.Random) -> str:
    names = rng.sample(_OPERATIONS["push-message"], rng.choice([0, 1, 2, 6]))
    return "".join(f' {name}="{_value(rng, name)}"' for name in names)


def _delivery(rng: random.Random) -> str:
    of = rng.choice(["", f' qid="{rng.choice(_NAMES)}"'])
    times = "".join(
        f' {name}="{rng.choice(_NUMBERS)}"' for name in ("receives", "pushed-at", "visible-at") if rng.random() < 0.7
    )
    values = {"priority": ["0", "9"], "group": ["g", "a b"], "expires-at": _NUMBERS}
    more = "".join(f' {name}="{rng.choice(values[name])}"' for name in _there(rng) if rng.random() < 0.7)
    return f'<message{of} mid="{rng.choice(_NUMBERS)}"{times}{more}>{_headers(rng)}{_payload(rng)}</message>'


def changed(rng: random.Random, data: bytes, most: int = 2) -> bytes:
    """Returns the bytes with some changes, mostly where tags and values meet."""
    for _ in range(rng.randint(1, most)):
        places = [found.end() for found in re.finditer(rb'(?=[<>"/ ])|(?<=[>"])', data)] or [0]
        start = rng.choice(places) if rng.random() < 0.8 else rng.randint(0, len(data))
        end = start + rng.choice([0, 0, 0, 1, 1, 2, 5, 20])
        kind = rng.random()
        put = (
            rng.choice(_PUT)
            if kind < 0.6
            else b""
            if kind < 0.8
            else data[start:end] * 2
            if kind < 0.9
            else rng.randbytes(1)
        )
        data = data[:start] + put + data[end:]
    return data


def soup(rng: random.Random) -> bytes:
    """Returns bytes that are mostly markup."""
    tokens = [
        *_PUT,
        b"<qs " + NS.encode() + b">",
        b"<op>",
        b"</op>",
        b"<ping/>",
        b"<payload>",
        b"</payload>",
        b"</qid>",
    ]
    return b"".join(rng.choices(tokens, k=rng.randint(1, 20)))


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """Returns the bytes cut at random places."""
    at = sorted(rng.randint(0, len(data)) for _ in range(rng.choice([0, 1, 2, 8])))
    return [data[start:end] for start, end in zip([0, *at], [*at, len(data)], strict=True)]
