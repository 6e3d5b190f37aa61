"""Messages as SQS carries them: text in the body, attributes for the id and the encoding.

A payload of UTF-8 with only the characters that SQS allows (SendMessage: tab, line feed, carriage return, U+0020 to
U+D7FF, U+E000 to U+FFFD, U+10000 on) is the body itself, for other programs to read. Others are Base64, and the
attribute `qs-encoding` says so. The body of an empty payload is `-`.

Our id is an attribute. The id of another program's message is the time at which it was sent, in SQS's milliseconds,
plus a hash of SQS's id: the same each time it is received.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...engine import QueueFullError

MOST_BYTES = 256 * 1024
"""Bytes a message with its attributes, and a call. Amazon allows more; other endpoints do not."""
MOST_ENTRIES = 10
"""Messages a call."""
MID = "qs-mid"
"""The attribute with our id of the message."""
ENCODING = "qs-encoding"
"""How the payload became the body: `base64` or `empty`; missing: as it is."""
SOURCE = "DeadLetterQueueSourceArn"
"""SQS's attribute of a dead letter: its former queue."""
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")


class Entry(NamedTuple):
    """A message for SendMessageBatch. size: bytes that count for SQS."""

    parameters: dict[str, Any]
    size: int


class Received(NamedTuple):
    """message, handle: SQS's; until: the end of its window; source: ARN of a dead letter's former queue, or empty."""

    qid: str
    message: str
    handle: str
    mid: int
    receives: int
    pushed_at: int
    payload: bytes
    until: int
    source: str = ""


def encode(payload: bytes, mid: int, delay: int) -> Entry:
    """delay: seconds. QueueFullError for a message larger than SQS carries."""
    body, encoding = _encode(payload)
    attributes = {MID: {"DataType": "Number", "StringValue": str(mid)}}
    if encoding is not None:
        attributes[ENCODING] = {"DataType": "String", "StringValue": encoding}
    size = len(body.encode()) + sum(
        len(name) + len(value["DataType"]) + len(value["StringValue"]) for name, value in attributes.items()
    )
    if size > MOST_BYTES:
        coded = " as Base64, because it is not text," if encoding == "base64" else ""
        raise QueueFullError(
            f"a message of {len(payload)} bytes needs {size} at SQS{coded} with its attributes, and {MOST_BYTES} is "
            "the most: send less, or use a queue of the storage 'journal'"
        )
    return Entry({"MessageBody": body, "DelaySeconds": delay, "MessageAttributes": attributes}, size)


def _encode(payload: bytes) -> tuple[str, str | None]:
    if not payload:
        return "-", "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = "\0"
    if _NOT_ALLOWED.search(text):
        return base64.b64encode(payload).decode("ascii"), "base64"
    return text, None


def decode(qid: str, message: dict[str, Any], until: int) -> Received:
    """Raises LookupError, ValueError for an answer that is not SQS's."""
    system, own = message.get("Attributes", {}), message.get("MessageAttributes", {})
    sent = int(system.get("SentTimestamp", 0))
    message_id = message["MessageId"]
    mid = own.get(MID, {}).get("StringValue", "")
    return Received(
        qid=qid,
        message=message_id,
        handle=message["ReceiptHandle"],
        mid=int(mid) if _NUMBER.fullmatch(mid) else sent * 1000 + zlib.crc32(message_id.encode()) % 1000,
        receives=int(system.get("ApproximateReceiveCount", 1)),
        pushed_at=sent * 1000,
        payload=_decode(message.get("Body", ""), own.get(ENCODING, {}).get("StringValue")),
        until=until,
        source=system.get(SOURCE, ""),
    )


def _decode(body: str, encoding: str | None) -> bytes:
    """Returns the body itself if it is not encoded as it says."""
    if encoding == "empty":
        return b""
    if encoding == "base64":
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            pass
    return body.encode(errors="surrogatepass")


def batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yields the entries in order, in lists for one call each."""
    batch: list[Entry] = []
    size = 0
    for each in entries:
        if batch and (len(batch) == MOST_ENTRIES or size + each.size > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.size
    if batch:
        yield batch
