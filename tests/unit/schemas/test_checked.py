"""Fields of text: what they take, whenever they are set, and that messages stay what a dataclass is."""

import copy
import dataclasses
import pickle
import types
from typing import Any, get_args, get_type_hints

import pytest

from qs_schemas import (
    OPERATIONS,
    Draft,
    Error,
    GetMessage,
    Message,
    NewQueue,
    Ping,
    PushMessage,
    QueueOptions,
    Subscribe,
    serialize,
)

CLASSES: list[Any] = [*OPERATIONS.values(), Error, Draft, QueueOptions]


def new(cls: Any, **fields: Any) -> Any:
    return cls(**({"payload": b""} if cls is Draft else {}), **fields)


def fields_of(kind: Any) -> list[tuple[Any, str]]:
    return [
        (cls, field.name)
        for cls in CLASSES
        for field in dataclasses.fields(cls)
        if (hint := get_type_hints(cls)[field.name]) == kind
        or (isinstance(hint, types.UnionType) and set(get_args(hint)) == {kind, types.NoneType})
    ]


TEXTS, LISTS = fields_of(str), fields_of(list[str])


def test_checked_decodes_and_refuses_every_field() -> None:
    """Bytes given for any text of any message are decoded, by the constructor and when they are set; another type is a
    TypeError that names the field, bytes that are not UTF-8 a ValueError, and what was there stays."""
    assert len(TEXTS) > 100
    assert {"qid", "key", "consumer", "producer", "req", "type", "token", "storage", "text"} <= {
        name for _, name in TEXTS
    }
    for cls, name in TEXTS:
        message = new(cls, **{name: "\xe9".encode()})
        assert getattr(message, name) == "\xe9"
        setattr(message, name, memoryview(b"b"))
        assert getattr(message, name) == "b"
        for wrong in (5, 1.5, True, ["b"], object()):
            with pytest.raises(TypeError, match=f"{name} is text"):
                setattr(message, name, wrong)
            with pytest.raises(TypeError, match=f"{name} is text"):
                new(cls, **{name: wrong})
        with pytest.raises(ValueError, match=f"{name} is not UTF-8: b'.xff'"):
            setattr(message, name, b"\xff")
        assert getattr(message, name) == "b"


def test_checked_decodes_and_refuses_every_list() -> None:
    """The entries of a list likewise; one name alone is not a list. A list of text stays the very same."""
    assert {cls.op for cls, _ in LISTS} == {
        "list-queues",
        "receive-message",
        "copy-message",
        "redrive-messages",
        "subscribe",
    }
    for cls, name in LISTS:
        queues = ["a"]
        message = cls(**{name: queues})
        assert getattr(message, name) is queues
        setattr(message, name, (b"a", "b"))
        assert getattr(message, name) == ["a", "b"]
        for wrong in ("ab", b"ab", 5, [5], [None]):
            with pytest.raises(TypeError):
                setattr(message, name, wrong)


def test_checked_makes_dataclasses() -> None:
    """Messages compare, show, copy, pickle and replace as before; a field that is not there cannot be set."""
    message = PushMessage("a", b"x", key="k", req="1")
    assert repr(message).startswith("PushMessage(type='request', req='1', resp=None, qid='a', payload=b'x'")
    for same in (copy.copy(message), pickle.loads(pickle.dumps(message)), dataclasses.replace(message)):
        assert same == message
    assert dataclasses.replace(message, qid=b"b").qid == "b"  # type: ignore[arg-type]
    assert PushMessage("a").messages is not PushMessage("a").messages
    assert (Error().type, Ping().type) == ("error", "request")
    with pytest.raises(AttributeError):
        message.quid = "a"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        PushMessage(quid="a")  # type: ignore[call-arg]


def test_checked_takes_what_bucker_gives() -> None:
    """`m = NewQueue(); m.qid = b"event"` names the queue `event`; `request_id` is the `req`, set and read."""
    message = NewQueue()
    message.qid = b"event"  # type: ignore[assignment]
    message.request_id = b"17"  # type: ignore[assignment]
    assert (message.req, message.request_id) == ("17", "17")
    assert b' req="17"' in serialize(message)
    assert b"<qid>event</qid>" in serialize(message)
    for cls in CLASSES[:-2]:
        assert cls(req="5").request_id == "5"
    answer = Message.parse(serialize(GetMessage("a", 1, type="response", req="5")))
    assert answer.request_id == "5"


def test_checked_refuses_none_for_text() -> None:
    """Optional fields may be None, required ones may not."""
    subscribe = Subscribe(None, name=None)
    subscribe.qid = None
    with pytest.raises(TypeError):
        subscribe.type = None  # type: ignore[assignment]
