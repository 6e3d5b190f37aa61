"""What a subscriber is told that asks for what cannot be."""

from qs_schemas import ErrorCode


class RefusedError(Exception):
    """A request that cannot be honoured. error: the row of the table; the text says why, and what to do."""

    def __init__(self, error: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.error = error
