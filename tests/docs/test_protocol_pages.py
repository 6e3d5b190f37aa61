"""`docs/protocol.md` is true and complete: a real server answers its examples, and it names all there is.

What it states of documents is tested here too: what is refused, ignored and bounded. What it states of operations,
waiting, limits and stopping is in contract/test_operations* and unit/server.
"""

import contextlib
import inspect
import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.console import Block
from support.servers.processes import PROJECT, ServerProcess

import qs_schemas
from qs_schemas import OPERATIONS, TABLE, ErrorCode, Limits, wire

PAGE = PROJECT / "docs" / "protocol.md"
CARD = PROJECT / "docs" / "protocol-card.md"
TEXT = PAGE.read_text(encoding="utf-8")
SCHEMA = ET.parse(Path(qs_schemas.__file__).parent / "qs.xsd")
XS = "{http://www.w3.org/2001/XMLSchema}"

CLOSES = "(closes)"
_NAMED_MID = re.compile(r"MID\d+")


class Conversation:
    """Plays the examples. Message ids are learnt from the answers, and then stand in the requests."""

    def __init__(self, server: ServerProcess, page: Path) -> None:
        self.server = server
        self.page = page
        self.mids: dict[str, str] = {}

    def play(self, lines: list[tuple[int, str]]) -> None:
        """One block, on a connection of its own."""
        with self.server.connect() as connection, connection.makefile("rb") as answers:
            for number, line in lines:
                self._play_line(connection, answers, number, line)

    def _play_line(self, connection: socket.socket, answers: Any, number: int, line: str) -> None:
        where = f"{self.page.name} line {number}"
        side, text = line[:3], line[3:]
        assert side in ("C: ", "S: "), f"{where}: begins neither with 'C: ' nor with 'S: ': {line}"
        if side == "C: ":
            connection.sendall(self._with_mids(text, where).encode())
            return
        answer = answers.readline().decode()
        if text == CLOSES:
            assert answer == "", f"{where}: the connection should be closed, and there came: {answer}"
            return
        assert answer.endswith("\r\n"), f"{where}: the connection was closed; due was: {text}"
        self._compare(text, answer.removesuffix("\r\n"), where)

    def _with_mids(self, text: str, where: str) -> str:
        def replace(found: re.Match[str]) -> str:
            assert found.group() in self.mids, f"{where}: {found.group()} did not occur in an answer before"
            return self.mids[found.group()]

        return _NAMED_MID.sub(replace, text)

    def _compare(self, expected: str, answer: str, where: str) -> None:
        named: list[str] = []

        def capture(found: re.Match[str]) -> str:
            if found.group() in self.mids:
                return self.mids[found.group()]
            if found.group() in named:
                return f"(?P={found.group()})"
            named.append(found.group())
            return f"(?P<{found.group()}>[0-9]+)"

        pattern = _NAMED_MID.sub(capture, re.escape(expected).replace("…", ".*?"))
        matched = re.fullmatch(pattern, answer)
        assert matched is not None, f"{where}: the page shows\n{expected}\nthe server answered\n{answer}\n{self.mids}"
        self.mids.update(matched.groupdict())


def lines_of(block: Block) -> list[tuple[int, str]]:
    """Returns the documents of an example, each with the line where it begins. An indented line goes on with the one
    before it."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(block.body.splitlines(), block.line):
        if line.startswith("   "):
            begin, text = found.pop()
            found.append((begin, text + line.strip()))
        else:
            found.append((number, line))
    return found


def test_first_example_fits_window(fenced_blocks: Any) -> None:
    """No line of the first example is longer than GitHub and the site show without scrolling in a window of 1200
    pixels."""
    assert max(map(len, fenced_blocks(TEXT, "qs")[0].body.splitlines())) <= 80


def test_protocol_page_examples(
    server: ServerProcess, fenced_blocks: Any, run_console_blocks: Callable[..., int]
) -> None:
    """Every example, in the page's order on one server, is answered as the page shows; then the console blocks."""
    found = fenced_blocks(TEXT, "qs")
    assert found, "the page has no block marked qs"
    conversation = Conversation(server, PAGE)
    for block in found:
        conversation.play(lines_of(block))
    assert run_console_blocks(PAGE, port=server.port) > 0


def test_protocol_card_example(server: ServerProcess, fenced_blocks: Any) -> None:
    """The example of the short page is answered as it shows."""
    [block] = fenced_blocks(CARD.read_text(encoding="utf-8"), "qs")
    Conversation(server, CARD).play(lines_of(block))


