"""The calls, driven by hand: what each asks, and what it makes of the answer. No sockets."""

import pickle
from collections.abc import Callable, Generator
from typing import Any

import pytest

from qs_client import (
    BadRequest,
    Conflict,
    CopyMessage,
    DeleteMessage,
    DeleteQueue,
    Delivery,
    Draft,
    Error,
    ExtendMessage,
    Figure,
    Full,
    GetMessage,
    GetQueue,
    InternalError,
    ListMessages,
    ListQueues,
    NewQueue,
    NoAnswer,
    NotFound,
    PauseQueue,
    Ping,
    PurgeQueue,
    PushMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    Receipt,
    ReceiveMessage,
    RedriveMessages,
    ReleaseMessage,
    ResumeQueue,
    ServerError,
    ServerStats,
    ServerUnavailable,
    SetQueue,
    asking,
    batches,
    calls,
    claim_calls,
    errors,
    policy_calls,
)
from qs_schemas import TABLE, ErrorCode, Message, Peer
from qs_schemas.templates import write

DELIVERY = Delivery(1760000000000000, b"hi", "orders", receives=2)
GOT = GetMessage("q", 5, status="delivered")


def play(call: Generator[asking.Exchange, Message, Any], *answers: Message) -> tuple[list[Message], Any]:
    """Runs a call with these answers. Gives the requests it made, as a server reads them, and its value."""
    requests: list[Message] = []
    left = iter(answers)
    try:
        exchange = next(call)
        while True:
            requests.append(Message.parse(Peer().send(exchange.request)))
            exchange = call.send(next(left))
    except StopIteration as done:
        assert next(left, None) is None, "the call asked less than was answered"
        return requests, done.value


def fail(call: Generator[asking.Exchange, Message, Any], error: Error) -> ServerError:
    with pytest.raises(ServerError) as raised:
        play(call, error)
    return raised.value


FIGURES = [Figure("connections", 3), Figure("requests_total", 7, {"operation": "ping", "code": "200"})]

