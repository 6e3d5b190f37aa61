"""Implements the bus, which pushes new messages of the queue server to subscribers."""
