"""Holds the parts that the queue server and the bus share: they accept clients, read from them, bound them, write to
them and turn them away.

The package knows the wire contract and trio, and nothing of queues.
"""