# id: call, the request that it sends, the answer, its value
CALLS: dict[str, tuple[Any, Message, Message, Any]] = {
    "queues": (calls.queues(), ListQueues(), ListQueues(["a", "b"]), ["a", "b"]),
    "new_queue": (calls.new_queue("q"), NewQueue("q"), NewQueue("q"), True),
    "new_queue with options": (
        calls.new_queue("q", storage="null", visibility=1.5, capacity=9, retention=60, dead_letter="d", max_receives=3),
        NewQueue("q", QueueOptions("null", 1.5, 9, 60, "d", 3)), NewQueue("q"), True,
    ),
    "new_queue with order and pace": (
        calls.new_queue("q", group_in_flight=2, fair=True, max_in_flight=9, rate=0.5),
        NewQueue("q", QueueOptions(group_in_flight=2, fair=True, max_in_flight=9, rate=0.5)), NewQueue("q"), True,
    ),
    "delete_queue": (calls.delete_queue("q", force=True), DeleteQueue("q", True), DeleteQueue("q"), True),
    "set_queue": (
        policy_calls.set_queue("q", visibility=5, retention=None, dead_letter=None, max_receives=7),
        SetQueue("q", QueueOptions(None, 5, max_receives=7, removed=frozenset({"retention", "dead_letter"}))),
        SetQueue("q"), None,
    ),
    "set_queue with order and pace": (
        policy_calls.set_queue("q", group_in_flight=None, fair=False, max_in_flight=None, rate=10),
        SetQueue("q", QueueOptions(fair=False, rate=10, removed=frozenset({"group_in_flight", "max_in_flight"}))),
        SetQueue("q"), None,
    ),
    "queue_options": (
        policy_calls.queue_options("q"), GetQueue("q"), GetQueue("q", QueueOptions("files", retention=9)),
        QueueOptions("files", retention=9),
    ),
    "pause": (policy_calls.pause("q"), PauseQueue("q"), PauseQueue("q"), None),
    "resume": (policy_calls.resume("q"), ResumeQueue("q"), ResumeQueue("q"), None),
    "redrive": (
        policy_calls.redrive("d"), RedriveMessages("d", max=1000), RedriveMessages("d", [7, 8], count=2), [7, 8],
    ),
    "redrive into one queue": (
        policy_calls.redrive("d", to="q", max=5), RedriveMessages("d", queues=["q"], max=5),
        RedriveMessages("d", [7], count=1), [7],
    ),
    "redrive some": (
        policy_calls.redrive("d", iter([5, 6]), to="q"), RedriveMessages("d", [5, 6], ["q"]),
        RedriveMessages("d", [7, 8], count=2), [7, 8],
    ),
    "purge": (calls.purge("q"), PurgeQueue("q"), PurgeQueue("q", 7), 7),
    "stats of all": (calls.stats(), QueueStats(), QueueStats(queues=[QueueInfo("q")]), [QueueInfo("q")]),
    "stats of one": (calls.stats("q"), QueueStats("q"), QueueStats("q"), []),
    "server_stats": (calls.server_stats(), ServerStats(), ServerStats(FIGURES), FIGURES),
    "server_stats with connections": (
        calls.server_stats(connections=True), ServerStats(connections=True), ServerStats(FIGURES), FIGURES,
    ),
    "ping": (calls.ping(), Ping(), Ping(), None),
    "push": (
        calls.push("q", "h\xe9", delay=1.5, key="k"),
        PushMessage("q", "h\xe9".encode(), 1.5, "k"), PushMessage("q", mid=5), 5,
    ),
    "push with attributes": (
        calls.push(
            "q", b"x", key="k", unique=True, priority=9, expires=60.5, group="acme", headers={"b": "\xe9 <", "A": ""},
        ),
        PushMessage(
            "q", b"x", key="k", unique=True, priority=9, expires=60.5, group="acme", headers={"b": "\xe9 <", "A": ""},
        ),
        PushMessage("q", mid=5), 5,
    ),
    "push without what may be left out": (
        calls.push("q", b"x", unique=False, priority=None, expires=None, group=None, headers={}),
        PushMessage("q", b"x"), PushMessage("q", mid=5), 5,
    ),
    "push of bytes": (calls.push("q", b"\x00"), PushMessage("q", b"\x00"), PushMessage("q", mid=5), 5),
    "push_many": (
        calls.push_many("q", [b"a", Draft(b"b", 2, "k")]),
        PushMessage("q", messages=[Draft(b"a"), Draft(b"b", 2, "k")]), PushMessage("q", mids=[1, 2]), [1, 2],
    ),
    "push_many with attributes": (
        calls.push_many("q", [b"a", Draft(b"b", priority=0, expires=1, group="g", headers={"a": "b"})]),
        PushMessage("q", messages=[Draft(b"a"), Draft(b"b", priority=0, expires=1, group="g", headers={"a": "b"})]),
        PushMessage("q", mids=[1, 2]), [1, 2],
    ),
    "receive": (
        calls.receive("q", 3, 20, 60),
        ReceiveMessage("q", max=3, wait=20, visibility=60), ReceiveMessage("q", messages=[DELIVERY]), [DELIVERY],
    ),
    "receive from several": (
        calls.receive(("a", "b")), ReceiveMessage(queues=["a", "b"], max=1, wait=0), ReceiveMessage(), [],
    ),
    "receive from several in the given order": (
        calls.receive(("b", "a"), order="given"), ReceiveMessage(queues=["b", "a"], max=1, wait=0, order="given"),
        ReceiveMessage(messages=[DELIVERY]), [DELIVERY],
    ),
    "receive_one in the given order": (
        calls.receive_one(("b", "a"), 20, order="given"),
        ReceiveMessage(queues=["b", "a"], max=1, wait=20, order="given"), ReceiveMessage(messages=[DELIVERY]), DELIVERY,
    ),
    "receive_one": (
        calls.receive_one("q", 20),
        ReceiveMessage("q", max=1, wait=20), ReceiveMessage("q", messages=[DELIVERY]), DELIVERY,
    ),
    "receive_one, nothing": (
        calls.receive_one("q"), ReceiveMessage("q", max=1, wait=0), ReceiveMessage("q"), None,
    ),
    "get": (calls.get("q", 5, visibility=9), GetMessage("q", 5, visibility=9), GOT, GOT),
    "peek": (calls.peek("q", 5), GetMessage("q", 5, peek=True), GOT, GOT),
    "delete": (calls.delete("q", 5), DeleteMessage("q", 5), DeleteMessage("q", 5), None),
    "delete a delivery": (
        calls.delete(DELIVERY), DeleteMessage("orders", DELIVERY.mid, 2), DeleteMessage("orders"), None,
    ),
    "delete by receipt": (calls.delete("q", Receipt(5, 3)), DeleteMessage("q", 5, 3), DeleteMessage("q", 5), None),
    "delete_many": (
        calls.delete_many("q", [1, Receipt(2, 3)]),
        DeleteMessage("q", mids=[1, Receipt(2, 3)]), DeleteMessage("q", mids=[2]), [2],
    ),
    "copy": (
        calls.copy("q", 5, ["a", "b"]), CopyMessage("q", 5, queues=["a", "b"]), CopyMessage("q", 5), [5],
    ),
    "copy a delivery": (
        calls.copy(DELIVERY, queues="a"), CopyMessage("orders", DELIVERY.mid, queues=["a"]), CopyMessage("orders"),
        [DELIVERY.mid],
    ),
    "copy several": (
        calls.copy("q", [1, Receipt(2, 3)], "a"),
        CopyMessage("q", mids=[1, 2], queues=["a"]), CopyMessage("q", mids=[2]), [2],
    ),
    "release": (
        calls.release(DELIVERY, delay=5),
        ReleaseMessage("orders", DELIVERY.mid, 2, 5), ReleaseMessage("orders"), None,
    ),
    "release, not counted": (
        calls.release("q", 5, count=False), ReleaseMessage("q", 5, uncounted=True), ReleaseMessage("q"), None,
    ),
    "extend": (
        calls.extend("q", 5, visibility=60),
        ExtendMessage("q", 5, visibility=60), ExtendMessage("q", 5, visible_at=77), 77,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "request_", "answer", "value"), CALLS.values(), ids=CALLS)
