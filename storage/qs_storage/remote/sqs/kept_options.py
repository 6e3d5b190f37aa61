"""The options of a queue that SQS keeps: dead-letter queue, receives, retention. Other programs can change them at
SQS, so this server keeps no copy and asks."""

import json
from collections.abc import Mapping
from dataclasses import replace

from ...backoff import refuse_backoff
from ...dead_letter_policy import refuse_dead_letters
from ...engine import SECOND, Options, UnsupportedError
from ...retention import refuse_retention
from .queue_calls import qid_of

ARN = "QueueArn"
"""An ARN: `arn:aws:sqs:REGION:ACCOUNT:NAME`."""
LONGEST_WINDOW = 43_200
"""Seconds that a message may be invisible: 12 hours (ReceiveMessage, VisibilityTimeout)."""
LEAST_RETENTION = 60
LONGEST_RETENTION = 1_209_600
"""Seconds for which SQS keeps a message, 14 days (SetQueueAttributes, MessageRetentionPeriod)."""
USUAL_RETENTION = 345_600
"""Seconds for which SQS keeps a message unless it is told another time: 4 days."""
NAMES = (ARN, "RedrivePolicy", "MessageRetentionPeriod")
"""Attributes that `read` needs."""


def check_options(options: Options) -> None:
    """Raises UnsupportedError for options that SQS cannot honour."""
    if options.capacity is not None:
        raise UnsupportedError("the storage 'sqs' has no capacity: SQS takes messages without a bound")
    if options.timestamps != "us":
        raise UnsupportedError("the storage 'sqs' has ids in microseconds only (timestamps)")
    if options.paused:
        raise UnsupportedError(
            "the storage 'sqs' cannot pause a queue: SQS goes on giving its messages to other programs"
        )
    whole_seconds(options.visibility, LONGEST_WINDOW, "a visibility window")
    refuse_dead_letters(options)
    refuse_retention(options)
    refuse_backoff(options)
    if options.retention is not None and _retention(options) < LEAST_RETENTION:
        raise UnsupportedError(f"SQS allows a retention of at least {LEAST_RETENTION} seconds")


def _retention(options: Options) -> int:
    """Returns seconds. UnsupportedError."""
    if options.retention is None:
        return USUAL_RETENTION
    return whole_seconds(options.retention, LONGEST_RETENTION, "a retention")


def whole_seconds(micros: int, most: int, what: str) -> int:
    """Rounds up. UnsupportedError for more seconds than SQS allows."""
    whole = -(-micros // SECOND)
    if whole > most:
        raise UnsupportedError(f"SQS allows {what} of at most {most} seconds; {whole} were asked for")
    return whole


def without(options: Options) -> Options:
    """Removes the options that SQS keeps."""
    return replace(options, dead_letter="", max_receives=None, retention=None)


def read(options: Options, attributes: Mapping[str, str], prefix: str) -> Options:
    """Adds SQS's attributes to the options, and a dead-letter queue of the prefix. LookupError, ValueError."""
    retention = attributes.get("MessageRetentionPeriod")  # not every endpoint has it
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    place, _, name = str(policy.get("deadLetterTargetArn", "")).rpartition(":")
    dead_letter = qid_of(name, prefix) if place == attributes[ARN].rpartition(":")[0] else None
    return replace(
        options,
        dead_letter=dead_letter or "",
        max_receives=int(policy["maxReceiveCount"]) if dead_letter else None,
        retention=None if retention is None else int(retention) * SECOND,
    )


def changed(old: Options, new: Options, target: str) -> dict[str, str]:
    """Returns the attributes that differ; others stay as they are at SQS. target: ARN of the dead-letter queue."""
    attributes = {}
    if new.visibility != old.visibility:
        attributes["VisibilityTimeout"] = str(whole_seconds(new.visibility, LONGEST_WINDOW, "a visibility window"))
    if new.retention != old.retention:
        attributes["MessageRetentionPeriod"] = str(_retention(new))
    if (new.dead_letter, new.max_receives) != (old.dead_letter, old.max_receives):
        policy = {"deadLetterTargetArn": target, "maxReceiveCount": str(new.max_receives)}
        attributes["RedrivePolicy"] = json.dumps(policy) if new.dead_letter else ""
    return attributes


def source_of(arn: str, prefix: str) -> str | None:
    """Returns the queue of an ARN; None if it is not of the prefix."""
    return qid_of(arn.rpartition(":")[2], prefix)
