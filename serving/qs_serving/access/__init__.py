"""Decides who a client is, and what it may do with which queues: the access file, tokens, principals and their rights.

The server and the bus both use it. The package knows neither queues nor connections.
"""
