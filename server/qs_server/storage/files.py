"""The `files` engine: everything is done to the files at once, and others may share the directories while it runs."""

from typing import ClassVar

from .directories import DirectoriesEngine
from .engine import Feature


class FilesEngine(DirectoriesEngine):
    """New queues, and those without options, are queues of files."""

    name = "files"
    cannot: ClassVar[frozenset[Feature]] = frozenset({Feature.KEY, Feature.CLAIM, Feature.HELD})
