"""Every request document of bucker's page, as raw bytes in the ways that early clients wrote them, and its answer.

Nothing of qs is used here to write or to read: what a client of that time sent is sent, and what it looked for is
looked for.
"""

import itertools
import re
import socket
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator

import pytest
from support.servers.processes import ServerProcess, serving

NAMESPACE = "http://purl.oclc.org/DEFUZE/qs"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
XSD = "http://www.w3.org/2001/XMLSchema"
LANG = "{http://www.w3.org/XML/1998/namespace}lang"
Q = f"{{{NAMESPACE}}}"

# The names of queues, one after the other: the tests share a server.
_numbers = itertools.count(1)


# -- how it was written ---------------------------------------------------------------------------------------------


def as_on_the_page(op: str, attributes: str, beside: str) -> str:
    return f'<qs xmlns="{NAMESPACE}" type="request"><op{attributes}><{op} /></op>{beside}</qs>'


def op_last(op: str, attributes: str, beside: str) -> str:
    return (
        f'<qs xmlns="{NAMESPACE}" xmlns:xsi="{XSI}" xmlns:xsd="{XSD}" type="request">'
        f"{beside}<op{attributes}><{op}/></op></qs>\r\n\r\n"
    )


def without_type(op: str, attributes: str, beside: str) -> str:
    return f'<qs xmlns="{NAMESPACE}"><op{attributes}><{op}></{op}></op>{beside}</qs>\r\n\r\n'


