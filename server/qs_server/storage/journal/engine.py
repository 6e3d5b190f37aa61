"""The `journal` engine: what is asked for is durable in one journal at once, and done to the files later."""

from ..directories import DirectoriesEngine


class JournalEngine(DirectoriesEngine):
    """New queues, and those without options, are queues of the journal."""

    name = "journal"
