"""Measures reading and writing a document, in microseconds of CPU: by peers, and by parser and serializer alone.

    python scripts/bench/schemas_cost.py

The least of several rounds. The cost of a list is that of one entry. In pieces: as from a socket, 32 KiB at a time.
"""

import time
from collections.abc import Callable

from qs_schemas import (
    CLIENT_LIMITS,
    DeleteMessage,
    Delivery,
    Draft,
    ExtendMessage,
    GetMessage,
    Message,
    Peer,
    Ping,
    PushMessage,
    ReceiveMessage,
    parse,
    serialize,
)

_ROUNDS, _SECONDS = 7, 0.05
_PIECE = 32768
_LIST = 100
_X = b"x" * 1024
_MID, _NOW = 123_456_789_012, 1_700_000_000_000_000


def _answer(message: Message) -> Message:
    message.type, message.req, message.resp = "response", "qs-17", "0f" * 32
    return message


def _delivered(count: int) -> list[Delivery]:
    return [Delivery(_MID + number, _X, "orders", 1, _NOW, _NOW) for number in range(count)]


def _kinds() -> dict[str, tuple[Message, int]]:
    """Messages, and how many entries each has."""
    return {
        "push 1 KiB": (PushMessage("orders", _X, req="qs-17"), 1),
        "push 1 KiB with key": (PushMessage("orders", _X, key="k-17", req="qs-17"), 1),
        "push a list of 1 KiB": (PushMessage("orders", messages=[Draft(_X) for _ in range(_LIST)]), _LIST),
        "receive": (ReceiveMessage("orders", max=10, wait=5.0, req="qs-17"), 1),
        "delete": (DeleteMessage("orders", _MID, 1, req="qs-17"), 1),
        "delete a list": (DeleteMessage("orders", mids=[_MID + number for number in range(_LIST)]), _LIST),
        "extend": (ExtendMessage("orders", _MID, 1, 60.0, req="qs-17"), 1),
        "ping": (Ping(req="qs-17"), 1),
        "answer to push": (_answer(PushMessage("orders", mid=_MID)), 1),
        "answer to a list": (_answer(PushMessage("orders", mids=[_MID + number for number in range(_LIST)])), _LIST),
        "answer to receive": (_answer(ReceiveMessage(messages=_delivered(1))), 1),
        "answer to receive many": (_answer(ReceiveMessage(messages=_delivered(_LIST))), _LIST),
        "answer to delete": (_answer(DeleteMessage("orders", _MID)), 1),
        "delivery": (
            _answer(GetMessage("orders", _MID, payload=_X, status="delivered", receives=1, pushed_at=_NOW)),
            1,
        ),
    }


def _cost(step: Callable[[], object]) -> float:
    """Microseconds of CPU that a call takes."""
    start = time.process_time()
    step()
    calls = max(1, int(_SECONDS / max(1e-6, time.process_time() - start)))
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.process_time()
        for _ in range(calls):
            step()
        best = min(best, time.process_time() - start)
    return best / calls * 1e6


def _read(peer: Peer, pieces: list[bytes]) -> Message:
    event = None
    for piece in pieces:
        peer.receive_data(piece)
        event = peer.next_event()
    assert isinstance(event, Message)
    return event


def main() -> None:
    print(f"{'':24}{'bytes':>8}{'read':>8}{'pieces':>8}{'parser':>8}{'write':>8}{'serializer':>12}")
    for name, (message, entries) in _kinds().items():
        peer, document = Peer(CLIENT_LIMITS), serialize(message)
        pieces = [document[at : at + _PIECE] for at in range(0, len(document), _PIECE)]
        assert _read(peer, [document]) == message == _read(peer, pieces)
        costs = (
            _cost(lambda: _read(peer, [document])),  # noqa: B023 - called at once
            _cost(lambda: _read(peer, pieces)),  # noqa: B023
            _cost(lambda: parse(document[:-2], CLIENT_LIMITS)),  # noqa: B023
            _cost(lambda: peer.send(message)),  # noqa: B023
            _cost(lambda: serialize(message)),  # noqa: B023
        )
        read, cut, parsed, written, serialized = (cost / entries for cost in costs)
        print(f"{name:24}{len(document):8}{read:8.2f}{cut:8.2f}{parsed:8.2f}{written:8.2f}{serialized:12.2f}")


if __name__ == "__main__":
    main()
