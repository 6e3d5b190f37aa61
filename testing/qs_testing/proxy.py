"""A proxy between clients and a server or a bus, for faults on connections: delays, stalls, cuts and lost answers.

The proxy runs in a thread of the tests' process, forwards bytes, and needs nothing in the server. Only `lose_answer`
looks at them: it finds requests and answers by their bytes, which TLS hides; the other faults work with TLS too.
"""

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

_READ = 1 << 16
_MOST = 1 << 20
"""Bytes that wait for one side before the proxy stops reading from the other, so that the sender notices."""
_CHUNKS = 1000
"""Delayed chunks that wait for one side before the proxy stops reading from the other."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST, and drops what is unsent."""
_CONNECT = 5
"""Seconds. A server on this machine accepts at once, or its queue of connections is full."""
_ANSWERS = 20
"""Seconds. The thread answers at once, unless the machine stands still."""
_PUSH = b"push-message"
"""In a request: the operation, with any prefix. The next one is the push whose answer is to be lost."""
_PUSHED = b"<push-message/>"
"""In an answer, where texts have no `<`: the push was stored. The answer to a refused push has no operation."""


class _Mark(Enum):
    """An event in the order of the bytes that are forwarded."""

    END = auto()
    """The sender has ended its half of the connection."""
    CUT = auto()
    """The connection is reset."""


class _End:
    """One side of a connection, and what is to be sent to it."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.other: _End
        self.late: deque[tuple[float, bytes | _Mark]] = deque()
        """Delayed chunks, each with the time from which it may be sent."""
        self.unsent = bytearray()
        self.then: _Mark | None = None
        """The event that follows when all of `unsent` is sent."""
        self.has_ended = False
        """True if nothing more comes from this side."""
        self.was_told = False
        """True if this side knows that nothing more comes from the other."""
        self.events = 0
        """The events that the selector waits for."""


class _Client(_End):
    """The client's side of a connection."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.asked = b""
        """The last bytes of the requests so far, because a chunk may end within a word."""
        self.losing: _Loss | None = None
        """How the answer of a push is lost that has gone through on this connection."""
        self.line = b""
        """The beginning of an answer that is not whole yet, kept while `losing`."""
        self.is_mute = False
        """True if no more answers come to the client."""


class _Server(_End):
    """The server's side of a connection."""

    def __init__(self, connected: socket.socket, client: _Client) -> None:
        super().__init__(connected)
        self.client = client
        self.other, client.other = client, self


@dataclass
class _Loss:
    cut: bool


