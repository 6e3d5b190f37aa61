"""The parts that the queue server and the bus share: they accept clients, read, bound, write to and turn them away.

It knows the wire contract and trio, and nothing of queues.
"""
