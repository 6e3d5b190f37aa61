"""The load: documents made beforehand, a blocking socket, and lines counted. As little of its own as there can be."""

import re
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType

_OPEN = b'<qs xmlns="http://purl.oclc.org/DEFUZE/qs" type="request">'
_TIMEOUT = 60
_CHUNK = 1 << 18
_MID = re.compile(rb'mid="(\d+)"|<mid[^>]*>(\d+)<')


def document(op: bytes, beside: bytes = b"", attributes: bytes = b"") -> bytes:
    """A request, as a client of any language would send it."""
    return _OPEN + b"<op" + attributes + b"><" + op + b"/></op>" + beside + b"</qs>\r\n"


def push_document(qid: str, size: int) -> bytes:
    """A push of that many bytes of plain text."""
    return document(b"push-message", b"<qid>%s</qid><payload>%s</payload>" % (qid.encode(), b"x" * size))


class Client:
    """A blocking connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, _TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def lines(self, request: bytes, count: int = 1) -> bytes:
        """Sends the bytes and waits for that many answers. RuntimeError when one is an error."""
        self.socket.sendall(request)
        answer = self._more(b"")
        while answer.count(b"\n") < count:
            answer = self._more(answer)
        if b'type="error"' in answer:
            raise RuntimeError(answer.decode())
        return answer

    def same(self, request: bytes) -> None:
        """Sends the bytes and waits for as many."""
        self.socket.sendall(request)
        missing = len(request)
        while missing:
            data = self.socket.recv(_CHUNK)
            if not data:
                raise RuntimeError("the connection was closed")
            missing -= len(data)

    def next_line(self) -> bytes:
        """Reads what comes without a request: one line, nothing after it. RuntimeError when it is an error."""
        return self.lines(b"")

    def answers(self) -> int:
        """Reads what has come, and returns how many answers have ended in it. RuntimeError when one is an error."""
        data = self._more(b"")
        if b'type="error"' in data:
            raise RuntimeError(data.decode())
        return data.count(b"\n")

    def _more(self, before: bytes) -> bytes:
        data = self.socket.recv(_CHUNK)
        if not data:
            raise RuntimeError(f"the connection was closed after {before!r}")
        return before + data

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def mid_in(answer: bytes) -> bytes:
    """The first message id of an answer."""
    found = _MID.search(answer)
    if found is None:
        raise RuntimeError(f"no message in {answer!r}")
    return found[1] or found[2]


def rate(seconds: float, once: Callable[[], object], worth: int = 1) -> float:
    """Returns how many times a second `once` can be called, times what a call is worth."""
    calls = 0
    started = now = time.perf_counter()
    until = started + seconds
    while now < until:
        once()
        calls += 1
        now = time.perf_counter()
    return calls * worth / (now - started)


def rate_of_many(clients: Sequence[Client], request: bytes, seconds: float) -> float:
    """Requests a second when each client has one on its way all the time. In one thread: it waits, the server works."""
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.socket.sendall(request)
        done = 0
        under_way = len(clients)
        started = time.perf_counter()
        until = started + seconds
        ended = started
        while under_way:
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise RuntimeError(f"no answer in {_TIMEOUT} s")
            for key, _ in ready:
                client = key.data
                answer = client.socket.recv(_CHUNK)
                if b'type="response"' not in answer or not answer.endswith(b"\n"):
                    raise RuntimeError(f"expected one complete answer, got {answer!r}")
                done += 1
                ended = time.perf_counter()
                if ended < until:
                    client.socket.sendall(request)
                else:
                    under_way -= 1
    return done / (ended - started)
