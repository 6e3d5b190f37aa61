"""What the pipeline raises: each kind has the exit code that the command ends with.

The text of an error is one line that says what, where and what to do. What is raised in a Spark worker reaches the
driver only as text, so the class is known again by its name (see `translate`): names are kept, and no text has line
breaks.
"""

from typing import ClassVar


class PipelineError(Exception):
    """Anything that ends a job. exit_code: of the command; 1 stands for what has no code of its own."""

    exit_code: ClassVar[int] = 1

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class UsageError(PipelineError):
    """Arguments or options that are wrong, or do not go together."""

    exit_code = 2


class BadOptionError(UsageError):
    """An option of the data source that is unknown, missing, or has a value that it cannot have."""


class MissingExtraError(UsageError):
    """What the pipeline needs beyond the queue client is not installed."""


class NoJavaError(PipelineError):
    """There is no Java that Spark can run on."""

    exit_code = 3


class NoServerError(PipelineError):
    """The queue server cannot be reached, or does not answer, or what answers is none."""

    exit_code = 4


class NoSuchQueueError(PipelineError):
    """The server has no queue of that name."""

    exit_code = 5


class ClaimHeldError(PipelineError):
    """Somebody else works as the same consumer: the claim asked for is not this one's to make or to read."""

    exit_code = 6


class CheckpointLostError(PipelineError):
    """The checkpoint was deleted, or is older than what was done with it: going on would lose or double messages."""

    exit_code = 7


class BadQueryError(PipelineError):
    """SQL that cannot be parsed, or analysed, or that fails on the messages."""

    exit_code = 8


class SchemaMismatchError(PipelineError):
    """A schema that cannot be read, or does not fit what is there."""

    exit_code = 9


class DataLossError(PipelineError):
    """Messages that should be there are gone: claimed and purged, or released to others."""

    exit_code = 10


class BadMessageError(PipelineError):
    """A message or a row whose content cannot be what was asked for: bytes that are no text, a body that is null."""

    exit_code = 11
