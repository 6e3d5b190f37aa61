"""The log-structured store: the log is where the messages of its queues live, and stay.

A message is one record in the log and some bytes of index in memory. What is written once is not written again, until
the oldest segment holds so little that is still needed that this is copied to the end, and the segment removed.
"""
