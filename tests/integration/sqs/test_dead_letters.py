"""Dead letters at SQS: its redrive policy, set and read, and what is received of the messages that it has moved."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.storage.sqs import FaultySqs, RefusedError, SqsServer, failing, mids, push, receive, sqs_engine, url_of

from qs_storage.engine import (
    SECOND,
    DeadLetterCycleError,
    Options,
    Origin,
    Receipt,
    RemoteError,
    UnsupportedError,
)
from qs_storage.remote.sqs import SqsEngine


def configure(engine: SqsEngine, qid: str = "q", **changes: Any) -> None:
    engine.configure(qid, replace(engine.options(qid), **changes))


def policy(engine: SqsEngine, qid: str = "q") -> tuple[str, int | None]:
    options = engine.options(qid)
    return options.dead_letter, options.max_receives


def attributes(engine: SqsEngine, other: Any, qid: str = "q") -> dict[str, str]:
    found: dict[str, str] = other.get_queue_attributes(QueueUrl=url_of(engine, qid), AttributeNames=["All"])[
        "Attributes"
    ]
    return found


def arn(engine: SqsEngine, other: Any, qid: str) -> str:
    return attributes(engine, other, qid)["QueueArn"]


def fail(engine: SqsEngine, times: int, qid: str = "q") -> None:
    for _ in range(times):
        for message in receive(engine, qid):
            engine.queue(qid).release(Receipt(message.mid), 0)


def test_new_queue(engine: SqsEngine, other: Any, tmp_path: Path, server: SqsServer) -> None:
    """The policy is SQS's, from the queue's beginning; the dead-letter queue is made, here and there. The next engine
    asks for it: nothing of it is in `.queue.toml`."""
    engine.create("jobs", Options(dead_letter="a/b", max_receives=3))
    said = json.loads(attributes(engine, other, "jobs")["RedrivePolicy"])
    assert said == {"deadLetterTargetArn": arn(engine, other, "a/b"), "maxReceiveCount": 3}
    assert sorted(engine.queues()) == ["a/b", "jobs", "q"]
    assert "dead" not in (tmp_path / "jobs" / ".queue.toml").read_text()
    assert policy(engine, "jobs") == ("a/b", 3)
    again = sqs_engine(tmp_path, server.url, prefix=engine._prefix)
    assert policy(again, "jobs") == ("a/b", 3)
    assert policy(again, "q") == ("", None)
    again.close()


def test_changes(engine: SqsEngine, other: Any) -> None:
    """A policy is set, changed and removed; what is not changed is left as it is at SQS."""
    engine.create("dead", Options())
    other.set_queue_attributes(QueueUrl=url_of(engine), Attributes={"VisibilityTimeout": "99"})
    configure(engine, dead_letter="dead", max_receives=2)
    assert (policy(engine), attributes(engine, other)["VisibilityTimeout"]) == (("dead", 2), "99")
    configure(engine, max_receives=5)
    assert policy(engine) == ("dead", 5)
    configure(engine, visibility=5 * SECOND + 1)
    assert (policy(engine), attributes(engine, other)["VisibilityTimeout"]) == (("dead", 5), "6")
    assert engine.queue("q").options.visibility == 5 * SECOND + 1
    configure(engine, dead_letter="", max_receives=None)
    assert policy(engine) == ("", None)
    assert "RedrivePolicy" not in attributes(engine, other)


def test_changed_by_others(engine: SqsEngine, other: Any) -> None:
    """A policy that another program has set holds. A dead-letter queue that this server cannot name is not shown, and
    the policy stays until it is set here."""
    engine.create("dead", Options())
    foreign = other.create_queue(QueueName="foreign")["QueueUrl"]
    unknown = other.get_queue_attributes(QueueUrl=foreign, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    for target, shown in ((arn(engine, other, "dead"), ("dead", 7)), (unknown, ("", None))):
        said = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 7})
        other.set_queue_attributes(QueueUrl=url_of(engine), Attributes={"RedrivePolicy": said})
        assert policy(engine) == shown
        configure(engine, visibility=SECOND)
        assert json.loads(attributes(engine, other)["RedrivePolicy"])["deadLetterTargetArn"] == target
    configure(engine, dead_letter="dead", max_receives=1)
    assert policy(engine) == ("dead", 1)


def test_a_queue_that_is_taken_up(engine: SqsEngine, other: Any) -> None:
    """A queue that is at SQS already gets the policy, and keeps its other attributes."""
    name = f"{engine._prefix}there"
    other.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "99"})
    engine.create("there", Options(dead_letter="dead", max_receives=2))
    assert policy(engine, "there") == ("dead", 2)
    assert attributes(engine, other, "there")["VisibilityTimeout"] == "99"


def test_a_message_dies(engine: SqsEngine, other: Any, proxy: FaultySqs) -> None:
    """After so many receives the next one finds it in the dead-letter queue, under its id, saying from where it came;
    what SQS does not tell is not told."""
    configure(engine, dead_letter="dead", max_receives=2)
    [mid] = push(engine, b"poison")
    fail(engine, 2)
    assert receive(engine) == []
    proxy.sources[url_of(engine, "dead")] = arn(engine, other, "q")
    [message] = receive(engine, "dead")
    assert (message.mid, message.payload) == (mid, b"poison")
    assert message.origin == Origin("q", mid, 0, 0, "receives", message.pushed_at)
    engine.queue("dead").delete(Receipt(mid, message.receives))
    proxy.sources[url_of(engine)] = "arn:aws:sqs:us-east-1:123456789012:foreign"
    push(engine, b"x")
    assert [each.origin for each in receive(engine)] == [None]


def test_a_chain_of_three(engine: SqsEngine) -> None:
    """A dead-letter queue has one of its own."""
    engine.create("third", Options())
    engine.create("second", Options(dead_letter="third", max_receives=3))
    configure(engine, dead_letter="second", max_receives=1)
    [mid] = push(engine, b"x")
    fail(engine, 1)
    assert receive(engine) == []
    fail(engine, 2, "second")
    assert receive(engine, "second") == []
    assert mids(receive(engine, "third")) == [mid]


def test_cycles(engine: SqsEngine, other: Any) -> None:
    """A queue can name neither itself nor a cycle, also when another program has made a part of it; nothing changes."""
    for qid in ("second", "third"):
        engine.create(qid, Options())
    configure(engine, dead_letter="second", max_receives=1)
    said = json.dumps({"deadLetterTargetArn": arn(engine, other, "third"), "maxReceiveCount": 1})
    other.set_queue_attributes(QueueUrl=url_of(engine, "second"), Attributes={"RedrivePolicy": said})
    for qid, dead in (("third", "q"), ("third", "third")):
        with pytest.raises(DeadLetterCycleError):
            configure(engine, qid, dead_letter=dead, max_receives=1)
    assert policy(engine, "third") == ("", None)
    with pytest.raises(DeadLetterCycleError):
        engine.create("new", Options(dead_letter="new", max_receives=1))
    assert sorted(engine.queues()) == ["q", "second", "third"]


def test_another_storage(engine: SqsEngine, tmp_path: Path) -> None:
    """A queue of another storage cannot be the dead-letter queue."""
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / ".queue.toml").write_text('storage = "journal"\n')
    (tmp_path / "plain").mkdir()
    for dead, storage in (("local", "'journal'"), ("plain", "of the server's own")):
        with pytest.raises(UnsupportedError, match=rf"'{dead}' has the storage .*{storage}.*that of the queue, 'sqs'"):
            configure(engine, dead_letter=dead, max_receives=1)
        with pytest.raises(UnsupportedError, match="that of the queue, 'sqs'"):
            engine.create("new", Options(dead_letter=dead, max_receives=1))
    assert (policy(engine), list(engine.queues())) == (("", None), ["q"])


def test_a_dead_letter_queue_that_is_gone_at_sqs(engine: SqsEngine, other: Any) -> None:
    """The error names a dead-letter queue that is gone at SQS, and nothing changes."""
    engine.create("dead", Options())
    other.delete_queue(QueueUrl=url_of(engine, "dead"))
    with pytest.raises(RemoteError, match=r"there is no queue '.*-dead' at SQS"):
        configure(engine, dead_letter="dead", max_receives=1)
    assert policy(engine) == ("", None)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"capacity": 5}, "no capacity"),
        ({"paused": True}, "cannot pause"),
        ({"visibility": 43_201 * SECOND}, "at most 43200 seconds"),
    ],
)
def test_options_that_cannot_be_set(engine: SqsEngine, other: Any, changes: dict[str, Any], text: str) -> None:
    """Options that cannot be set are refused before anything is changed."""
    before = attributes(engine, other), engine.options("q")
    with pytest.raises(UnsupportedError, match=text):
        configure(engine, dead_letter="dead", max_receives=1, **changes)
    assert (attributes(engine, other), engine.options("q")) == before
    assert list(engine.queues()) == ["q"]


@pytest.mark.parametrize("word", ["InvalidParameterValue", "InvalidAttributeValue"])
def test_what_sqs_refuses(engine: SqsEngine, proxy: FaultySqs, word: str) -> None:
    """A value that SQS does not take is refused with its words; another error is none of the value's."""
    proxy.before = failing(1, RefusedError(400, word, "the policy is wrong"), "SetQueueAttributes")
    with pytest.raises(UnsupportedError, match="the policy is wrong"):
        configure(engine, dead_letter="dead", max_receives=1)
    proxy.before = failing(1, RefusedError(403, "AccessDenied"), "SetQueueAttributes")
    with pytest.raises(RemoteError, match="does not accept the server's credentials for set_queue_attributes"):
        configure(engine, dead_letter="dead", max_receives=1)
    assert policy(engine) == ("", None)


