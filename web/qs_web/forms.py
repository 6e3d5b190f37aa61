"""Reads what a form sends, within bounds of size and time."""

import trio
from starlette.requests import ClientDisconnect, Request

from .form_fields import form_fields
from .problem import ProblemError

_SMALL = 512 * 1024
"""Bytes of a form. Room for a thousand names of queues."""
_FIELDS = 4000
_LARGE_AT_ONCE = 8
"""Forms larger than usual that are read at the same time. Others wait for their turn."""
_SECONDS = 20.0
"""Seconds that a browser may take to send a form."""


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
        """Returns the values of a field that may be there many times, without those that are there twice."""
        return list(dict.fromkeys(self._fields.get(name, [])))

    def flat(self, *without: str) -> list[tuple[str, str]]:
        """Returns all fields as pairs, but for those named, to send them again with another form."""
        return [(name, value) for name, values in self._fields.items() if name not in without for value in values]


_large = trio.CapacityLimiter(_LARGE_AT_ONCE)


async def read_large_form(request: Request, most: int) -> Form:
    """Reads the form of a request, when few others of this kind are being read. Otherwise like `read_form`."""
    async with _large:
        return await read_form(request, most)


async def read_form(request: Request, most: int = _SMALL) -> Form:
    """Reads the form of a request. most: bytes. ProblemError if it is too large, too slow, or no form."""
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
