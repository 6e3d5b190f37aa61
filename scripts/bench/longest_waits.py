"""Measures how long others wait beside the longest requests that the server takes.

One connection sends a request with a worst document, or a pipeline of them, while another sends one ping after the
other. The figure is the most processor time that the server took while a ping waited for its answer: the server's
longest step without a time slice for others. The wait itself is longer where other processes want the processor too.
"""

import re
import threading
import time
from collections.abc import Iterator

from load import Client, document
from measuring import Figure, Run
from processes import Process, queue_server

_TARGET = 0.05
_QUEUES, _LIST, _PIPELINE = 3000, 1000, 256
_MANY = 16_000
"""Queues on the server when the answers about all queues are measured."""
_DEEP = 100_000
_PAYLOAD = b"x" * 100
_MESSAGES = b"<messages>%s</messages>" % (b"<message><payload>%s</payload></message>" % _PAYLOAD * _LIST)
_MID = re.compile(rb"<mid[^>]*>(\d+)</mid>")


def longest_waits(run: Run) -> list[Figure]:
    """Measures the work for which a ping waits beside the longest requests: many or deep queues, lists, pipelines."""
    queues, many, deep = (300, 1_000, 10_000) if run.quick else (_QUEUES, _MANY, _DEEP)
    figures: list[Figure] = []
    with queue_server(run.folder / "root") as server, Client(server.address) as client:
        names = [b"q%d" % number for number in range(many)]
        for title, request, count in _requests(client, names, queues, deep):
            figures.append(_beside(server, client, title, request, count))
            print(*figures[-1].cells(), flush=True)
    return figures


