"""The `journal` engine: what is asked for is durable in one journal at once, and done to the files later."""

from typing import ClassVar

from ..directories import DirectoriesEngine
from ..engine import Feature


class JournalEngine(DirectoriesEngine):
    """New queues, and those without options, are queues of the journal."""

    name = "journal"
    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.SHARED})