def test_call_sends_request_and_returns_value(call: Any, request_: Message, answer: Message, value: Any) -> None:
    """Each call sends the one request that its arguments mean, and returns what the answer says."""
    requests, returned = play(call, answer)
    assert requests == [request_]
    assert returned == value


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.code}-{row.kind}")
def test_exception_for_each_error_of_the_table(row: ErrorCode) -> None:
    """Every row of the error table is raised as an exception of its own kind, with code, type and text."""
    error = fail(calls.ping(), Error(row.code, row.kind, "why"))
    assert (error.code, error.type, error.text) == (row.code, row.kind, "why")
    assert type(error) is not ServerError
    assert str(error).startswith(f"{row.code} {row.kind}: why")


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        (409, "conflict", errors.Conflict),
        (409, "not-empty", errors.NotEmpty),
        (409, "stale", errors.Stale),
        (409, "of-another-version", errors.Conflict),
        (418, "teapot", ServerError),
        (418, "stale", ServerError),
    ],
)
def test_exception_for_conflicts_and_unknown_codes(code: int, kind: str, expected: type[ServerError]) -> None:
    """All 409 are Conflict, told apart by their type; what the table does not hold is a plain ServerError."""
    error = fail(calls.ping(), Error(code, kind, "why"))
    assert type(error) is expected
    assert isinstance(error, Conflict) == (code == 409)


def test_redrive_in_lists() -> None:
    """Ids go in lists of 1000; no ids are no request, rather than one for all dead letters."""
    answers = [RedriveMessages("d", [1]), RedriveMessages("d", [2])]
    requests, moved = play(policy_calls.redrive("d", range(1, 1002)), *answers)
    assert [len(request.mids) for request in requests if isinstance(request, RedriveMessages)] == [1000, 1]
    assert moved == [1, 2]
    assert play(policy_calls.redrive("d", [])) == ([], [])


