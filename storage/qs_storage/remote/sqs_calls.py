"""The calls to SQS, and the names of queues, options and messages in SQS's own format.

Names at SQS are 1 to 80 of A-Z, a-z, 0-9, hyphen and underscore (CreateQueue, QueueName).
Every other byte, in UTF-8, is `_xHH`, in capitals: `a/b` is `a_x2Fb`. The underscore of such a group in a name is
`_x5F`: `a_x2Fb` is `a_x5Fx2Fb`. So no two names become the same.

A payload of UTF-8 with only the characters that SQS allows (SendMessage: tab, line feed, carriage return, U+0020 to
U+D7FF, U+E000 to U+FFFD, U+10000 on) is the body itself, for other programs to read. Others are Base64, and the
attribute `qs-encoding` says so. The body of an empty payload is `-`.

Headers are attributes of the type String. The attributes of other programs are headers where they can be: those of the
types String and Number, in the order of their names, as SQS promises no other.

The id that this server gives is an attribute. The id of another program's message is the time at which it was sent, in
SQS's milliseconds, plus a hash of SQS's id: the same each time the message is received.
"""

import base64
import binascii
import json
import random
import re
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 - botocore's, which is another one
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from ..engine import (
    SECOND,
    BadQueueNameError,
    Draft,
    Headers,
    Options,
    QueueFullError,
    RemoteError,
    StorageError,
    UnsupportedError,
)
from ..headers import headers_among

_CONNECTIONS = 100
"""Connections kept open: each long poll has its own."""
_ANY_REGION = "us-east-1"
"""For a named endpoint: requests are signed for some region."""
_BUSY = frozenset(
    {"RequestLimitExceeded", "TooManyRequestsException", "SlowDown", "ServiceUnavailable", "InternalError"}
)
_REFUSED = re.compile("AccessDenied|AccessKey|AuthFailure|Expired|OptInRequired|Signature|Token|UnrecognizedClient")
"""Parts of SQS's codes for credentials that it refuses."""
LONGEST_NAME = 80
_PREFIX = re.compile("[A-Za-z0-9_-]{0,79}")
_QID = re.compile("[^\x00-\x1f\x7f-\x9f]+")
_GROUP = re.compile(rb"_x([0-9A-F]{2})")
_ESCAPED = re.compile("_(?=x[0-9A-F]{2})|[^A-Za-z0-9_-]")
ARN = "QueueArn"
"""An ARN: `arn:aws:sqs:REGION:ACCOUNT:NAME`."""
LONGEST_WINDOW = 43_200
"""Seconds that a message may be invisible: 12 hours (ReceiveMessage, VisibilityTimeout)."""
LEAST_RETENTION = 60
LONGEST_RETENTION = 1_209_600
"""Seconds for which SQS keeps a message, 14 days (SetQueueAttributes, MessageRetentionPeriod)."""
USUAL_RETENTION = 345_600
"""Seconds for which SQS keeps a message unless it is told another time: 4 days."""
KEPT = (ARN, "RedrivePolicy", "MessageRetentionPeriod")
"""Attributes that `with_kept` needs."""
MOST_BYTES = 256 * 1024
"""Bytes a message with its attributes, and a call. Amazon allows more; other endpoints do not."""
MOST_ENTRIES = 10
"""Messages a call."""
MID = "qs-mid"
"""The attribute with the id that this server has given the message."""
MOST_ATTRIBUTES = 10
"""Attributes a message, with the server's own."""
ENCODING = "qs-encoding"
"""How the payload became the body: `base64` or `empty`; missing: as it is."""
_OWN = frozenset({MID, ENCODING})
SOURCE = "DeadLetterQueueSourceArn"
"""SQS's attribute of a dead letter: its former queue."""
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")
_is_attribute = re.compile(r"(?!aws\.|amazon\.)[^.]+(\.[^.]+)*", re.IGNORECASE).fullmatch
"""Matches those names of headers that SQS allows for attributes (SendMessage, MessageAttributes)."""


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """The most seconds that calls to SQS take. With the defaults a call fails after some 3 s of pauses, or after a
    minute without an answer."""

    attempts: int = 5
    """Calls, the first one included; at least 1."""
    pause: float = 0.25
    """Before the second attempt, doubled before each further one. Each is shortened at random, by half at most."""
    longest_pause: float = 5.0
    connect_timeout: float = 3.0
    read_timeout: float = 10.0
    """For an answer, in addition to the wait for a message."""
    longest_poll: int = 20
    """Whole seconds that SQS waits for a message; it allows 20."""
    leave: float = 1.0
    """Seconds that `close` waits for long polls without a receiver."""
    settle: float = 5.0
    """Seconds for queues with a message made visible less than that ago: SQS may have given it to such a poll."""


