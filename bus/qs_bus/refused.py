"""The error that refuses a subscriber's request."""

from qs_schemas import ErrorCode


class RefusedError(Exception):
    """A request is refused. error: the row of the error table; text: why, and what to do."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error = error
