"""Tests what `qs` writes for people and for programs."""

import io
import json

import pytest

from qs_client import Delivery, GetMessage, QueueInfo
from qs_client.command_look import distance
from qs_client.command_output import Output

COLUMNS = ("new", "in_flight", "oldest", "storage")


def written(as_json: bool = False) -> tuple[Output, io.BytesIO]:
    stream = io.BytesIO()
    return Output(stream, as_json=as_json), stream


def test_line_for_people_and_programs() -> None:
    """A line for people, or an object a line for programs; success without a text is silent."""
    out, stream = written()
    out.line("5", {"mid": 5})
    out.line(None, {"qid": "q"})
    assert stream.getvalue() == b"5\n"
    out, stream = written(as_json=True)
    out.line("5", {"mid": 5})
    out.line(None, {"qid": "h\xe9\n"})
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [{"mid": 5}, {"qid": "h\xe9\n"}]


@pytest.mark.parametrize(
    ("payload", "expected"), [(b"x", b"x\n"), (b"x\n", b"x\n"), (b"", b"\n"), ("\xe9".encode(), b"\xc3\xa9\n")]
)
def test_message_with_text_ends_its_line(payload: bytes, expected: bytes) -> None:
    """Text goes out with a line end if it has none; -v puts a heading before it."""
    out, stream = written()
    out.message(Delivery(5, payload, "q", 2))
    assert stream.getvalue() == expected
    out.message(Delivery(5, payload, "q", 2), heading=True)
    assert stream.getvalue() == expected + b"==> q 5 (receives 2) <==\n" + expected


@pytest.mark.parametrize("payload", [b"\xff\x00", b"\x00", b"a\x1b", b"\x89PNG\r\n", "\uffff".encode()])
def test_message_with_bytes_is_unchanged(payload: bytes) -> None:
    """A payload that is not text goes out byte for byte. With -v, and in qs tail, a line end follows it if it has
    none."""
    out, stream = written()
    out.message(Delivery(5, payload, "q", 2))
    out.message(Delivery(6, payload, "q", 2))
    assert stream.getvalue() == payload * 2
    out, stream = written()
    out.message(Delivery(5, payload, "q", 2), ended=True)
    assert stream.getvalue() == payload.removesuffix(b"\n") + b"\n"
    out, stream = written()
    out.message(Delivery(5, payload, "q", 2), heading=True)
    assert stream.getvalue() == b"==> q 5 (receives 2) <==\n" + payload.removesuffix(b"\n") + b"\n"


def test_message_as_json() -> None:
    """A payload is text where it is UTF-8, else base64 under another name; what is not known is left out."""
    out, stream = written(as_json=True)
    out.message(Delivery(5, "h\xe9".encode(), "q", 2, 6, 7))
    out.message(Delivery(5, b"\xff", "q"), heading=True)
    out.message(GetMessage("q", 5, status="in-flight", visible_at=9))
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"qid": "q", "mid": 5, "receives": 2, "pushed_at": 6, "visible_at": 7, "payload": "h\xe9"},
        {"qid": "q", "mid": 5, "payload_base64": "/w=="},
        {"qid": "q", "mid": 5, "status": "in-flight", "visible_at": 9},
    ]


def test_message_that_is_a_dead_letter_has_a_heading() -> None:
    """A dead letter tells where it comes from: in the heading for people, in fields of their own for programs."""
    letter = Delivery(
        9, b"x", "failed", 1, dead_from="q", dead_mid=5, dead_receives=3, dead_at=0, dead_reason="receives"
    )
    out, stream = written()
    out.message(letter, heading=True)
    assert stream.getvalue().decode().splitlines() == [
        "==> failed 9 (receives 1; dead letter of q 5, after 3 receives at 1970-01-01T00:00:00.000000Z) <==",
        "x",
    ]
    out, stream = written(as_json=True)
    out.message(letter)
    origin = {"dead_from": "q", "dead_mid": 5, "dead_receives": 3, "dead_at": 0, "dead_reason": "receives"}
    assert json.loads(stream.getvalue()) == {"qid": "failed", "mid": 9, "receives": 1, **origin, "payload": "x"}


