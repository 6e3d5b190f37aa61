"""What docs/protocol.md states and no single example shows, against a real server: limits, order, waiting, stopping."""

import contextlib
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import ServerProcess, serving

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


# -- the stream -----------------------------------------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for requests that change nothing."""
    with serving(tmp_path_factory.mktemp("statements") / "root", "--durability", "none") as process:
        yield process


@pytest.mark.parametrize("what", INVALID)
def test_not_valid_and_the_connection_stays_open(shared: ServerProcess, what: str) -> None:
    """Well-formed and not what the contract says: 400, and the next request is answered."""
    with connected(shared) as client:
        assert error(client.ask(INVALID[what])) == ("400", "bad-request")
        assert "<ping/>" in client.ask(PING)


@pytest.mark.parametrize("what", UNREADABLE)
def test_not_readable_and_the_connection_is_closed(shared: ServerProcess, what: str) -> None:
    """What cannot be read as XML in UTF-8 is 400, the last line of the connection; what came before is answered."""
    with connected(shared) as client:
        client.socket.sendall(PING.encode() + UNREADABLE[what] + PING.encode())
        assert "<ping/>" in client.line()
        assert error(client.line()) == ("400", "bad-request")
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


def test_resp_differs(client: Lines) -> None:
    """No two answers have the same `resp`."""
    client.send(PING * 50)
    assert len({only(r'resp="([0-9a-f]{64})"', client.line()) for _ in range(50)}) == 50


def test_more_in_the_pipe_than_the_bound(server: ServerProcess, client: Lines) -> None:
    """More requests than may be unanswered, behind one that waits, are all answered in order once it is."""
    total = 3000
    documents = [request("ping", req=f"r{number}") for number in range(total)]
    with connected(server) as other:
        client.socket.settimeout(60)
        client.send(request("receive-message", qid="a", attributes='wait="60"', req="first"))
        client.send(*documents)
        other.push("a")
    assert 'req="first"' in client.line()
    assert [only(r' req="(\w+)"', client.line()) for _ in range(total)] == [f"r{number}" for number in range(total)]


@pytest.mark.parametrize("behind", [0, 1])
def test_the_end_of_the_stream_ends_a_wait(client: Lines, behind: int) -> None:
    """A half-closed connection is answered to the end, a waiting receive with nothing, and then closed."""
    client.send(request("receive-message", qid="a", attributes='wait="600"'), PING * behind)
    client.socket.shutdown(socket.SHUT_WR)
    assert EMPTY in client.line()
    for _ in range(behind):
        assert "<ping/>" in client.line()
    assert client.line() == ""


def test_the_end_of_the_stream_inside_a_document(client: Lines) -> None:
    """A stream that ends inside a document is told so."""
    client.send(PING[:-1])
    client.socket.shutdown(socket.SHUT_WR)
    assert error(client.line()) == ("400", "bad-request")
    assert client.line() == ""


def test_payloads_come_back(client: Lines) -> None:
    """Text keeps its white space, inline XML is stored as text, a text that XML cannot carry travels as base64."""
    for sent, received in {
        "  a\n\tb &#13;\n ": "<payload>  a&#10;\tb &#13;&#10; </payload>",
        "<![CDATA[<a>&</a>]]>": "<payload>&lt;a&gt;&amp;&lt;/a&gt;</payload>",
        '<a xmlns="urn:a"><b/>&lt;</a> c': '<payload>&lt;a xmlns="urn:a"&gt;&lt;b/&gt;&amp;lt;&lt;/a&gt; c</payload>',
        "": "<payload></payload>",
        "\U0001f600 é": "<payload>\U0001f600 é</payload>",
    }.items():
        mid = client.push("a", sent)
        got = client.ask(request("get-message", f"<mid>{mid}</mid>", "a", 'peek="yes"'))
        assert received in got.replace("&#9;", "\t")
    client.ask(request("push-message", '<payload encoding="base64">\n AA\n==</payload>', "b"))
    assert '<payload encoding="base64">AA==</payload>' in client.ask(request("receive-message", qid="b"))


# -- operations -----------------------------------------------------------------------------------------------------


def test_max_over_the_limit(client: Lines) -> None:
    """A `max` over 1000 is taken as 1000, of ids and of messages."""
    entries = "<message><payload>x</payload></message>" * 600
    for _ in range(2):
        assert len(mids(client.ask(request("push-message", f"<messages>{entries}</messages>", "a")))) == 600
    assert len(mids(client.ask(request("list-messages", qid="a")))) == 1000
    assert len(mids(client.ask(request("list-messages", qid="a", attributes='max="5000"')))) == 1000
    assert len(mids(client.ask(request("receive-message", qid="a", attributes='max="5000"')))) == 1000


def test_pages_of_ids(client: Lines) -> None:
    """`after` the last id of one page gives the next, until it is empty."""
    pushed = [client.push("a") for _ in range(5)]
    listed: list[str] = []
    after = ""
    while page := mids(client.ask(request("list-messages", qid="a", attributes=f'max="2" {after}'))):
        assert len(page) <= 2
        listed += page
        after = f'after="{page[-1]}"'
    assert listed == pushed


