"""Measures how much quicker the second way is, where a thing is done in two ways.

`python scripts/bench/second_paths.py` runs both ways of each in turn, in one process and without a disk's syncs, and
prints the ratio of their times: the median of some rounds. A way that does not gain a quarter should go.
"""

import argparse
import tempfile
from collections.abc import Callable
from statistics import median
from time import process_time, time_ns

from qs_schemas import Limits, Message, Peer, PushMessage, ReceiveMessage
from qs_schemas.framing import Framer
from qs_schemas.messages import DeleteMessage, Delivery
from qs_schemas.parsing import parse
from qs_schemas.serializing import serialize
from qs_schemas.templates import write
from qs_storage.directories import JournalEngine
from qs_storage.engine import Draft, Durability, NoRoomError, Options

PAYLOAD = b"x" * 1024
TIMES = 2000
DRAFTS = 32


def _reading(request: Message) -> tuple[Callable[[], object], Callable[[], object]]:
    document = Peer().send(request)

    def plain() -> None:
        peer = Peer(serving=True)
        for _ in range(TIMES):
            peer.receive_data(document)
            peer.next_event()

    def parsed() -> None:
        framer, limits = Framer(), Limits()
        for _ in range(TIMES):
            framer.feed(document)
            found = framer.next_document()
            parse(found or b"", limits, True)

    return plain, parsed


def _writing(answer: Message) -> tuple[Callable[[], object], Callable[[], object]]:
    answer.answers("0" * 64)
    return lambda: [write(answer) for _ in range(TIMES)], lambda: [serialize(answer, False) for _ in range(TIMES)]


def _pushing(root: str) -> tuple[Callable[[], object], Callable[[], object]]:
    engine = JournalEngine(root, clock=lambda: time_ns() // 1000, durability=Durability.NONE)
    engine.create("q", Options())
    draft = Draft(PAYLOAD)

    def merged() -> None:
        for _ in range(TIMES // DRAFTS):
            _push(engine, [draft] * DRAFTS)
        _empty(engine)

    def one_by_one() -> None:
        for _ in range(TIMES // DRAFTS * DRAFTS):
            _push(engine, [draft])
        _empty(engine)

    return merged, one_by_one


def _push(engine: JournalEngine, drafts: list[Draft]) -> None:
    try:
        engine.queue("q").push(drafts)
    except NoRoomError as error:  # the batch is full
        engine.commit()
        engine.secure(error)
        engine.queue("q").push(drafts)


def _empty(engine: JournalEngine) -> None:
    engine.commit()
    while engine.queue("q").purge(1 << 62, TIMES):
        engine.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="rounds of each (default: %(default)s)")
    rounds = parser.parse_args().rounds
    deliveries = [Delivery(mid, PAYLOAD, "q", 1, 1, 1) for mid in range(1)]
    with tempfile.TemporaryDirectory() as root:
        pairs = {
            "plain reader / parser: a push of 1 KiB": _reading(PushMessage("q", payload=PAYLOAD)),
            "plain reader / parser: a delete": _reading(DeleteMessage("q", 1)),
            "template / serializer: the answer to a push": _writing(PushMessage("q", mid=1)),
            "template / serializer: a message of 1 KiB": _writing(ReceiveMessage(messages=deliveries)),
            f"pushes merged / one by one: {DRAFTS} of 1 KiB, engine alone": _pushing(root),
        }
        for name, (quick, usual) in pairs.items():
            ratios = []
            for _ in range(rounds):
                times = []
                for way in (quick, usual):
                    started = process_time()
                    way()
                    times.append(process_time() - started)
                ratios.append(times[0] / times[1])
            print(f"{median(ratios):5.2f}  {name}", flush=True)


if __name__ == "__main__":
    main()