def test_redrive(engine: SqsEngine) -> None:
    """A redrive is refused, with what to do instead."""
    with pytest.raises(UnsupportedError, match="start-message-move-task"):
        _ = engine.queue("q").redrive


def test_an_answer_that_is_not_of_sqs(engine: SqsEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that gives no ARN, or an invalid policy, is reported as no SQS."""
    for found in ({}, {"QueueArn": "a:b:q", "RedrivePolicy": "["}, {"QueueArn": "a:b:q", "RedrivePolicy": "[]"}):
        monkeypatch.setattr(engine.queue("q"), "attributes", lambda names, found=found: found)
        with pytest.raises(RemoteError, match="does not answer as SQS does"):
            engine.options("q")


def test_retention(engine: SqsEngine, other: Any) -> None:
    """The retention is SQS's, by default 4 days; a value that others set is shown, and stays until it is changed."""
    assert engine.options("q").retention == 345_600 * SECOND
    engine.create("aging", Options(retention=60 * SECOND + 1))
    assert attributes(engine, other, "aging")["MessageRetentionPeriod"] == "61"
    other.set_queue_attributes(QueueUrl=url_of(engine, "aging"), Attributes={"MessageRetentionPeriod": "1209600"})
    configure(engine, "aging", dead_letter="dead", max_receives=1)
    assert engine.options("aging").retention == 1_209_600 * SECOND
    configure(engine, "aging", retention=None)
    assert engine.options("aging").retention == 345_600 * SECOND
