"""The output of `qs`: plain lines for people, or one JSON object a line for programs."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

from qs_schemas import Delivery, GetMessage, QueueInfo
from qs_schemas.terminal import BOLD, has_colours, paint
from qs_schemas.text import escape_payload

from .standstill import why_nothing

OK = 0
INCOMPLETE = 1
NOTHING = 3
DECLINED = 4
"""Exit codes of subcommands. NOTHING: no message was found; DECLINED: a question was not answered with yes."""


def complain(text: str) -> None:
    """Writes a line to stderr. Does nothing if the process has no stderr, or its reader has gone."""
    if sys.stderr is not None:  # as in a shell with 2>&-
        with contextlib.suppress(OSError):
            sys.stderr.write(f"qs: {' '.join(text.split())}\n")


class Output:
    """Writes results: plain lines for people, or one JSON object a line for programs.

    Ensures: text is UTF-8, whatever the locale; a payload that is not text comes out byte for byte; a reason or a
    header, which is a stranger's text, is on one line and has no control characters.
    """

    def __init__(self, stream: BinaryIO, *, as_json: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json
        self._colours = has_colours(stream)

    def flush(self) -> None:
        self._stream.flush()

    def line(self, text: str | None, fields: Mapping[str, Any]) -> None:
        """Writes a result. text: for people, None for nothing; fields: for programs."""
        if self._as_json:
            self._json(fields)
        elif text is not None:
            self._stream.write(f"{text}\n".encode())

    def text(self, text: str) -> None:
        """Writes text for people."""
        self._stream.write(text.encode())

    def message(
        self, message: Delivery | GetMessage, *, heading: bool = False, headers: bool = False, ended: bool = False
    ) -> None:
        """Writes a payload: text with a line end if it has none, anything else byte for byte, so that a file that was
        pushed comes out the same. heading: write a line with queue and id first; headers: also a line for each header,
        and an empty one; ended: a line end follows everything, as it does with headings, for what is read line by
        line."""
        heading = heading or headers
        payload = message.payload.encode() if isinstance(message.payload, str) else message.payload
        if self._as_json:
            self._json(message_fields(message, payload))
            return
        if heading:
            line = f"==> {message.qid} {message.mid} ({'; '.join(_heading_parts(message))}) <=="
            self.text(f"{paint(line, BOLD) if self._colours else line}\n")
        if headers:
            self.text("".join(f"{name}: {one_line(text)}\n" for name, text in message.headers.items()) + "\n")
        if payload is not None:
            self._stream.write(payload)
            # A line end after text is for the terminal. After other bytes it would make another file of them.
            if not payload.endswith(b"\n") and (heading or ended or escape_payload(payload) is not None):
                self._stream.write(b"\n")

    def queues(self, queues: Iterable[QueueInfo], columns: Sequence[str]) -> None:
        """Writes the figures of queues, one queue a line. columns: the fields of QueueInfo for people, and `idle` for
        why nothing comes out; programs get all."""
        # One word each: scripts take the lines apart at white space.
        rows = [{**asdict(queue), "idle": why_nothing(queue).replace(" ", "-") or None} for queue in queues]
        self.table(
            ["QUEUE", *(column.upper().replace("_", "-") for column in columns)],
            [[fields["qid"], *(_cell(fields[column]) for column in columns)] for fields in rows],
            map(_without_none, rows),
        )

    def columns(self, head: Sequence[str], forms: Sequence[str]) -> "Columns":
        """Returns a table whose rows are written as they come. forms: the format of each column, as "<9"."""
        return Columns(self, head, forms)

    def heading(self, line: str) -> None:
        """Writes the head of a table, for people."""
        if not self._as_json:
            self.text(f"{paint(line, BOLD) if self._colours else line}\n")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], entries: Iterable[Mapping[str, Any]]) -> None:
        """Writes results of one kind: columns under a head for people, one JSON object each for programs."""
        if self._as_json:
            for fields in entries:
                self._json(fields)
            return
        first, *others = _aligned([head, *rows])
        self.heading(first)
        self.text("".join(f"{row}\n" for row in others))

    def _json(self, fields: Mapping[str, Any]) -> None:
        import json  # noqa: PLC0415 - most output is for people

        self._stream.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")


class Columns:
    """A table whose rows are written as they come: under a head for people, one JSON object each for programs. The head
    comes with the first row, because an error may come instead."""

    def __init__(self, out: Output, head: Sequence[str], forms: Sequence[str]) -> None:
        """Writes to an Output, see `Output.columns`."""
        self._out = out
        self._head = head
        self._forms = forms
        self._begun = False

    def row(self, cells: Sequence[str], fields: Mapping[str, Any]) -> None:
        """Writes a row, after the head if it is the first row."""
        self.begin()
        self._out.line(self._formatted(cells), fields)

    def begin(self) -> None:
        """Writes the head, once."""
        if not self._begun:
            self._begun = True
            self._out.heading(self._formatted(self._head))

    def _formatted(self, cells: Sequence[str]) -> str:
        return "  ".join(map(format, cells, self._forms)).rstrip()


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def message_fields(message: Delivery | GetMessage, payload: bytes | None) -> dict[str, Any]:
    """Returns the fields of a message, for programs. payload: None to leave it out."""
    fields = _without_none({
        "qid": message.qid, "mid": message.mid, "status": message.status, "receives": message.receives,
        "pushed_at": message.pushed_at, "visible_at": message.visible_at, "priority": message.priority or None,
        "group": message.group, "expires_at": message.expires_at, "headers": dict(message.headers) or None,
        "reason": message.reason,
        "dead_from": message.dead_from, "dead_mid": message.dead_mid, "dead_receives": message.dead_receives,
        "dead_at": message.dead_at, "dead_reason": message.dead_reason,
    })  # fmt: skip
    if payload is not None:
        try:
            fields["payload"] = payload.decode()
        except UnicodeDecodeError:
            import base64  # noqa: PLC0415

            fields["payload_base64"] = base64.b64encode(payload).decode()
    return fields


def _heading_parts(message: Delivery | GetMessage) -> Iterator[str]:
    """Yields the parts of a message's heading, for people: its receives, until when it is hidden if it was only looked
    at, what its push said of it, the queue from which it came if it is a dead letter, and the last reason."""
    yield f"receives {message.receives}"
    if message.status in ("in-flight", "delayed"):
        yield f"{message.status} until {as_time(message.visible_at)}"
    if message.priority:
        yield f"priority {message.priority}"
    if message.group is not None:
        yield f"group {one_line(message.group)}"
    if message.expires_at is not None:
        yield f"expires at {as_time(message.expires_at)}"
    if message.headers:
        yield f"headers {', '.join(message.headers)}"
    if message.dead_from is not None:
        why = "rejected" if message.dead_reason == "rejected" else f"after {message.dead_receives} receives"
        yield f"dead letter of {message.dead_from} {message.dead_mid}, {why} at {as_time(message.dead_at)}"
    if message.reason:
        yield f"reason: {one_line(message.reason)}"


def one_line(text: str) -> str:
    """Returns a stranger's text on one line, without characters that could change a terminal."""
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))


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
