"""The model that power losses are compared with: it allows what may be, and finds what must not."""

import re

import pytest
from support.power_loss.model import STRICT, Held, Model, SeenQueue


def queue(next_mid: int = 99, **messages: Held) -> dict[str, SeenQueue]:
    return {"q": SeenQueue("o", {int(mid[1:]): held for mid, held in messages.items()}, next_mid)}


A, B = Held(b"a"), Held(b"b")


@pytest.fixture
def model() -> Model:
    """0: create; 1: push 1; 2: push 2 and 3; 3: receive 1; 4: delete 2."""
    made = Model()
    made.create(0, "q", "o")
    made.set(1, "push", "q", 1, A)
    made.set(2, "push", "q", 2, B)
    made.set(2, "push", "q", 3, Held(b"c"))
    made.keep_whole(2, "push", [("q", 2), ("q", 3)])
    made.set(3, "receive", "q", 1, Held(b"a", 1, 500))
    made.set(4, "delete", "q", 2, None)
    return made


def test_the_model_allows_what_was_under_way(model: Model) -> None:
    """The model allows no part of the operation under way, or all of it, or each message by itself."""
    c = Held(b"c")
    for seen in (queue(m1=A), queue(m1=A, m2=B, m3=c), queue(m1=Held(b"a", 1, 500)), queue(m1=A, m3=c)):
        assert model.trouble(seen, 2, 5, 100) == []
    assert model.trouble({}, 0, 5, 100) == []
    assert model.trouble(queue(m1=Held(b"a", 1), m3=c), 5, 5, 500) == [], "its window is over"


@pytest.mark.parametrize(
    ("seen", "answered", "begun", "says"),
    [
        (queue(), 2, 2, "message 1 is gone"),
        (queue(m1=Held(b"A")), 2, 2, "payload=b'A'"),
        (queue(m1=Held(b"a", 1, 500)), 3, 3, "receives=1"),
        (queue(m1=A, m2=B, m3=Held(b"c")), 5, 5, "message 1 is"),
        (queue(m1=Held(b"a", 1, 500), m2=B, m3=Held(b"c")), 5, 5, "message 2 is .*gone"),
        (queue(m1=A, m2=B), 2, 3, "in half"),
        (queue(m1=A, m7=B), 2, 2, "message 7 .* is not known"),
        (queue(m1=A, m2=A), 2, 3, "twice"),
        (queue(1, m1=A), 2, 2, "id 1 was given"),
        ({}, 1, 5, "the queue is gone"),
        ({"q": SeenQueue("other", {1: A}, 99)}, 2, 2, "its options"),
        (queue(m1=A) | {"r": SeenQueue("o", {}, 1)}, 2, 2, "nobody made"),
    ],
)
def test_the_model_finds(model: Model, seen: dict[str, SeenQueue], answered: int, begun: int, says: str) -> None:
    """The model finds messages that are lost, have come back, are there in half or twice, or were never pushed."""
    trouble = model.trouble(seen, answered, begun, 100)
    assert any(re.search(says, line) for line in trouble), trouble


def test_removed_queues(model: Model) -> None:
    """Whole or gone while the removal is under way; gone when it was answered; never emptied."""
    model.remove(5, "q")
    whole, rest = queue(m1=Held(b"a", 1, 500), m3=Held(b"c")), queue(m3=Held(b"c"))
    for seen in ({}, whole):
        assert model.trouble(seen, 5, 6, 100) == []
    assert model.trouble(whole, 6, 6, 100) == ["q: the queue must not be there"]
    assert model.trouble(rest, 5, 6, 100, STRICT) != []
