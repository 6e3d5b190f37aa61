"""A journal on a really full disk: pushes are refused, and deletes go on, one by one, until the queue is empty."""

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faults import small_disk
from support.servers.processes import ServerProcess
from support.storage.engines import JournalEngine, ManualClock, upkeep_slice

from qs_client import Full, QueueClient
from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Draft, Durability, Options, Receipt


class Consumer:
    """An engine with a queue on a small disk, and the ids of the messages in it."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.clock, self.disk = ManualClock(), Disk()
        self.engine = JournalEngine(str(root), clock=self.clock, durability=Durability.ALWAYS, disk=self.disk)
        self.left: list[int] = []
        self.engine.create("q", Options())
        self.engine.commit()

    def restart(self) -> None:
        self.engine.close()
        root = str(self.root)
        self.engine = JournalEngine(root, clock=self.clock, durability=Durability.ALWAYS, disk=self.disk)

    def push(self, size: int) -> bool:
        """Pushes a message of that many bytes if there is room."""
        self.clock.tick()
        try:
            mids = self.engine.queue("q").push([Draft(b"x" * size)])
            self.engine.commit()
        except OSError:
            self.engine.roll_back()
            return False
        self.left += mids
        return True

    def delete(self, index: int) -> None:
        """Deletes a message. OSError: there is no room."""
        self.clock.tick()
        self.engine.queue("q").delete(Receipt(self.left.pop(index)))
        self.engine.commit()

    def give_back(self, change: str) -> None:
        """Receives the oldest message, and releases it with a reason or extends its window. OSError: there is no
        room."""
        self.clock.tick()
        queue = self.engine.queue("q")
        [found] = self.engine.receive(["q"], 1, SECOND, 1 << 20)
        if change == "release":
            queue.release(Receipt(found.mid), None, reason="r" * 1000)
        else:
            queue.extend(Receipt(found.mid), SECOND)
        self.engine.commit()
        self.clock.now += 2 * SECOND

    def finds_room(self, size: int) -> bool:
        """Pushes a message of that many bytes after some seconds of upkeep."""
        for _ in range(10):
            self.clock.now += 2 * SECOND
            upkeep_slice(self.engine)
        return self.push(size)


@pytest.fixture(name="consumer")
def _consumer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Consumer]:
    with small_disk(tmp_path / "small", request.param) as mounted:
        consumer = Consumer(mounted / "root")
        try:
            yield consumer
        finally:
            consumer.engine.close()


def any_of(left: list[int], chance: random.Random) -> int:
    return chance.randrange(len(left))


ORDERS: dict[str, Callable[[list[int], random.Random], int]] = {
    "oldest first": lambda left, chance: 0,
    "newest first": lambda left, chance: len(left) - 1,
    "any": any_of,
}


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("size", [1000, 8000, 20000])
@pytest.mark.parametrize("consumer", ["512k", "1m", "2m", "4m"], indirect=True)
def test_deletes_are_not_refused(consumer: Consumer, size: int, order: str) -> None:
    """A producer tries again before each delete, and gets what room there is: all of it but that for compaction and
    deletes. When the producer stops, the queue can be emptied, and then there is room for pushes."""
    while consumer.push(size):
        pass
    chance, tries, pushed = random.Random(1), 3 * len(consumer.left), 0
    while consumer.left:
        if tries:
            tries -= 1
            pushed += consumer.push(size)
        consumer.delete(ORDERS[order](consumer.left, chance))
    assert pushed
    assert consumer.finds_room(size)


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("size", [1000, 8000])
@pytest.mark.parametrize("consumer", ["2m", "6m"], indirect=True)
def test_deletes_are_not_refused_beside_upkeep(consumer: Consumer, size: int, order: str) -> None:
    """Upkeep, which compacts in slices and makes spare segments, leaves deletes their room too."""
    while consumer.push(size):
        upkeep_slice(consumer.engine)
    chance, tries = random.Random(1), len(consumer.left)
    while consumer.left:
        if tries:
            tries -= 1
            consumer.push(size)
        upkeep_slice(consumer.engine)
        consumer.delete(ORDERS[order](consumer.left, chance))
    assert consumer.finds_room(size)


@pytest.mark.parametrize("order", ["oldest first", "any"])
@pytest.mark.parametrize("consumer", ["24m"], indirect=True)
def test_deletes_are_not_refused_on_a_larger_disk(consumer: Consumer, order: str) -> None:
    """Segments are of several sizes, and deletes have to take the reserve before enough is dead to be compacted."""
    while consumer.push(8000):
        pass
    chance = random.Random(1)
    while consumer.left:
        consumer.delete(ORDERS[order](consumer.left, chance))
    assert consumer.finds_room(8000)


@pytest.mark.parametrize("size", [8000, 1_000_000])
@pytest.mark.parametrize("consumer", ["24m"], indirect=True)
def test_a_push_after_a_purge(consumer: Consumer, size: int) -> None:
    """A full queue is purged, and the next push is stored, without upkeep in between."""
    while consumer.push(size):
        pass
    while consumer.engine.queue("q").purge(1 << 60, 100):
        consumer.engine.commit()
    assert consumer.push(size)


@pytest.mark.parametrize("change", ["release", "extend"])
@pytest.mark.parametrize("size", [1000, 8000])
@pytest.mark.parametrize("consumer", ["512k", "2m", "24m"], indirect=True)
def test_nothing_but_pushes_is_refused(consumer: Consumer, size: int, change: str) -> None:
    """A thousand messages are released with a reason, or their windows extended, one by one on a disk that is full of
    live messages; pushes are refused all the time. Then the queue can be emptied, and there is room for pushes."""
    while consumer.push(size):
        pass
    held = len(consumer.left)
    for number in range(1000):
        consumer.give_back(change)
        if number % 100 == 0 and consumer.push(size):  # compaction has packed what is there
            held += 1
    assert consumer.engine.queue("q").stats().ready == held
    while consumer.left:
        consumer.delete(0)
    assert consumer.finds_room(size)


@pytest.mark.parametrize("consumer", ["1m", "8m"], indirect=True)
def test_a_start_on_a_full_disk(consumer: Consumer) -> None:
    """A server that is started again and again on a full disk serves deletes each time."""
    while consumer.push(8000):
        pass
    for _ in range(min(len(consumer.left), 20)):
        consumer.restart()
        consumer.delete(0)
    while consumer.left:
        consumer.delete(0)
    assert consumer.finds_room(8000)


@pytest.mark.slow
def test_the_log_says_when_it_begins_and_ends(tmp_path: Path) -> None:
    """A server with 1 MB pushes on a disk of 24 MB: many 507 are one line, which names path and free bytes; once there
    is room, another line. Some 15 s, nearly all of them a wait."""
    with small_disk(tmp_path / "small", "24m") as mounted:
        server = ServerProcess(mounted / "root", log=tmp_path / "log")
        try:
            with QueueClient(server.host, server.port) as client:
                client.new_queue("q")
                refused = 0
                for _ in range(60):
                    try:
                        client.push("q", bytes(1_000_000))
                    except Full:
                        refused += 1
                assert refused > 30
                root = re.escape(str(mounted / "root"))
                line = (
                    rf"ERROR qs_server\.broker\.room: the disk of {root} is full: it has \d+ bytes free, and a request"
                )
                assert len(re.findall(line, server.log())) == 1
                client.purge("q")
                client.push("q", bytes(1_000_000))
                server.until_logged("has room again")
                assert f"{refused} requests were refused" in server.log()
                assert len(server.log().splitlines()) == 2, server.log()
        finally:
            server.stop()
