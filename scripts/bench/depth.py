"""Measures whether an operation costs more on a deep queue than on a shallow one. Both on one server, taking turns.

Every round has a shallow queue of its own, so that what is received and deleted was pushed long before in both cases.
"""

import time
from pathlib import Path

from load import Client, document, mid_in, push_document
from processes import queue_server
from store_load import SIZE, fill, new_queue
from table import Row, ratio_row

_DEEP = 200_000
_SHALLOW = 100
_TARGET = 0.9
_EACH = _SHALLOW // 2
Rates = tuple[float, float, float]
"""Of push, receive and delete: requests a second."""


def measure(folder: Path, quick: bool) -> list[Row]:
    """push, receive and delete on a queue of 200,000 messages against one of 100"""
    rounds = 20 if quick else 100
    root = folder / "root"
    shallow = [f"shallow-{number}" for number in range(rounds + 1)]
    deep_rates: list[Rates] = []
    shallow_rates: list[Rates] = []
    with queue_server(root, "--durability", "none") as server, Client(server.address) as client:
        for qid, messages in [("deep", _DEEP), *((qid, _SHALLOW) for qid in shallow)]:
            new_queue(server.address, qid)
            fill(server.address, messages, qid)
        for measured, other in enumerate(shallow):
            turns = [("deep", deep_rates), (other, shallow_rates)]
            for qid, kept in turns if measured % 2 else reversed(turns):
                _round(client, qid, 1)
                kept.append(_round(client, qid, _EACH))
    # The first round warms up.
    return [
        ratio_row(
            f"{operation}, queue of {_DEEP:,} / of {_SHALLOW}",
            [rates[at] for rates in deep_rates[1:]],
            [rates[at] for rates in shallow_rates[1:]],
            _TARGET,
        )
        for at, operation in enumerate(("push", "receive", "delete"))
    ]


def _round(client: Client, qid: str, each: int) -> Rates:
    """Pushes, receives and deletes so many, one by one: the queue is as deep afterwards as before. Rates of each."""
    name = b"<qid>%s</qid>" % qid.encode()
    push = push_document(qid, SIZE)
    receive = document(b"receive-message", name, b' visibility="3600"')
    pushes, _ = _timed(client, [push] * each)
    receives, answers = _timed(client, [receive] * each)
    deletes, _ = _timed(
        client, [document(b"delete-message", b"%s<mid>%s</mid>" % (name, mid_in(answer))) for answer in answers]
    )
    return pushes, receives, deletes


def _timed(client: Client, requests: list[bytes]) -> tuple[float, list[bytes]]:
    started = time.perf_counter()
    answers = [client.lines(request) for request in requests]
    return len(requests) / (time.perf_counter() - started), answers
