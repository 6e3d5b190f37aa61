"""Headers: what a producer says beside the payload, by every engine that keeps them."""

import pytest
from support.storage.calls import WINDOW, fail, listed, receive
from support.storage.contract import needs, unguarded
from support.storage.engines import Bench

from qs_storage.engine import SECOND, Draft, Feature, Headers, Message, OtherMessageError, Receipt

TRACE: Headers = (
    ("content-type", "text/plain; charset=utf-8"),
    ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
)
"""In the order of their names: some storages have no other."""
ODD: Headers = (("A.b_c-1", "tab\tand\nline \\t \\n \\\\ <&]]> \"'\r"), ("b", " \u20ac\U0001f41f "), ("c" * 64, "x"))
LARGE: Headers = tuple((f"name-{number}", "\u00e9" * 500) for number in range(8))
"""Nearly 8 KiB of UTF-8."""


@pytest.fixture
def heading(bench: Bench) -> Bench:
    """A queue `q` of an engine that keeps headers."""
    needs(bench, Feature.HEADERS)
    bench.queue()
    return bench


def push(bench: Bench, *headers: Headers, qid: str = "q", delay: int = 0) -> list[int]:
    mids = bench.engine.queue(qid).push([Draft(b"x", delay, headers=each) for each in headers])
    bench.engine.commit()
    return mids


def peeked(bench: Bench, mid: int, qid: str = "q") -> Message:
    return bench.engine.queue(qid).get(mid, peek=True, visibility=None)


@pytest.mark.parametrize("headers", [TRACE, ODD, LARGE], ids=["trace", "odd", "large"])
def test_headers_come_as_they_went(heading: Bench, headers: Headers) -> None:
    """Text and names are what they were, with each receive, also after a start; the payload is what it was."""
    bench = heading
    push(bench, headers)
    for count in (1, 2):
        [message] = receive(bench)
        assert (message.headers, message.payload, message.receives) == (headers, b"x", count)
        bench.engine.queue("q").release(Receipt(message.mid, count), 0)
        bench.engine.commit()
        if Feature.ANY not in bench.engine.cannot:
            bench.reopen()


def test_each_of_a_list_has_its_own(heading: Bench) -> None:
    """The messages of a list have theirs, or none."""
    bench = heading
    mids = push(bench, TRACE, (), LARGE, ODD, ())
    found = {message.mid: message.headers for message in receive(bench)}
    assert found == dict(zip(mids, (TRACE, (), LARGE, ODD, ()), strict=True))


@pytest.mark.parametrize("headers", [TRACE, LARGE], ids=["trace", "large"])
def test_looks(heading: Bench, headers: Headers) -> None:
    """A peek and a read show them; a message in a window comes without them, as without its payload."""
    bench = heading
    [mid, plain] = push(bench, headers, ())
    for _ in range(2):
        assert (peeked(bench, mid).headers, peeked(bench, plain).headers) == (headers, ())
        bench.reopen()
    message = bench.engine.queue("q").get(mid, peek=False, visibility=WINDOW)
    assert message.headers == headers
    for _ in range(2):
        hidden = peeked(bench, mid)
        assert (hidden.status, hidden.payload, hidden.headers) == ("in-flight", None, ())
        assert bench.engine.queue("q").read(Receipt(mid, 1)).headers == headers
        bench.reopen()


@pytest.mark.parametrize("headers", [TRACE, LARGE], ids=["trace", "large"])
def test_a_delayed_message(heading: Bench, headers: Headers) -> None:
    """A delay and headers stand side by side."""
    bench = heading
    [mid] = push(bench, headers, delay=WINDOW)
    bench.reopen()
    assert receive(bench) == []
    bench.clock.now += WINDOW
    [message] = receive(bench)
    assert (message.mid, message.headers, message.receives) == (mid, headers, 1)


@pytest.mark.parametrize("headers", [TRACE, LARGE], ids=["trace", "large"])
def test_a_dead_letter_and_the_way_back(heading: Bench, headers: Headers) -> None:
    """A dead letter keeps them, and so does the message that comes back from there; nothing of them stays behind."""
    bench = heading
    needs(bench, Feature.DEAD, Feature.REDRIVE)
    bench.queue("dying", dead_letter="dead", max_receives=2)
    push(bench, headers, qid="dying")
    fail(bench, "dying")
    redrive = bench.engine.queue("dead").redrive
    assert redrive is not None
    for _ in range(2):
        [dead] = listed(bench, qid="dead")
        assert peeked(bench, dead, "dead").headers == headers
        bench.reopen()
    redrive = bench.engine.queue("dead").redrive
    [(_, back)] = redrive.move([(dead, unguarded(bench).queue("dying"))])  # type: ignore[union-attr]
    bench.engine.commit()
    for _ in range(2):
        found = peeked(bench, back, "dying")
        assert (found.headers, found.payload, found.origin) == (headers, b"x", None)
        bench.reopen()
    assert listed(bench, qid="dead") == []