def with_declaration(op: str, attributes: str, beside: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{as_on_the_page(op, attributes, beside)}\r\n\r\n'


def with_byte_order_mark(op: str, attributes: str, beside: str) -> str:
    return f'\ufeff<?xml version="1.0"?>{op_last(op, attributes, beside)}'


def with_prefix(op: str, attributes: str, beside: str) -> str:
    prefixed = re.sub(r"<(/?)(?=[a-z])", r"<\1ns0:", f"{beside}<op{attributes}><{op}/></op>")
    return f'<ns0:qs xmlns:ns0="{NAMESPACE}" xmlns:xsi="{XSI}" type="request">{prefixed}</ns0:qs>\r\n\r\n'


def indented(op: str, attributes: str, beside: str) -> str:
    inner = re.sub(r"(<(?:qid|mid)>)(.*?)(</)", r"\1\n    \2\n  \3", beside)
    return (
        f"<qs type='request' xsi:noNamespaceSchemaLocation='qs.xsd' xmlns='{NAMESPACE}' xmlns:xsi='{XSI}'>\n"
        f"  {inner}\n  <op{attributes}>\n    <{op} />\n  </op>\n</qs>\n"
    )


STYLES = [
    as_on_the_page,
    op_last,
    without_type,
    with_declaration,
    with_byte_order_mark,
    with_prefix,
    indented,
]
Style = Callable[[str, str, str], str]


# -- a client of that time ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("bucker") / "root", "--durability", "none") as process:
        yield process


class Early:
    """Sends text over a socket, reads to an empty line if it ends what it sends so, else a line, looks at elements."""

    def __init__(self, connection: socket.socket, style: Style) -> None:
        self.connection = connection
        self.lines = connection.makefile("rb")
        self.style = style
        self.qid = f"queue-{next(_numbers)}"

    def ask(self, op: str, beside: str = "", attributes: str = "") -> ET.Element:
        """The answer's root, once it is what every answer has to be."""
        self.connection.sendall(self.style(op, attributes, beside.replace("QUEUE_ID", self.qid)).encode())
        line = self.read()
        assert line.startswith(f'<qs xmlns="{NAMESPACE}" '.encode()), line
        assert line.endswith(b"</qs>\r\n"), line
        root = ET.fromstring(line)
        assert root.tag == f"{Q}qs"
        assert re.fullmatch("[0-9a-f]{64}", root.get("resp", "")), line
        return root

    def read(self) -> bytes:
        """Returns the next document, with the end of its line."""
        line = self.lines.readline()
        if self.is_early:
            assert self.lines.readline() == b"\r\n"
        return line

    @property
    def is_early(self) -> bool:
        """Tells whether its documents show that it is an early client: by an empty line, or the prefixes of .NET."""
        document = self.style("", "", "")
        return document.endswith("\r\n\r\n") or "xmlns:xs" in document

    def answer(self, op: str, beside: str = "", attributes: str = "") -> ET.Element:
        """A response to the operation."""
        root = self.ask(op, beside, attributes)
        assert root.get("type") == "response", ET.tostring(root)
        assert [child.tag for child in root.findall(f"{Q}op/*")] == [Q + op]
        return root

    def error(self, op: str, beside: str = "", attributes: str = "") -> ET.Element:
        """The `error` element of an error."""
        root = self.ask(op, beside, attributes)
        assert root.get("type") == "error", ET.tostring(root)
        assert root.get(LANG) == "en-US"
        assert [child.tag for child in root] == [f"{Q}error"]
        return root[0]

    def push(self, payload: str) -> str:
        pushed = self.answer("push-message", f"<qid>QUEUE_ID</qid><payload>{payload}</payload>")
        mid = pushed.findtext(f"{Q}mid", "")
        assert mid.isdigit()
        return mid

    def new_messages(self) -> list[str | None]:
        listed = self.answer("list-messages", "<qid>QUEUE_ID</qid>").find(f"{Q}{'m' if self.is_early else 'messages'}")
        assert listed is not None
        return [mid.text for mid in listed.findall(f"{Q}mid")]


@pytest.fixture(params=STYLES, ids=lambda style: style.__name__.replace("_", "-"))
def early(shared: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Early]:
    """An early client with a queue of its own name, which is not made yet."""
    with shared.connect() as connection:
        client = Early(connection, request.param)
        yield client
        client.lines.close()


@pytest.fixture
def with_queue(early: Early) -> Early:
    early.answer("new-queue", "<qid>QUEUE_ID</qid>")
    return early


def test_list_queues(early: Early) -> None:
    """`list-queues` names every queue, also one just made, sorted."""

    def listed() -> list[str | None]:
        return [queue.text for queue in early.answer("list-queues").findall(f"{Q}queues/{Q}queue")]

    assert early.qid not in listed()
    early.answer("new-queue", "<qid>QUEUE_ID</qid>")
    assert early.qid in listed()
    assert listed() == sorted(map(str, listed()))


def test_new_queue(early: Early) -> None:
    """`new-queue` answers with the queue's name."""
    assert early.answer("new-queue", "<qid>QUEUE_ID</qid>").findtext(f"{Q}qid") == early.qid


def test_new_queue_that_exists(with_queue: Early) -> None:
    """A second `new-queue` is answered with the very error of bucker's page: code, type, language and text."""
    error = with_queue.error("new-queue", "<qid>QUEUE_ID</qid>")
    assert error.attrib == {"code": "409", "type": "conflict"}
    assert error.text == f"'{with_queue.qid}' is already an existing queue"


def test_new_queue_that_exists_byte_by_byte(early: Early) -> None:
    """The 409 as bytes: bucker's attributes and text and nothing else, but for `xmlns` and the value of `resp`."""
    early.answer("new-queue", "<qid>QUEUE_ID</qid>")
    early.connection.sendall(early.style("new-queue", "", f"<qid>{early.qid}</qid>").encode())
    line = early.read().decode()
    tag, rest = line.split(">", 1)
    attributes = set(re.sub(r'resp="[0-9a-f]{64}"', 'resp="…"', tag).removeprefix("<qs ").split(" "))
    assert attributes == {f'xmlns="{NAMESPACE}"', 'resp="…"', 'xml:lang="en-US"', 'type="error"'}
    assert rest == (f'<error code="409" type="conflict">\'{early.qid}\' is already an existing queue</error></qs>\r\n')


def test_delete_queue(with_queue: Early) -> None:
    """An empty queue is deleted without force; after that it is not found."""
    assert with_queue.answer("delete-queue", "<qid>QUEUE_ID</qid>").findtext(f"{Q}qid") == with_queue.qid
    error = with_queue.error("delete-queue", "<qid>QUEUE_ID</qid>")
    assert error.attrib == {"code": "404", "type": "not-found"}


def test_delete_queue_that_is_not_empty(with_queue: Early) -> None:
    """With any `force` but `yes`, a queue with a message stays, and the answer is an error."""
    mid = with_queue.push("kept")
    for force in ("", ' force="no"', ' force="maybe"', ' force=""', ' force="YES"'):
        error = with_queue.error("delete-queue", "<qid>QUEUE_ID</qid>", force)
        assert error.attrib == {"code": "409", "type": "not-empty"}
    assert with_queue.new_messages() == [mid]


def test_delete_queue_by_force(with_queue: Early) -> None:
    """`force="yes"` deletes a queue with its messages; made again, it is empty."""
    with_queue.push("lost")
    with_queue.answer("delete-queue", "<qid>QUEUE_ID</qid>", ' force="yes"')
    with_queue.answer("new-queue", "<qid>QUEUE_ID</qid>")
    assert with_queue.new_messages() == []


def test_list_messages(with_queue: Early) -> None:
    """`list-messages` has a `messages` element, `m` for an early client, with zero or many `mid`, oldest first."""
    assert with_queue.new_messages() == []
    mids = [with_queue.push(f"message {number}") for number in range(3)]
    assert with_queue.new_messages() == mids


def test_list_messages_in_m(with_queue: Early) -> None:
    """A client that sends an `m` element, or is an early one, gets the list in `m`, and in that alone."""
    expected: list[str] = []
    for payload in ("one", "two"):
        answer = with_queue.answer("list-messages", "<qid>QUEUE_ID</qid>" + ("" if with_queue.is_early else "<m/>"))
        assert answer.find(f"{Q}messages") is None
        listed = answer.find(f"{Q}m")
        assert listed is not None
        assert [mid.text for mid in listed.findall(f"{Q}mid")] == expected
        expected.append(with_queue.push(payload))


def test_push_message(with_queue: Early) -> None:
    """`push-message` answers with the message's id; ids increase."""
    first, second = with_queue.push("PAYLOAD"), with_queue.push("UEFZTE9BRA==")
    assert int(first) < int(second)


def test_get_message_the_first_time(with_queue: Early) -> None:
    """The first `get-message` gives the payload, and the message leaves the list of new ones."""
    mid, other = with_queue.push("first"), with_queue.push("second")
    answer = with_queue.answer("get-message", f"<qid>QUEUE_ID</qid><mid>{mid}</mid>")
    found = answer.find(f"{Q}mid")
    assert found is not None
    assert (found.text, found.get("status")) == (mid, "delivered")
    assert answer.findtext(f"{Q}payload") == "first"
    assert with_queue.new_messages() == [other]


@pytest.mark.parametrize("peek", ["", ' peek="no"', ' peek="yes"'])
def test_get_message_inside_its_window(with_queue: Early, peek: str) -> None:
    """Inside the visibility window (30 s by default) the answer has the status and no payload."""
    mid = with_queue.push("hidden")
    with_queue.answer("get-message", f"<qid>QUEUE_ID</qid><mid>{mid}</mid>")
    answer = with_queue.answer("get-message", f"<qid>QUEUE_ID</qid><mid>{mid}</mid>", peek)
    found = answer.find(f"{Q}mid")
    assert found is not None
    assert (found.text, found.get("status")) == (mid, "in-flight")
    assert answer.find(f"{Q}payload") is None


def test_the_window_is_30_seconds(with_queue: Early) -> None:
    """The window that a `get-message` starts ends 30 s later, by the server's own account."""
    mid = with_queue.push("hidden")
    found = with_queue.answer("get-message", f"<qid>QUEUE_ID</qid><mid>{mid}</mid>").find(f"{Q}mid")
    assert found is not None
    assert 30_000_000 <= int(found.get("visible-at", "")) - int(mid) < 50_000_000


def test_get_message_when_its_window_has_passed(with_queue: Early) -> None:
    """Once the window has passed, the message is given to anybody again."""
    mid = with_queue.push("again")
    get = ("get-message", f"<qid>QUEUE_ID</qid><mid>{mid}</mid>")
    with_queue.answer(*get, ' visibility="0"')
    answer = with_queue.answer(*get)
    assert answer.findtext(f"{Q}payload") == "again"
    found = answer.find(f"{Q}mid")
    assert found is not None
    assert (found.get("status"), found.get("receives")) == ("delivered", "2")
    assert with_queue.new_messages() == []


def test_get_message_peeked(with_queue: Early) -> None:
    """With `peek="yes"` the payload is given, and the message stays new and visible, however often."""
    mid = with_queue.push("looked at")
    for _ in range(2):
        answer = with_queue.answer("get-message", f"<qid>QUEUE_ID</qid><mid>{mid}</mid>", ' peek="yes"')
        found = answer.find(f"{Q}mid")
        assert found is not None
        assert found.get("status") == "ready"
        assert answer.findtext(f"{Q}payload") == "looked at"
        assert with_queue.new_messages() == [mid]


def test_delete_message(with_queue: Early) -> None:
    """`delete-message` removes a message, new or in flight; after that it is not found."""
    for get_first in (False, True):
        mid = with_queue.push("done")
        if get_first:
            with_queue.answer("get-message", f"<qid>QUEUE_ID</qid><mid>{mid}</mid>")
        answer = with_queue.answer("delete-message", f"<qid>QUEUE_ID</qid><mid>{mid}</mid>")
        assert answer.findtext(f"{Q}mid") == mid
        for op in ("delete-message", "get-message"):
            error = with_queue.error(op, f"<qid>QUEUE_ID</qid><mid>{mid}</mid>")
            assert error.attrib == {"code": "404", "type": "not-found"}
    assert with_queue.new_messages() == []


def test_no_such_queue(early: Early) -> None:
    """Each operation on a queue that is not there says so, and which."""
    for op, beside in (
        ("delete-queue", ""),
        ("list-messages", ""),
        ("push-message", "<payload>PAYLOAD</payload>"),
        ("get-message", "<mid>1</mid>"),
        ("delete-message", "<mid>1</mid>"),
    ):
        error = early.error(op, f"<qid>QUEUE_ID</qid>{beside}")
        assert error.attrib == {"code": "404", "type": "not-found"}
        assert f"'{early.qid}'" in (error.text or "")


def test_what_is_compulsory(early: Early) -> None:
    """If an element is missing that bucker's page calls compulsory, the error names it; the connection goes on."""
    for op, beside, missing in (
        ("new-queue", "", "qid"),
        ("delete-queue", "", "qid"),
        ("list-messages", "", "qid"),
        ("push-message", "<payload>PAYLOAD</payload>", "qid"),
        ("push-message", "<qid>QUEUE_ID</qid>", "payload"),
        ("get-message", "<qid>QUEUE_ID</qid>", "mid"),
        ("get-message", "<mid>1</mid>", "qid"),
        ("delete-message", "<qid>QUEUE_ID</qid>", "mid"),
    ):
        error = early.error(op, beside)
        assert error.attrib == {"code": "400", "type": "bad-request"}
        assert f"'{missing}'" in (error.text or "")
        early.answer("list-queues")


def test_only_op_is_compulsory(early: Early) -> None:
    """A document without `op` is refused by name; the connection goes on."""
    document = early.style("ping", "", "<qid>a</qid>")
    early.connection.sendall(re.sub(r"(?s)<(ns0:)?op.*</(ns0:)?op>", "", document).encode())
    line = early.read().decode()
    assert '<error code="400" type="bad-request">' in line
    assert "'op'" in line
    early.answer("list-queues")


def test_one_write_a_byte_at_a_time(early: Early) -> None:
    """The answer is the same however the bytes are cut."""
    document = early.style("new-queue", "", f"<qid>{early.qid}</qid>").encode()
    early.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(len(document)):
        early.connection.sendall(document[at : at + 1])
    assert b'type="response"' in early.read()
    early.answer("list-queues")


def test_several_documents_in_one_write(early: Early) -> None:
    """Documents that arrive together are answered one by one, in their order."""
    early.answer("new-queue", "<qid>QUEUE_ID</qid>")
    pushes = [
        early.style("push-message", "", f"<qid>{early.qid}</qid><payload>{number}</payload>") for number in range(20)
    ]
    early.connection.sendall("".join(pushes).encode())
    mids = [ET.fromstring(early.read()).findtext(f"{Q}mid") for _ in pushes]
    assert None not in mids
    assert mids == sorted(mids, key=lambda mid: int(mid or 0))
    assert early.new_messages() == mids
