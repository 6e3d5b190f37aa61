"""The error that refuses a request of a subscriber."""

from qs_schemas import ErrorCode


class RefusedError(Exception):
    """A request cannot be honoured. error: the row of the table; text: says why, and what to do."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error = error
