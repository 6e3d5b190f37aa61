"""The early clients of bucker, over real sockets, with the bytes that they send, written and read without qs.

They split what they read at CR LF CR LF, put `op` last, send ids of their own where none is asked for, and look for the
ids of `list-messages` in `m` alone.
"""

import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest
from support.servers.processes import BusProcess, Listening, ServerProcess, bus_serving, serving

from qs_client import GetMessage, ListQueues, QueueClient

NAMESPACE = "http://purl.oclc.org/DEFUZE/qs"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
XSD = "http://www.w3.org/2001/XMLSchema"
Q = f"{{{NAMESPACE}}}"
END = b"\r\n\r\n"
GUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
OF_ITS_OWN = [
    f'type="request">%s<mid>{GUID}</mid>',
    'type="response" resp="">%s<mid>a3f09e77</mid>',
    f'type="response" resp="{"1e58" * 16}">%s<mid>{"3664" * 16}</mid>',
    f'type="response" resp="{"9f" * 100}">%s<mid/>',
    'type="Request" resp="none">%s<mid receives="0"> </mid>',
    ">%s",
]


def of_dotnet(op: str, beside: str = "", attributes: str = "") -> bytes:
    """Returns a document as XmlSerializer of .NET writes it into a stream: indented, with a BOM, and nothing behind."""
    elements = "".join(f"\r\n  {element}" for element in beside.splitlines())
    text = (
        f'<?xml version="1.0" encoding="utf-8"?>\r\n<qs xmlns:xsi="{XSI}" xmlns:xsd="{XSD}" type="request" resp="" '
        f'xmlns="{NAMESPACE}">{elements}\r\n  <op{attributes}>\r\n    <{op} />\r\n  </op>\r\n</qs>'
    )
    return b"\xef\xbb\xbf" + text.encode()


def document(op: str, beside: str = "", head: str = OF_ITS_OWN[0], attributes: str = "") -> bytes:
    """Returns a document as these clients write it. head: the end of the root's tag, and what stands first in it."""
    start = f'<?xml version="1.0" encoding="utf-8"?><qs xmlns:xsi="{XSI}" xmlns:xsd="{XSD}" xmlns="{NAMESPACE}" '
    return f"{start}{head % beside}<op{attributes}><{op} /></op></qs>".encode()


class Early:
    """One connection. What is not a whole document yet is not looked at."""

    def __init__(self, program: Listening) -> None:
        self.socket = program.connect(timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.held = b""

    def read(self) -> ET.Element:
        while END not in self.held:
            data = self.socket.recv(65536)
            assert data, f"the connection has ended after {self.held!r}"
            self.held += data
        one, self.held = self.held.split(END, 1)
        return ET.fromstring(one)  # of two documents it would not be XML

    def ask(self, op: str, beside: str = "", head: str = OF_ITS_OWN[0], attributes: str = "") -> ET.Element:
        self.socket.sendall(document(op, beside, head, attributes) + END)
        return self.read()

    def __enter__(self) -> "Early":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("early") / "root", "--durability", "none") as process:
        yield process


@pytest.fixture(scope="module")
def bus(server: ServerProcess) -> Iterator[BusProcess]:
    with bus_serving(server, "-q", "news") as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[QueueClient]:
    with QueueClient(server.host, server.port) as client:
        yield client


def code(root: ET.Element) -> str | None:
    error = root.find(f"{Q}error")
    return None if error is None else error.get("code")


