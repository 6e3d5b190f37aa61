"""The subcommands of queue-journal.py."""
