"""The error of a failed call of SQS. Needs no boto3, so that the engine can be imported without it."""

from ..engine import RemoteError


class CallError(RemoteError):
    """A call of SQS has failed. codes: the words that SQS has for the error; empty when SQS did not answer."""

    def __init__(self, text: str, codes: frozenset[str] = frozenset()) -> None:
        super().__init__(text)
        self.codes = codes
