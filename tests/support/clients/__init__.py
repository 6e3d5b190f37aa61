"""Clients for tests, the requests that they send, and servers that answer as a test says."""
