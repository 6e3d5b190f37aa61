"""Engines for tests, and what drives, damages and compares them. Nothing here needs a queue server."""
