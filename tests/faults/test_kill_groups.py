"""Groups under 32 consumers that delete, give back, extend and go away, on a server that is killed: within a group no
message overtakes another one, and two of a group are never out together."""

import random
import threading
from collections import defaultdict
from pathlib import Path

from support.servers.processes import FAST, ServerProcess

from qs_client import Draft, QueueClient, ServerUnavailable

GROUPS, EACH, CONSUMERS = 24, 12, 32
MARKS = (GROUPS * EACH // 3, GROUPS * EACH * 2 // 3, GROUPS * EACH)
"""How many messages are done when the server is killed, twice, and at the end."""


class Watch:
    """Keeps what consumers have seen, by group. out: messages that a consumer holds; last: the greatest that is done;
    asked: those whose delete was sent; wrong: what must not happen; reached: set when as many are done as MARKS
    says."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.out: dict[str, set[int]] = defaultdict(set)
        self.last: dict[str, int] = defaultdict(int)
        self.done: set[tuple[str, int]] = set()
        self.asked: set[tuple[str, int]] = set()
        self.wrong: list[str] = []
        self.reached = [threading.Event() for _ in MARKS]

    def received(self, group: str, mid: int) -> None:
        with self._lock:
            if others := self.out[group] - {mid}:
                self.wrong.append(f"{mid} of {group} came while {others} were out")
            if mid < self.last[group]:
                self.wrong.append(f"{mid} of {group} came after {self.last[group]} was done")
            self.out[group].add(mid)

    def ended(self, group: str, mid: int) -> None:
        """Call it before the request that ends the consumer's turn: the next message may come before its answer."""
        with self._lock:
            self.out[group].discard(mid)

    def finished(self, group: str, mid: int) -> None:
        with self._lock:
            self.last[group] = max(self.last[group], mid)
            self.done.add((group, mid))
            for mark, event in zip(MARKS, self.reached, strict=True):
                if len(self.done) >= mark:
                    event.set()


def work(server: ServerProcess, watch: Watch, chance: random.Random) -> None:
    """Works until all is done, or the server is gone."""
    try:
        with QueueClient(server.host, server.port, timeout=20) as client:
            while not watch.reached[-1].is_set():
                for message in client.receive("jobs", wait=0.2, visibility=60):
                    group = message.group or ""
                    watch.received(group, message.mid)
                    if chance.random() < 0.2:
                        client.extend(message, visibility=60)
                    watch.ended(group, message.mid)
                    if chance.random() < 0.2:
                        client.release(message, delay=chance.choice((None, 0, 0.01)))
                    else:
                        watch.asked.add((group, message.mid))
                        client.delete(message)
                        watch.finished(group, message.mid)
    except (ServerUnavailable, OSError):
        return  # the server was killed


def test_groups_keep_their_order_through_kills(tmp_path: Path) -> None:
    """Consumers that are cut off hold what they had until the next server gives it out again: first of its group."""
    watch, pushed = Watch(), 0
    for number, reached in enumerate(watch.reached):
        server = ServerProcess(tmp_path / "root", *FAST)
        try:
            with QueueClient(server.host, server.port) as client:
                if not number:
                    client.new_queue("jobs")
                    drafts = [Draft(f"{at}", group=f"g{at % GROUPS}", priority=at % 3) for at in range(GROUPS * EACH)]
                    pushed = len(client.push_many("jobs", drafts))
                for mid in list(client.list_messages("jobs", state="in-flight")):
                    client.release("jobs", mid)  # those of consumers that are gone: their windows are long
                left = set(client.list_messages("jobs", state="all"))
                for group, mid in watch.asked - watch.done:
                    if mid not in left:  # the kill has taken the answer to its delete, and not the delete
                        watch.finished(group, mid)
            watch.out.clear()
            threads = [
                threading.Thread(target=work, args=(server, watch, random.Random(f"{number} {at}")))
                for at in range(CONSUMERS)
            ]
            for thread in threads:
                thread.start()
            assert reached.wait(60), f"only {len(watch.done)} are done"
        finally:
            server.kill()
        for thread in threads:
            thread.join(30)
        assert not watch.wrong
    assert len(watch.done) == pushed