class CallError(RemoteError):
    """A call to SQS failed. codes: the codes of the error at SQS; empty when SQS did not answer."""

    def __init__(self, text: str, codes: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.codes = codes


class SqsClient:
    """Calls SQS, and repeats a call while a later try may succeed. Several threads may use one client.

    Ensures that an error says whether SQS refused, could not be reached, or may take the call later. A call that is
    repeated may be done twice: SQS promises no more."""

    def __init__(self, endpoint: str | None, region: str | None, policy: CallPolicy) -> None:
        """endpoint: a URL, None for Amazon's; region: None for the environment's. StorageError for a bad endpoint."""
        if endpoint is not None and not _is_url(endpoint):
            raise StorageError(f"the endpoint of SQS is a URL like http://127.0.0.1:9324; this is {endpoint!r}")
        self.endpoint = endpoint or "Amazon"
        self._url = endpoint
        self._region = region
        self.policy = policy
        self._closing = threading.Event()
        self._connecting = threading.Lock()
        self._clients: list[Any] = []
        """For calls that are answered at once, and for long polls."""

    def connect(self) -> list[Any]:
        """Makes boto3's clients once, which sends nothing. RemoteError."""
        with self._connecting:  # which also keeps boto3's session to one thread
            if not self._clients:
                self._clients = self._make_clients()
            return self._clients

    def _make_clients(self) -> list[Any]:
        policy = self.policy
        try:
            session = boto3.session.Session(region_name=self._region)
            region = session.region_name or (_ANY_REGION if self._url else None)
            clients = [
                session.client(
                    "sqs",
                    region_name=region,
                    endpoint_url=self._url,
                    config=Config(
                        connect_timeout=policy.connect_timeout,
                        read_timeout=wait + policy.read_timeout,
                        max_pool_connections=_CONNECTIONS,
                        retries={"total_max_attempts": 1},  # `call` repeats whatever boto3 raises, and can be stopped
                    ),
                )
                for wait in (0, policy.longest_poll)
            ]
        except NoRegionError:
            raise CallError("SQS needs a region: set AWS_DEFAULT_REGION, or name an endpoint") from None
        except (BotoCoreError, ValueError) as error:
            raise CallError(f"SQS at {self.endpoint} cannot be used: {error}") from None
        self.endpoint = str(clients[0].meta.endpoint_url)
        return clients

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Calls an operation of boto3, and repeats the call while a later try may succeed. CallError."""
        short, long = self._clients or self.connect()
        client = long if parameters.get("WaitTimeSeconds") else short
        attempt, pause = 1, self.policy.pause
        while True:
            try:
                answer: dict[str, Any] = getattr(client, operation)(**parameters)
                return answer
            except (ClientError, BotoCoreError) as error:
                # A stop is not held up by repetitions.
                last = attempt >= self.policy.attempts or self._closing.is_set()
                if last or not self._may_pass(error):
                    raise self._failure(operation, error, attempt) from None
            # At random, so that servers that failed together do not come back together.
            self._closing.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            attempt, pause = attempt + 1, min(2 * pause, self.policy.longest_pause)

    def _may_pass(self, error: Any) -> bool:
        """Tells whether a failed call may succeed later."""
        if not isinstance(error, ClientError):
            return isinstance(error, HTTPClientError | ConnectionError)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        codes = _codes(error)
        return status >= 500 or status == 429 or bool(codes & _BUSY) or any("Throttl" in code for code in codes)

    def _failure(self, operation: str, error: Exception, attempts: int) -> CallError:
        where = f"SQS at {self.endpoint}"
        tried = f"after {attempts} attempts" if attempts > 1 else "at the first attempt"
        if isinstance(error, ClientError):
            codes, text = _codes(error), _text(error)
            if self._may_pass(error):
                return CallError(f"{where} could not do {operation}, {tried}: {text}; try again later", codes)
            if _REFUSED.search(" ".join(codes)):
                return CallError(
                    f"{where} does not accept the server's credentials for {operation}: {text}; renew them, or give "
                    "them the right to do this",
                    codes,
                )
            return CallError(f"{where} refused {operation}: {text}", codes)
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return CallError(
                f"there are no credentials for {where}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where the "
                f"server is started, or a profile with AWS_PROFILE ({error})"
            )
        if self._may_pass(error):
            return CallError(
                f"{where} does not answer, {tried}: {error}; is it running, is that its address, is the network there?"
            )
        return CallError(f"{where} cannot be asked to do {operation}: {error}")

    def close(self) -> None:
        """Ends the pauses between attempts. From now on, no call is repeated."""
        self._closing.set()

    def disconnect(self) -> None:
        for client in self._clients:
            client.close()


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _codes(error: Any) -> frozenset[str]:
    """Returns the codes of an error at SQS, in both of its protocols."""
    described = error.response.get("Error", {})
    words = (str(described.get(key, "")) for key in ("Code", "QueryErrorCode"))
    return frozenset(word.rpartition(".")[2] for word in words if word)


def _text(error: Any) -> str:
    described = error.response.get("Error", {})
    code, message = described.get("Code", "no code"), str(described.get("Message", ""))[:500]
    return f"{code}: {message}" if message else str(code)


# -- names


def check_prefix(prefix: str) -> None:
    """Checks that names at SQS can begin with a prefix. StorageError."""
    if not _PREFIX.fullmatch(prefix):
        raise StorageError(
            f"the prefix of names at SQS is at most {LONGEST_NAME - 1} of A-Z, a-z, 0-9, '-' and '_'; this one is "
            f"{prefix!r}"
        )


def name_at_sqs(qid: str, prefix: str) -> str:
    """Returns a queue's name at SQS. BadQueueNameError if that would be too long."""
    name = prefix + _ESCAPED.sub(_escape, qid)
    if len(name) > LONGEST_NAME:
        raise BadQueueNameError(
            f"at SQS, queue {qid!r} would need the name {name!r} of {len(name)} characters; {LONGEST_NAME} is the "
            "most: shorten its name, or use fewer characters other than A-Z, a-z, 0-9, '-' and '_'"
        )
    return name


def qid_of(name: str, prefix: str) -> str | None:
    """Returns the name of the queue with a name at SQS, None if the name does not have this prefix."""
    if not name.startswith(prefix):
        return None
    # Back and forth again, below: a name that this server would not have made is not one of its queues.
    raw = _GROUP.sub(lambda match: bytes.fromhex(match[1].decode()), name[len(prefix) :].encode())
    try:
        qid = raw.decode()
        return qid if _QID.fullmatch(qid) and name_at_sqs(qid, prefix) == name else None
    except (UnicodeDecodeError, BadQueueNameError):
        return None


def _escape(match: re.Match[str]) -> str:
    return "".join(f"_x{byte:02X}" for byte in match.group().encode())


# -- options that SQS keeps. Other programs can change them there, so this server keeps no copy and asks.


def retention_of(options: Options) -> int:
    """Returns a retention in SQS's seconds. UnsupportedError if SQS does not allow it."""
    if options.retention is None:
        return USUAL_RETENTION
    return whole_seconds(options.retention, LONGEST_RETENTION, "a retention")


def whole_seconds(micros: int, most: int, what: str) -> int:
    """Rounds microseconds up to seconds. UnsupportedError for more seconds than SQS allows."""
    whole = -(-micros // SECOND)
    if whole > most:
        raise UnsupportedError(f"SQS allows {what} of at most {most} seconds; {whole} were asked for")
    return whole


def without_kept(options: Options) -> Options:
    """Removes the options that SQS keeps from a queue's options."""
    return replace(options, dead_letter="", max_receives=None, retention=None)


def with_kept(options: Options, attributes: Mapping[str, str], prefix: str) -> Options:
    """Adds SQS's attributes to the options. Ignores a dead-letter queue without the prefix. LookupError, ValueError."""
    retention = attributes.get("MessageRetentionPeriod")  # not every endpoint has it
    # Other programs may have set another one, also to a queue that is not ours.
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    place, _, name = str(policy.get("deadLetterTargetArn", "")).rpartition(":")
    dead_letter = qid_of(name, prefix) if place == attributes[ARN].rpartition(":")[0] else None
    return replace(
        options,
        dead_letter=dead_letter or "",
        max_receives=int(policy["maxReceiveCount"]) if dead_letter else None,
        retention=None if retention is None else int(retention) * SECOND,
    )


def changed_attributes(old: Options, new: Options, target: str) -> dict[str, str]:
    """Returns the attributes that differ between two options; the others stay as they are at SQS. target: the ARN of
    the dead-letter queue."""
    attributes = {}
    if new.visibility != old.visibility:
        attributes["VisibilityTimeout"] = str(whole_seconds(new.visibility, LONGEST_WINDOW, "a visibility window"))
    if new.retention != old.retention:
        attributes["MessageRetentionPeriod"] = str(retention_of(new))
    if (new.dead_letter, new.max_receives) != (old.dead_letter, old.max_receives):
        policy = {"deadLetterTargetArn": target, "maxReceiveCount": str(new.max_receives)}
        attributes["RedrivePolicy"] = json.dumps(policy) if new.dead_letter else ""
    return attributes


def source_of(arn: str, prefix: str) -> str | None:
    """Returns the name of the queue with an ARN, None if it does not have the prefix."""
    return qid_of(arn.rpartition(":")[2], prefix)


# -- messages


class Entry(NamedTuple):
    """A message for SendMessageBatch. size: the bytes that count for SQS."""

    parameters: dict[str, Any]
    size: int


class Received(NamedTuple):
    """A message that SQS has handed out. message, handle: SQS's own id and receipt handle; until: the end of the
    message's window; source: the ARN of a dead letter's former queue, or empty."""

    qid: str
    message: str
    handle: str
    mid: int
    receives: int
    pushed_at: int
    payload: bytes
    until: int
    source: str = ""
    headers: Headers = ()

    @property
    def size(self) -> int:
        """The bytes of payload and headers."""
        return len(self.payload) + sum([len(name) + len(text.encode()) for name, text in self.headers])


def encode(draft: Draft, mid: int, delay: int) -> Entry:
    """Makes an entry of a message. delay: seconds. QueueFullError for a message larger than SQS carries;
    UnsupportedError for headers that cannot be attributes."""
    payload = draft.payload
    body, encoding = _encode(payload)
    attributes = {MID: {"DataType": "Number", "StringValue": str(mid)}}
    if encoding is not None:
        attributes[ENCODING] = {"DataType": "String", "StringValue": encoding}
    if draft.headers:
        _check_headers(draft.headers, MOST_ATTRIBUTES - len(attributes))
        attributes |= {name: {"DataType": "String", "StringValue": text} for name, text in draft.headers}
    size = len(body.encode()) + sum(
        len(name) + len(value["DataType"]) + len(value["StringValue"].encode()) for name, value in attributes.items()
    )
    if size > MOST_BYTES:
        coded = " as Base64, because it is not text," if encoding == "base64" else ""
        raise QueueFullError(
            f"a message of {len(payload)} bytes needs {size} at SQS{coded} with its attributes, and {MOST_BYTES} is "
            "the most: send less, or use a queue of the storage 'journal'"
        )
    return Entry({"MessageBody": body, "DelaySeconds": delay, "MessageAttributes": attributes}, size)


def _check_headers(headers: Headers, room: int) -> None:
    """Checks that headers can be attributes at SQS. room: how many there may be. UnsupportedError."""
    if len(headers) > room:
        ours = MOST_ATTRIBUTES - room
        raise UnsupportedError(
            f"a message has at most {MOST_ATTRIBUTES} attributes at SQS, of which the server needs {ours} here; this "
            f"one has {len(headers)} headers: send {room} at most, or use a queue of the storage 'journal'"
        )
    for name, text in headers:
        if not _is_attribute(name):
            raise UnsupportedError(
                f"SQS does not allow an attribute {name!r}, which the header would be: a name there does not begin "
                "with 'AWS.' or 'Amazon.', begins and ends with no dot, and has no two dots side by side"
            )
        if not text:
            raise UnsupportedError(f"SQS carries no empty attributes, and the header {name!r} has no text")


def _encode(payload: bytes) -> tuple[str, str | None]:
    if not payload:
        return "-", "empty"
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = "\0"
    # SQS does not allow these characters in a body.
    if _NOT_ALLOWED.search(text):
        return base64.b64encode(payload).decode("ascii"), "base64"
    return text, None


def decode(qid: str, message: dict[str, Any], until: int) -> Received:
    """Converts a message of SQS's answer. LookupError, ValueError if the answer is not in SQS's format."""
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
        headers=headers_among((name, own[name].get("StringValue")) for name in sorted(own))
        if own.keys() - _OWN
        else (),
    )


def _decode(body: str, encoding: str | None) -> bytes:
    """Returns the payload in a body. A body that is not in the encoding that it names is the payload itself."""
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
