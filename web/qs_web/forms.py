"""Forms: reads them, and asks before a form destroys messages.

A form is read within bounds of bytes, fields and seconds, because any browser that reaches the page can send one. A
form that destroys messages, or moves many, is answered with a page that says how many and sends the same form again.
"""

import re
from binascii import a2b_qp
from collections.abc import Sequence
from dataclasses import dataclass

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from .visit import ProblemError, Visit

_SMALL = 512 * 1024
"""Bytes of a form, enough for a thousand names of queues."""
_FIELDS = 4000
"""Fields of a form. Each one costs objects, even if it is empty."""
_LARGE_AT_ONCE = 8
"""Forms with a payload that are read at the same time. One may have 26 MiB, and is copied while it is decoded."""
_SECONDS = 20.0
"""Seconds that a browser may take to send a form."""
MANY = 1000
"""Messages of a queue that are destroyed only after the queue's name has been typed."""

_NO_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def form_fields(body: bytes, most: int) -> dict[str, list[str]]:
    """Decodes the body of a form, application/x-www-form-urlencoded: field -> its values, in their order. A field
    without `=` has an empty value.

    most: the greatest number of fields. Raises ValueError if there are more, if the body is not UTF-8, or if a `%`
    begins no escape, which browsers never send.
    """
    # `urllib.parse.parse_qs` makes an object of each escaped byte: 8 MiB of Cyrillic text took it 2 GB, and seconds.
    # This takes a few copies of the body.
    if body.count(b"&") >= most:
        raise ValueError(f"more than {most} fields")
    if _NO_ESCAPE.search(body):
        raise ValueError("a % without two hexadecimal digits")
    fields: dict[str, list[str]] = {}
    for part in filter(None, body.split(b"&")):
        name, _, value = part.partition(b"=")
        fields.setdefault(_decoded(name), []).append(_decoded(value))
    return fields


def _decoded(part: bytes) -> str:
    # `%41` is `=41` in quoted-printable, whose decoder is in C and makes no object of an escape.
    return a2b_qp(part.replace(b"=", b"%3D").replace(b"+", b" ").replace(b"%", b"=")).decode()


class Form:
    """The fields of a form."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def has(self, name: str) -> bool:
        """Tells whether a field is there."""
        return name in self._fields

    def one(self, name: str) -> str:
        """Returns the value of a field, "" if it is missing."""
        return self._fields.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """Returns the different values of a field that may be there many times, in their order."""
        return list(dict.fromkeys(self._fields.get(name, [])))

    def flat(self, *without: str) -> list[tuple[str, str]]:
        """Returns all fields except those named as pairs, to send them again with another form."""
        return [(name, value) for name, values in self._fields.items() if name not in without for value in values]


_large = trio.CapacityLimiter(_LARGE_AT_ONCE)


async def read_large_form(request: Request, most: int) -> Form:
    """Reads the form of a request like `read_form`, and waits while eight others of this kind are read."""
    async with _large:
        return await read_form(request, most)


async def read_form(request: Request, most: int = _SMALL) -> Form:
    """Reads the form of a request. most: its greatest size in bytes. Raises ProblemError if it is too large, too slow,
    or no form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise ProblemError(415, "this is not a form of this page: send application/x-www-form-urlencoded")
    body = bytearray()
    try:
        with trio.fail_after(_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise ProblemError(413, f"the form is larger than {most} bytes")
    except trio.TooSlowError:
        raise ProblemError(408, f"the form was not complete within {_SECONDS:g} s") from None
    except ClientDisconnect:
        raise ProblemError(400, "the form was cut off") from None
    try:
        return Form(form_fields(bytes(body), _FIELDS))
    except ValueError:  # UnicodeDecodeError is one
        raise ProblemError(400, "the form is not readable: text in UTF-8, and not too many fields") from None


@dataclass(frozen=True, slots=True)
class AffectedQueue:
    """A queue whose messages are about to be destroyed. count: how many, None if the storage cannot tell the number."""

    qid: str
    count: int | None

    @property
    def needs_name(self) -> bool:
        """Tells whether the queue's name has to be typed."""
        return self.count is None or self.count > MANY


def is_confirmed(form: Form, affected: Sequence[AffectedQueue] = ()) -> bool:
    """Tells whether the form comes from the page that asks, and has the names that have to be typed."""
    return form.one("sure") == "yes" and all(
        form.one(f"typed-{number}").strip() == queue.qid.strip()
        for number, queue in enumerate(affected)
        if queue.needs_name
    )


def ask_to_confirm(
    visit: Visit,
    form: Form,
    *,
    title: str,
    text: str,
    button: str,
    back: str,
    affected: Sequence[AffectedQueue] = (),
    destroys: bool = True,
) -> Response:
    """Answers with the page that asks, and that sends the same form again.

    title: the question; text: what happens after a yes; back: the address to return to after a no; affected: the queues
    that lose messages; destroys: False if what happens can be undone.
    """
    # The page was confirmed and is asked for again: a name is wrong, or a queue has grown beyond `MANY` meanwhile.
    wrong = form.one("sure") == "yes"
    fields = [pair for pair in form.flat("sure") if not pair[0].startswith("typed-")]
    return visit.page(
        "confirm",
        409 if wrong else 200,
        action=str(visit.request.url.path) + (f"?{visit.request.url.query}" if visit.request.url.query else ""),
        fields=fields,
        title=title,
        text=text,
        button=button,
        back=back,
        affected=affected,
        destroys=destroys,
        wrong=wrong,
    )
