"""What `qs` writes: plain lines for people, or one JSON object a line for programs."""

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, BinaryIO

from qs_schemas import Delivery, GetMessage, QueueInfo

OK = 0
INCOMPLETE = 1
NOTHING = 3
"""Exit codes of subcommands; NOTHING: there was no message."""


def complain(text: str) -> None:
    """A line on stderr, beside what stdout gets. Nothing where the process was started without a stderr."""
    if sys.stderr is not None:
        sys.stderr.write(f"qs: {' '.join(text.split())}\n")


class Output:
    """Writes UTF-8 to a binary stream: payloads go out as they are, whatever the locale."""

    def __init__(self, stream: BinaryIO, *, as_json: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json

    def flush(self) -> None:
        """Once this returns, everything is with the reader (or the system)."""
        self._stream.flush()

    def line(self, text: str | None, record: Mapping[str, Any]) -> None:
        """A fact: text for people (None: nothing, all went well), record for programs."""
        if self._as_json:
            self._json(record)
        elif text is not None:
            self._stream.write(f"{text}\n".encode())

    def message(self, message: Delivery | GetMessage, *, heading: bool = False) -> None:
        """A message: its payload, with a line end if it has none; heading: after a line with its queue and id."""
        payload = message.payload.encode() if isinstance(message.payload, str) else message.payload
        if self._as_json:
            self._json(_message_record(message, payload))
            return
        if heading:
            self._stream.write(f"==> {message.qid} {message.mid} (receives {message.receives}) <==\n".encode())
        if payload is not None:
            self._stream.write(payload)
            if not payload.endswith(b"\n"):
                self._stream.write(b"\n")

    def queues(self, queues: Iterable[QueueInfo], columns: Sequence[str]) -> None:
        """Figures of queues, a queue a line. columns: fields of QueueInfo that people see; programs get them all."""
        queues = list(queues)
        self.table(
            ["QUEUE", *(column.upper().replace("_", "-") for column in columns)],
            [[queue.qid, *(_cell(getattr(queue, column)) for column in columns)] for queue in queues],
            [_known(asdict(queue)) for queue in queues],
        )

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], records: Iterable[Mapping[str, Any]]) -> None:
        """Facts of the same kind: columns under a head for people, a record each for programs."""
        if self._as_json:
            for record in records:
                self._json(record)
            return
        for row in _aligned([head, *rows]):
            self._stream.write(f"{row}\n".encode())

    def _json(self, record: Mapping[str, Any]) -> None:
        self._stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _known(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


def _message_record(message: Delivery | GetMessage, payload: bytes | None) -> dict[str, Any]:
    record = _known({
        "qid": message.qid, "mid": message.mid, "status": message.status if isinstance(message, GetMessage) else None,
        "receives": message.receives, "pushed_at": message.pushed_at, "visible_at": message.visible_at,
    })  # fmt: skip
    if payload is not None:
        try:
            record["payload"] = payload.decode()
        except UnicodeDecodeError:
            record["payload_base64"] = base64.b64encode(payload).decode()
    return record


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """The first column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def as_time(microseconds: int | None) -> str:
    """UTC, as RFC 3339 writes it."""
    if microseconds is None:
        return "an unknown time"
    try:
        return datetime.fromtimestamp(microseconds / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (OverflowError, ValueError):  # an id need not be a time of this era
        return "an unknown time"
