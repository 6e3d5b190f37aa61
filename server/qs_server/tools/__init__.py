"""What the command `qs-dir` is made of: work on queue directories, without a server."""
