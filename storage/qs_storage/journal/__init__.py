"""The log-structured store: messages live in the log.

A message is one record in the log and some bytes of index in memory. It is not written again, except when compaction
copies the few messages still needed of an old segment and removes the segment.
"""
