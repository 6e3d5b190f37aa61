"""A queue whose members and names have conditions: who gets what, what is evaluated where, and what stands in line."""

import threading

import pytest
import trio
import trio.testing
from support.bus.memory import World, nothing_left

from qs_bus import filtering
from qs_bus.conditions import Condition, Document
from qs_bus.feeds import DurableName, HeldMessage, Release
from qs_bus.filtering import LARGE, Evaluator

A, B = Condition("/a"), Condition("/b")
NAME, OTHER = DurableName("q", "n"), DurableName("q", "m")
settled = trio.testing.wait_all_tasks_blocked


def large(name: str) -> str:
    """Returns a payload that a thread evaluates. name: of its element."""
    return f"<{name}>{'x' * LARGE}</{name}>"


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    """Its feeds keep four large payloads."""
    return World(nursery, outbox=4 * LARGE + 1000)


async def test_each_gets_what_it_asked_for(world: World) -> None:
    """A member gets the messages that match its condition, in order; one without a condition gets all."""
    q = world.fan_out()
    first, second, everything = world.client(), world.client(), world.client()
    first.join(q, condition=A)
    second.join(q, condition=B)
    everything.join(q)
    one, two = world.push(q, "<a/>"), world.push(q, "<b/>")
    together = world.push_together(q, 2, "<a/>")
    none = world.push(q, "no XML")
    assert first.got == [one, *together]
    assert second.got == [two]
    assert everything.got == [one, two, *together, none]
    assert world.deleted(q) == everything.got
    assert nothing_left(q)


async def test_what_nobody_asked_for_is_handled(world: World) -> None:
    """A message that matches no condition is deleted, also with slow members; without members it goes back."""
    q = world.fan_out()
    client = world.client(credit=0)
    client.join(q, condition=A, ack=True)
    none = world.push(q, "<b/>")
    assert world.deleted(q) == [none]
    assert world.released(q) == []
    client.leave()
    late = world.push(q, "<b/>")
    assert (world.deleted(q), world.released(q)) == ([], [late])
    assert nothing_left(q)


async def test_waits_for_those_that_got_it(world: World) -> None:
    """A message is deleted when those that it matched have handled it. If they leave without, it goes back."""
    q = world.fan_out()
    one, two, other = world.client(), world.client(), world.client()
    one.join(q, condition=A, ack=True)
    two.join(q, condition=A, ack=True)
    other.join(q, condition=B, ack=True)
    mid = world.push(q, "<a/>")
    assert one.acknowledge(mid) == [0]
    assert world.upstream.deletes == []
    assert two.acknowledge(mid) == [0]
    assert world.deleted(q) == [mid]
    mid = world.push(q, "<a/>")
    one.leave()
    two.leave()
    assert (world.deleted(q), world.released(q)) == ([], [mid])
    assert other.got == []
    assert nothing_left(q)


async def test_each_condition_is_evaluated_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload is parsed once, and each distinct condition looks at it once, whoever has it."""
    parsed: list[Document] = []
    evaluated: list[str] = []

    class Counted(Document):
        def __init__(self, payload: bytes) -> None:
            super().__init__(payload)
            parsed.append(self)

    matches = Condition.matches

    def counted(condition: Condition, document: Document, headers: dict[str, str]) -> bool:
        evaluated.append(condition.text)
        return matches(condition, document, headers)

    monkeypatch.setattr(filtering, "Document", Counted)
    monkeypatch.setattr(Condition, "matches", counted)
    q = world.fan_out()
    for _ in range(3):
        for text in ("/a", "/a[b]", "/a[c]"):
            world.client().join(q, condition=Condition(text))
    q.add_name(NAME, world.share(), Condition("/a[b]"))
    world.push(q, "<a/>")
    assert len(parsed) == 1
    assert sorted(evaluated) == ["/a", "/a[b]", "/a[c]"]


async def test_a_condition_that_fails(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An evaluation that fails in libxml2 lets the message through: it ends nothing, and no message is lost."""

    def fails(condition: Condition, document: Document, headers: dict[str, str]) -> bool:
        raise MemoryError

    monkeypatch.setattr(Condition, "matches", fails)
    q = world.fan_out()
    client = world.client()
    client.join(q, condition=A)
    mid = world.push(q, "<b/>")
    assert client.got == [mid]
    assert "Condition('/a') lets a message through" in caplog.text


