"""Queues in the vsqs layout: a file for each message."""
