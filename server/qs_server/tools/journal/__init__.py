"""Subcommands of queue-journal.py that take messages out of a journal, copy it, or change where a queue keeps them."""