def test_several_queues(client: Lines) -> None:
    """A receive from several queues gives the oldest of all of them, ordered by id."""
    pushed = [client.push(qid) for qid in "abba"]
    answer = client.ask(
        request("receive-message", "<queues><queue>b</queue><queue>a</queue></queues>", attributes='max="3"')
    )
    assert mids(answer) == pushed[:3]
    assert re.findall(r'<message qid="(.)"', answer) == ["a", "b", "b"]


def test_several_queues_one_of_which_is_missing(client: Lines) -> None:
    """A receive from several queues changes nothing when one of them does not exist."""
    pushed = client.push("a")
    queues = "<queues><queue>a</queue><queue>missing</queue></queues>"
    assert error(client.ask(request("receive-message", queues))) == ("404", "not-found")
    assert mids(client.ask(request("list-messages", qid="a"))) == [pushed]


def test_a_wait_ends_with_a_message(server: ServerProcess, client: Lines) -> None:
    """A waiting receive is answered by a push, by a release, and by the end of a delay or a window."""
    waiting = request("receive-message", qid="a", attributes='wait="60" visibility="60"')
    with connected(server) as other:
        client.send(waiting)
        mid = other.push("a")
        assert mids(client.line()) == [mid]
        client.send(waiting)
        other.ask(request("release-message", f"<mid>{mid}</mid>", "a"))
        assert mids(client.line()) == [mid]
        other.ask(request("release-message", f"<mid>{mid}</mid>", "a", 'delay="0.05"'))
        assert mids(client.ask(waiting)) == [mid]
        other.ask(request("extend-message", f"<mid>{mid}</mid>", "a", 'visibility="0.05"'))
        answer = client.ask(waiting)
        assert mids(answer) == [mid]
        assert only(r'receives="(\d+)"', answer) == "4"


def test_the_window_of_the_queue(client: Lines) -> None:
    """A receive, a get and an extend that name no visibility take the queue's; a queue that has none has 30 s."""
    assert 'type="response"' in client.ask(request("new-queue", '<options visibility="500"/>', "long"))
    for qid, least in (("a", 30), ("long", 500)):
        for kind in ("receive-message", "get-message", "extend-message"):
            mid = client.push(qid)
            if kind == "receive-message":
                answer = client.ask(request(kind, qid=qid))
            else:
                if kind == "extend-message":
                    client.ask(request("receive-message", qid=qid, attributes='visibility="60"'))
                answer = client.ask(request(kind, f"<mid>{mid}</mid>", qid))
            length = int(only(r'visible-at="(\d+)"', answer)) - int(mid)
            assert least * 1_000_000 <= length < (least + 20) * 1_000_000, (qid, kind)


@pytest.mark.parametrize("op", ["", 'delay="600"'])
def test_extend_what_is_not_in_flight(client: Lines, op: str) -> None:
    """A message that is visible, or delayed, cannot be extended: 409 stale."""
    mid = client.push("a", op=op)
    assert error(client.ask(request("extend-message", f"<mid>{mid}</mid>", "a"))) == ("409", "stale")


def test_new_means_never_retrieved(client: Lines) -> None:
    """A message that was retrieved and released is ready and not new; one that is delayed at its push is new."""
    first, second = client.push("a"), client.push("a", op='delay="600"')
    client.ask(request("receive-message", qid="a"))
    client.ask(request("release-message", f"<mid>{first}</mid>", "a"))
    assert mids(client.ask(request("list-messages", qid="a", attributes='state="new"'))) == [second]
    assert mids(client.ask(request("list-messages", qid="a", attributes='state="ready"'))) == [first]
    assert mids(client.ask(request("list-messages", qid="a", attributes='state="delayed"'))) == [second]
    assert mids(client.ask(request("list-messages", qid="a", attributes='state="all"'))) == [first, second]


@pytest.mark.parametrize("op", ["delete-message", "release-message", "extend-message"])
def test_an_outdated_receipt(client: Lines, op: str) -> None:
    """With the receives of an earlier delivery, nothing is done: 409 stale. With the last one's, it is."""
    mid = client.push("a")
    client.ask(request("receive-message", qid="a", attributes='visibility="0"'))
    client.ask(request("receive-message", qid="a", attributes='wait="20" visibility="60"'))
    assert error(client.ask(request(op, f'<mid receives="1">{mid}</mid>', "a"))) == ("409", "stale")
    assert mids(client.ask(request("list-messages", qid="a", attributes='state="in-flight"'))) == [mid]
    assert 'type="response"' in client.ask(request(op, f'<mid receives="2">{mid}</mid>', "a"))