def test_message_with_attributes() -> None:
    """Priority, group, expiry and the names of headers stand in the heading; --headers also shows their texts, each on
    a line of its own, and programs get all of them."""
    pushed = Delivery(
        5, b"x", "q", 1, priority=9, group="acme\n", expires_at=0, headers={"traceparent": "00-\x1b[m\n1", "b": "\xe9"}
    )
    said = "receives 1; priority 9; group acme; expires at 1970-01-01T00:00:00.000000Z; headers traceparent, b"
    heading = f"==> q 5 ({said}) <=="
    out, stream = written()
    out.message(pushed, heading=True)
    assert stream.getvalue().decode() == f"{heading}\nx\n"
    out, stream = written()
    out.message(pushed, headers=True)
    assert stream.getvalue().decode() == f"{heading}\ntraceparent: 00- [m 1\nb: \xe9\n\nx\n"
    out, stream = written()
    out.message(Delivery(5, b"x", "q", 2), headers=True)
    assert stream.getvalue() == b"==> q 5 (receives 2) <==\n\nx\n"
    out, stream = written(as_json=True)
    out.message(pushed)
    assert json.loads(stream.getvalue()) == {
        "qid": "q", "mid": 5, "receives": 1, "priority": 9, "group": "acme\n", "expires_at": 0,
        "headers": {"traceparent": "00-\x1b[m\n1", "b": "\xe9"}, "payload": "x",
    }  # fmt: skip


def test_table_says_why_nothing_comes_out() -> None:
    """The column idle has one word for each queue, a dash if its messages can be had; programs get the word too."""
    queues = [QueueInfo("a", limited="max-in-flight"), QueueInfo("b", ready=0, in_flight=1), QueueInfo("c", ready=1)]
    out, stream = written()
    out.queues(queues, ("ready", "idle"))
    assert [line.split() for line in stream.getvalue().decode().splitlines()[1:]] == [
        ["a", "-", "limited-by-max-in-flight"], ["b", "0", "in-flight"], ["c", "1", "-"],
    ]  # fmt: skip
    out, stream = written(as_json=True)
    out.queues(queues[1:], ())
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each.get("idle") for each in found] == ["in-flight", None]


def test_table_is_aligned() -> None:
    """Names stand to the left, figures to the right, and what is not known is a dash."""
    out, stream = written()
    queues = [
        QueueInfo("a", new=1000, in_flight=5, oldest=1.25, storage="files", paused=True),
        QueueInfo("longer", new=1, paused=False),
    ]
    out.queues(queues, (*COLUMNS, "paused"))
    assert stream.getvalue().decode().splitlines() == [
        "QUEUE    NEW  IN-FLIGHT  OLDEST  STORAGE  PAUSED",
        "a       1000          5     1.2    files     yes",
        "longer     1          -       -        -      no",
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, "now"), (0, "now"), (0.01, "in 1 s"), (59.5, "in 1 min 0 s"), (89, "in 1 min 29 s"),
        (3600, "in 1 h 0 min"), (7199, "in 1 h 59 min"), (90000, "in 1 d 1 h"), (86400 * 400, "in 400 d 0 h"),
    ],
)  # fmt: skip
def test_distance_in_two_units(seconds: float, expected: str) -> None:
    """A time is told in its largest unit and the next one; what has passed is now, as clocks may differ."""
    assert distance(seconds) == expected


def test_queues_as_json() -> None:
    """Programs get all that is known of a queue, whichever columns people see."""
    out, stream = written(as_json=True)
    out.queues([QueueInfo("a", new=1, deleted=7)], COLUMNS)
    assert json.loads(stream.getvalue()) == {"qid": "a", "new": 1, "deleted": 7}