def rows_of_card(heading: str) -> list[list[str]]:
    """The cells of the table of a section of the short page."""
    section = CARD.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


def test_protocol_card_has_every_operation() -> None:
    """The short page has each operation once, with all attributes of its `op` and the elements that it needs."""
    rows = {re.findall(r"`([a-z-]+)`", row[0])[0]: row[1:] for row in rows_of_card("Operations")}
    assert rows.keys() == OPERATIONS.keys()
    for op, (attributes, beside, answer) in rows.items():
        cls = OPERATIONS[op]
        told = {*re.findall(r"`([a-z-]+)`", attributes), *re.findall(r"`op/@([a-z-]+)`", answer)}
        assert told == {wire.attribute(name) for name in wire.attributes_of(cls)[0]}, op
        for alternatives in cls.required:
            names = {"messages" if name == "mids" else wire.attribute(name) for name in alternatives}
            assert names <= {*told, *re.findall(r"`([a-z-]+)`", beside)}, op


def test_protocol_card_has_every_error() -> None:
    """The short page has each code with its type, and no other."""
    assert {(int(row[0]), row[1].strip("`")) for row in rows_of_card("Errors")} == {
        (row.code, row.kind) for row in TABLE
    }


def test_examples_show_every_answer(fenced_blocks: Any) -> None:
    """No example leaves an answer out: each request is followed by a line of the server, or more when it delivers."""
    for block in fenced_blocks(TEXT, "qs"):
        sides = "".join(line[:1] for _, line in lines_of(block) if line != f"S: {CLOSES}")
        delivers = "<subscribe/>" in block.body
        assert re.fullmatch("(CS+)+" if delivers else "(CS)+", sides), f"line {block.line}: {sides}"


def code_in(page: str) -> str:
    """Returns what the page sets as code, inline and in blocks."""
    fenced = re.findall(r"^```.*?^```", page, re.MULTILINE | re.DOTALL)
    return "\n".join(fenced + re.findall(r"`[^`\n]+`", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)))


CODE = code_in(TEXT)


def is_named(word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", CODE) is not None


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.code}-{row.kind}{'-closes' * row.closes}")
def test_every_error_is_named(row: ErrorCode) -> None:
    """Each row of the error table has a row on the page, which says whether the connection is closed."""
    found = [line for line in TEXT.splitlines() if line.startswith(f"| {row.code} | `{row.kind}` |")]
    assert found, f"docs/protocol.md has no table row for error {row.code} `{row.kind}`: {row.when}"
    last_cell = found[0].rstrip("| ").rpartition("| ")[2]
    expected = "closed" if row.closes else "open"
    assert expected in last_cell, f"{row.code} {row.kind}: the last column should say {expected!r}: {last_cell!r}"


def test_no_error_is_invented() -> None:
    """The page's table of errors has no row that the protocol does not have."""
    rows = re.findall(r"^\| (\d{3}) \| `([a-z-]+)` \|", TEXT, re.MULTILINE)
    assert {(int(code), kind) for code, kind in rows} == {(row.code, row.kind) for row in TABLE}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_named(operation: str) -> None:
    """Each operation has a section of its own, or a row under "Answered with 501"."""
    unimplemented = TEXT.partition("\n## Answered with 501\n")[2]
    assert f"\n### `{operation}`\n" in TEXT or f"| `{operation}` |" in unimplemented, (
        f"docs/protocol.md has neither a section '### `{operation}`' nor a row under 'Answered with 501'"
    )


def names_of(kind: str) -> list[str]:
    return sorted({name for element in SCHEMA.iter(f"{XS}{kind}") if (name := element.get("name")) is not None})


def test_every_name_is_named() -> None:
    """Each element, attribute and enumerated value of qs.xsd stands somewhere on the page as code."""
    names = {*names_of("element"), *names_of("attribute")}
    values = {str(value.get("value")) for value in SCHEMA.iter(f"{XS}enumeration")}
    missing = {name for name in names if not is_named(name)}
    missing |= {value for value in values if not is_named(value) and not is_named(f'"{value}"')}
    assert not missing, f"docs/protocol.md does not name these of qs.xsd: {sorted(missing)}"


