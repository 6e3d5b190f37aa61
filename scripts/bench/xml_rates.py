"""The costs of XML where it is looked at: durable pushes into a queue with a schema, beside one without; and deliveries
of the bus to subscribers with conditions, beside subscribers without.

**Schemas.** The same documents of 1 KiB, with 20 elements of five types, are pushed over 32 connections into two queues
of one server, in turn.

**Conditions.** 100 subscribers; a message goes to each of them, or with conditions to those that ask for it. Counted
are messages that were pushed: the rate at which the last of their deliveries have come. The conditions are met by all
messages (the most deliveries and the most evaluations), or each by one message in a hundred, which is what conditions
are for. The server stores and deletes each message durably meanwhile.
"""

import selectors
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from html import escape
from itertools import cycle, islice
from statistics import linear_regression

from load import Client, document, rate_of_many
from machine import room_for
from measuring import Figure, Run, in_turn, ratio
from processes import queue_bus, queue_server
from subscribers import Subscribers

_CLIENTS = 32
_SUBSCRIBERS = 100
_SIZE = 1024
_AHEAD = 32
"""Messages that have been pushed and whose deliveries have not come."""
_FIRST = 8
_TIMEOUT = 60
_TYPES = ("string", "integer", "decimal", "date", "boolean")
_VALUES = ("a few words of text", "12345", "12.50", "2026-11-28", "true")
_XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="order"><xs:complexType><xs:sequence>
{elements}</xs:sequence><xs:attribute name="customer" type="xs:string"/></xs:complexType></xs:element></xs:schema>"""


def _document(customer: str) -> str:
    """Returns a document of `_SIZE` bytes with 20 elements."""
    elements = "".join(f"<field{at}>{_VALUES[at % 5]}</field{at}>" for at in range(19))
    head, end = f'<order customer="{customer}">{elements}<note>', "</note></order>"
    return head + "x" * (_SIZE - len(head) - len(end)) + end


def _push(qid: str, customer: str = "acme") -> bytes:
    payload = escape(_document(customer), quote=False)
    return document(b"push-message", f"<qid>{qid}</qid><payload>{payload}</payload>".encode())


def schema(run: Run) -> list[Figure]:
    """Compares durable pushes of XML into a queue with a schema with those into one without, 32 connections."""
    rounds, seconds = (3, 1.0) if run.quick else (9, 2.0)
    directory = run.folder / "schemas"
    directory.mkdir()
    elements = "".join(f'<xs:element name="field{at}" type="xs:{_TYPES[at % 5]}"/>\n' for at in range(19))
    elements += '<xs:element name="note" type="xs:string"/>\n'
    (directory / "order.xsd").write_text(_XSD.format(elements=elements))
    with queue_server(run.folder / "root", "--schemas", str(directory)) as server:
        clients = [Client(server.address) for _ in range(_CLIENTS)]
        clients[0].lines(document(b"new-queue", b"<qid>checked</qid><options schema='order'/>"))
        clients[0].lines(document(b"new-queue", b"<qid>plain</qid>"))
        sides = {qid: partial(rate_of_many, clients, _push(qid), seconds) for qid in ("checked", "plain")}
        rates = in_turn(sides, rounds)
        for client in clients:
            client.close()
    name = f"durable pushes, {_CLIENTS} connections, {_SIZE} bytes: with a schema of 20 elements / without"
    return [ratio(name, rates["checked"], rates["plain"], 0.6)]


def conditions(run: Run) -> list[Figure]:
    """Compares messages a second to 100 subscribers with conditions with those to 100 without."""
    rounds, messages = (3, 200) if run.quick else (7, 1000)
    room_for(4 * _SUBSCRIBERS + 20)
    wheres = {
        "without": [""] * _SUBSCRIBERS,
        "one condition that all share": ["/order[@customer != 'x']/field1 > 100"] * _SUBSCRIBERS,
        "another condition each, all met": [
            f"/order[@customer != 'x{at}']/field1 > {at}" for at in range(_SUBSCRIBERS)
        ],
        "another condition each, one met": [f"/order[@customer = 'c{at}']/field1 > 100" for at in range(_SUBSCRIBERS)],
    }
    with ExitStack() as stack:
        sides = {}
        for at, (name, texts) in enumerate(wheres.items()):
            folder = run.folder / str(at)
            folder.mkdir()
            server = stack.enter_context(queue_server(folder / "root"))
            publisher = stack.enter_context(Client(server.address))
            publisher.lines(document(b"new-queue", b"<qid>q</qid>"))
            bus = stack.enter_context(queue_bus(folder, server.address, "q"))
            subscribers = stack.enter_context(Subscribers(bus.address, [_subscribe(text) for text in texts]))
            met = 1 if name.endswith("one met") else _SUBSCRIBERS
            sides[name] = partial(_message_rate, publisher, subscribers, messages, met)
        rates = in_turn(sides, rounds)
    targets = {"one condition that all share": 0.8, "another condition each, all met": 0.4}
    return [
        ratio(
            f"messages a second to {_SUBSCRIBERS} subscribers, {_SIZE} bytes: {name} / without",
            found,
            rates["without"],
            targets.get(name),
        )
        for name, found in rates.items()
        if name != "without"
    ]


def _subscribe(where: str) -> bytes:
    said = f' where="{escape(where)}"' if where else ""
    return document(b"subscribe", b"<qid>q</qid>", said.encode())


def _message_rate(publisher: Client, subscribers: Subscribers, messages: int, met: int) -> float:
    """Pushes messages, pipelined and never too far ahead of their deliveries. Returns messages a second. met: the
    deliveries of a message."""
    each = _SUBSCRIBERS // met  # messages of which every subscriber gets one
    pushes: Sequence[bytes] = [_push("q", f"c{at}") for at in range(_SUBSCRIBERS)]
    due = islice(cycle(pushes), messages)
    marks: list[float] = []
    pushed = answered = 0
    subscribers.expect(messages // each)
    ahead = max(_AHEAD, 2 * each)
    with selectors.DefaultSelector() as selector:
        selector.register(publisher.socket, selectors.EVENT_READ)
        selector.register(subscribers.output, selectors.EVENT_READ)
        while len(marks) < messages // each or answered < messages:
            more = min(messages, len(marks) * each + ahead) - pushed
            if more > 0:
                publisher.socket.sendall(b"".join(islice(due, more)))
                pushed += more
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise RuntimeError(f"nothing came in {_TIMEOUT} s: {pushed} pushed, {len(marks)} times all delivered")
            for key, _ in ready:
                if key.fileobj is publisher.socket:
                    answered += publisher.answers()
                elif len(marks) < messages // each:
                    marks.append(float(subscribers.line()))
    subscribers.line()
    steady = marks[min(_FIRST, len(marks) // 4) :]
    return linear_regression(steady, range(len(steady))).slope * each
