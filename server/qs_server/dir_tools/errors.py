"""What the subcommands raise for `qs-dir` to say in a line."""


class UsageError(Exception):
    """Flags that do not go with each other, or with the directory: exit code 2."""


class CutShortError(Exception):
    """Something failed while messages went through; the text says what, and how many had gone: exit code 1."""
