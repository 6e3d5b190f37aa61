"""Clients for tests, what they send, and servers that answer them what a test says."""