@pytest.mark.parametrize("head", OF_ITS_OWN, ids=["guid", "short", "hexadecimal", "empty", "another-type", "nothing"])
def test_posts_and_reads_back(server: ServerProcess, head: str) -> None:
    """The pushes of an early client are stored, listed in `m`, read back and deleted, whatever else its documents
    carry."""
    qid = f"<qid>posted-{OF_ITS_OWN.index(head)}</qid>"
    plain = ">%s"
    with Early(server) as early:
        assert early.ask("ping", "", head).get("type") == "response"
        assert early.ask("new-queue", qid, head).get("type") == "response"
        assert code(early.ask("new-queue", qid, head)) == "409"
        pushed = early.ask("push-message", f"{qid}<payload>aGVsbG8=</payload>", head)
        mid = pushed.findtext(f"{Q}mid")
        listed = early.ask("list-messages", qid, head)
        assert [found.text for found in listed.findall(f"{Q}m/{Q}mid")] == [mid]
        assert listed.find(f"{Q}messages") is None
        got = early.ask("get-message", f"{qid}<mid>{mid}</mid>", plain)
        assert got.findtext(f"{Q}payload") == "aGVsbG8="
        assert early.ask("delete-message", f"{qid}<mid>{mid}</mid>", plain).get("type") == "response"
        assert [len(listed) for listed in early.ask("list-messages", qid, head).findall(f"{Q}m")] == [0]
        assert early.ask("delete-queue", qid, head).get("type") == "response"


@pytest.mark.parametrize("op", ["get-message", "delete-message", "release-message", "extend-message"])
@pytest.mark.parametrize("mid", [GUID, "a3f09e77", "", "-1", "1" * 40])
def test_an_id_of_its_own_is_no_message(server: ServerProcess, client: QueueClient, op: str, mid: str) -> None:
    """In an operation on a message, an id that is none of ours is 404, and the text has it."""
    client.new_queue("none", exist_ok=True)
    with Early(server) as early:
        answer = early.ask(op, f"<qid>none</qid><mid>{mid}</mid>", ">%s")
        assert code(answer) == "404"
        assert repr(mid) in (answer.findtext(f"{Q}error") or "")


def test_ids_of_its_own_in_a_list(server: ServerProcess, client: QueueClient) -> None:
    """In a list they are passed over, like those of messages that are gone."""
    client.new_queue("listed", exist_ok=True)
    mid = client.push("listed", b"x")
    with Early(server) as early:
        for ids, deleted in (([GUID, str(mid), "", "a3f0"], [str(mid)]), ([GUID], [])):
            listed = "".join(f"<mid>{each}</mid>" for each in ids)
            answer = early.ask("delete-message", f"<qid>listed</qid><messages>{listed}</messages>", ">%s")
            assert [found.text for found in answer.findall(f"{Q}messages/{Q}mid")] == deleted


def test_an_error_is_no_request(server: ServerProcess) -> None:
    """A document of type `error` is refused though it has an operation."""
    with Early(server) as early:
        answer = early.ask("ping", '<error code="404" type="not-found">x</error>', 'type="error">%s')
        assert code(answer) == "400"


def test_the_empty_line_comes_later(server: ServerProcess) -> None:
    """A client that writes its document first and the empty line then gets its answer whole, be the answer sent by then
    or not; and so it goes on."""
    with Early(server) as early:
        for _ in range(2):
            early.socket.sendall(document("ping"))
            while not early.held:
                early.held += early.socket.recv(1)  # it has been answered
            early.socket.sendall(END[:3])
            early.socket.sendall(END[3:])
            assert early.read().find(f"{Q}op/{Q}ping") is not None
    with Early(server) as early:
        early.ask("new-queue", "<qid>later</qid>")
    with Early(server) as early:
        early.socket.sendall(document("receive-message", "<qid>later</qid>", attributes=' wait="0.2"'))
        early.socket.sendall(END)  # while it waits
        assert early.read().find(f"{Q}op/{Q}receive-message") is not None
        assert early.held.strip() == b""


