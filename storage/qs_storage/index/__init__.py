"""The messages of a queue in memory, in a few machine words each: the visible ones in order, the others with times."""
