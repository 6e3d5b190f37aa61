"""What the queue server and the bus share: how clients are accepted, read from, bounded, written to and turned away.

It knows the wire contract and trio, and nothing of queues.
"""