def test_the_empty_line_comes_while_the_server_is_asked(server: ServerProcess) -> None:
    """At the bus too, which has to ask the server before it answers: the answer ends as the client expects by then."""
    with Early(server) as early:
        early.ask("new-queue", "<qid>asked</qid>")
    with bus_serving(server) as bus, Early(bus) as early:
        with server.freeze(), Early(bus) as other:
            early.socket.sendall(document("list-queues", "<queues><queue>asked</queue></queues>"))
            other.ask("ping")  # when this is answered, the bus has read what came before
            early.socket.sendall(END)
            other.ask("ping")
        assert early.read().find(f"{Q}op/{Q}list-queues") is not None


def test_pipelined(server: ServerProcess) -> None:
    """Requests that it sends without waiting are answered one by one, the bad ones too."""
    with Early(server) as early:
        documents = [document("ping", f"<qid>a{number}</qid>") for number in range(20)]
        documents[7] = document("paint")
        documents[9] = document("ping", "<nonsense/>")
        early.socket.sendall(END.join(documents) + END)
        assert [code(early.read()) for _ in documents] == [{7: "501", 9: "400"}.get(number) for number in range(20)]


def test_subscribed_at_the_server(server: ServerProcess, client: QueueClient) -> None:
    """Deliveries to such a client end with an empty line too."""
    client.new_queue("mail", exist_ok=True)
    with Early(server) as early:
        assert early.ask("subscribe", "<qid>mail</qid>").get("type") == "response"
        client.push_many("mail", [b"one", b"two"])
        assert [early.read().findtext(f"{Q}payload") for _ in range(2)] == ["one", "two"]


def test_subscribed_at_the_bus(bus: BusProcess, client: QueueClient) -> None:
    """`list-queues` subscribes it at the bus; its deliveries end with an empty line, those of others with a line."""
    with Early(bus) as early, bus.connect() as other, other.makefile("rb") as lines:
        other.sendall(f'<qs xmlns="{NAMESPACE}"><op><subscribe/></op><qid>news</qid></qs>'.encode())
        assert b'type="response"' in lines.readline()
        assert early.ask("list-queues", "<queues><queue>news</queue></queues>", OF_ITS_OWN[1]).get("type") == "response"
        client.push_many("news", [b"one", b"two"])
        assert [early.read().findtext(f"{Q}payload") for _ in range(2)] == ["one", "two"]
        assert [line.endswith(b"</qs>\r\n") for line in (lines.readline(), lines.readline())] == [True, True]


def test_a_python_program_at_the_bus(bus: BusProcess, client: QueueClient) -> None:
    """The table of the page: a QueueClient on the bus's port says list-queues, and takes each message with recv."""
    with QueueClient(bus.host, bus.port, timeout=20) as listener:
        wanted = ListQueues()
        wanted.queues.extend([b"news"])  # type: ignore[list-item]
        listener.send(wanted)
        answer = listener.recv()
        assert isinstance(answer, ListQueues)
        assert answer.queues == ["news"]
        client.push("news", b"x")
        found = listener.recv()
        assert isinstance(found, GetMessage)
        assert (found.qid, found.payload) == ("news", b"x")


def test_only_listens(server: ServerProcess, client: QueueClient) -> None:
    """On a port of `--end-of-document empty-line` a client that sends nothing gets documents that end with an empty
    line, the last one too, which says that the bus stops."""
    with bus_serving(server, "-q", "radio", "--end-of-document", "empty-line") as bus, Early(bus) as early:
        client.new_queue("radio", exist_ok=True)
        client.push_many("radio", [b"one", b"two"])
        assert [early.read().findtext(f"{Q}payload") for _ in range(2)] == ["one", "two"]
        bus.process.terminate()
        assert code(early.read()) == "503"


def test_a_port_of_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The server's port does the same, and its own client works with it as with any other."""
    root = tmp_path_factory.mktemp("port") / "root"
    flags = ("--durability", "none", "--end-of-document", "empty-line", "--max-connections", "2")
    with serving(root, *flags) as server, QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        mids = client.push_many("q", [b"one", b"two"])
        assert list(client.list_messages("q")) == mids
        assert [found.payload for found in client.receive("q", 2)] == [b"one", b"two"]
        with Early(server) as early, Early(server) as one_too_many:
            assert code(one_too_many.read()) == "429"
            server.process.terminate()
            assert code(early.read()) == "503"