@pytest.mark.parametrize("limit", fields(Limits), ids=lambda limit: limit.name)
def test_every_limit_is_named(limit: Any) -> None:
    """Each limit of the contract stands in the table of limits with its default."""
    table = TEXT.partition("\n## Limits\n")[2].partition("\n## ")[0]
    default = limit.default
    shown = f"{default // 2**20} MiB" if default >= 2**20 else str(default)
    assert f"| {shown} |" in table, f"docs/protocol.md, Limits: no row has {shown} ({limit.name})"


def test_protocol_page_links_lead_somewhere() -> None:
    """Every link to a section of the page has that section, and every link to a file has that file."""
    headings = {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            assert target[1:] in headings, f"no section for the link {target}"
        elif "://" not in target:
            assert (PAGE.parent / target.partition("#")[0]).exists(), f"no file for the link {target}"


def test_every_field_can_be_sent() -> None:
    """The fields of every operation are attributes or elements of qs.xsd, so the checks above miss none."""
    known = set(names_of("element")) | set(names_of("attribute"))
    of_python = {"mids": "mid", "chosen": "part", "early": "m", "uncounted": "count", "required": "", "op": ""}
    for cls in OPERATIONS.values():
        for name in inspect.signature(cls).parameters:
            assert of_python.get(name, name.replace("_", "-")) in known, f"{cls.__name__}.{name}"


OPEN = '<qs xmlns="http://purl.oclc.org/DEFUZE/qs"'
EMPTY = "<messages></messages>"
MANY_ATTRIBUTES = " ".join(f'a{number}=""' for number in range(33))


class Lines:
    """A connection that sends text and reads lines; at the end of the stream they are empty."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lines = connection.makefile("rb")

    def send(self, *documents: str) -> None:
        self.socket.sendall("".join(documents).encode())

    def line(self) -> str:
        return self._lines.readline().decode()

    def ask(self, *documents: str) -> str:
        """The answer to one request."""
        self.send(*documents)
        return self.line()

    def push(self, qid: str, payload: str = "x", op: str = "") -> str:
        return only(r"<mid>(\d+)</mid>", self.ask(request("push-message", f"<payload>{payload}</payload>", qid, op)))

    def close(self) -> None:
        self._lines.close()


def request(op: str, beside: str = "", qid: str = "", attributes: str = "", req: str = "") -> str:
    """A request document. beside: what stands beside op and qid; attributes: of op, as written."""
    correlation = f' req="{req}"' if req else ""
    queue = f"<qid>{qid}</qid>" if qid else ""
    return f"{OPEN}{correlation}><op {attributes}><{op}/></op>{queue}{beside}</qs>"


def only(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    assert len(found) == 1, (pattern, text)
    return str(found[0])


def error(answer: str) -> tuple[str, str]:
    """Code and type of an error."""
    code, kind = (
        re.findall(r'<error code="(\d+)" type="([a-z-]+)">', answer)[0] if "<error " in answer else (answer, "")
    )
    return code, kind


def mids(answer: str) -> list[str]:
    """The ids in an answer's list, of either form."""
    return [one or other for one, other in re.findall(r'<mid>(\d+)</mid>|<message [^>]*mid="(\d+)"', answer)]


@contextlib.contextmanager
def connected(server: ServerProcess, *queues: str) -> Iterator[Lines]:
    with server.connect() as connection:
        lines = Lines(connection)
        for qid in queues:
            assert 'type="response"' in lines.ask(request("new-queue", qid=qid))
        yield lines
        lines.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Lines]:
    """Connected to a server that has the empty queues a and b."""
    with connected(server, "a", "b") as lines:
        yield lines


