"""The `files` engine: everything is done to the files at once, and others may share the directories while it runs."""

from .directories import DirectoriesEngine


class FilesEngine(DirectoriesEngine):
    """New queues, and those without options, are queues of files."""

    name = "files"
