"""The errors of the pipeline. Each class has an exit code of the command.

Their text is one line that says what, where and what to do. A Spark worker's error reaches the driver only as text and
is recognized by its class name (see `translate`), so names stay, and texts have no line breaks.
"""

from typing import ClassVar

from qs_schemas.extras import install

INSTALL = install("spark")
"""The command that installs the packages of the pipeline."""


class PipelineError(Exception):
    """Ends a job. exit_code: the command's; 1 for errors without a code of their own."""

    exit_code: ClassVar[int] = 1

    def __init__(self, text: str) -> None:
        # One line: a worker's error is found again in Spark's text as the rest of the line after the class.
        super().__init__(" ".join(text.split()))


class UsageError(PipelineError):
    """Arguments or options are wrong, or do not go together."""

    exit_code = 2


class BadOptionError(UsageError):
    """An option of the data source is unknown, missing, or has a wrong value."""


class MissingExtraError(UsageError):
    """A package that the pipeline needs is not installed."""


class NoJavaError(PipelineError):
    """No Java was found that Spark can run on."""

    exit_code = 3


class NoServerError(PipelineError):
    """The queue server cannot be reached, does not answer, or is not a queue server."""

    exit_code = 4


class NoSuchQueueError(PipelineError):
    """The server has no queue of that name."""

    exit_code = 5


class ConsumerInUseError(PipelineError):
    """Raised when another query works as the same consumer, so this one may neither make nor read its claims."""

    exit_code = 6


class CheckpointLostError(PipelineError):
    """The checkpoint was deleted, or is older than the work that was done with it: continuing would lose or duplicate
    messages."""

    exit_code = 7


class BadQueryError(PipelineError):
    """A SQL query cannot be parsed or analysed, or fails on the messages."""

    exit_code = 8


class SchemaMismatchError(PipelineError):
    """A schema cannot be read, or does not fit the data."""

    exit_code = 9


class DataLossError(PipelineError):
    """Messages are missing: they were claimed and purged, or released to others."""

    exit_code = 10


class BadMessageError(PipelineError):
    """A message or row does not have the requested content: bytes that are not text, a body that is null."""

    exit_code = 11