@pytest.mark.parametrize(
    "call",
    [
        policy_calls.set_queue("q"),
        policy_calls.set_queue("q", retention=0),
        policy_calls.set_queue("q", max_receives=1001),
        calls.new_queue("q", max_receives=0),
        calls.new_queue("q", retention=0),
        policy_calls.redrive("d", max=1001),
        policy_calls.redrive("d", [10**18]),
    ],
)
def test_new_queue_with_options_out_of_bounds(call: Any) -> None:
    """An option that the protocol does not have, and no option at all, is a ValueError; nothing is sent."""
    with pytest.raises(ValueError, match=r"retention|max|mid|name at least one"):
        next(call)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: calls.push("q", "x", unique=True), "key is missing"),
        (lambda: calls.push("q", "x", priority=10), "priority is a whole number from 0 to 9"),
        (lambda: calls.push("q", "x", priority=-1), "priority is"),
        (lambda: calls.push("q", "x", expires=0), "expires is a number of seconds greater than 0"),
        (lambda: calls.push_many("q", [Draft("x", unique=True)]), "key is missing"),
        (lambda: calls.push_many("q", [Draft("x", priority=10)]), "priority is"),
        (lambda: calls.push_many("q", [Draft("x", expires=0)]), "expires is"),
        (lambda: calls.receive("q", order="newest"), "order is 'newest'"),
        (lambda: calls.new_queue("q", rate=0), "rate is a number of messages a second, more than 0"),
        (lambda: calls.new_queue("q", rate=float("nan")), "rate is"),
        (lambda: calls.new_queue("q", max_in_flight=0), "max_in_flight is"),
        (lambda: policy_calls.set_queue("q", group_in_flight=0), "group_in_flight is"),
    ],
)
def test_order_and_pace_out_of_bounds(call: Callable[[], Any], text: str) -> None:
    """A priority, a time, a rate or a number that the protocol does not have, and `unique` without a key, is a
    ValueError that names it; nothing is sent."""
    with pytest.raises(ValueError, match=text):
        next(call())


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"qs-mine": "x"}, "'qs-mine'"),
        ({"a b": "x"}, "'a b'"),
        ({"a": "1", "A": "2"}, "twice"),
        ({str(number): "" for number in range(33)}, "33 headers"),
        ({"a": "x" * 8192}, "8193 bytes"),
    ],
)
def test_headers_out_of_bounds(headers: dict[str, str], text: str) -> None:
    """Headers that the protocol does not have are a ValueError when the request is written, and not sent."""
    for call in calls.push("q", "x", headers=headers), calls.push_many("q", [Draft("x", headers=headers)]):
        with pytest.raises(ValueError, match=text):
            write(next(call).request)


def test_a_group_out_of_bounds() -> None:
    """The name of a group has 1 to 128 characters: another one is a ValueError, and not sent."""
    for name in ("", "x" * 129):
        for call in calls.push("q", "x", group=name), calls.push_many("q", [Draft("x", group=name)]):
            with pytest.raises(ValueError, match="group"):
                write(next(call).request)


def test_a_unique_push_is_not_repeated() -> None:
    """A push with a key is sent again after a lost connection; with `unique` it is not, as its message may have been
    handled meanwhile, and the key would not count any more."""
    for unique, repeated in ((False, True), (True, False)):
        call = calls.push("q", "x", key="k", unique=unique)
        request = next(call).request
        try:
            again = call.throw(ServerUnavailable("gone")).request
        except ServerUnavailable:
            again = None
        assert (again is request) == repeated


def test_server_error_survives_pickling() -> None:
    """An exception can go from one process to another: Spark and multiprocessing do that."""
    error = pickle.loads(pickle.dumps(errors.NotFound(404, "not-found", "no queue 'q'", "ab")))
    assert (type(error), error.code, error.type, error.text, error.resp) == (
        NotFound,
        404,
        "not-found",
        "no queue 'q'",
        "ab",
    )


