"""The ids of answers."""

import secrets
from itertools import count

_prefix = secrets.token_hex(24)
_number = count(1)


def new_resp() -> str:
    """The id of an answer: 64 hex digits, never the same twice."""
    return f"{_prefix}{next(_number):016x}"
