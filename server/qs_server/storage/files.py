"""The `files` engine: what is asked for is done to the files at once. Others may share the directories while it runs."""

from .directories import DirectoriesEngine


class FilesEngine(DirectoriesEngine):
    """New queues, and those without options, are queues of files."""

    name = "files"
