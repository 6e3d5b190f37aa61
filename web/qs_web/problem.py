"""The error of a request that is the visitor's fault."""


class ProblemError(Exception):
    """Something that the visitor is told. status: the HTTP status; the text says what, and what to do."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