@pytest.mark.parametrize("headers", [TRACE, LARGE], ids=["trace", "large"])
def test_a_copy_has_them_too(heading: Bench, headers: Headers) -> None:
    """A copy has the same headers, and keeps them when the original is gone. A repeated copy is the same message; one
    with other headers is another message."""
    bench = heading
    bench.queue("copies")
    bench.queue("others")
    [mid] = push(bench, headers)
    bench.engine.copy("q", mid, ["copies"])
    bench.engine.copy("q", mid, ["copies"])
    bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.commit()
    for _ in range(2):
        assert peeked(bench, mid, "copies").headers == headers
        bench.reopen()
    assert listed(bench, qid="copies") == [mid]


def test_a_copy_with_other_headers(heading: Bench) -> None:
    """A message under the same id whose headers differ is another message."""
    bench = heading
    needs(bench, Feature.COPY)
    bench.queue("other")
    [mid] = push(bench, TRACE)
    [other] = push(bench, ODD, qid="other")
    if other != mid:
        pytest.skip("this storage does not give the same id twice")
    with pytest.raises(OtherMessageError):
        bench.engine.copy("q", mid, ["other"])
    assert peeked(bench, mid, "other").headers == ODD


@pytest.mark.parametrize("headers", [TRACE, LARGE], ids=["trace", "large"])
def test_a_new_message_under_an_old_id_has_no_headers(heading: Bench, headers: Headers) -> None:
    """Headers go with their message: one that comes under the same id later has its own, or none."""
    bench = heading
    needs(bench, Feature.COPY)
    bench.queue("source")
    bench.queue("plain")
    [mid] = push(bench, headers, qid="source")
    bench.engine.copy("source", mid, ["q"])
    bench.engine.queue("q").delete(Receipt(mid))
    [plain] = push(bench, (), qid="plain")
    if plain != mid:
        pytest.skip("this storage does not give the same id twice")
    bench.engine.copy("plain", mid, ["q"])
    bench.engine.commit()
    for _ in range(2):
        assert peeked(bench, mid).headers == ()
        bench.reopen()


@pytest.mark.parametrize("headers", [TRACE, LARGE], ids=["trace", "large"])
def test_bytes_count_them(heading: Bench, headers: Headers) -> None:
    """The bytes of a queue count payloads and headers, the same after a start, and none when all are gone."""
    bench = heading
    needs(bench, Feature.FIGURES)
    mids = push(bench, headers, ())
    least = 2 + sum(len(name) + len(text.encode()) for name, text in headers)
    first = bench.engine.queue("q").stats().bytes
    assert least <= first < least + 10 * len(headers)
    bench.reopen()
    assert bench.engine.queue("q").stats().bytes == first
    for mid in mids:
        bench.engine.queue("q").delete(Receipt(mid))
    bench.engine.commit()
    assert bench.engine.queue("q").stats().bytes == 0


def test_a_receive_ends_before_they_are_too_many(heading: Bench) -> None:
    """The bound of a receive is for payloads with headers: what does not fit is left for the next."""
    bench = heading
    needs(bench, Feature.ORDER)
    mids = push(bench, LARGE, LARGE, ())
    taken = [bench.engine.receive(["q"], 10, WINDOW, 10_000) for _ in range(2)]
    assert [message.mid for messages in taken for message in messages] == mids
    assert len(taken[0]) == 1


def test_keys_and_headers(heading: Bench) -> None:
    """The second push with a key stores nothing: the headers are those of the first."""
    bench = heading
    needs(bench, Feature.KEY)
    drafts = [Draft(b"x", key="k", headers=headers) for headers in (TRACE, ODD)]
    queue = bench.engine.queue("q")
    [mid] = queue.push(drafts[:1])
    assert queue.push(drafts[1:]) == [mid]
    bench.engine.commit()
    [message] = bench.engine.receive(["q"], 10, SECOND, 1 << 20)
    assert message.headers == TRACE