def test_internal_error_names_its_log_entry() -> None:
    """A 500 says under which id the server logged it."""
    error = fail(calls.ping(), Error(500, "internal", "it broke", resp="c0ffee"))
    assert isinstance(error, InternalError)
    assert "c0ffee" in str(error)


def test_new_and_delete_queue_with_ok_flags() -> None:
    """A queue that is already there, or already gone, is not an error when the caller says so, and the value tells."""
    conflict, missing = Error(409, "conflict", "exists"), Error(404, "not-found", "no queue")
    asked, made = play(calls.new_queue("q", exist_ok=True, capacity=5), conflict, NewQueue("q"))
    assert ([request.exist_ok for request in asked], made) == ([False, True], False)  # type: ignore[attr-defined]
    assert asked[1].options == QueueOptions(capacity=5)  # type: ignore[attr-defined]
    assert play(calls.new_queue("q", exist_ok=True), NewQueue("q"))[1] is True
    with pytest.raises(Conflict):  # with other options
        play(calls.new_queue("q", exist_ok=True), conflict, conflict)
    assert play(calls.delete_queue("q", missing_ok=True), missing)[1] is False
    assert isinstance(fail(calls.new_queue("q"), conflict), Conflict)
    assert isinstance(fail(calls.delete_queue("q"), missing), NotFound)


def test_new_queue_with_exist_ok_at_an_earlier_server() -> None:
    """A server that does not know `exist-ok` says that the queue exists, and cannot compare options. Any other fault of
    the request is raised."""
    conflict = Error(409, "conflict", "exists")
    unknown = Error(400, "bad-request", "line 1: Element 'op', attribute 'exist-ok': The attribute is not allowed.")
    assert play(calls.new_queue("q", exist_ok=True), conflict, unknown)[1] is False
    with pytest.raises(BadRequest):
        play(calls.new_queue("q", exist_ok=True, backoff_max=5), conflict, Error(400, "bad-request", "'backoff-max' …"))


def test_receive_with_wait_has_patience() -> None:
    """The server may take as long as a receive waits, beyond the client's timeout."""
    assert next(calls.receive("q", wait=20)).patience == 20
    assert next(calls.ping()).patience == 0


def test_receive_adds_the_queue_to_deliveries() -> None:
    """A delivery can always be passed to delete, also from a server that does not repeat the queue's name."""
    _, deliveries = play(calls.receive("q"), ReceiveMessage("q", messages=[Delivery(1, b"")]))
    assert deliveries[0].qid == "q"


def test_delete_after_peek_has_no_receives() -> None:
    """Nobody holds a peeked message, so deleting it cannot be stale; one that get() delivered is protected."""
    answer = DeleteMessage("q", 5)
    assert play(calls.delete(GetMessage("q", 5, status="ready", receives=0)), answer)[0] == [DeleteMessage("q", 5)]
    assert play(calls.delete(GetMessage("q", 5, status="delivered", receives=1)), answer)[0] == [
        DeleteMessage("q", 5, 1)
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda: calls.delete("q"),
        lambda: calls.release(DELIVERY, 5),
        lambda: calls.copy("q", 5),
        lambda: calls.copy("q", queues="a"),
        lambda: calls.copy(DELIVERY, [5], "a"),
        lambda: calls.push("q", 5),  # type: ignore[arg-type]
        lambda: calls.push("q", None),  # type: ignore[arg-type]
        lambda: calls.push("q", Draft("x", delay=5)),  # type: ignore[arg-type] # its delay would be lost
        lambda: calls.push("q", "x", headers=[("a", "b")]),  # type: ignore[arg-type]
        lambda: calls.push("q", "x", headers={"a": 5}),  # type: ignore[dict-item]
        lambda: calls.push("q", "x", group=5),
        lambda: calls.push("q", "x", priority="9"),  # type: ignore[arg-type]
        lambda: calls.push("q", "x", priority=True),
        lambda: calls.push_many("q", [Draft("x", priority=1.5)]),  # type: ignore[arg-type]
        lambda: calls.new_queue("q", fair=1),  # type: ignore[arg-type]
        lambda: calls.new_queue("q", rate=True),
        lambda: calls.new_queue("q", rate="5"),  # type: ignore[arg-type]
        lambda: calls.push_many("q", "abc"),
        lambda: calls.push_many("q", b"abc"),
        lambda: calls.push_many("q", [5]),  # type: ignore[list-item]
        *(lambda wrong=wrong: calls.new_queue(wrong) for wrong in (5, ["q"], True)),
        lambda: calls.new_queue("q", storage=5),
        lambda: calls.push("q", b"x", key=5),
        lambda: calls.push(5, b"x"),
        lambda: calls.receive([5]),
        lambda: calls.receive(5),
        lambda: calls.delete(5, 1),
        lambda: calls.delete_many([("q", 1)]),
        lambda: calls.copy("q", 1, [5]),
        lambda: calls.list_messages(5),
        lambda: calls.subscribe([5]),
        lambda: claim_calls.claim_messages("q", 5, 1),
        lambda: claim_calls.publish_staged("q", 5, 1, []),
    ],
)
def test_arguments_of_the_wrong_type(call: Callable[[], Generator[asking.Exchange, Message, Any]]) -> None:
    """Arguments of the wrong kind are a TypeError before anything is sent: no id, two ids, a number as payload, one as
    many."""
    with pytest.raises(TypeError):
        next(call())