def test_figures(client: Lines) -> None:
    """queue-stats counts messages by state, and what happened since the start; all queues when none is named."""
    for payload in ("1", "22", "333", "4444"):
        client.push("a", payload)
    client.push("a", "55555", 'delay="600"')
    received = client.ask(request("receive-message", qid="a", attributes='max="2" visibility="600"'))
    client.ask(request("delete-message", f"<mid>{mids(received)[0]}</mid>", "a"))
    client.ask(request("receive-message", qid="a", attributes='visibility="0"'))
    client.ask(request("receive-message", qid="a", attributes='wait="20" visibility="600"'))
    answer = client.ask(request("queue-stats"))
    figures: dict[str, Any] = dict(re.findall(r' ([a-z-]+)="([^"]*)"', only(r"<queue( [^>]*)>a</queue>", answer)))
    assert float(figures.pop("oldest")) >= 0
    assert figures.pop("storage")
    assert {name: int(value) for name, value in figures.items()} == {
        "new": 2, "ready": 1, "in-flight": 2, "delayed": 1, "bytes": 14,
        "pushed": 5, "delivered": 4, "expired": 1, "deleted": 1,
    }  # fmt: skip
    assert "oldest" not in only(r"<queue( [^>]*)>b</queue>", answer)


# -- limits and the end ---------------------------------------------------------------------------------------------


def test_payloads_of_an_answer_are_bounded(tmp_path: Path) -> None:
    """A receive stops before its payloads pass the limit of a document, and gives at least one message."""
    with serving(tmp_path / "root", "--max-document", "4096") as server, connected(server, "a") as client:
        pushed = [client.push("a", "x" * 1500) for _ in range(3)]
        assert mids(client.ask(request("receive-message", qid="a", attributes='max="10"'))) == pushed[:2]
        assert mids(client.ask(request("receive-message", qid="a", attributes='max="10"'))) == pushed[2:]


def test_too_large(tmp_path: Path) -> None:
    """A document over the limit is 413 as soon as that is known, and the connection is closed."""
    with serving(tmp_path / "root", "--max-document", "1000") as server, connected(server, "a") as client:
        client.send(f"{OPEN}><op><push-message/></op><qid>a</qid><payload>{'x' * 1000}")
        assert error(client.line()) == ("413", "too-large")
        assert client.line() == ""


def test_too_slow(tmp_path: Path) -> None:
    """A document that is not completed in time is 408, and the connection is closed; idling costs nothing."""
    slow = serving(tmp_path / "root", "--document-time", "0.1")
    with slow as server, connected(server) as idle, connected(server) as client:
        client.send(PING[:20])
        assert error(client.line()) == ("408", "timeout")
        assert client.line() == ""
        assert "<ping/>" in idle.ask(PING)


def test_too_many(tmp_path: Path) -> None:
    """A connection too many is 429 and closed; the others go on."""
    small = serving(tmp_path / "root", "--max-connections", "1")
    with small as server, connected(server, "a") as first, connected(server) as second:
        assert error(second.line()) == ("429", "too-many")
        assert second.line() == ""
        assert "<ping/>" in first.ask(PING)


def test_capacity(client: Lines) -> None:
    """A push beyond the capacity is 507 and stores nothing; after a delete there is room again."""
    client.ask(request("new-queue", '<options capacity="1"/>', "one"))
    mid = client.push("one")
    answer = client.ask(request("push-message", "<payload>x</payload>", "one"))
    assert error(answer) == ("507", "full")
    client.ask(request("delete-message", f"<mid>{mid}</mid>", "one"))
    client.push("one")


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_stop(server: ServerProcess, client: Lines, sig: int) -> None:
    """A server that is told to stop answers a waiting receive with nothing, then says 503 and closes; exit code 0."""
    client.send(request("receive-message", qid="a", attributes='wait="600"', req="waits"))
    with connected(server) as idle:
        assert "<ping/>" in idle.ask(PING)
        server.process.send_signal(sig)
        assert error(idle.line()) == ("503", "shutting-down")
        answer = client.line()
        assert EMPTY in answer
        assert 'req="waits"' in answer
        assert error(client.line()) == ("503", "shutting-down")
        assert client.line() == ""
    assert server.wait() == 0


def test_after_a_stop_all_is_there(tmp_path: Path) -> None:
    """Queues, options, messages, states, counts and the list of new ones are the same after a restart."""
    with serving(tmp_path / "root") as server, connected(server, "a") as client:
        client.ask(request("new-queue", '<options visibility="500" capacity="9"/>', "long"))
        received, _ = client.push("long", "one"), client.push("long", "two", 'delay="600"')
        client.ask(request("receive-message", qid="long"))
        before = _account(client)
    with serving(tmp_path / "root") as server, connected(server) as client:
        assert _account(client) == before
        client.ask(request("release-message", f"<mid>{received}</mid>", "long"))
        answer = client.ask(request("receive-message", qid="long"))
        assert only(r'receives="(\d+)"', answer) == "2"
        assert int(only(r'visible-at="(\d+)"', answer)) - int(received) > 499_000_000


def _account(client: Lines) -> list[str]:
    states = [
        client.ask(request("list-messages", qid="long", attributes=f'state="{state}"'))
        for state in ("new", "ready", "in-flight", "delayed", "all")
    ]
    looks = [client.ask(request("get-message", f"<mid>{mid}</mid>", "long", 'peek="yes"')) for mid in mids(states[-1])]
    return [re.sub(r'resp="\w+"', "", text) for text in (client.ask(request("list-queues")), *states, *looks)]