PING = request("ping")
INVALID = {
    "too deep": f"{OPEN}><op><ping/></op><payload>{'<e>' * 16}{'</e>' * 16}</payload></qs>",
    "too many attributes": f"{OPEN}><op><ping/></op><payload><e {MANY_ATTRIBUTES}/></payload></qs>",
    "processing instruction": f"{OPEN}><?target?><op><ping/></op></qs>",
    "unknown element": f"{OPEN}><op><ping/></op><colour>red</colour></qs>",
    "unknown attribute": f'{OPEN} colour="red"><op><ping/></op></qs>',
    "element of no namespace": f'{OPEN}><op><ping/></op><qid xmlns="">a</qid></qs>',
    "two operations": f"{OPEN}><op><ping/><ping/></op></qs>",
    "no operation": f"{OPEN}><op/></qs>",
    "op twice": f"{OPEN}><op><ping/></op><op><ping/></op></qs>",
    "text beside op": f"{OPEN}>text<op><ping/></op></qs>",
    "long req": f'{OPEN} req="{"r" * 129}"><op><ping/></op></qs>',
    "an error with an operation": f'{OPEN} type="error"><op><ping/></op></qs>',
    "no namespace": "<qs><op><ping/></op></qs>",
    "another namespace": '<html xmlns="http://www.w3.org/1999/xhtml"/>',
    "max 0": request("receive-message", qid="a", attributes='max="0"'),
    "negative wait": request("receive-message", qid="a", attributes='wait="-1"'),
    "unknown state": request("list-messages", qid="a", attributes='state="old"'),
    "peek neither yes nor no": request("get-message", qid="a", beside="<mid>1</mid>", attributes='peek="perhaps"'),
    "blank qid": request("new-queue", qid="   "),
    "long qid": request("new-queue", qid="q" * 201),
    "qid too long for a directory": request("new-queue", qid="é" * 50),
    "control character in qid": request("new-queue", qid="a&#9;b"),
    "not base64": request("push-message", qid="a", beside='<payload encoding="base64">!</payload>'),
    "too many elements side by side": request("push-message", qid="a", beside=f"<payload>{'<a/>' * 1001}</payload>"),
    "too many in a list": request(
        "push-message", qid="a", beside=f"<messages>{'<message><payload/></message>' * 1001}</messages>"
    ),
}
UNREADABLE = {
    "entity declaration": b'<!DOCTYPE qs [<!ENTITY e "e">]>' + PING.encode(),
    "not XML": b"hello\r\n",
    "tags that do not match": b"<qs></op>",
    "undeclared entity": OPEN.encode() + b"><op><ping/></op><qid>&nbsp;</qid></qs>",
    "not UTF-8": OPEN.encode() + b"><op><ping/></op><qid>\xff</qid></qs>",
    "another encoding declared": b'<?xml version="1.0" encoding="ISO-8859-1"?>' + PING.encode(),
    "UTF-16": PING.encode("utf-16"),
}


def test_invalid_document_leaves_connection_open(client: Lines) -> None:
    """Well-formed and not what the contract says: 400, and the next request is answered."""
    for what, document in INVALID.items():
        assert (what, *error(client.ask(document))) == (what, "400", "bad-request")
        assert "<ping/>" in client.ask(PING)


def test_unreadable_bytes_close_connection(server: ServerProcess) -> None:
    """Bytes that are not XML in UTF-8 get 400 as the last line of the connection; requests before them are answered."""
    for what, data in UNREADABLE.items():
        with connected(server) as client:
            client.socket.sendall(PING.encode() + data + PING.encode())
            assert "<ping/>" in client.line()
            assert (what, *error(client.line())) == (what, "400", "bad-request")
            assert client.line() == ""


def test_foreign_elements_are_ignored(client: Lines) -> None:
    """Elements and attributes of other namespaces, and comments, may stand anywhere."""
    document = (
        f'{OPEN} xmlns:x="urn:x" x:a="1"><!-- c --><x:y><z/></x:y><op x:b="2"><!-- c --><x:y/>'
        '<list-messages x:c=""/></op><qid x:d="3">a<!-- c --></qid></qs>'
    )
    assert EMPTY in client.ask(document)


def test_error_names_no_operation_and_carries_req(client: Lines) -> None:
    """An error document has `error` and nothing else, and the `req` of its request."""
    answer = client.ask(request("delete-queue", qid="nothing", req="r &lt;1&gt;"))
    assert re.fullmatch(
        rf'{OPEN} type="error" req="r &lt;1&gt;" resp="[0-9a-f]{{64}}" xml:lang="en-US"><error [^<]*</error></qs>\r\n',
        answer,
    )


def test_max_over_limit_is_taken_as_limit(client: Lines) -> None:
    """A `max` over 1000 is taken as 1000, of ids and of messages."""
    entries = "<message><payload>x</payload></message>" * 600
    for _ in range(2):
        assert len(mids(client.ask(request("push-message", f"<messages>{entries}</messages>", "a")))) == 600
    assert len(mids(client.ask(request("list-messages", qid="a")))) == 1000
    assert len(mids(client.ask(request("list-messages", qid="a", attributes='max="5000"')))) == 1000
    assert len(mids(client.ask(request("receive-message", qid="a", attributes='max="5000"')))) == 1000
