"""The messages of a queue in memory, in a few machine words each: which are ready, which are hidden until when."""
