"""Tests what docs/protocol.md states of documents, against a real server: what is refused, ignored and bounded.

What it states of operations, waiting, limits and stopping is in contract/test_operations* and unit/server.
"""

import contextlib
import re
import socket
from collections.abc import Iterator

import pytest
from support.serving import ServerProcess

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


def test_not_valid_and_the_connection_stays_open(client: Lines) -> None:
    """Well-formed and not what the contract says: 400, and the next request is answered."""
    for what, document in INVALID.items():
        assert (what, *error(client.ask(document))) == (what, "400", "bad-request")
        assert "<ping/>" in client.ask(PING)


def test_not_readable_and_the_connection_is_closed(server: ServerProcess) -> None:
    """Bytes that are not XML in UTF-8 get 400 as the last line of the connection; requests before them are answered."""
    for what, data in UNREADABLE.items():
        with connected(server) as client:
            client.socket.sendall(PING.encode() + data + PING.encode())
            assert "<ping/>" in client.line()
            assert (what, *error(client.line())) == (what, "400", "bad-request")
            assert client.line() == ""


def test_what_is_foreign_is_ignored(client: Lines) -> None:
    """Elements and attributes of other namespaces, and comments, may stand anywhere."""
    document = (
        f'{OPEN} xmlns:x="urn:x" x:a="1"><!-- c --><x:y><z/></x:y><op x:b="2"><!-- c --><x:y/>'
        '<list-messages x:c=""/></op><qid x:d="3">a<!-- c --></qid></qs>'
    )
    assert EMPTY in client.ask(document)


def test_an_error_names_no_operation_and_carries_req(client: Lines) -> None:
    """An error document has `error` and nothing else, and the `req` of its request."""
    answer = client.ask(request("delete-queue", qid="nothing", req="r &lt;1&gt;"))
    assert re.fullmatch(
        rf'{OPEN} type="error" req="r &lt;1&gt;" resp="[0-9a-f]{{64}}" xml:lang="en-US"><error [^<]*</error></qs>\r\n',
        answer,
    )


def test_max_over_the_limit(client: Lines) -> None:
    """A `max` over 1000 is taken as 1000, of ids and of messages."""
    entries = "<message><payload>x</payload></message>" * 600
    for _ in range(2):
        assert len(mids(client.ask(request("push-message", f"<messages>{entries}</messages>", "a")))) == 600
    assert len(mids(client.ask(request("list-messages", qid="a")))) == 1000
    assert len(mids(client.ask(request("list-messages", qid="a", attributes='max="5000"')))) == 1000
    assert len(mids(client.ask(request("receive-message", qid="a", attributes='max="5000"')))) == 1000