async def test_documents_are_shared_between_conditions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members with different conditions that get the same messages, or some of them, share the documents."""
    made: list[int] = []
    document = HeldMessage.document

    def counted(message: HeldMessage, req: str | None, early: bool) -> bytes:
        made.append(message.mid)
        return document(message, req, early)

    monkeypatch.setattr(HeldMessage, "document", counted)
    q = world.fan_out()
    clients = [world.client() for _ in range(4)]
    for client, text in zip(clients, ("/a", "/*", "/a or /b", "/c"), strict=True):
        client.join(q, condition=Condition(text))
    a, b, c = mids = world.push_together(q, 1, "<a/>") + world.push_together(q, 1, "<b/>") + [world.push(q, "<c/>")]
    assert [client.got for client in clients] == [[a], mids, [a, b], [c]]
    assert made == mids


async def test_headers_decide_too(world: World) -> None:
    """A condition over a header looks at no payload, so that a large one needs no thread."""
    q = world.fan_out()
    client = world.client()
    client.join(q, condition=Condition("$header-kind = 'new'"))
    mid = world.push(q, large("a"), headers={"Kind": "new"})
    world.push(q, large("a"))
    assert world.evaluator.running == []
    assert client.got == [mid]


async def test_names_get_matching_copies(world: World) -> None:
    """A message is copied to the names whose condition it matches, and is deleted when they have it. One that matches
    no name is deleted at once."""
    q = world.fan_out()
    q.add_name(NAME, world.share("q", "n"), A)
    q.add_name(OTHER, world.share("q", "m"))
    both, other = world.push(q, "<a/>"), world.push(q, "<b/>")
    assert world.upstream.copies.of(q) == [both, other]
    wanted = {tuple(copies.mids): copies.names for copies in q.uncopied([both, other])}
    assert wanted == {(both,): [NAME], (both, other): [OTHER]}
    q.copied([both, other], [OTHER])
    assert world.deleted(q) == [other]
    q.copied([both], [NAME])
    assert world.deleted(q) == [both]
    q.remove_name(OTHER)
    assert world.deleted(q) == []
    none = world.push(q, "<b/>")
    assert world.upstream.copies.of(q) == []
    assert world.deleted(q) == [none]
    assert nothing_left(q)


async def test_members_do_not_handle_it_for_a_name(world: World) -> None:
    """A message that its members have handled is not deleted before the name that it matches has it."""
    q = world.fan_out()
    client = world.client()
    client.join(q, condition=A)
    q.add_name(NAME, world.share(), A)
    mid = world.push(q, "<a/>")
    assert client.got == [mid]
    assert world.deleted(q) == []
    q.copied([mid], [NAME])
    assert world.deleted(q) == [mid]
    assert nothing_left(q)


async def test_a_name_that_ends_before_its_copy(world: World) -> None:
    """A message whose names have ended is deleted if one of them has got it, and goes back otherwise."""
    q = world.fan_out()
    q.add_name(NAME, world.share("q", "n"), A)
    q.add_name(OTHER, world.share("q", "m"), A)
    copied, not_copied = world.push(q, "<a/>"), world.push(q, "<a/>")
    q.copied([copied], [NAME])
    for name in (NAME, OTHER):
        q.remove_name(name)
    assert q.uncopied([copied, not_copied]) == []
    q.not_copied([copied, not_copied])
    assert (world.deleted(q), world.released(q)) == ([copied], [not_copied])
    assert nothing_left(q)


async def test_another_condition_of_a_name(world: World) -> None:
    """A name that gets another condition gets what matches that from then on."""
    q, share = world.fan_out(), world.share()
    q.add_name(NAME, share, A)
    q.add_name(NAME, share, B)
    world.push(q, "<a/>")
    mid = world.push(q, "<b/>")
    assert world.upstream.copies.of(q) == [mid]


async def test_large_payloads_leave_the_loop(world: World) -> None:
    """A large payload is evaluated in another thread, once for all conditions, and the loop goes on meanwhile."""
    evaluator, evaluated, go_on = Evaluator(), threading.Event(), threading.Event()
    evaluator.nursery = world.nursery
    threads = []
    matching = filtering.matching

    def watched(*arguments: object) -> filtering.Matching:
        threads.append(threading.get_ident())
        evaluated.set()
        assert go_on.wait(10)
        return matching(*arguments)  # type: ignore[arg-type]

    world.evaluator = evaluator  # type: ignore[assignment]
    q = world.fan_out()
    clients = [world.client() for _ in range(3)]
    for client, text in zip(clients, ("/a", "/a[1]", "/b"), strict=True):
        client.join(q, condition=Condition(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qs_bus.fanout.matching", watched)
        mid = world.push(q, large("a"))
        await trio.to_thread.run_sync(evaluated.wait, 10)  # the loop is free
        assert [client.got for client in clients] == [[], [], []]
        go_on.set()
        while not clients[0].got:
            await trio.sleep(0)
    assert [client.got for client in clients] == [[mid], [mid], []]
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_later_messages_stand_in_line(world: World) -> None:
    """Messages behind a large payload wait for it, so that each member gets its messages in order."""
    q = world.fan_out()
    first, everything = world.client(), world.client()
    first.join(q, condition=A)
    everything.join(q)
    before = world.push(q, "<a/>")
    sent = [world.push(q, payload) for payload in (large("a"), "<b/>", "<a/>", large("b"), "<a/>")]
    assert first.got == everything.got == [before]
    assert world.evaluator.finish()
    assert first.got == everything.got == [before, sent[0]]
    assert world.evaluator.finish()
    assert first.got == [before, sent[0], sent[2]]
    assert everything.got == [before, *sent[:3]]
    world.evaluator.finish_all()
    assert world.evaluator.threads == 2
    assert first.got == [before, sent[0], sent[2], sent[4]]
    assert everything.got == [before, *sent]
    assert sorted(world.deleted(q)) == [before, *sent]
    assert nothing_left(q)


async def test_many_small_ones_let_the_loop_go_on(world: World) -> None:
    """A pass of the loop evaluates a bounded number of bytes times conditions. The rest of what has come together is
    left to later passes, and one that exceeds the bound by itself to a thread."""
    world = World(world.nursery, outbox=1_000_000)
    q = world.fan_out()
    clients = [world.client() for _ in range(100)]
    for number, client in enumerate(clients):
        client.join(q, condition=Condition(f"/a != {number}"))
    some = world.push_together(q, 100, f"<a>{'x' * 1000}</a>")
    now = clients[0].got
    assert now == some[: len(now)]
    assert 5 < len(now) < 15
    assert len(world.evaluator.running) == 1
    assert world.evaluator.finish()
    assert clients[0].got == some[: 2 * len(now)]
    world.evaluator.finish_all()
    assert world.evaluator.threads == 0
    some.append(world.push(q, f"<a>{'x' * (LARGE - 1000)}</a>"))
    world.evaluator.finish_all()
    assert world.evaluator.threads == 1
    assert all(client.got == some for client in clients)
    assert world.deleted(q) == some
    assert nothing_left(q)


async def test_who_joins_or_leaves_meanwhile(world: World) -> None:
    """A member that joins while a message stands in line does not get it, nor does one that leaves. A name likewise."""
    q = world.fan_out()
    leaving, staying, late = world.client(), world.client(), world.client()
    for client in (leaving, staying):
        client.join(q, condition=A)
    q.add_name(NAME, world.share("q", "n"), A)
    mid = world.push(q, large("a"))
    behind = world.push(q, "<a/>")
    late.join(q, condition=A)
    q.add_name(OTHER, world.share("q", "m"), A)
    q.remove_name(NAME)
    leaving.leave()
    world.evaluator.finish_all()
    assert (leaving.got, staying.got, late.got) == ([], [mid, behind], [])
    assert world.upstream.copies.of(q) == []
    assert world.deleted(q) == [mid, behind]
    assert nothing_left(q)


async def test_who_joins_gets_what_comes_into_the_line_later(world: World) -> None:
    """A member that joins while messages stand in line gets those that come behind them."""
    q = world.fan_out()
    first, late = world.client(), world.client()
    first.join(q, condition=A)
    before = [world.push(q, large("a")), world.push(q, "<a/>")]
    late.join(q, condition=A)
    behind = world.push(q, "<a/>")
    world.evaluator.finish_all()
    assert (first.got, late.got) == ([*before, behind], [behind])
    assert world.deleted(q) == [*before, behind]
    assert nothing_left(q)


async def test_all_leave_meanwhile(world: World) -> None:
    """Messages in line whose members have all left go back, also if somebody else has joined."""
    q = world.fan_out()
    client = world.client()
    client.join(q, condition=A)
    sent = [world.push(q, large("a")), world.push(q, large("a")), world.push(q, "<a/>")]
    client.leave()
    late = world.client()
    late.join(q, condition=A)
    world.evaluator.finish_all()
    assert (world.released(q), world.deleted(q), late.got) == (sent, [], [])
    assert nothing_left(q)


async def test_what_stands_in_line_takes_bounded_memory(world: World) -> None:
    """Payloads in line beyond the bound are dropped, and fetched again when their turn comes. Those that members wait
    for count too. What is gone on the server then is given up, and the line goes on."""
    q = world.fan_out()
    client = world.client()
    client.join(q, condition=A)
    sent = [world.push(q, large("a")) for _ in range(9)]
    assert 3 * LARGE < q._payload_bytes <= q._memory
    assert sum(message.payload is not None for message in q.messages.values()) == 4
    world.evaluator.finish_all()
    assert client.got == sent[:4]
    assert world.evaluator.running == []
    asked = world.upstream.fetches.of(q)
    assert [message.mid for message in asked] == sent[4:6]  # half of the bound
    q.fetched(asked[1], large("a").encode())
    assert world.evaluator.running == []
    q.fetched(asked[0], None)
    assert world.evaluator.finish()
    assert client.got == [*sent[:4], sent[5]]
    while world.fetched(q, large("a").encode()):
        world.evaluator.finish_all()
    assert client.got == [*sent[:4], *sent[5:]]
    assert world.released(q) == [sent[4]]
    assert sorted(world.deleted(q)) == client.got
    assert nothing_left(q)


async def test_slow_members_keep_what_was_in_line(world: World) -> None:
    """A payload that has been evaluated and that a slow member waits for stays in memory, and is counted once."""
    q = world.fan_out()
    client = world.client(credit=0)
    client.join(q, condition=A, prefetch=1, ack=True)
    sent = [world.push(q, large("a")) for _ in range(3)]
    world.evaluator.finish_all()
    assert q._payload_bytes == 2 * len(large("a"))
    client.reader.take()
    await settled()
    for mid in sent:
        assert client.acknowledge(mid) == [0]
        await settled()
    assert world.deleted(q) == sent
    assert nothing_left(q)


async def test_a_line_asks_for_no_more_messages(world: World) -> None:
    """Messages in line do not make the feed ask for more at a time: no member holds them up."""
    q = world.fan_out()
    client = world.client()
    client.join(q, condition=A)
    before = q.prefetch
    world.push(q, large("a"))
    world.push_together(q, before - 1, "<a/>")
    assert q.prefetch == before
    world.evaluator.finish_all()
    assert len(client.got) == before


async def test_redelivered_while_in_line(world: World) -> None:
    """A message that the server sends again after a lost connection keeps its place in the line, and goes out once."""
    q = world.fan_out()
    client = world.client()
    client.join(q, condition=A)
    mid, behind = world.push(q, large("a")), world.push(q, "<a/>")
    world.push(q, large("a"), mid=mid, receives=2)
    world.push(q, "<a/>", mid=behind, receives=2)
    world.evaluator.finish_all()
    assert client.got == [mid, behind]
    assert [message.receives for message in client.deliveries] == [2, 2]
    assert world.deleted(q) == [mid, behind]
    assert nothing_left(q)


@pytest.mark.parametrize("counted", [False, True])
async def test_a_stop_gives_the_line_up(world: World, counted: bool) -> None:
    """At a stop nothing in line is sent or deleted. A queue that counts receives gets it back uncounted."""
    q = world.fan_out(counted=counted)
    client = world.client()
    client.join(q, condition=A)
    sent = [world.push(q, large("a"), receives=1), world.push(q, "<a/>", receives=1)]
    q.stop()
    assert world.evaluator.finish()
    assert client.got == []
    assert world.upstream.deletes == []
    released = [(q, Release(mid, 1, None, False)) for mid in sent]
    assert world.upstream.releases == (released if counted else [])
    assert q._payload_bytes == 0


async def test_what_conditions_decide_is_counted(world: World) -> None:
    """A message counts once for each subscriber and name that has a condition: let through or kept back."""
    q = world.fan_out()
    for _ in range(2):
        world.client().join(q, condition=A)
    world.client().join(q)
    leaving = world.client()
    leaving.join(q, condition=B)
    q.add_name(NAME, world.share(), A)
    world.push(q, "<a/>")
    world.push(q, large("a"))
    world.evaluator.finish()
    leaving.leave()
    world.push(q, "<b/>")
    counts = world.evaluator.counts
    assert (counts.let_through, counts.kept_back) == (6, 2 + 3)
    assert set(q.groups) == {None, A}
    counts = q.groups[A].counts
    assert (counts.let_through, counts.kept_back) == (6, 3)


async def test_without_conditions_nothing_stands_in_line(world: World) -> None:
    """Large payloads go out at once when the last condition has gone, and when nobody has one."""
    q = world.fan_out()
    plain, conditional = world.client(), world.client()
    plain.join(q)
    conditional.join(q, condition=A)
    first = world.push(q, large("b"))
    conditional.leave()
    second = world.push(q, large("b"))
    assert plain.got == []
    world.evaluator.finish_all()
    assert plain.got == [first, second]
    third = world.push(q, large("b"))
    assert plain.got == [first, second, third]
    assert world.evaluator.running == []