def test_a_serializer_of_dotnet(server: ServerProcess, client: QueueClient) -> None:
    """A program whose documents declare `xsi` and `xsd`, with nothing behind them, is an early client from the first
    one on, also when they come byte by byte; one that declares them in a payload is none."""
    client.new_queue("dotnet", exist_ok=True)
    with Early(server) as early:
        early.socket.sendall(of_dotnet("push-message", "<qid>dotnet</qid>\n<payload>aGVsbG8=</payload>"))
        mid = early.read().findtext(f"{Q}mid")
        for byte in of_dotnet("list-messages", "<qid>dotnet</qid>"):
            early.socket.sendall(bytes((byte,)))
        listed = early.read()
        assert [found.text for found in listed.findall(f"{Q}m/{Q}mid")] == [mid]
        assert listed.find(f"{Q}messages") is None
        early.socket.sendall(of_dotnet("paint"))
        assert code(early.read()) == "501"
    with server.connect() as other, other.makefile("rb") as lines:
        payload = f'<a xmlns:xsi="{XSI}"/>'
        push = f'<qs xmlns="{NAMESPACE}"><!-- xmlns:xsi="" --><op><push-message/></op><qid>dotnet</qid>'
        other.sendall(f"{push}<payload>{payload}</payload></qs>".encode())
        assert lines.readline().endswith(b"</qs>\r\n")
        other.sendall(f'<qs xmlns="{NAMESPACE}"><op><list-messages/></op><qid>dotnet</qid></qs>'.encode())
        assert b"<messages>" in lines.readline()  # and no empty line before it


def test_a_long_list(server: ServerProcess, client: QueueClient) -> None:
    """A program that polls, gets and deletes, and reads each answer into 16 KiB, as QSToLLUP does, gets all of 350
    messages, 200 at a time."""
    client.new_queue("long", exist_ok=True)
    mids = list(map(str, client.push_many("long", [b"aGVsbG8="] * 350)))
    with Early(server) as early:
        for wanted in (mids[:200], mids[200:], []):
            early.socket.sendall(of_dotnet("list-messages", "<qid>long</qid>"))
            while END not in early.held:
                early.held += early.socket.recv(16 * 1024)
            assert len(early.held) < 16 * 1024
            assert [found.text for found in early.read().findall(f"{Q}m/{Q}mid")] == wanted
            for mid in wanted:
                early.socket.sendall(of_dotnet("get-message", f"<qid>long</qid>\n<mid>{mid}</mid>"))
                assert early.read().findtext(f"{Q}payload") == "aGVsbG8="
                early.socket.sendall(of_dotnet("delete-message", f"<qid>long</qid>\n<mid>{mid}</mid>"))
                assert early.read().get("type") == "response"


def test_dotnet_at_the_bus(bus: BusProcess, client: QueueClient) -> None:
    """At the bus too: its answers and deliveries end with an empty line."""
    with Early(bus) as early:
        early.socket.sendall(of_dotnet("list-queues", "<queues><queue>news</queue></queues>"))
        assert early.read().find(f"{Q}op/{Q}list-queues") is not None
        client.push_many("news", [b"one", b"two"])
        assert [early.read().findtext(f"{Q}payload") for _ in range(2)] == ["one", "two"]


def test_a_long_list_for_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The client of Python reads a long queue whole, on a port for early clients too, and others get lists of 1000."""
    root = tmp_path_factory.mktemp("long") / "root"
    with (
        serving(root, "--durability", "none", "--end-of-document", "empty-line") as server,
        QueueClient(server.host, server.port) as client,
    ):
        client.new_queue("q")
        mids = client.push_many("q", [b"x"] * 450)
        assert list(client.list_messages("q")) == mids
