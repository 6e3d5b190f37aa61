"""Queues to read and write for tests of the pipeline, and results computed in plain Python."""