BYTES: list[Any] = [
    calls.new_queue(b"\xc3\xa9"), calls.push(b"\xc3\xa9", b"\xff"), calls.receive(bytearray(b"\xc3\xa9")),
    calls.delete(b"\xc3\xa9", 5), calls.delete_many(b"\xc3\xa9", [5]), calls.stats(b"\xc3\xa9"),
    calls.copy(b"\xc3\xa9", 5, b"b"), claim_calls.ack_claim(b"\xc3\xa9", b"c", 1),
]  # fmt: skip


@pytest.mark.parametrize("call", BYTES, ids=lambda call: call.__qualname__)
def test_name_in_bytes(call: Generator[asking.Exchange, Message, Any]) -> None:
    """A name that is bytes is meant as UTF-8, in every call; as are those of several queues."""
    request = next(call).request
    assert request.qid == "\xe9"  # type: ignore[attr-defined]
    several: Any = [b"a", "b"]
    received = next(calls.receive(several)).request
    assert (received.queues, calls.subscribe(several).request.queues) == (["a", "b"], ["a", "b"])  # type: ignore[attr-defined]


def test_name_in_bytes_that_are_not_utf8() -> None:
    """Bytes that are not UTF-8 are a ValueError that says which field has them."""
    with pytest.raises(ValueError, match="qid is not UTF-8"):
        next(calls.new_queue(b"\xff"))  # type: ignore[arg-type]


def test_push_many_goes_in_lists_of_1000() -> None:
    """2500 messages travel in three lists, and their ids come back in order; none at all asks nothing."""
    answers = [PushMessage("q", mids=list(range(first, min(first + 1000, 2500)))) for first in (0, 1000, 2000)]
    requests, mids = play(calls.push_many("q", (str(n) for n in range(2500))), *answers)
    assert [len(request.messages) for request in requests if isinstance(request, PushMessage)] == [1000, 1000, 500]
    assert mids == list(range(2500))
    assert play(calls.push_many("q", [])) == ([], [])


@pytest.mark.parametrize("character", [b"a", b"&", b"\n", b"\r", b"<", b">", b"\x00", b"\xff", "é".encode()])
def test_push_many_lists_stay_under_a_documents_size(character: bytes) -> None:
    """A list stays under the bytes that a server takes by default, however long its payloads are when written."""
    payloads = [character * 700_000] * 12
    written = [len(Peer().send(PushMessage("q", messages=batch))) for batch in batches.drafts_in_batches(payloads)]
    assert len(written) > 1
    assert max(written) < 8 * 1024 * 1024


