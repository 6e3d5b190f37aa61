"""Which message an order says is next."""

from qs_storage.index.message_index import Index


def filled(*messages: tuple[int, int, str], most: int = 1, fair: bool = False) -> Index:
    """Makes an index of visible messages: (id, priority, group) each."""
    index = Index()
    index.configure(most, fair=fair)
    for mid, priority, group in messages:
        if priority or group:
            index.rank(mid, priority, group)
        index.add(mid, 0, 1)
    return index


def drained(index: Index, *, delete: bool = True) -> list[int]:
    """Takes messages until none may go, and deletes each before the next."""
    found: list[int] = []
    while index.order is not None and (mid := index.order.first()) is not None:
        index.take(mid, 10**9, retrieved=False)
        if delete:
            index.remove(mid)
        found.append(mid)
    return found + (index.ready.after(-1, 1000) if delete else [])


def test_priorities_go_first() -> None:
    """Within one, the oldest does."""
    assert drained(filled((1, 0, ""), (2, 5, ""), (3, 9, ""), (4, 5, ""), (5, 0, ""))) == [3, 2, 4, 1, 5]


def test_a_group_has_one_message_out() -> None:
    """Messages of others, and without a group, go on."""
    index = filled((1, 0, "a"), (2, 0, "a"), (3, 0, "b"), (4, 0, ""), (5, 0, ""))
    assert drained(index, delete=False) == [1, 3, 4, 5]
    index.remove(1)
    assert drained(index, delete=False) == [2]


def test_a_message_that_is_delayed_keeps_its_group_back() -> None:
    """A strict order is one of tries too. With two at a time there is none."""
    index = filled((1, 0, "a"), (2, 0, "a"))
    index.take(1, 10, retrieved=False)
    index.hide(1, 20, delayed=True)
    assert drained(index, delete=False) == []
    index.configure(2, fair=False)
    assert drained(index, delete=False) == [2]


def test_the_next_message_decides_the_priority_of_its_group() -> None:
    """An urgent one does not overtake its group."""
    assert drained(filled((1, 0, "a"), (2, 9, "a"), (3, 5, "b"), (4, 1, ""))) == [3, 4, 1, 2]


def test_fair_groups_take_turns() -> None:
    """A group with a thousand messages does not keep another one waiting; those without a group share a turn."""
    many = [(mid, 0, "big") for mid in range(1, 1001)]
    found = drained(filled(*many, (2001, 0, "small"), (2002, 0, "small"), (2003, 0, ""), (2004, 0, ""), fair=True))
    assert max(found.index(mid) for mid in (2001, 2002, 2003, 2004)) < 8
    assert found[-900:] == list(range(101, 1001))


def test_fair_after_it_was_unfair_and_back() -> None:
    """The rules of a queue can change while it has messages."""
    index = filled((1, 0, "a"), (2, 0, "a"), (3, 0, "b"), (4, 0, "b"))
    index.configure(1, fair=True)
    assert drained(filled((1, 0, "a"), (2, 0, "a"), (3, 0, "b"), (4, 0, "b"), fair=True)) == [1, 3, 2, 4]
    index.configure(1, fair=False)
    assert drained(index) == [1, 2, 3, 4]


def test_an_order_goes_with_its_last_message() -> None:
    """A queue without priorities and groups pays for none."""
    index = filled((1, 0, ""), (2, 3, "a"))
    assert index.order is not None
    index.remove(2)
    assert index.order is None
    assert index.ready.after(-1, 9) == [1]


def test_a_message_set_aside_keeps_nobody_back() -> None:
    """Nobody has one that cannot be read: its group goes on, and it does not count as out."""
    index = filled((1, 0, "a"), (2, 0, "a"))
    index.set_aside(1)
    assert index.out == 0
    assert drained(index, delete=False) == [2]
    assert index.out == 1
    index.remove(1)
    assert index.aside == set()


def test_many_groups_cost_no_more_than_few() -> None:
    """Counted in steps of Python: a take touches one group, however many there are."""
    import sys

    def calls(groups: int) -> int:
        index = filled(*((mid, 0, f"g{mid % groups}") for mid in range(1, 4001)))
        count = 0

        def profile(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            for _ in range(100):
                mid = index.order.first() if index.order else None
                assert mid is not None
                index.take(mid, 10**9, retrieved=False)
                index.remove(mid)
        finally:
            sys.setprofile(None)
        return count

    assert calls(4000) <= calls(10) * 1.1


def test_what_becomes_of_a_message_that_is_out_is_no_turn() -> None:
    """A consumer that extends its message all the time keeps no message without a group waiting."""
    groups = [(mid, 0, f"g{mid}") for mid in range(10, 15)]
    index = filled((1, 0, ""), (2, 0, ""), *groups, fair=True)
    order = index.order
    assert order is not None
    index.take(1, 10**9, retrieved=False)
    found = []
    for _ in range(6):
        index.hide(1, 10**9, delayed=False)  # an extension
        mid = order.first()
        assert mid is not None
        index.take(mid, 10**9, retrieved=False)
        found.append(mid)
    assert found == [10, 11, 12, 13, 14, 2]
    index.add(20, 0, 1)
    index.rank(21, 0, "g")
    index.add(21, 0, 1)
    index.remove(1)
    assert order.first() == 20  # neither is a delete


def test_a_group_whose_next_message_changes_keeps_its_turn() -> None:
    """An older message was given back, or the next one is over: the group was not served."""
    index = filled((1, 0, "a"), (2, 0, "a"), (3, 0, "a"), (4, 0, "b"), (5, 0, "c"), most=2, fair=True)
    order = index.order
    assert order is not None
    index.take(1, 10**9, retrieved=False)
    index.take(4, 10**9, retrieved=False)
    index.take(5, 10**9, retrieved=False)
    index.add(6, 0, 1)
    index.rank(7, 0, "d")
    index.add(7, 0, 1)
    index.remove(6)
    index.show(1)
    assert order.first() == 1
    index.remove(1)
    assert order.first() == 2


def test_rules_that_stay_keep_the_turns() -> None:
    """A queue that is paused, or gets another rate, is set anew."""
    index = filled((1, 0, "a"), (2, 0, "a"), (3, 0, "b"), most=2, fair=True)
    index.take(1, 10**9, retrieved=False)
    index.configure(2, fair=True)
    assert index.order is not None
    assert index.order.first() == 3