class Proxy:
    """Listens on a port of this machine, and forwards each connection to a target.

    Ensures:
    1. Without a fault, bytes and ends of connections pass as they come, and in their order.
    2. A method returns when its effect is there. Every method may be called in any thread.
    3. `port` stays the same, also while connections are refused and when the target changes.

    Use it as a context manager, or call `close`."""

    def __init__(self, target_host: str, target_port: int, port: int = 0) -> None:
        """port: 0 for any free one."""
        self._target = target_host, target_port
        # A socket that is bound and does not listen keeps the port, and the system refuses connections.
        self._holder = _bound(port)
        self.host, self.port = self._holder.getsockname()
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._ends: set[_End] = set()
        self._late: set[_End] = set()
        self._delay = 0.0
        self._stalls = False
        self._cut_after: int | None = None  # bytes of the next answer that still pass
        self._loss: _Loss | None = None  # for the next push
        self._closed = False
        self._todo: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._listen()
        self._thread = threading.Thread(target=self._run, name="qs proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def target(self) -> tuple[str, int]:
        """The host and port to which new connections go. Set it when the server has started on another port."""
        return self._target

    @target.setter
    def target(self, target: tuple[str, int]) -> None:
        self._target = target

    # -- faults ---------------------------------------------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Makes everything arrive later by so many seconds, in both directions and in its order: a server far away. 0
        ends the delay; what is delayed already still comes at its time."""
        self._ask(lambda: self._set_delay(seconds))

    def stall(self) -> None:
        """Lets nothing pass any more, in neither direction: a network that has failed without a word. Connections stay
        open, and new ones are not answered."""
        self._ask(lambda: self._set_stalls(True))

    def resume(self) -> None:
        """Forwards again after `stall`, and nothing is lost."""
        self._ask(lambda: self._set_stalls(False))

    def cut(self) -> None:
        """Ends every connection at once, on both sides, with a reset; what was under way is gone. New ones work."""
        self._ask(self._cut)

    def cut_in_answer(self, after: int = 20) -> None:
        """Cuts the connection on which the next answer comes, in the middle of that answer: the client gets `after` of
        its bytes, and not all of them, and then a reset. The request was carried out."""
        if after < 1:
            raise ValueError(f"at least one byte of the answer has to come, not {after}")
        self._ask(lambda: self._set_cut_after(after))

    def lose_answer(self, *, cut: bool = True) -> None:
        """Lets the next push be stored, and drops its answer. cut: True to reset the connection when the answer should
        have come; False to leave it open and without any more answers, so that the client waits in vain. A push that
        the server refuses gets its answer, and the next one on the same connection loses it."""
        self._ask(lambda: self._set_loss(_Loss(cut)))

    def refuse(self) -> None:
        """Refuses new connections, as a machine does on which the server does not run. Open connections stay."""
        self._ask(self._refuse)

    def admit(self) -> None:
        """Accepts new connections again after `refuse`."""
        self._ask(self._listen)

    def heal(self) -> None:
        """Ends all faults. A connection whose answer was lost is not repaired."""
        self._ask(self._heal)

    def close(self) -> None:
        """Resets all connections, and gives up the port."""
        if not self._closed:
            self._ask(self._close)
            self._thread.join()
            # Here and not in the thread, which may take up an order before `_ask` has woken it.
            for each in (self._holder, self._wake, self._woken, self._selector):
                each.close()

    # -- in the thread --------------------------------------------------------------------------------------------

    def _ask(self, do: Callable[[], None]) -> None:
        done = threading.Event()
        self._todo.append((do, done))
        self._wake.send(b"x")
        if not done.wait(_ANSWERS):
            raise TimeoutError("the proxy does not answer")

    def _run(self) -> None:
        while not self._closed:
            for key, events in self._selector.select(self._until_due()):
                if key.fileobj is self._woken:
                    self._woken.recv(100)
                elif key.data is None:
                    if self._listener is not None:
                        self._accept(self._listener)
                elif key.data in self._ends:
                    self._serve(key.data, events)
            if self._late and not self._stalls:
                self._send_due()
            while self._todo:
                do, done = self._todo.popleft()
                do()
                done.set()

    def _close(self) -> None:
        self._cut()
        self._refuse()
        self._closed = True

    def _set_delay(self, seconds: float) -> None:
        self._delay = seconds

    def _set_cut_after(self, after: int | None) -> None:
        self._cut_after = after

    def _set_loss(self, loss: _Loss | None) -> None:
        self._loss = loss

    def _set_stalls(self, stalls: bool) -> None:
        self._stalls = stalls
        if self._listener is not None:
            self._wait_for(self._listener, 0 if stalls else selectors.EVENT_READ)
        for end in self._ends:
            self._watch(end)

    def _cut(self) -> None:
        for end in list(self._ends):
            self._drop(end)

    def _refuse(self) -> None:
        if self._listener is not None:
            self._wait_for(self._listener, 0)
            self._listener.close()
            self._listener = None

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(128)
            self._listener.setblocking(False)
            if not self._stalls:
                self._selector.register(self._listener, selectors.EVENT_READ)

    def _heal(self) -> None:
        self._delay, self._cut_after, self._loss = 0.0, None, None
        for end in list(self._ends):
            if isinstance(end, _Client) and end.losing is not None:
                end.losing = None
                self._forward(end, end.line)
        self._listen()
        self._set_stalls(False)

    # -- connections ----------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        try:
            near, _ = listener.accept()
        except OSError:  # the client has gone
            return
        try:
            far = socket.create_connection(self._target, _CONNECT)
        except OSError:
            _reset(near)
            return
        client = _Client(near)
        for end in (client, _Server(far, client)):
            end.socket.setblocking(False)
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.add(end)
            self._watch(end)

    def _serve(self, end: _End, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._send(end)
            if events & selectors.EVENT_READ and end in self._ends:
                data = end.socket.recv(_READ)
                if data:
                    self._receive(end, data)
                else:
                    end.has_ended = True
                    self._forward(end.other, _Mark.END)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(end)
        if end in self._ends:
            self._watch(end)
            self._watch(end.other)

    def _receive(self, end: _End, data: bytes) -> None:
        """Forwards what has come from one side, or what the faults leave of it."""
        if isinstance(end, _Server):
            self._receive_answers(end.client, data)
            return
        if self._loss is not None and isinstance(end, _Client):
            asked = end.asked + data
            if _PUSH in asked:
                end.losing, self._loss = self._loss, None
            end.asked = asked[1 - len(_PUSH) :]
        self._forward(end.other, data)

    def _receive_answers(self, client: _Client, data: bytes) -> None:
        if client.is_mute:
            return
        if client.losing is not None:
            self._forward_unless_lost(client, client.losing, data)
        elif self._cut_after is not None:
            # Without the end of the line at least: the answer must not be whole.
            line_end = data.find(b"\n")
            after = min(self._cut_after, line_end if line_end >= 0 else self._cut_after)
            self._cut_after -= len(data)
            self._forward(client, data[:after])
            if after < len(data) or self._cut_after == 0:
                self._cut_after = None
                self._forward(client, _Mark.CUT)
        else:
            self._forward(client, data)

    def _forward_unless_lost(self, client: _Client, loss: _Loss, data: bytes) -> None:
        """Forwards whole answers, but not that of a push."""
        *lines, client.line = (client.line + data).split(b"\n")
        for line in lines:
            if _PUSHED in line:
                client.is_mute = True
                if loss.cut:
                    self._forward(client, _Mark.CUT)
                return
            self._forward(client, line + b"\n")

    def _forward(self, end: _End, what: bytes | _Mark) -> None:
        if self._delay or end.late:
            end.late.append((time.monotonic() + self._delay, what))
            self._late.add(end)
        else:
            self._hand(end, what)

    def _hand(self, end: _End, what: bytes | _Mark) -> None:
        if isinstance(what, _Mark):
            end.then = what
        else:
            end.unsent += what
        self._send(end)

    def _send(self, end: _End) -> None:
        if self._stalls:
            return
        try:
            while end.unsent:
                del end.unsent[: end.socket.send(end.unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._drop(end)
            return
        if end.then is _Mark.CUT:
            self._drop(end)
        elif end.then is _Mark.END and not end.was_told:
            end.was_told = True
            with contextlib.suppress(OSError):
                end.socket.shutdown(socket.SHUT_WR)
            if end.other.was_told:
                self._forget(end)

    def _until_due(self) -> float | None:
        """Returns the seconds until the next delayed chunk may be sent, None if there is none."""
        if not self._late or self._stalls:
            return None
        return max(min(end.late[0][0] for end in self._late) - time.monotonic(), 0)

    def _send_due(self) -> None:
        now = time.monotonic()
        for end in list(self._late):
            while end.late and end.late[0][0] <= now:
                self._hand(end, end.late.popleft()[1])
            if not end.late:
                self._late.discard(end)
            if end in self._ends:
                self._watch(end)
                self._watch(end.other)

    def _watch(self, end: _End) -> None:
        events = 0
        if not self._stalls:
            to = end.other
            if not end.has_ended and len(to.unsent) < _MOST and len(to.late) < _CHUNKS:
                events |= selectors.EVENT_READ
            if end.unsent or (end.then is not None and not end.was_told):
                events |= selectors.EVENT_WRITE
        if events != end.events:
            end.events = events
            self._wait_for(end.socket, events, end)

    def _wait_for(self, which: socket.socket, events: int, end: _End | None = None) -> None:
        known = which in self._selector.get_map()
        if known and events:
            self._selector.modify(which, events, end)
        elif known:
            self._selector.unregister(which)
        elif events:
            self._selector.register(which, events, end)

    def _drop(self, end: _End) -> None:
        """Ends both sides of a connection with a reset."""
        for each in (end, end.other):
            if each in self._ends:
                with contextlib.suppress(OSError):
                    each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._forget(end)

    def _forget(self, end: _End) -> None:
        for each in (end, end.other):
            if each in self._ends:
                self._ends.discard(each)
                self._late.discard(each)
                each.late.clear()
                self._wait_for(each.socket, 0)
                each.socket.close()


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


def _reset(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connected.close()
