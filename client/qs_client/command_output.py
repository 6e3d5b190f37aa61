"""The output of `qs`: plain lines for people, or one JSON object a line for programs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

from qs_schemas import Delivery, GetMessage, QueueInfo
from qs_schemas.terminal import BOLD, has_colours, paint
from qs_schemas.text import escape_payload

OK = 0
INCOMPLETE = 1
NOTHING = 3
DECLINED = 4
"""Exit codes of subcommands. NOTHING: no message was found; DECLINED: a question was not answered with yes."""


def complain(text: str) -> None:
    """Writes a line to stderr, if the process has one."""
    if sys.stderr is not None:
        sys.stderr.write(f"qs: {' '.join(text.split())}\n")


class Output:
    """Writes UTF-8 to a binary stream; payloads are written unchanged, whatever the locale."""

    def __init__(self, stream: BinaryIO, *, as_json: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json
        self._colours = has_colours(stream)

    def flush(self) -> None:
        self._stream.flush()

    def line(self, text: str | None, record: Mapping[str, Any]) -> None:
        """Writes a result. text: for people, None for nothing; record: for programs."""
        if self._as_json:
            self._json(record)
        elif text is not None:
            self._stream.write(f"{text}\n".encode())

    def text(self, text: str) -> None:
        """Writes text for people."""
        self._stream.write(text.encode())

    def message(self, message: Delivery | GetMessage, *, heading: bool = False, ended: bool = False) -> None:
        """Writes a payload: text with a line end if it has none, anything else byte for byte, so that a file that was
        pushed comes out the same. heading: write a line with queue and id first; ended: a line end follows everything,
        as it does with headings, for what is read line by line."""
        payload = message.payload.encode() if isinstance(message.payload, str) else message.payload
        if self._as_json:
            self._json(_message_record(message, payload))
            return
        if heading:
            known = f"receives {message.receives}{_origin(message)}"
            line = f"==> {message.qid} {message.mid} ({known}) <=="
            self.text(f"{paint(line, BOLD) if self._colours else line}\n")
        if payload is not None:
            self._stream.write(payload)
            if not payload.endswith(b"\n") and (heading or ended or escape_payload(payload) is not None):
                self._stream.write(b"\n")

    def queues(self, queues: Iterable[QueueInfo], columns: Sequence[str]) -> None:
        """Writes the figures of queues, one queue a line. columns: the fields of QueueInfo for people; programs get
        all."""
        queues = list(queues)
        self.table(
            ["QUEUE", *(column.upper().replace("_", "-") for column in columns)],
            [[queue.qid, *(_cell(getattr(queue, column)) for column in columns)] for queue in queues],
            [_without_none(asdict(queue)) for queue in queues],
        )

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], records: Iterable[Mapping[str, Any]]) -> None:
        """Writes results of one kind: columns under a head for people, one record each for programs."""
        if self._as_json:
            for record in records:
                self._json(record)
            return
        for number, row in enumerate(_aligned([head, *rows])):
            self.text(f"{paint(row, BOLD) if self._colours and not number else row}\n")

    def _json(self, record: Mapping[str, Any]) -> None:
        import json  # noqa: PLC0415 - most output is for people

        self._stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _without_none(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


def _message_record(message: Delivery | GetMessage, payload: bytes | None) -> dict[str, Any]:
    record = _without_none({
        "qid": message.qid, "mid": message.mid, "status": message.status if isinstance(message, GetMessage) else None,
        "receives": message.receives, "pushed_at": message.pushed_at, "visible_at": message.visible_at,
        "dead_from": message.dead_from, "dead_mid": message.dead_mid, "dead_receives": message.dead_receives,
        "dead_at": message.dead_at, "dead_reason": message.dead_reason,
    })  # fmt: skip
    if payload is not None:
        try:
            record["payload"] = payload.decode()
        except UnicodeDecodeError:
            import base64  # noqa: PLC0415

            record["payload_base64"] = base64.b64encode(payload).decode()
    return record


def _origin(message: Delivery | GetMessage) -> str:
    """Returns where a dead letter comes from, for people; empty for any other message."""
    if message.dead_from is None:
        return ""
    times = f"after {message.dead_receives} receives at {as_time(message.dead_at)}"
    return f"; dead letter of {message.dead_from} {message.dead_mid}, {times}"


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yields the lines of a table, the first column aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def as_time(microseconds: int | None) -> str:
    """Formats a time as in RFC 3339, in UTC."""
    if microseconds is None:
        return "an unknown time"
    from datetime import UTC, datetime  # noqa: PLC0415 - most commands print no times, and it takes long to import

    try:
        return datetime.fromtimestamp(microseconds / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (OverflowError, ValueError):  # ids need not be times
        return "an unknown time"