@pytest.mark.parametrize("character", ["a", "&", "\n", '"', "\u20ac", "\U0001f34e"])
def test_push_many_lists_with_headers_stay_under_a_documents_size(character: str) -> None:
    """A list stays under the bytes that a server takes by default, however long its headers are when written."""
    headers = {f"h{number}": character * (250 // len(character.encode())) for number in range(32)}
    written = [
        len(write(PushMessage("q", messages=batch)))
        for batch in batches.drafts_in_batches([Draft(b"x", headers=headers)] * 1000)
    ]
    assert len(written) > 1
    assert max(written) < 8 * 1024 * 1024


def test_push_many_sends_a_large_message_alone() -> None:
    """A message larger than a list's bound is still sent: only the server knows what is too large."""
    large = b"x" * (5 * 1024 * 1024)
    assert [len(batch) for batch in batches.drafts_in_batches([b"a", large, b"b", b"c"])] == [1, 1, 2]


@pytest.mark.parametrize("trouble", [Error(507, "full", "no space"), ServerUnavailable("gone"), NoAnswer("silent")])
def test_push_many_says_how_far_it_came(trouble: Error | Exception) -> None:
    """When a later list fails, the exception keeps its kind and notes how many messages are stored."""
    call = calls.push_many("q", [b""] * 1500)
    next(call)
    call.send(PushMessage("q", mids=list(range(1000))))
    with pytest.raises((Full, ServerUnavailable)) as raised:
        call.send(trouble) if isinstance(trouble, Error) else call.throw(trouble)
    assert raised.value.__notes__ == ["the first 1000 messages are stored"]


def test_delete_many_goes_by_queue_in_lists_of_1000() -> None:
    """Deliveries of several queues are deleted with one list for each queue, with receipts; ids in lists of 1000."""
    deliveries = [Delivery(1, b"", "a", 1), Delivery(2, b"", "b", 2), Delivery(3, b"", "a", 3)]
    requests, deleted = play(
        calls.delete_many(deliveries), DeleteMessage("a", mids=[1, 3]), DeleteMessage("b", mids=[Receipt(2, 2)])
    )
    assert requests == [
        DeleteMessage("a", mids=[Receipt(1, 1), Receipt(3, 3)]),
        DeleteMessage("b", mids=[Receipt(2, 2)]),
    ]
    assert deleted == [1, 3, 2]
    requests, _ = play(calls.delete_many("q", range(1, 1002)), DeleteMessage("q", mids=[1]), DeleteMessage("q"))
    assert [len(request.mids) for request in requests if isinstance(request, DeleteMessage)] == [1000, 1]
    assert play(calls.delete_many([])) == ([], [])


def test_list_messages_pages() -> None:
    """The next page is asked for after the last id of a full one; a page that is not full is the last."""
    pages = calls.list_messages("q", state="all", after=7)
    requests, mids = play(next(pages), ListMessages("q", mids=list(range(1000, 2000))))
    assert requests == [ListMessages("q", "all", 1000, 7)]
    requests, mids = play(pages.send(mids), ListMessages("q", mids=[2000]))
    assert requests == [ListMessages("q", "all", 1000, 1999)]
    with pytest.raises(StopIteration):
        pages.send(mids)


def test_answer_that_lacks_its_value() -> None:
    """A server that leaves out what the answer is about is at fault, and the text says what is missing."""
    with pytest.raises(InternalError, match="no mid"):
        play(calls.push("q", b""), PushMessage("q"))


@pytest.mark.parametrize(("queues", "sizes"), [(3, [1000, 1000, 500]), (30, [100] * 25), (4000, [1, 1, 1])])
def test_copy_goes_in_lists_that_a_server_takes(queues: int, sizes: list[int]) -> None:
    """`copy()` of many ids into many queues asks for at most as many copies at once as a server makes."""
    mids, into = list(range(sum(sizes))), [f"q{number}" for number in range(queues)]
    answers = [CopyMessage("q", mids=[1]) for _ in sizes]
    requests, copied = play(calls.copy("q", mids, into), *answers)
    assert [len(request.mids) for request in requests if isinstance(request, CopyMessage)] == sizes
    assert copied == [1] * len(sizes)
