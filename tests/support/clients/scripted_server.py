"""A server, or a bus, that answers as a test says: one thread, one function for each connection, in order."""

import contextlib
import queue
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

from qs_client import DeleteMessage, GetMessage, QueueClient, ReleaseMessage, Subscribe
from qs_client.session import GREETING
from qs_schemas import Error, Fault, Message, Peer, Ping

RESP = "0" * 64
SOON = 0.02  # a timeout that is meant to pass
GIVE_UP = 20  # seconds after which a test that waits for what never comes is told so


class Conversation:
    """One accepted connection. `read` returns what the client under test has sent."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._peer = Peer()
        self.greeting: Message | None = Ping()
        """The answer to the greeting. None: the greeting stays without an answer."""

    def read(self) -> Message | None:
        """Returns the client's next message, None when it has closed the connection. Answers the greeting as a server
        of an earlier version does, without its name."""
        while True:
            while (event := self._peer.next_event()) is None:
                data = self.sock.recv(65536)
                if not data:
                    return None
                self._peer.receive_data(data)
            assert not isinstance(event, Fault), event
            if event.req != GREETING:
                return event
            if self.greeting is not None:
                self.answer(event, self.greeting)

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, request: Message | None, answer: Message | None = None, **fields: object) -> None:
        """Answers a request: with its own kind of message and these fields, or with the given message."""
        self.write(answer_bytes(request, answer, **fields))

    def wait_for_close(self) -> None:
        """Returns when the client has closed its side, whatever it still sends."""
        with contextlib.suppress(ConnectionError):
            while self.sock.recv(65536):
                pass

    def reset(self) -> None:
        """Ends the connection with RST, as a killed machine's does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def answer_bytes(request: Message | None, answer: Message | None = None, **fields: object) -> bytes:
    assert request is not None
    if answer is None:
        answer = type(request)(**fields)  # type: ignore[arg-type]
    answer.type = "error" if isinstance(answer, Error) else "response"
    answer.req, answer.resp = request.req, RESP
    return Peer().send(answer)


Script = Callable[[Conversation], None]


class ScriptedServer:
    """Plays one script for each connection that comes, the last one for all further ones. context: the server speaks
    TLS; a connection whose handshake fails plays nothing, and its error is in `refused`."""

    def __init__(self, *scripts: Script, host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> None:
        self._scripts = list(scripts)
        self._context = context
        self.refused: list[Exception] = []
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.host, self.port = self._listener.getsockname()[:2]
        self.connections = 0
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                try:
                    sock, _ = self._listener.accept()
                except OSError:  # stopped
                    return
                sock.settimeout(GIVE_UP)
                if self._context is not None:
                    try:
                        sock = self._context.wrap_socket(sock, server_side=True)
                    except OSError as error:
                        self.refused.append(error)
                        sock.close()
                        continue
                script = self._scripts[min(self.connections, len(self._scripts) - 1)]
                self.connections += 1
                with sock:
                    script(Conversation(sock))
        except BaseException as error:
            self.failed = error

    def speak_tls(self, context: ssl.SSLContext) -> None:
        """Speaks TLS with another context on all connections that begin from now on."""
        self._context = context

    def stop(self) -> None:
        """Waits for the script that runs and stops the server: the client must have closed its connection by then."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(GIVE_UP)
        self._listener.close()
        assert not self._thread.is_alive(), "the script still waits for the client"


class Parallel(ScriptedServer):
    """Plays its scripts side by side."""

    def __init__(self, *scripts: Script) -> None:
        self._threads: list[threading.Thread] = []
        super().__init__(*[self._apart(script) for script in scripts])

    def _apart(self, script: Script) -> Script:
        def start(conversation: Conversation) -> None:
            sock = conversation.sock.dup()
            sock.settimeout(GIVE_UP)

            def play() -> None:
                try:
                    with sock:
                        script(Conversation(sock))
                except BaseException as error:
                    self.failed = error

            thread = threading.Thread(target=play, daemon=True)
            self._threads.append(thread)
            thread.start()

        return start

    def __enter__(self) -> "Parallel":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join(GIVE_UP)
        if self.failed is not None:
            raise self.failed


@contextlib.contextmanager
def scripted(
    *scripts: Script, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """Runs a scripted server for the length of a with block. A script that raises fails the test."""
    server = ScriptedServer(*scripts, host=host, context=context)
    try:
        yield server
    finally:
        server.stop()
    if server.failed is not None:
        raise server.failed


def client_of(server: ScriptedServer, timeout: float | None = GIVE_UP) -> QueueClient:
    return QueueClient(server.host, server.port, timeout=timeout)


def answering(*answers: Message, seen: "queue.SimpleQueue[Message] | None" = None) -> Script:
    """Returns a script that answers the requests with `answers` in order, notes the requests in seen, and waits for the
    client to close."""

    def script(conversation: Conversation) -> None:
        for answer in answers:
            request = conversation.read()
            assert request is not None, "the client has gone"
            if seen is not None:
                seen.put(request)
            conversation.answer(request, answer)
        assert conversation.read() is None

    return script


Seen = queue.SimpleQueue[Message]


def delivered(request: Message | None, mid: int, payload: bytes | None = None) -> bytes:
    """Returns a message as the bus delivers it. Without a payload, the payload is the message's number."""
    assert request is not None
    message = GetMessage(
        "q", mid, payload=b"%d" % mid if payload is None else payload, status="delivered", receives=1, type="response"
    )
    message.req = request.req
    return Peer().send(message)


def accept(conversation: Conversation, *mids: int) -> Subscribe:
    """Takes a subscription and delivers these messages."""
    subscribe = conversation.read()
    assert isinstance(subscribe, Subscribe)
    conversation.write(answer_bytes(subscribe) + b"".join(delivered(subscribe, mid) for mid in mids))
    return subscribe


def delivering(*mids: int, seen: Seen | None = None, then: Callable[[Conversation], None] | None = None) -> Script:
    """Returns a script that takes a subscription, delivers these messages, and notes and answers what comes. then:
    plays the rest instead of the answers."""

    def script(conversation: Conversation) -> None:
        subscribe = accept(conversation, *mids)
        if seen is not None:
            seen.put(subscribe)
        if then is not None:
            then(conversation)
            return
        while (request := _next(conversation)) is not None:
            if seen is not None:
                seen.put(request)
            with contextlib.suppress(ConnectionError):  # the client may go without waiting for it
                conversation.answer(request)

    return script


def _next(conversation: Conversation) -> Message | None:
    try:
        return conversation.read()
    except ConnectionError:  # the client went while something was on its way to it
        return None


def noted(seen: Seen, count: int) -> list[Message]:
    return [seen.get(timeout=GIVE_UP) for _ in range(count)]


def what(messages: list[Message]) -> list[tuple[str, int | None]]:
    """Returns what the client did with each message."""
    return [(message.op, message.mid) for message in messages if isinstance(message, DeleteMessage | ReleaseMessage)]


def reset(conversation: Conversation) -> None:
    conversation.reset()


def refusing(code: int, kind: str) -> Callable[[Conversation], None]:
    def script(conversation: Conversation) -> None:
        conversation.read()
        conversation.write(Peer().send(Error(code, kind, "not now")))
        conversation.wait_for_close()

    return script


OUTAGE = (
    delivering(1, 2, then=lambda conversation: None),
    reset,
    refusing(503, "shutting-down"),
    refusing(429, "too-many"),
)
