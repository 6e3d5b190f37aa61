"""Whether an operation costs more on a deep queue than on a shallow one. Both on one server, taking turns.

What is received and deleted was made long before in both cases: to remove a file that the file system has not even
written yet costs less. So every round has a shallow queue of its own.
"""

import os
import time
from pathlib import Path

from deep import DEEP, SHALLOW, make_queue
from load import Client, document, mid_in, push_document
from processes import queue_server
from table import Row, ratio_row

_SIZE = 100
_TARGET = 0.9
_EACH = SHALLOW // 2
Rates = tuple[float, float, float]
"""Of push, receive and delete: requests a second."""


def measure(folder: Path, quick: bool) -> list[Row]:
    """push, receive and delete on a queue of 200,000 messages against one of 100"""
    rounds = 20 if quick else 100
    root = folder / "root"
    make_queue(root, "deep", DEEP, _SIZE)
    shallow = [f"shallow-{number}" for number in range(rounds + 1)]
    for qid in shallow:
        make_queue(root, qid, SHALLOW, _SIZE)
    os.sync()  # or the writing of all that is measured too
    deep_rates: list[Rates] = []
    shallow_rates: list[Rates] = []
    with queue_server(root, "--durability", "none") as server, Client(server.address) as client:
        for measured, other in enumerate(shallow):
            turns = [("deep", deep_rates), (other, shallow_rates)]
            for qid, kept in turns if measured % 2 else reversed(turns):
                _round(client, qid, 1)
                kept.append(_round(client, qid, _EACH))
    # The first round warms up.
    return [
        ratio_row(
            f"{operation}, queue of {DEEP:,} / of {SHALLOW}",
            [rates[at] for rates in deep_rates[1:]],
            [rates[at] for rates in shallow_rates[1:]],
            _TARGET,
        )
        for at, operation in enumerate(("push", "receive", "delete"))
    ]


def _round(client: Client, qid: str, each: int) -> Rates:
    """Pushes, receives and deletes so many, one by one: the queue is as deep afterwards as before. Rates of each."""
    name = b"<qid>%s</qid>" % qid.encode()
    push = push_document(qid, _SIZE)
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