def _requests(client: Client, names: list[bytes], queues: int, deep: int) -> Iterator[tuple[str, bytes, int]]:
    """Yields the name of each measurement, the bytes of the requests, and the number of answers. Prepares each first.
    queues: how many of the names requests about several queues have; deep: messages of a deep queue."""
    yield "nothing", document(b"ping"), 1
    made = b"".join(document(b"new-queue", _qid(name)) for name in names)
    yield f"{len(names)} new-queue", made, len(names)
    yield f"{_PIPELINE} list-queues", document(b"list-queues") * _PIPELINE, _PIPELINE
    yield "queue-stats of all queues", document(b"queue-stats"), 1
    yield f"{_PIPELINE // 16} queue-stats of all queues", document(b"queue-stats") * (_PIPELINE // 16), _PIPELINE // 16
    yield f"{_PIPELINE} server-stats", document(b"server-stats") * _PIPELINE, _PIPELINE
    names = names[:queues]
    every = _names(names)
    yield "receive of many queues, nothing there", document(b"receive-message", every, b' max="1000"'), 1
    for name in names[:_LIST]:
        client.lines(document(b"push-message", _qid(name) + b"<payload>x</payload>"))
    yield "receive of 1000 from many queues", document(b"receive-message", every, b' max="1000"'), 1
    subscription = document(b"subscribe", every, b' prefetch="1"')
    yield "subscribe to many queues", subscription.replace(b"<qs ", b'<qs req="s" '), 1
    yield "unsubscribe of many queues", document(b"unsubscribe", b"", b' subscription="s"'), 1
    mids = _fill(client, b"source", _LIST)
    for count, into in ((1, len(names)), (10, len(names) // 10), (1000, 3)):
        request = document(b"copy-message", _qid(b"source") + _mids(mids[:count]) + _names(names[:into]))
        yield f"copy of {count} into {into} queues", request, 1
    yield "delete of 1000 shared", document(b"delete-message", _qid(b"source") + _mids(mids)), 1
    mids = _fill(client, b"deep", deep)
    for state in (b"new", b"all"):
        after = b' state="%s" after="%s"' % (state, mids[len(mids) // 2])
        listing = document(b"list-messages", _qid(b"deep"), after)
        yield f"{_PIPELINE} list-messages ({state.decode()}), deep", listing * _PIPELINE, _PIPELINE
    yield "receive of 1000", document(b"receive-message", _qid(b"deep"), b' max="1000"'), 1
    yield "delete of 1000", document(b"delete-message", _qid(b"deep") + _mids(mids[:_LIST])), 1
    deletes = document(b"delete-message", _qid(b"deep") + _mids(mids[:_LIST])) * 16
    yield "16 deletes of 1000 that are gone", deletes, 16
    yield "purge of a deep queue", document(b"purge-queue", _qid(b"deep")), 1
    _fill(client, b"deep", deep)
    yield "delete of a deep queue", document(b"delete-queue", _qid(b"deep"), b' force="yes"'), 1
    yield from _claimed(client, deep)
    yield from _staged(client, deep)
    yield from _dead(client, names)


def _claimed(client: Client, deep: int) -> Iterator[tuple[str, bytes, int]]:
    claim = _qid(b"claimed") + b"<consumer>c</consumer>"
    _fill(client, b"claimed", 3 * deep)
    yield f"claim of {deep:,}", document(b"claim-messages", claim, b' seq="1" max="%d"' % deep), 1
    part = b' seq="1" part="0" parts="%d"' % (deep // _LIST)
    yield f"get-claim of {_LIST}", document(b"get-claim", claim, part), 1
    yield f"{_PIPELINE} get-claim of {_LIST}", document(b"get-claim", claim, part) * _PIPELINE, _PIPELINE
    yield f"ack of {deep:,}", document(b"ack-claim", claim, b' seq="1"'), 1
    yield f"claim of {deep:,} more", document(b"claim-messages", claim, b' seq="2" max="%d"' % deep), 1
    yield f"release of {deep:,}", document(b"release-claim", claim, b' seq="2"'), 1
    claims = b"".join(document(b"claim-messages", claim, b' seq="%d" max="%d"' % (seq, deep)) for seq in (2, 3))
    yield f"2 claims of {deep:,}", claims, 2
    yield f"ack of 2 claims of {deep:,}", document(b"ack-claim", claim, b' seq="3"'), 1


def _staged(client: Client, deep: int) -> Iterator[tuple[str, bytes, int]]:
    producer = _qid(b"source") + b"<producer>p</producer>"
    parts = deep // _LIST
    stages = [
        document(b"stage-messages", producer + _MESSAGES, b' batch="1" part="%d" attempt="0"' % part)
        for part in range(parts)
    ]
    yield f"stage of {_LIST}", stages[0], 1
    for stage in stages[1:]:
        client.lines(stage)
    chosen = b"".join(b'<part number="%d" attempt="0"/>' % part for part in range(parts))
    published = document(b"publish-staged", producer + b"<parts>%s</parts>" % chosen, b' batch="1"')
    yield f"publish-staged of {parts * _LIST:,}", published, 1


def _dead(client: Client, names: list[bytes]) -> Iterator[tuple[str, bytes, int]]:
    options = b'<options max-receives="1" dead-letter="dead"/>'
    for name in names[:_LIST]:
        client.lines(document(b"set-queue", _qid(name) + options))
        client.lines(document(b"push-message", _qid(name) + b"<payload>x</payload>"))
    every = _names(names[:_LIST])
    client.lines(document(b"receive-message", every, b' max="1000" visibility="0.001"'))
    time.sleep(1)
    yield "redrive of 1000 into their queues", document(b"redrive-messages", _qid(b"dead")), 1


def _beside(server: Process, client: Client, title: str, request: bytes, count: int) -> Figure:
    """Returns the most work for which a ping waits while the requests are answered."""
    waits: list[tuple[float, float]] = []  # processor time of the server, and time
    over = threading.Event()
    ready = threading.Event()

    def ping() -> None:
        with Client(server.address) as other:
            while not over.is_set():
                started, before = time.perf_counter(), server.processor_seconds()
                other.lines(document(b"ping"))
                waits.append((server.processor_seconds() - before, time.perf_counter() - started))
                ready.set()

    pinging = threading.Thread(target=ping)
    pinging.start()
    ready.wait()
    waits.clear()
    before, started = server.processor_seconds(), time.perf_counter()
    client.lines(request, count)
    took, used = time.perf_counter() - started, server.processor_seconds() - before
    over.set()
    pinging.join()
    work, wait = max(waits)[0], max(wait for _, wait in waits)
    of = f"{used * 1000:,.0f} ms in all; longest wait {wait * 1000:,.0f} ms, answered after {took * 1000:,.0f} ms"
    return Figure(f"a ping beside: {title}", work * 1000, _TARGET * 1000, "at most", " ms", of, digits=0)


def _fill(client: Client, qid: bytes, count: int) -> list[bytes]:
    """Pushes thousands of messages into a queue, which is made if it is missing, and returns their ids."""
    client.lines(document(b"new-queue", _qid(qid), b' exist-ok="yes"'))
    found: list[bytes] = []
    while len(found) < count:
        found += _MID.findall(client.lines(document(b"push-message", _qid(qid) + _MESSAGES)))
    return found


def _qid(name: bytes) -> bytes:
    return b"<qid>%s</qid>" % name


def _names(names: list[bytes]) -> bytes:
    return b"<queues>%s</queues>" % b"".join(b"<queue>%s</queue>" % name for name in names)


def _mids(mids: list[bytes]) -> bytes:
    return b"<messages>%s</messages>" % b"".join(b"<mid>%s</mid>" % mid for mid in mids)
