"""Power losses of a real server under load: with syncs nothing is lost that was answered, without them something is.

50 rounds with each storage: `-m long`, some 20 s each. A few rounds are in every run.
"""

import random
import threading
from collections.abc import Callable

import pytest

from qs_client import QueueClient, ServerUnavailable
from qs_testing import Server, serving


class Account:
    """The requests of all clients, by the payloads of their messages."""

    def __init__(self) -> None:
        self.asked: set[bytes] = set()
        self.stored: set[bytes] = set()
        """Pushes that were answered."""
        self.deleting: set[bytes] = set()
        self.deleted: set[bytes] = set()
        """Deletes that were answered."""
        self.answers = 0
        self.progress = threading.Condition()

    def answered(self, *done: tuple[set[bytes], bytes]) -> None:
        with self.progress:
            for which, payload in done:
                which.add(payload)
            self.answers += 1
            self.progress.notify_all()

    def lost(self, found: set[bytes]) -> set[bytes]:
        """Returns the messages that have to be there and are not, and those that should not be and are."""
        return (self.stored - self.deleting - found) | (found & self.deleted)

    def settle(self, found: set[bytes]) -> None:
        """Takes what is there as the truth from which the next round begins."""
        self.asked, self.stored, self.deleting, self.deleted = set(found), set(found), set(), self.deleted


def produce(client: QueueClient, account: Account, rng: random.Random, name: str) -> None:
    for number in range(1_000_000):
        payloads = [f"{name} {number} {n} ".encode() * rng.choice([1, 100, 2000]) for n in range(rng.choice([1, 5]))]
        account.asked.update(payloads)
        client.push_many("q", payloads)
        account.answered(*((account.stored, payload) for payload in payloads))


def consume(client: QueueClient, account: Account, rng: random.Random, name: str) -> None:
    while True:
        for message in client.receive("q", max=rng.choice([1, 3]), visibility=60, wait=60):
            if rng.random() < 0.5:
                account.deleting.add(message.payload)
                client.delete(message)
                account.answered((account.deleted, message.payload))
            else:
                client.release(message, delay=rng.choice([None, 0, 60]))
                account.answered()


Work = Callable[[QueueClient, Account, random.Random, str], None]


def one_round(server: Server, account: Account, seed: str) -> set[bytes]:
    """Lets clients work until the power is lost. Returns what is there after the restart."""
    rng, trouble = random.Random(seed), []

    def run(work: Work, name: str) -> None:
        try:
            with server.client() as client:
                work(client, account, random.Random(name), name)
        except ServerUnavailable:
            pass
        except Exception as error:
            trouble.append(error)

    works = [produce, produce, consume]
    threads = [threading.Thread(target=run, args=(work, f"{seed}-{n}")) for n, work in enumerate(works)]
    enough = account.answers + rng.randrange(60)
    for thread in threads:
        thread.start()
    with account.progress:
        assert account.progress.wait_for(lambda: account.answers >= enough, 30)
    server.power_loss()
    for thread in threads:
        thread.join(30)
    assert not trouble
    return {message.payload for message in server.all_messages("q")}


def losses(rounds: int, *flags: str) -> int:
    """Returns how many messages were lost, or came back, in so many rounds."""
    account, lost = Account(), 0
    with serving(*flags, faults=True) as server:
        with server.client() as client:
            client.new_queue("q")
        server.restart()  # what is there at a start counts as durable
        for number in range(rounds):
            found = one_round(server, account, f"{number}")
            assert found <= account.asked
            lost += len(account.lost(found))
            account.settle(found)
        assert server.log() == ""
    return lost


ROUNDS = [4, pytest.param(50, marks=pytest.mark.long)]


@pytest.mark.parametrize("storage", ["journal", "files"])
@pytest.mark.parametrize("rounds", ROUNDS)
def test_nothing_is_lost_with_syncs(storage: str, rounds: int) -> None:
    """With durability always, every answered push and delete holds, and each start is clean."""
    assert losses(rounds, "--storage", storage) == 0


@pytest.mark.parametrize("storage", ["journal", "files"])
def test_something_is_lost_without(storage: str) -> None:
    """With durability none, answered requests are lost, or the faults would not be what they say; each start is clean
    all the same."""
    assert losses(4, "--storage", storage, "--durability", "none") > 10
